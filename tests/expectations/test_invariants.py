"""Each invariant catches the error that it exists for, and correct tables break none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.expectations.broken import broken_by_rules, broken_in, failed_in_check
from tests.expectations.quality_lake import (
    LAKES,
    QualityLake,
    at,
    hour_lake,
    open_window,
    pane,
    session_lake,
    sliding_lake,
    waiting_lake,
)
from tests.expectations.test_planted_commits import OURS, REWRITTEN, SAME_ROWS
from tests.expectations.test_planted_commits import PLANTED as COMMITTED
from tests.lake import DAY0, LOCAL, Lake, hourly_pipeline, session_pipeline
from tests.pipelines.ask.test_verify import change
from tests.pipelines.by_hand import ByHand
from tidegate.expectations.invariants.windows import ExpectOneOnTimePaneBeforeLateOnes, ExpectPanesToBeDense
from tidegate.expectations.pinned import CHECKSUMS, Pinned, pin
from tidegate.expectations.suites import suites
from tidegate.pipelines import DeltaSource, Input
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.results import latest
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.windowing import (
    Accumulation,
    ContinuousEventTimeTrigger,
    Count,
    EventTimeSessionWindows,
    IntervalJoin,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    Windows,
)

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def pinned_of(lake: QualityLake, folder: Path) -> Pinned:
    """Write a lake, and pin it."""
    return pin(PipelineTables(warehouse_of(lake.write(folder)), lake.pipeline.name), lake.pipeline)


def broken(pinned: Pinned, severity: str = "critical", only: str | None = None) -> set[tuple[str, str]]:
    """Return suite and type of every failing expectation of a severity, or those of one suite. The product's check and
    the rules on their own, which other tests use, must find the same.
    """
    found = failed_in_check(pinned, severity, only)
    assert broken_by_rules(pinned, severity, only) == found
    return found


@pytest.mark.first(2)
@pytest.mark.parametrize("name", LAKES)
def test_good_tables_break_nothing(name: str, tmp_path: Path) -> None:
    pinned = pinned_of(LAKES[name](), tmp_path)
    assert broken(pinned) | broken(pinned, "warning") == set()


def test_a_key_may_have_the_name_of_a_column_that_pandas_adds() -> None:
    panes = [("ann", 0, "+"), ("ann", 2, "+"), ("bob", 0, "-"), ("bob", 1, "+")]
    rows = pd.DataFrame(panes, columns=["_merge", "pane", "op"]).assign(window_id=1, epoch=1)
    assert ExpectPanesToBeDense(key=["_merge"]).broken(rows).tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("panes", "broken"),
    [
        ([(1, 0, "+"), (2, 0, "-"), (3, 0, "+"), (4, 1, "+")], None),
        ([(1, 0, "+"), (1, 1, "+"), (2, 1, "-"), (2, 2, "+")], None),
        ([(1, 0, "+"), (3, 0, "+")], 1),
        ([(1, 0, "+"), (2, 0, "-"), (3, 2, "+")], 2),
        ([(1, 0, "+"), (1, 1, "+"), (2, 1, "-"), (2, 0, "+")], 3),
    ],
    ids=["reappears", "corrected", "not retracted", "skips a number", "in the same epoch"],
)
def test_the_panes_of_a_window_begin_again_only_after_a_retraction(
    panes: list[tuple[int, int, str]], broken: int | None
) -> None:
    rows = pd.DataFrame(panes, columns=["epoch", "pane", "op"]).assign(user="ann", window_id=1, timing="late")
    found = ExpectPanesToBeDense(key=["user"]).broken(rows)
    assert bool(found.any()) == (broken is not None)
    assert not ExpectOneOnTimePaneBeforeLateOnes(key=["user"]).broken(rows).any()


def test_a_window_that_reappears_may_be_on_time_again() -> None:
    panes = [(1, 0, "+", "on_time"), (2, 0, "-", "on_time"), (3, 0, "+", "on_time"), (4, 1, "+", "on_time")]
    rows = pd.DataFrame(panes, columns=["epoch", "pane", "op", "timing"]).assign(user="ann", window_id=1)
    assert ExpectOneOnTimePaneBeforeLateOnes(key=["user"]).broken(rows).tolist() == [False, False, False, True]


Plant = Callable[[QualityLake], object]
UNIQUE, EQUAL = "expect_compound_columns_to_be_unique", "expect_column_pair_values_to_be_equal"
ONE_ON_TIME, ALIGNED = "expect_one_on_time_pane_before_late_ones", "expect_windows_to_be_aligned"


def changed(rows: str, number: int, **values: Any) -> Plant:
    """Change a row of a table."""
    return lambda lake: getattr(lake, rows)[number].update(values)


def again(**values: Any) -> Plant:
    """Add a pane like the first one, with other values."""
    return lambda lake: lake.panes.append({**lake.panes[0], **values})


def lost(rows: str, number: int = -1) -> Plant:
    return lambda lake: getattr(lake, rows).pop(number)


def added(*bounds: str, **values: Any) -> Plant:
    """Add a pane of another window."""
    return lambda lake: lake.panes.append(pane(*bounds, epoch=2, **values))


def late_before_the_one_on_time(lake: QualityLake) -> None:
    again(pane=1)(lake)
    changed("panes", 0, timing="late")(lake)


def counted_twice(lake: QualityLake) -> None:
    lake.panes[0]["events"] += 1


def not_accounted_for(lake: QualityLake) -> None:
    lake.epochs[1]["events_in"] += 1


def under_two_names(lake: QualityLake) -> None:
    again(window_id=lake.panes[0]["window_id"] + 1)(lake)


BACKWARDS = changed("panes", 0, window_end=at("10:14"))
CLOSED = open_window("a", "11:15", "12:15")
OVERLAPPING, INSIDE = added("a", "12:20", "12:55"), added("a", "10:05", "10:35", watermark=at("12:30"))

IN_HOURS: list[tuple[Plant, str, str]] = [
    (again(), "panes", UNIQUE),
    (again(pane=2, timing="late"), "panes", "expect_panes_to_be_dense"),
    (again(pane=1), "panes", ONE_ON_TIME),
    (late_before_the_one_on_time, "panes", ONE_ON_TIME),
    (BACKWARDS, "panes", "expect_column_pair_values_a_to_be_greater_than_b"),
    (lost("panes", 0), "ledger", EQUAL),
    (lost("late"), "ledger", EQUAL),
    (lost("rejects"), "ledger", EQUAL),
    (lost("state"), "ledger", EQUAL),
    (counted_twice, "ledger", EQUAL),
    (not_accounted_for, "epochs", "expect_events_to_be_conserved"),
    (changed("epochs", 0, watermark=at("13:11")), "epochs", "expect_watermark_never_to_go_back"),
    (lambda lake: lake.epochs.append(dict(lake.epochs[0])), "epochs", "expect_column_values_to_be_unique"),
    (changed("state", 0, **CLOSED), "state", "expect_no_state_behind_watermark"),
    (changed("state", 0, **{**CLOSED, "in_flight": False}), "state", "expect_no_timer_of_closed_window"),
    (under_two_names, "final windows", UNIQUE),
    (changed("panes", 0, window_start=at("10:10")), "final windows", ALIGNED),
    (changed("panes", 0, window_end=at("11:30")), "final windows", ALIGNED),
]

IN_SESSIONS: list[tuple[Plant, str, str]] = [
    (OVERLAPPING, "final windows", "expect_sessions_to_lie_apart"),
    (added("a", "12:30", "13:00"), "final windows", "expect_sessions_to_lie_apart"),
    (INSIDE, "final windows", "expect_no_session_inside_another"),
    (added("b", "12:00", "12:29"), "final windows", "expect_windows_to_be_at_least"),
]

IN_SLIDING: list[tuple[Plant, str, str]] = [
    (lost("panes", 1), "final windows", "expect_elements_in_every_sliding_window")
]

PLANTED = [
    *((hour_lake, *planted) for planted in IN_HOURS),
    *((session_lake, *planted) for planted in IN_SESSIONS),
    *((sliding_lake, *planted) for planted in IN_SLIDING),
]

IN_PRODUCTS_TABLES = {
    OURS,
    SAME_ROWS,
    REWRITTEN,
    ("panes", "expect_window_ids_to_name_their_windows"),
    ("panes", "expect_final_at_to_fit_the_bounds"),
    ("lineage", "expect_epochs_to_be_of_the_lineage"),
    ("state", "expect_keys_to_hash_to_their_group"),
}

"""Planted in test_planted_commits.py, because rows made by hand here have no commits."""

AFTER_A_RESTORE = {("restored state", "expect_state_to_match_checksums")}

"""Planted in test_quality_command.py, in restored tables."""


@pytest.mark.parametrize(("lake", "plant", "suite", "expectation"), PLANTED)
def test_an_error_is_caught_by_its_invariant(
    lake: Callable[[], QualityLake], plant: Plant, suite: str, expectation: str, tmp_path: Path
) -> None:
    made = lake()
    plant(made)
    assert (suite, expectation) in broken(pinned_of(made, tmp_path), only=suite)


def test_rows_of_a_join_that_are_lost_are_missing_in_the_ledger(lake: Lake) -> None:
    right = Input(source=DeltaSource("right", timestamp="at"))
    pipeline = hourly_pipeline(compute=IntervalJoin.between(-HOUR, HOUR), right=right)
    for table in ("events", "right"):
        lake.append(("ann", at("10:00"), 1), ("ann", at("12:00"), 2), table=table)
    lake.project(pipeline).stream("hours")
    assert broken_in(lake.tables(pipeline), pipeline) == set()
    change(lake, pipeline, "results", lambda rows: rows.slice(1))
    assert ("ledger", EQUAL) in broken_in(lake.tables(pipeline), pipeline)


def test_no_rule_comes_without_its_planted_error(tmp_path: Path) -> None:
    rules = set()
    for name, lake in LAKES.items():
        pinned = pinned_of(lake(), tmp_path / name)
        restored = pd.DataFrame([(0, "kept", "given back")], columns=list(CHECKSUMS))
        for suite in suites(replace(pinned, restored=restored)):
            rules |= {(suite.table, expectation.expectation_type) for expectation in suite.expectations}
    planted = {(suite, expectation) for _, _, suite, expectation in PLANTED}
    there = {rule for _, found in COMMITTED for rule in found} | {OURS, SAME_ROWS, REWRITTEN}
    assert there >= IN_PRODUCTS_TABLES
    assert rules == planted | IN_PRODUCTS_TABLES | AFTER_A_RESTORE


def test_in_arrival_order_sessions_that_overlap_only_mark_the_run(tmp_path: Path) -> None:
    lake = session_lake(order="arrival")
    OVERLAPPING(lake)
    pinned, rule = pinned_of(lake, tmp_path), ("final windows", "expect_sessions_to_lie_apart")
    assert rule not in broken(pinned)
    assert rule in broken(pinned, "warning")


def test_in_arrival_order_no_session_lies_inside_another_all_the_same(tmp_path: Path) -> None:
    lake = session_lake(order="arrival")
    INSIDE(lake)
    found = broken(pinned_of(lake, tmp_path), only="final windows")
    assert ("final windows", "expect_no_session_inside_another") in found


@pytest.mark.first(1)
@pytest.mark.parametrize("lateness", [0, 20])
def test_an_open_session_may_grow_over_one_that_is_closed(tmp_path: Path, lateness: int) -> None:
    """Found by random lives: each element is on time, and yet the check failed for ever."""
    by_hand = ByHand(tmp_path, session_pipeline(allowed_lateness=timedelta(minutes=lateness)))
    passed = at("10:45") + lateness * MINUTE
    by_hand.epoch(("ann", at("10:00"), 1), ("ann", at("10:10"), 1), watermark=passed)
    for minutes in (30 + lateness // 4, 5, -10):
        by_hand.epoch(("ann", at("10:00") + minutes * MINUTE, 1), watermark=passed)
    by_hand.epoch(watermark=at("12:00"))
    found = [(row["window_start"], row["events"]) for row in latest(by_hand.rows("results"), ("user",)).to_pylist()]
    assert sorted(found) == [(at("09:50"), 3), (at("10:00"), 2)]
    assert not broken_by_rules(pin(by_hand.tables, by_hand.pipeline))


@pytest.mark.parametrize("accumulation", [Accumulation.ACCUMULATING, Accumulation.RETRACTING])
def test_a_timer_that_a_late_merge_sets_in_the_past_fires_no_pane_on_time(
    tmp_path: Path, accumulation: Accumulation
) -> None:
    """Found by random lives: the merged session fired late, and then again on time, and the check failed for ever."""
    windows = Windows(
        EventTimeSessionWindows.with_gap(25 * MINUTE),
        ContinuousEventTimeTrigger.of(30 * MINUTE),
        allowed_lateness=10 * MINUTE,
        accumulation=accumulation,
        aggregate={"events": Count()},
    )
    by_hand = ByHand(tmp_path, session_pipeline(compute=windows))
    by_hand.epoch(("ann", at("11:16"), 1), watermark=at("11:46"))
    by_hand.epoch(("ann", at("10:59"), 1), watermark=at("11:50"))
    panes = [row for row in by_hand.rows("results").to_pylist() if row["op"] == "+"]
    timings = [row["timing"] for row in sorted(panes, key=lambda row: row["pane"])]
    assert timings == ["early", "on_time", "late", "late"]
    assert not broken_by_rules(pin(by_hand.tables, by_hand.pipeline))


# Only b's waiting windows: whatever could reveal that one of a's is missing is not final yet.
@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("made", "lost"), [*((waiting_lake, lost) for lost in (4, 5, 6)), *((sliding_lake, lost) for lost in range(7))]
)
def test_an_element_is_in_every_sliding_window_that_covers_it(
    made: Callable[[], QualityLake], lost: int, tmp_path: Path
) -> None:
    lake = made()
    lake.panes.pop(lost)
    lake.epochs[0]["fired_on_time"] -= 1
    found = broken(pinned_of(lake, tmp_path), only="final windows")
    assert ("final windows", "expect_elements_in_every_sliding_window") in found


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "assigner", [TumblingEventTimeWindows.of(60 * MINUTE), SlidingEventTimeWindows.of(60 * MINUTE, 20 * MINUTE)]
)
def test_windows_that_are_older_than_their_count_break_nothing(assigner: Any, lake: Lake) -> None:
    older = hourly_pipeline(compute=Windows(assigner, aggregate={"total": Sum("value")}))
    newer = replace(older, compute=Windows(assigner, aggregate={"total": Sum("value"), "events": Count()}))
    lake.append(*(("ann", at("10:00") + number * 7 * MINUTE, 1) for number in range(60)))
    for hour, pipeline in enumerate((older, older, newer, newer, newer), 10):
        lake.backfill(LOCAL, pipeline, at(f"{hour}:00"), at(f"{hour + 1}:00"))
        assert broken_in(lake.tables(pipeline), pipeline) == set()


def test_windows_that_other_code_recomputed_from_fewer_rows_break_nothing(lake: Lake) -> None:
    older = hourly_pipeline()
    newer = hourly_pipeline(where="value <> 2")
    lake.append(("ann", at("10:10"), 1), ("ann", at("10:20"), 2), ("ann", at("12:30"), 3))
    lake.stream(LOCAL, older)
    lake.append(("ann", at("10:40"), 4), ("ann", at("13:30"), 5))
    lake.stream(LOCAL, newer)
    lake.reopen(LOCAL, newer)
    assert [row["total"] for row in lake.latest(newer).to_pylist() if row["window_start"] == at("10:00")] == [5]
    assert broken_in(lake.tables(newer), newer) == set()


def test_a_window_that_other_code_corrected_from_more_rows_breaks_nothing(lake: Lake) -> None:
    """The correction is the first epoch of the new code, so only its own fingerprint tells."""
    source = DeltaSource("events", timestamp="at", changes="correct")
    older, newer = hourly_pipeline(source=source, where="value <> 2"), hourly_pipeline(source=source)
    lake.append(("ann", at("10:10"), 1), ("ann", at("10:20"), 2), ("ann", at("12:30"), 3))
    lake.stream(LOCAL, older)
    DeltaTable(lake.path("events")).delete("value = 1")
    lake.stream(LOCAL, newer)
    assert [row["total"] for row in lake.latest(newer).to_pylist() if row["window_start"] == at("10:00")] == [2]
    assert broken_in(lake.tables(newer), newer) == set()


def test_a_merge_goes_on_from_the_larger_pane_number(tmp_path: Path) -> None:
    lake = session_lake()
    first, second = dict(lake.panes[0]), dict(lake.panes[2])
    late_pane = {**second, "pane": 1, "timing": "late"}
    final_at = second["final_at"]
    merged = {
        **first,
        "window_end": at("12:30"),
        "final_at": final_at,
        "pane": 2,
        "timing": "late",
        "epoch": 2,
        "events": 4,
    }
    withdrawn = [{**first, "op": "-", "epoch": 2}, {**late_pane, "op": "-"}]
    lake = QualityLake(
        lake.pipeline,
        [first, lake.panes[1], second, late_pane, *withdrawn, merged],
        [open_window("a", "13:00", "13:30")],
        ("11:00", "13:10"),
        (3, 3),
    )
    assert broken(pinned_of(lake, tmp_path)) == set()


def test_an_epoch_whose_row_in_table_epochs_is_lost_is_refused(tmp_path: Path) -> None:
    lake = session_lake()
    lake.epochs.pop()
    with pytest.raises(Refused, match="lacks the row of epoch 2"):
        pinned_of(lake, tmp_path)


KEYS = [
    (pa.string(), ["a\0b", "a\0c", "", "\0", "nan", None]),
    (pa.int64(), [2**53, 2**53 + 1, None]),
    (pa.timestamp("us", "UTC"), [DAY0, DAY0 + timedelta(microseconds=1), None]),
    (pa.binary(), [b"a\0b", b"a\0c", None]),
]


@pytest.mark.first(2)
@pytest.mark.parametrize(("kind", "keys"), KEYS, ids=repr)
@pytest.mark.parametrize("make", [hourly_pipeline, session_pipeline])
def test_no_rule_takes_one_key_for_another(tmp_path: Path, kind: pa.DataType, keys: list[Any], make: Any) -> None:
    lake, pipeline = Lake(tmp_path), make(null_keys="keep")
    minutes = range(5, 5 + len(keys))
    columns = {
        "user": pa.array([*keys, keys[0]], kind),
        "at": pa.array([DAY0 + timedelta(minutes=minute) for minute in (*minutes, 900)], pa.timestamp("us", "UTC")),
        "value": pa.array([1] * (len(keys) + 1)),
    }
    lake.write(pa.table(columns))
    lake.stream(LOCAL, pipeline)
    pinned = pin(lake.tables(pipeline), pipeline)
    assert broken_by_rules(pinned) == set()
    windows = pinned.fresh
    assert len(windows) == len(keys)
    assert not windows.duplicated(["user"]).any(), "a suite of the pipeline's own sees them as they are, too"
    assert windows.groupby("user", dropna=False).ngroups == len(keys)
