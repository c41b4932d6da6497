"""The rules that reject a row say the same in SQL and in Arrow.

SQLite stands in for Spark: the conditions use comparisons, OR and IS NULL, and two functions that are given to it.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME, OK, TIME
from tidegate.pipelines.sources.limits import LONGEST_GAP
from tidegate.pipelines.sources.rules import (
    COMMITTED,
    OF_TIME,
    RULES,
    ArrowRows,
    RuleSettings,
    are_times_usable,
    rejected,
    status_in_sql,
)
from tidegate.pipelines.tables import rejects
from tidegate.pipelines.tables.far_times import DAYS, MICROS

MAX_AHEAD = 1_000
COLUMNS = {
    "user": pa.string(),
    "a.b": pa.string(),
    "gap": pa.int64(),
    "at": pa.timestamp("us", tz="UTC"),
    "wall": pa.timestamp("us"),
    "day": pa.date32(),
}
TIMES = tuple((name, COLUMNS[name]) for name in ("at", "wall", "day"))
SETTINGS = RuleSettings(key=("user", "a.b"), max_ahead=MAX_AHEAD, gap="gap", times=TIMES)
GOOD: dict[str, Any] = {
    "user": "u",
    "a.b": "b",
    "gap": 5,
    "at": 0,
    "wall": 0,
    "day": 0,
    TIME: 10_000,
    COMMITTED: 10_000,
}


def around(*numbers: int) -> st.SearchStrategy[int | None]:
    return st.sampled_from([None, *(number + step for number in numbers for step in (-1, 0, 1))])


VALUES = {
    "user": st.none(),
    "a.b": st.none(),
    "gap": around(1, LONGEST_GAP),
    "at": around(*MICROS),
    "wall": around(*MICROS),
    "day": around(*DAYS),
    TIME: around(FIRST_TIME, LAST_TIME, 10_000 + MAX_AHEAD),
}
# Of a row that breaks many rules only the first would be seen.
CHANGED = st.sampled_from(list(VALUES)).flatmap(lambda name: VALUES[name].map(lambda value: {name: value}))
ROWS = st.tuples(CHANGED, st.just({}) | CHANGED).map(lambda changed: GOOD | changed[1] | changed[0])


def by_sql(rows: list[dict[str, Any]], settings: RuleSettings, rules: Any) -> list[str]:
    connection = sqlite3.connect(":memory:")
    for name in ("unix_micros", "unix_date"):
        connection.create_function(name, 1, lambda number: number, deterministic=True)
    names = list(GOOD)
    connection.execute(f"CREATE TABLE rows ({', '.join(f'`{name}`' for name in names)})")
    marks = ", ".join("?" for _ in names)
    connection.executemany(f"INSERT INTO rows VALUES ({marks})", [[row[name] for name in names] for row in rows])
    return [status for (status,) in connection.execute(f"SELECT {status_in_sql(settings, rules)} FROM rows")]


def by_arrow(rows: list[dict[str, Any]], settings: RuleSettings, rules: Any) -> list[str]:
    columns = {}
    for name, kind in COLUMNS.items():
        stored = pa.int32() if pa.types.is_date(kind) else pa.int64() if pa.types.is_timestamp(kind) else kind
        columns[name] = pa.array([row[name] for row in rows], stored).cast(kind)
    times = [row[TIME] for row in rows]
    valid = None if None not in times else np.array([time is not None for time in times])
    judged = ArrowRows(np.array([time or 0 for time in times]), valid, pa.table(columns), rows[0][COMMITTED])
    statuses = [OK] * len(rows)
    for reason, broken in rejected(settings, judged, rules).items():
        for row in np.flatnonzero(broken):
            assert statuses[row] == OK, "a row has one reason"
            statuses[row] = reason
    return statuses


@given(st.lists(ROWS, min_size=6, max_size=20), st.booleans())
@example([GOOD | {"user": None, TIME: None, "gap": None}, GOOD], True)
def test_both_forms_give_a_row_the_same_reason(rows: list[dict[str, Any]], in_commit: bool) -> None:
    rows = rows if in_commit else [row | {COMMITTED: None} for row in rows]
    for settings in (SETTINGS, RuleSettings((), 0, None, ()), RuleSettings(("user",), 5, None, TIMES[:1])):
        for rules in (RULES, OF_TIME):
            assert by_arrow(rows, settings, rules) == by_sql(rows, settings, rules)


def test_each_rule_has_a_row_that_breaks_it_alone() -> None:
    bad = {
        rejects.NULL_KEY: {"a.b": None},
        rejects.NULL_TIMESTAMP: {TIME: None},
        rejects.OUT_OF_RANGE: {TIME: -1},
        rejects.AHEAD: {TIME: 10_001 + MAX_AHEAD},
        rejects.NULL_GAP: {"gap": None},
        rejects.GAP_OUT_OF_RANGE: {"gap": 0},
        rejects.VALUE_OUT_OF_RANGE: {"day": DAYS[1]},
    }
    rows = [GOOD | broken for broken in bad.values()]
    assert by_arrow(rows, SETTINGS, RULES) == by_sql(rows, SETTINGS, RULES) == list(bad)
    assert tuple(rule.reason for rule in RULES) == rejects.REASONS == tuple(bad)


def test_bounds_of_event_times_show_that_no_row_between_them_breaks_a_rule() -> None:
    assert are_times_usable(SETTINGS, 0, 10_000 + MAX_AHEAD, 10_000)
    assert not are_times_usable(SETTINGS, 0, 10_001 + MAX_AHEAD, 10_000)
    assert not are_times_usable(SETTINGS, -1, 5, 10_000)
    assert not are_times_usable(SETTINGS, 0, LAST_TIME, LAST_TIME)
