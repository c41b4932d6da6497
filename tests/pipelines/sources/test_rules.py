"""The rules that reject a row, over whole columns and spelled out for one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.pipelines.definition import rejects
from tidegate.pipelines.definition.accepted_times import AcceptedTimes
from tidegate.pipelines.definition.event_columns import OK, TIME
from tidegate.pipelines.definition.far_times import DAYS, MICROS
from tidegate.pipelines.sources.rules import RuleSettings, are_times_usable, rejected
from tidegate.windowing.time import FIRST_TIME, LAST_TIME, LONGEST_DURATION

MAX_AHEAD = 1_000
COMMITTED = "committed"
COLUMNS = {
    "user": pa.string(),
    "a.b": pa.string(),
    "gap": pa.int64(),
    "at": pa.timestamp("us", tz="UTC"),
    "wall": pa.timestamp("us"),
    "day": pa.date32(),
}
TIMES = ("at", "wall", "day")
ROOM = 5_000
TIMES_OF_CLOCK = AcceptedTimes(not_before=1, first=FIRST_TIME + ROOM, end=LAST_TIME - ROOM)
EARLY = AcceptedTimes(not_before=FIRST_TIME, first=FIRST_TIME + ROOM, end=LAST_TIME - ROOM)
SETTINGS = RuleSettings(
    accepted=TIMES_OF_CLOCK, key=("user", "a.b"), keys=("user", "a.b"), max_ahead=MAX_AHEAD, gap="gap", times=TIMES
)
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


LONG = ["x" * 2**20, "x" * (2**20 + 1), "\u00e9" * (2**19 + 1)]
VALUES = {
    "user": st.sampled_from([None, *LONG]),
    "a.b": st.none(),
    "gap": around(1, LONGEST_DURATION),
    "at": around(*MICROS),
    "wall": around(*MICROS),
    "day": around(*DAYS),
    TIME: around(FIRST_TIME, FIRST_TIME + ROOM, 1, LAST_TIME - ROOM - 5, LAST_TIME - ROOM, 10_000 + MAX_AHEAD),
}
# For a row that breaks many rules, only the first would be visible.
CHANGED = st.sampled_from(list(VALUES)).flatmap(lambda name: VALUES[name].map(lambda value: {name: value}))
ROWS = st.tuples(CHANGED, st.just({}) | CHANGED).map(lambda changed: GOOD | changed[1] | changed[0])


OF_TIME = (rejects.NULL_TIMESTAMP, rejects.OUT_OF_RANGE, rejects.BEFORE, rejects.AHEAD)


def by_hand(row: dict[str, Any], settings: RuleSettings, rules: Sequence[str] = rejects.REASONS) -> str:
    """Return the status of a row: the reason of the first rule that it breaks, or `ok`."""

    def outside(value: int | None, first: int, end: int) -> bool:
        return value is not None and not first <= value < end

    bounds = {"at": MICROS, "wall": MICROS, "day": DAYS}
    ahead = row[TIME] is not None and row[COMMITTED] is not None and row[TIME] > row[COMMITTED] + settings.max_ahead
    broken = {
        rejects.NULL_KEY: any(row[name] is None for name in settings.key),
        rejects.NULL_TIMESTAMP: row[TIME] is None,
        rejects.OUT_OF_RANGE: outside(row[TIME], settings.accepted.first, settings.accepted.end),
        rejects.BEFORE: row[TIME] is not None and row[TIME] < settings.accepted.not_before,
        rejects.AHEAD: ahead,
        rejects.NULL_GAP: settings.gap is not None and row["gap"] is None,
        rejects.GAP_OUT_OF_RANGE: settings.gap is not None and outside(row["gap"], 1, LONGEST_DURATION + 1),
        rejects.VALUE_OUT_OF_RANGE: any(outside(row[name], *bounds[name]) for name in settings.times),
        rejects.KEY_TOO_LONG: any(len((row[name] or "").encode()) > 2**20 for name in settings.keys),
    }
    reason = next((reason for reason in rules if broken[reason]), OK)
    if (
        reason in (OK, rejects.VALUE_OUT_OF_RANGE, rejects.KEY_TOO_LONG)
        and settings.gap is not None
        and rejects.NULL_GAP in rules
    ):
        # The end of the session of the row.
        return rejects.OUT_OF_RANGE if row[TIME] + row["gap"] >= settings.accepted.end else reason
    return reason


def by_arrow(
    rows: list[dict[str, Any]],
    settings: RuleSettings,
    rules: Sequence[str] = rejects.REASONS,
    as_dictionaries: bool = False,
) -> list[str]:
    columns = {}
    for name, kind in COLUMNS.items():
        stored = pa.int32() if pa.types.is_date(kind) else pa.int64() if pa.types.is_timestamp(kind) else kind
        columns[name] = pa.array([row[name] for row in rows], stored).cast(kind)
        if as_dictionaries and name in settings.keys:
            columns[name] = columns[name].dictionary_encode()
    times = [row[TIME] for row in rows]
    valid = None if None not in times else np.array([time is not None for time in times])
    table = None if rules == OF_TIME else pa.table(columns)
    found = rejected(settings, np.array([time or 0 for time in times]), valid, rows[0][COMMITTED], table)
    statuses = [OK] * len(rows)
    for reason, broken in found.items():
        for row in np.flatnonzero(broken):
            assert statuses[row] == OK, "a row has one reason"
            statuses[row] = reason
    return statuses


@given(st.lists(ROWS, min_size=6, max_size=20), st.booleans())
@example([GOOD | {"user": None, TIME: None, "gap": None}, GOOD], True)
def test_whole_columns_give_each_row_its_reason(rows: list[dict[str, Any]], in_commit: bool) -> None:
    rows = rows if in_commit else [row | {COMMITTED: None} for row in rows]
    for settings in (
        SETTINGS,
        RuleSettings(TIMES_OF_CLOCK, (), ("user",), 0, None, ()),
        RuleSettings(EARLY, ("user",), (), 5, None, TIMES[:1]),
    ):
        for rules in (rejects.REASONS, OF_TIME):
            statuses = [by_hand(row, settings, rules) for row in rows]
            assert by_arrow(rows, settings, rules) == statuses == by_arrow(rows, settings, rules, as_dictionaries=True)


def test_each_rule_has_a_row_that_breaks_it_alone() -> None:
    bad = {
        rejects.NULL_KEY: {"a.b": None},
        rejects.NULL_TIMESTAMP: {TIME: None},
        rejects.OUT_OF_RANGE: {TIME: FIRST_TIME},
        rejects.BEFORE: {TIME: 0},
        rejects.AHEAD: {TIME: 10_001 + MAX_AHEAD},
        rejects.NULL_GAP: {"gap": None},
        rejects.GAP_OUT_OF_RANGE: {"gap": 0},
        rejects.VALUE_OUT_OF_RANGE: {"day": DAYS[1]},
        rejects.KEY_TOO_LONG: {"user": LONG[1]},
    }
    rows = [GOOD | broken for broken in bad.values()]
    assert by_arrow(rows, SETTINGS) == [by_hand(row, SETTINGS) for row in rows] == list(bad)
    assert tuple(bad) == rejects.REASONS


def test_bounds_of_event_times_show_that_no_row_between_them_breaks_a_rule() -> None:
    assert are_times_usable(SETTINGS, 1, 10_000 + MAX_AHEAD, 10_000)
    assert not are_times_usable(SETTINGS, 1, 10_001 + MAX_AHEAD, 10_000)
    assert not are_times_usable(SETTINGS, 0, 5, 10_000)
    assert not are_times_usable(SETTINGS, 1, LAST_TIME - ROOM, LAST_TIME)
