"""Words of expressions: the columns that go through Spark, and the clocks that no pipeline may read."""

from __future__ import annotations

import pytest

from tidegate.pipelines.sources.sql.words import changing_call, columns_in

COLUMNS = ("User", "a.b", "x`y", "now", "payload", "other")


@pytest.mark.parametrize(
    ("expression", "columns"),
    [
        ("soundex(user)", ["User"]),
        ("`a.b` + `x``y`", ["a.b", "x`y"]),
        ("payload.deep.other", ["payload", "other"]),
        ("concat('user', \"other\")", ["User", "other"]),
        ("transform(payload, x -> x * 2)", ["payload"]),
        ("to_json(struct(*))", list(COLUMNS)),
        ("struct(payload.*)", list(COLUMNS)),
        ("1 + 1", []),
        ("user -- payload", ["User"]),
    ],
)
def test_an_expression_names_all_columns_that_it_reads(expression: str, columns: list[str]) -> None:
    assert columns_in([expression], COLUMNS) == columns


def test_an_expression_that_has_no_words_may_name_every_column() -> None:
    assert columns_in(["'never closed"], COLUMNS) == list(COLUMNS)


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
    ],
)
def test_a_clock_or_a_drawn_value_is_found(expression: str) -> None:
    assert changing_call(expression, COLUMNS) is not None


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
    assert changing_call(expression, COLUMNS) is None


def test_a_column_goes_before_the_clock_of_its_name() -> None:
    assert changing_call("current_date", [*COLUMNS, "Current_Date"]) is None
    assert changing_call("current_date()", [*COLUMNS, "current_date"]) is not None
