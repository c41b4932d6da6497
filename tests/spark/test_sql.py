"""SQL that runs as Arrow compute gives Spark's values, types and errors."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from pyspark.errors import AnalysisException

from tests.lake import hourly_pipeline
from tests.sql_expressions import EXPRESSIONS, drawn
from tidegate.pipelines.engine.spark.jvm import installed_names
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.sql.compile import as_condition, compile_expression
from tidegate.pipelines.sources.sql.program import Node, OnlyBySpark, RowFailure, as_array, can_fail
from tidegate.pipelines.sources.sql.reading import Misfit, Unproven
from tidegate.pipelines.sources.sql.words import check_expressions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS = 240
INTS = [0, 1, -1, 2, 3, 7, 59, 2**31 - 1, -(2**31), None]
LONGS = [0, 1, -1, 3, 10**9, 2**53 + 1, 2**63 - 1, -(2**63), 9_223_372_036_854, None]
INF, NAN = float("inf"), float("nan")
DOUBLES = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    2.5,
    0.1,
    1e300,
    -1e300,
    5e-324,
    INF,
    -INF,
    NAN,
    2.0**31,
    2.0**63,
    -(2.0**63),
    1e10,
    None,
]
TEXTS = ["", " ", "a", "A b", "  x ", "\tx\n", "é", "e\u0301", "ß", "ΑΣ", "İi", "🎈a🎈", "%_", "a%b", "abc", "ABC"]
TEXTS = [*TEXTS, "a\nb", "a\r\n", "ǅ", "ﬁ", "日本", "\u2028x", "ab" * 5, "aa", "1", None]
NUMERALS = [
    "0",
    "1",
    " 7 ",
    "+5",
    "-0",
    "007",
    "1.5",
    "1e3",
    ".5",
    "5.",
    "abc",
    "",
    "2147483648",
    "9223372036854775808",
]
NUMERALS = [*NUMERALS, "NaN", "Infinity", "-inf", "1d", "true", "Y", "f", "no", "١", "1_0", "--1", "127", "-128", None]
MOMENTS = [
    "2024-02-29",
    "2023-02-29",
    "2024-1-2",
    "2024",
    "2024-05",
    "2024-01-01 10:11:12",
    "2024-01-01T10:11:12.123456",
]
MOMENTS = [*MOMENTS, "2024-01-01 10:11:12.1234567", "2024-01-01T10:11:12Z", "2024-01-01 10:11:12+02:00", " 2024-01-31 "]
MOMENTS = [*MOMENTS, "1969-12-31 23:59:59.999999", "0001-01-01", "+12024-01-01", "-0001-03-01", "2024-01-01 1:2:3", "x"]
MOMENTS = [
    *MOMENTS,
    "2024-01-01 10",
    "2024-01-01T",
    "2024-01-01 10:11",
    "2024-01-01 24:00:00",
    "2024-01-01x",
    "",
    "123",
]
MOMENTS = [
    *MOMENTS,
    "2024-01-01 10:11:12 +5:30",
    "2024-01-01 10:11:12-18:00",
    "2024-01-01 10:11:12.",
    "2024-13-01",
    "T",
]
MOMENTS = [
    *MOMENTS,
    "2024/01/31",
    "2024/01/31 23:59:60",
    "20240131",
    "2024-01-01 10:11:12 PM",
    "9999-12-31 23:59:59",
    None,
]
MICROS = [0, 1, -1, -86_400_000_000, 1_704_103_872_123_456, -62_135_596_800_000_000, 253_402_300_799_999_999]
MICROS = [*MICROS, 10**17, 1_709_164_800_000_000, 1_703_980_799_999_999, -(10**17), None]
DAYS = [0, -1, 1, 19_782, 19_723, -719_162, 2_932_896, 3_000_000, -800_000, None]

SURE_DOUBLES = [0.0, -0.0, 1.0, 2.5, 0.5, -0.5, 1.005, 2.675, 0.1, 1 / 3, 2 / 3, 100.0, 9_999_999.0, 1e7, 1.5e7]
SURE_DOUBLES += [
    12_345_678.9,
    2.0**53 - 1,
    1e15,
    123_456_789_012_345.67,
    1e-3,
    9.999e-4,
    1.5e-6,
    0.000_05,
    4.35,
    -2.345,
]
SURE_DOUBLES += [0.1 + 0.2, 1e-5, INF, -INF, NAN, 999_999.5, -0.000_049_99, 0.000_000_5 * 3, None]
WIDE_DECIMALS = [
    "0",
    "0.000000000000000001",
    "-12345678901234567890.123456789012345678",
    "1",
    "-3",
    "0.5",
    "2.5",
    "-0.000005",
]
WIDE_DECIMALS += ["99999999999999999999.999999999999999999", "1000000.5", "0.333333333333333333"]
CLOCK_CHANGES = [
    int(datetime.fromisoformat(f"{text}+00:00").timestamp() * 1_000_000)
    for text in (
        *("2024-03-31T00:59:59", "2024-03-31T01:00:00", "2024-03-31T02:30:00", "2024-03-31T03:00:00"),
        *("2024-10-27T00:30:00", "2024-10-27T01:00:00", "2024-10-27T02:00:00", "2024-10-27T02:30:00"),
        *("2024-03-10T02:30:00", "2024-03-10T07:00:00", "2024-11-03T01:30:00", "2024-11-03T06:00:00"),
        *("2024-04-07T01:45:00", "2024-04-06T15:00:00", "2024-10-06T02:15:00", "2024-10-05T15:30:00"),
        *("2011-12-30T12:00:00", "2011-12-30T10:00:00", "2018-11-04T00:30:00", "1972-01-07T00:30:00"),
        *("1970-01-01T00:00:00", "2024-03-30T22:00:00", "2050-10-30T02:30:00", "2024-07-01T12:00:00.123456"),
        *("1985-06-01T00:00:00", "2000-01-01T00:00:00", "9999-12-31T23:59:59.999999", "2100-07-01T00:00:00"),
    )
] + [None]
ZONED = [
    "2024-03-10T12:34:56" + zone
    for zone in (
        *("-0800", "+0530", "+05:30:15", "+053015", "+5", "-5:30", "+05:3", "UTC+0100", "UTC+01:00", "GMT-3", "UT+2"),
        *(
            "+1800",
            "+1801",
            "+0560",
            "+123",
            "+1",
            "-00:00:01",
            " +0200",
            "Z",
            "z",
            "UTC",
            "GMT",
            "UT",
            "utc",
            "+",
            "-",
        ),
        *("GMT0", "GMT+0", "UTC0", "UTC+", "UTC+25", " Europe/Berlin", "Europe/Berlin", " europe/berlin", "EST", "PST"),
        *(
            "CET",
            "Etc/GMT+5",
            "Nowhere/City",
            "Europe",
            "ROC",
            "+05:30:60",
            "+0530:15",
            "+18:00:00",
            "+18:00:01",
            "JST",
        ),
        *(" America/New_York", "PM", "AM", "Zulu", "posix/UTC", "A", "AB", "+05-30", "UTC-05:30:15", "+05:30 x", "MIT"),
    )
]
ZONED += [
    "2024-10-27T02:30:00 Europe/Berlin",
    "2024-03-31 02:30:00.5 Europe/Berlin",
    "2024-03-31 02:30 Europe/Berlin",
    None,
]

SCHEMA = pa.schema(
    [
        *((name, pa.int32()) for name in ("i1", "i2")),
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
        ("a b", pa.int32()),
        *((name, pa.int32()) for name in ("small1", "small2")),
    ]
)


def edge_rows() -> pa.RecordBatch:
    """Return rows with random edge cases in every column."""
    random_ = random.Random(15)
    prices = [Decimal(text) for text in ("0.00", "-0.01", "1.50", "9999999999.99", "-9999999999.99", "3.00")]
    ratios = [Decimal(text) for text in ("0.000", "0.001", "-99.999", "99.999", "1.500")]
    structs = [
        None,
        {"X": 1, "name": "a", "in": {"d": NAN}},
        {"X": None, "name": None, "in": None},
        {"X": -3, "name": "é", "in": {"d": None}},
    ]
    values: dict[str, list[Any]] = {
        **dict.fromkeys(("i1", "i2"), INTS),
        **dict.fromkeys(("l1", "l2"), LONGS),
        "b1": [0, 1, -1, 127, -128, None],
        "h1": [0, 1, -1, 32767, -32768, None],
        **dict.fromkeys(("d1", "d2"), DOUBLES),
        "c1": SURE_DOUBLES,
        "c2": [Decimal(text) for text in WIDE_DECIMALS],
        "c3": [
            0.0,
            -0.0,
            1.5,
            0.1,
            16_777_215.0,
            1e7,
            9_999_999.0,
            1e-3,
            1.17e-5,
            3.4e-6,
            INF,
            -INF,
            NAN,
            -123.456,
            None,
        ],
        "z1": CLOCK_CHANGES,
        "z2": ZONED,
        "f1": [0.0, -0.0, 1.5, 16_777_216.0, 3.0e38, INF, -INF, NAN, 0.1, 2.0**31, None],
        **dict.fromkeys(("s1", "s2"), TEXTS),
        "n1": NUMERALS,
        "m1": MOMENTS,
        **dict.fromkeys(("day1", "day2"), DAYS),
        **dict.fromkeys(("t1", "t2"), MICROS),
        "p1": [*prices, None],
        "p2": [*ratios, None],
        **{key: [True, False, None] for key in ("ok1", "ok2")},
        "st": structs,
        **{key: [-3, -1, 0, 1, 2, 5, 100, None] for key in ("a b", "small1", "small2")},
    }
    columns = []
    for field in SCHEMA:
        edges = values[field.name]
        # Each edge case at least once, then random ones.
        drawn_values = [*edges, *random_.choices(edges, k=ROWS - len(edges))]
        random_.shuffle(drawn_values)
        columns.append(pa.array(drawn_values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def unlike(values: pa.Array) -> list[str]:
    """Return values as text in which any two different values differ: NaN is one value, and -0.0 is not 0.0."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    elif pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    return [repr(value) for value in values.to_pylist()]


class Comparison:
    """Our programs and Spark, over the same rows."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.rows = edge_rows()
        table = pa.Table.from_batches([self.rows]).append_column("__id", pa.array(range(ROWS), pa.int32()))
        file = str(folder / "edges.parquet")
        pq.write_table(table, file)
        # One partition keeps the order of the rows.
        self.frame: DataFrame = spark.read.parquet(file).coalesce(1)
        self._spark = spark
        self._alone: dict[int, DataFrame] = {}
        assert [row[0] for row in self.frame.select("__id").collect()] == list(range(ROWS))

    def ours(self, program: Node) -> tuple[list[str | None], list[int]]:
        """Return the value of each row, None where the row fails, and the rows that fail."""
        try:
            return list(unlike(as_array(program.evaluate(self.rows), ROWS))), []
        except (pa.ArrowInvalid, RowFailure):
            assert can_fail(program)
        values: list[str | None] = []
        for number in range(ROWS):
            try:
                values += unlike(as_array(program.evaluate(self.rows.slice(number, 1)), 1))
            except (pa.ArrowInvalid, RowFailure):
                values.append(None)
        return values, [number for number, value in enumerate(values) if value is None]

    def differences(self, expressions: Sequence[str], programs: Sequence[Node]) -> Iterator[str]:
        """Yield the expressions whose values or types differ from Spark's."""
        from pyspark.sql import functions as F

        expected = [self.ours(program) for program in programs]
        columns = []
        for number, (expression, (_, failing)) in enumerate(zip(expressions, expected, strict=True)):
            column = F.expr(expression)
            if failing:
                column = F.when(~F.col("__id").isin(failing), column)
            columns.append(column.alias(f"c{number}"))
        result, refusal = self.taken(columns)
        if result is None:
            if len(expressions) == 1:
                yield f"{expressions[0]}: only Spark fails: {refusal}"
                return
            half = len(expressions) // 2
            yield from self.differences(expressions[:half], programs[:half])
            yield from self.differences(expressions[half:], programs[half:])
            return
        for expression, program, field in zip(expressions, programs, result.schema, strict=True):
            if field.type != program.type:
                yield f"{expression}: type {program.type}, Spark has {field.type}"
        for (values, failing), expression, column in zip(expected, expressions, result.columns, strict=True):
            theirs = unlike(column.combine_chunks())
            differing = [n for n in range(ROWS) if n not in set(failing) and values[n] != theirs[n]]
            if differing:
                row = {name: self.rows.column(name)[differing[0]] for name in SCHEMA.names if name in expression}
                yield f"{expression}: {values[differing[0]]}, Spark has {theirs[differing[0]]} for {row}"

    def taken(self, columns: Sequence[Column], row: int | None = None) -> tuple[pa.Table | None, str]:
        """Return columns of the rows, or of one row; None and the error if Spark fails."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F

        frame = self.frame if row is None else self.frame.where(F.col("__id") == row)
        try:
            return frame.select(*columns).toArrow(), ""
        except (PySparkException, Py4JJavaError) as error:
            return None, str(error)[:300]

    def lonely_failures(self, expression: str, program: Node) -> Iterator[str]:
        """Yield the expression if a row fails for us but not for Spark."""
        from pyspark.sql import functions as F

        _, failing = self.ours(program)
        failing = [number for number in failing if not self._is_left_to_spark(program, number)]
        # One query for each failing row, because Spark reports only the first one.
        for number in failing[:1]:
            if self._succeeds(expression, number) and self.taken([F.expr(expression)], number)[0] is not None:
                yield f"{expression}: fails only for us, row {self.rows.slice(number, 1).to_pylist()}"

    def _is_left_to_spark(self, program: Node, row: int) -> bool:
        try:
            program.evaluate(self.rows.slice(row, 1))
        except OnlyBySpark:
            return True
        except (pa.ArrowInvalid, RowFailure):
            pass
        return False

    def _succeeds(self, expression: str, row: int) -> bool:
        """Return True if Spark's driver can evaluate an expression over a local row, without a job."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F

        if row not in self._alone:
            self._alone[row] = self._spark.createDataFrame(pa.Table.from_batches([self.rows.slice(row, 1)]))
            assert self._alone[row].dtypes == self.frame.drop("__id").dtypes
        try:
            self._alone[row].select(F.expr(expression)).collect()
        except (PySparkException, Py4JJavaError):
            return False
        return True


@pytest.fixture(scope="module")
def comparison(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Comparison]:
    """The comparison, with Spark interpreting: compiling hundreds of expressions takes longer than everything else."""
    interpreting = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    before = {name: spark.conf.get(name, None) for name in interpreting}
    for name, value in interpreting.items():
        spark.conf.set(name, value)
    yield Comparison(spark, tmp_path_factory.mktemp("edges"))
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def compiled(expressions: Sequence[str]) -> dict[str, Node]:
    """Return the programs of the expressions that are proven."""
    programs = {}
    for expression in expressions:
        try:
            programs[expression] = compile_expression(expression, SCHEMA)
        except Unproven:
            continue
    return programs


def test_each_operation_gives_sparks_values_and_types(comparison: Comparison) -> None:
    programs = compiled(EXPRESSIONS)
    assert sorted(set(EXPRESSIONS) - set(programs)) == []
    expressions = list(programs)
    differing = [
        text
        for first in range(0, len(expressions), 60)
        for text in comparison.differences(
            expressions[first : first + 60], [programs[name] for name in expressions[first : first + 60]]
        )
    ]
    assert differing == []


@pytest.mark.long
def test_a_row_that_fails_for_us_fails_for_spark(comparison: Comparison) -> None:
    programs = {name: program for name, program in compiled(EXPRESSIONS).items() if can_fail(program)}
    failing = [text for name, program in programs.items() for text in comparison.lonely_failures(name, program)]
    assert failing == []


@pytest.mark.long
def test_drawn_expressions_give_sparks_values_and_types(comparison: Comparison) -> None:
    texts: list[str] = []

    @seed(15)
    @settings(
        max_examples=300, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None
    )
    @given(drawn())
    def collect(text: str) -> None:
        texts.append(text)

    collect()
    texts = list(dict.fromkeys(texts))
    programs = compiled(texts)
    assert len(programs) > 0.6 * len(texts) > 100
    expressions = list(programs)
    differing = [
        text
        for first in range(0, len(expressions), 40)
        for text in comparison.differences(
            expressions[first : first + 40], [programs[name] for name in expressions[first : first + 40]]
        )
    ]
    assert differing == []


@pytest.mark.long
def test_lower_and_upper_of_every_character(spark: SparkSession) -> None:
    signs = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
    table = pa.table({"sign": signs})
    rows = spark.createDataFrame(table).selectExpr("sign", "lower(sign) as small", "upper(sign) as large").toArrow()
    differing = []
    for name, expression in (("small", "lower(sign)"), ("large", "upper(sign)")):
        program = compile_expression(expression, table.schema)
        for row in rows.to_batches():
            for sign, theirs in zip(row["sign"].to_pylist(), row[name].to_pylist(), strict=True):
                if sign != theirs or sign.lower() != sign or sign.upper() != sign:
                    batch = pa.RecordBatch.from_pydict({"sign": [sign]})
                    try:
                        ours = as_array(program.evaluate(batch), 1)[0].as_py()
                    except RowFailure:
                        continue
                    if ours != theirs:
                        differing.append((expression, sign, hex(ord(sign)), ours, theirs))
    assert differing == []


def test_no_function_that_spark_has_is_taken_for_unknown(spark: SparkSession) -> None:
    names = [row.function for row in spark.sql("SHOW FUNCTIONS").collect()]
    known = installed_names()
    assert known is not None
    taken = []
    for name in names:
        try:
            called = replace(hourly_pipeline().inputs[0], where=f"{name}(value)")
            check_expressions(hourly_pipeline(), called, ["value"], known)
        except Refused as error:
            taken += [name] if "does not have" in str(error) else []
    assert len(names) > 400
    for name in taken:
        # Functions that return tables, which an expression can't call.
        with pytest.raises(AnalysisException) as refused:
            spark.range(1).selectExpr(f"{name}(id)")
        assert refused.value.getCondition() in ("NOT_A_SCALAR_FUNCTION", "UNRESOLVED_ROUTINE")


@pytest.mark.parametrize(
    ("where", "is_condition"),
    [
        ("i1 + 1", True),
        ("t1", True),
        ("day1", True),
        ("d1", True),
        ("ok1 and i1", True),
        ("not l1", True),
        ("t1 > 5", True),
        ("5 <= day1", True),
        ("t1 between 1 and 2", True),
        ("t1 <=> d1", True),
        ("i1 is true", True),
        ("ok1 + 1", False),
        ("i1 * ok1", False),
        ("-ok1", False),
        ("ok1 / ok2", False),
    ],
)
def test_types_that_do_not_fit_are_refused_by_spark_too(comparison: Comparison, where: str, is_condition: bool) -> None:
    with pytest.raises(Misfit):
        as_condition(compile_expression(where, SCHEMA))
    with pytest.raises(AnalysisException):
        _ = (comparison.frame.where(where) if is_condition else comparison.frame.selectExpr(where)).schema
