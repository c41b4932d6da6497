"""An expression is compiled only if sqlglot reads it as Spark's grammar does, and if every operation is proven."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from tests.sql_expressions import EXPRESSIONS, REFUSED
from tidegate.pipelines.sources.sql.compile import compile_expression
from tidegate.pipelines.sources.sql.program import as_array, columns_read
from tidegate.pipelines.sources.sql.reading import Unproven
from tidegate.pipelines.sources.sql.words import changing_call, columns_in

COLUMNS = pa.schema(
    [
        *((name, pa.int32()) for name in ("i1", "i2", "small1", "small2", "a b")),
        *((name, pa.int64()) for name in ("l1", "l2")),
        ("b1", pa.int8()),
        ("h1", pa.int16()),
        *((name, pa.float64()) for name in ("d1", "d2", "c1")),
        ("c2", pa.decimal128(38, 18)),
        ("c3", pa.float32()),
        ("z1", pa.timestamp("us", "UTC")),
        ("z2", pa.string()),
        ("f1", pa.float32()),
        *((name, pa.string()) for name in ("s1", "s2", "n1", "m1")),
        *((name, pa.date32()) for name in ("day1", "day2")),
        *((name, pa.timestamp("us", "UTC")) for name in ("t1", "t2")),
        ("p1", pa.decimal128(12, 2)),
        ("p2", pa.decimal128(5, 3)),
        *((name, pa.bool_()) for name in ("ok1", "ok2")),
        ("st", pa.struct([("X", pa.int32()), ("name", pa.string()), ("in", pa.struct([("d", pa.float64())]))])),
    ]
)


def test_every_listed_expression_is_compiled_and_its_program_travels_and_runs_without_rows() -> None:
    nothing = COLUMNS.empty_table().to_batches() or [
        pa.RecordBatch.from_arrays([pa.array([], field.type) for field in COLUMNS], schema=COLUMNS)
    ]
    for expression in EXPRESSIONS:
        program = pickle.loads(pickle.dumps(compile_expression(expression, COLUMNS)))
        assert as_array(program.evaluate(nothing[0]), 0).type == program.type, expression


@pytest.mark.parametrize("expression", REFUSED)
def test_an_expression_that_is_not_proven_is_refused_with_a_reason(expression: str) -> None:
    with pytest.raises(Unproven) as refused:
        compile_expression(expression, COLUMNS)
    assert str(refused.value)


@pytest.mark.parametrize("expression", ["s1 = 'O''Brien'", "s1 in ('a', 'O' 'Brien')"])
def test_a_doubled_quote_is_refused_with_the_way_to_write_it(expression: str) -> None:
    with pytest.raises(Unproven, match='write a string with a quote as "O\'Brien"'):
        compile_expression(expression, COLUMNS)
    compile_expression("""s1 = "O'Brien" """, COLUMNS)


@pytest.mark.parametrize(
    "expression",
    [
        "s1 || i1 + 1",  # for Spark (s1 || i1) + 1
        "i1 <=> i2 < l1",  # for Spark (i1 <=> i2) < l1
        "ok1 = i1 < i2",  # for Spark (ok1 = i1) < i2
        "ok1 = ok2 is null",
        "i1 = i2 between 1 and 2",
        "ok1 = i1 in (1, 2)",
    ],
)
def test_an_expression_that_sqlglot_would_group_otherwise_than_spark_asks_for_parentheses(expression: str) -> None:
    with pytest.raises(Unproven, match="parentheses"):
        compile_expression(expression, COLUMNS)


@pytest.mark.parametrize(
    "name",
    [
        "user",
        "date",
        "time",
        "timestamp",
        "value",
        "key",
        "type",
        "end",
        "order",
        "index",
        "year",
        "range",
        "all",
        "if",
    ],
)
@pytest.mark.parametrize(
    "form", ["{} > 1", "{0} + {0} > 1", "coalesce({}, 1) = 1", "{} is null", "-{} < 3", "`{}` = 1"]
)
def test_a_column_that_is_named_like_a_word_of_sql_is_read_or_refused(name: str, form: str) -> None:
    try:
        program = compile_expression(form.format(name), pa.schema([(name, pa.int32())]))
    except Unproven:
        return
    assert columns_read(program) == {name}


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("1", pa.int32()),
        ("2147483647", pa.int32()),
        ("2147483648", pa.int64()),
        ("-2147483648", pa.int32()),
        ("9223372036854775808", pa.decimal128(19, 0)),
        ("1L", pa.int64()),
        ("1S", pa.int16()),
        ("1Y", pa.int8()),
        ("1.5", pa.decimal128(2, 1)),
        ("0.05", pa.decimal128(2, 2)),
        ("1.5BD", pa.decimal128(2, 1)),
        ("1e3", pa.float64()),
        ("1.5D", pa.float64()),
        ("i1 + l1", pa.int64()),
        ("i1 / i2", pa.float64()),
        ("i1 div i2", pa.int64()),
        ("f1 + i1", pa.float64()),
        ("b1 + b1", pa.int8()),
        ("p1 + p2", pa.decimal128(14, 3)),
        ("p1 * p2", pa.decimal128(18, 5)),
        ("p1 * 2", pa.decimal128(14, 2)),
        ("coalesce(p1, 0)", pa.decimal128(12, 2)),
        ("coalesce(i1, p2)", pa.decimal128(13, 3)),
    ],
)
def test_types_of_results_are_sparks(expression: str, kind: pa.DataType) -> None:
    assert compile_expression(expression, COLUMNS).type == kind


OF_THE_SOURCE = ("User", "a.b", "x`y", "now", "payload", "other")


@pytest.mark.parametrize(
    ("expression", "columns"),
    [
        ("soundex(user)", ["User"]),
        ("`a.b` + `x``y`", ["a.b", "x`y"]),
        ("payload.deep.other", ["payload", "other"]),
        ("concat('user', \"other\")", ["User", "other"]),
        ("transform(payload, x -> x * 2)", ["payload"]),
        ("to_json(struct(*))", list(OF_THE_SOURCE)),
        ("struct(payload.*)", list(OF_THE_SOURCE)),
        ("1 + 1", []),
        ("user -- payload", ["User"]),
    ],
)
def test_an_expression_names_all_columns_that_it_reads(expression: str, columns: list[str]) -> None:
    assert columns_in([expression], OF_THE_SOURCE) == columns


def test_an_expression_that_has_no_words_may_name_every_column() -> None:
    assert columns_in(["'never closed"], OF_THE_SOURCE) == list(OF_THE_SOURCE)


@pytest.mark.parametrize(
    "expression",
    [
        "now()",
        "Now ( )",
        "current_timestamp",
        "CURRENT_TIMESTAMP()",
        "date_add(current_date, 1)",
        "curdate()",
        "localtimestamp()",
        "unix_timestamp()",
        "at < timestamp 'now'",
        "at < date'tomorrow '",
        "rand() < 0.5",
        "transform(array(value), x -> x + RAND(7))",
        "uuid()",
        "input_file_name()",
        "monotonically_increasing_id()",
        "spark_partition_id()",
        "shuffle(array(value, 1))",
    ],
)
def test_a_clock_or_a_drawn_value_is_found(expression: str) -> None:
    assert changing_call(expression, OF_THE_SOURCE) is not None


@pytest.mark.parametrize(
    "expression",
    [
        "now",
        "`current_timestamp` is null",
        "payload.current_date",
        "'now()'",
        "unix_timestamp(at)",
        "timestamp'2024-01-01'",
        "user = 'now'",
        "rand > 1",
        "payload.uuid is null",
    ],
)
def test_a_column_or_a_text_changes_nothing(expression: str) -> None:
    assert changing_call(expression, OF_THE_SOURCE) is None


def test_a_column_goes_before_the_clock_of_its_name() -> None:
    assert changing_call("current_date", [*OF_THE_SOURCE, "Current_Date"]) is None
    assert changing_call("current_date()", [*OF_THE_SOURCE, "current_date"]) is not None
