"""Intervals of a backfill are rerun after a cleanup: never as a first run, and the remedies that messages name
work.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.lake import DAY0, LOCAL, Lake, at, session_pipeline
from tests.recovery.arrivals import copy_of
from tests.remedies import remedy_of
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.epoch.plan_interval import rows_added_since
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.manifest import Interval
from tidegate.pipelines.ledger.snapshots.head import list_snapshots
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, find_snapshot
from tidegate.pipelines.remedy import Act
from tidegate.pipelines.run import backfill as backfill_module
from tidegate.pipelines.run.backfill import IntervalRun, backfill
from tidegate.windowing.time import from_millis, to_millis

PIPELINE = session_pipeline()
DAYS = 4
CORRECTED = ("ann", at("12:10", 2), 1000)
"""A row of the third day that arrives after all days have run."""


def commits_since(source: Any, interval: Interval, since: int) -> int:
    """Replaces the one count that Spark makes."""
    return len(source.commits(since))


@pytest.fixture(scope="module")
def corrected(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Four days of a backfill, with a session across every midnight; then a correction of the third day arrives."""
    lake = source(tmp_path_factory.mktemp("corrected") / "lake")
    for day in range(DAYS):
        ran(lake, day)
    lake.append(CORRECTED)
    return lake


@pytest.fixture
def lake(corrected: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A copy of them."""
    assert backfill_module.rows_added_since is rows_added_since
    monkeypatch.setattr(backfill_module, "rows_added_since", commits_since)
    return copy_of(corrected, tmp_path / "lake")


def source(folder: Path) -> Lake:
    lake = Lake(folder)
    for day in range(DAYS):
        lake.append(("ann", at("00:10", day), 1), ("ann", at("12:00", day), 10), ("ann", at("23:50", day), 100))
    return lake


def ran(lake: Lake, first: int, last: int | None = None, **options: bool) -> list[IntervalRun]:
    """Run the interval from the start of one day to the end of another (or the same)."""
    span = Interval(start=day(first), end=day((first if last is None else last) + 1))
    with lake.driver(LOCAL, PIPELINE) as driver:
        return list(backfill(driver, [span], **options))


def day(number: int) -> int:
    return to_millis(DAY0 + timedelta(days=number))


def keep(lake: Lake, snapshots: int) -> None:
    with Lease(lake.tables(PIPELINE), "vacuum", lake.clock):
        vacuum(lake.tables(PIPELINE), Retention(snapshots, timedelta(0)), lake.clock() + 40 * 86_400_000)
    assert len(list_snapshots(lake.tables(PIPELINE))) == snapshots


def windows(lake: Lake) -> list[tuple[Any, ...]]:
    rows = lake.latest(PIPELINE).to_pylist()
    return sorted((row["user"], row["window_start"], row["window_end"], row["events"], row["total"]) for row in rows)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """Return the windows of a backfill that had the correction from the start."""
    fresh = source(tmp_path_factory.mktemp("fresh") / "lake")
    fresh.append(CORRECTED)
    for number in range(DAYS):
        ran(fresh, number)
    return windows(fresh)


def test_with_its_parent_retained_a_correction_is_what_a_first_run_would_be(lake: Lake, expected: list[Any]) -> None:
    states = [(run.interval.start, run.state) for run in ran(lake, 2, and_following=True)]
    assert states == [(day(2), "done"), (day(3), "done")]
    assert windows(lake) == expected


def test_the_oldest_retained_interval_is_refused_where_the_snapshot_before_it_is_gone(lake: Lake) -> None:
    before = windows(lake)
    keep(lake, 2)
    with pytest.raises(Refused, match="continues from the snapshot of epoch 2, which is no longer retained"):
        ran(lake, 2, and_following=True)
    assert windows(lake) == before
    assert lake.snapshot(PIPELINE).manifest.epoch == DAYS


def test_an_interval_whose_snapshot_is_retained_is_unchanged_though_the_one_before_is_gone(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(lake, 2)
    monkeypatch.setattr(backfill_module, "rows_added_since", lambda *given: 0)
    assert [run.state for run in ran(lake, 2)] == ["unchanged"]


def test_of_an_interval_whose_snapshot_is_gone_nothing_tells_whether_it_changed(lake: Lake) -> None:
    keep(lake, 1)
    with pytest.raises(
        Refused, match="epoch 2, whose snapshot is no longer retained, so tidegate can't tell whether its rows"
    ):
        ran(lake, 1)


@pytest.mark.long
@pytest.mark.first(1)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_everything_run_again_from_the_first_interval_as_the_message_says(
    lake: Lake, expected: list[Any], number: int
) -> None:
    keep(lake, 2)
    with pytest.raises(Refused) as refused:
        ran(lake, number)
    first = remedy_of(refused, Act.RERUN_ALL)
    assert (first.start, first.end) == (day(0), day(1))
    runs = ran(lake, 0, again=True, and_following=True)
    assert [run.interval.start for run in runs] == [day(number) for number in range(DAYS)]
    assert windows(lake) == expected
    assert not any(lake.rows(PIPELINE, "results")["stale"].to_pylist())


@pytest.mark.long
def test_a_savepoint_that_the_message_names_is_a_way_too(lake: Lake, expected: list[Any]) -> None:
    tables = lake.tables(PIPELINE)
    create_savepoint(tables, find_snapshot(tables, "1"), "first", lake.clock())
    create_savepoint(tables, find_snapshot(tables, "4"), "last", lake.clock())
    keep(lake, 2)
    with pytest.raises(Refused, match="savepoint first, and backfill from 2024-03-02") as refused:
        ran(lake, 2)
    assert remedy_of(refused, Act.RESTORE_AND_BACKFILL).at == "savepoint:first"
    restore(tables, find_snapshot(tables, "savepoint:first"), lake.clock())
    for number in range(1, DAYS):
        ran(lake, number)
    assert windows(lake) == expected


def test_again_runs_an_interval_in_which_nothing_looks_changed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill_module, "rows_added_since", lambda *given: 0)
    assert [run.state for run in ran(lake, 3)] == ["unchanged"]
    assert [run.state for run in ran(lake, 3, again=True)] == ["done"]
    assert lake.snapshot(PIPELINE).manifest.timeline == 2


def test_a_stream_that_never_had_a_backfill_is_not_sent_back_to_one(tmp_path: Path) -> None:
    lake = source(tmp_path / "streamed")
    lake.stream(LOCAL, PIPELINE)
    with pytest.raises(Refused, match=r"a stream has taken over.*no snapshot of a backfill") as refused:
        ran(lake, 0)
    assert [remedy.act for remedy in refused.value.remedies] == [
        *(Act.KEEP_STREAM, Act.NEW_NAME, Act.STREAM_FROM_SCRATCH)
    ]


def test_a_first_interval_run_again_rejects_what_it_rejected_before_optimize(tmp_path: Path) -> None:
    """Found by random lives: after OPTIMIZE, `--again` accepted a row whose time was ahead of its commit."""
    pipeline, lake = session_pipeline(), Lake(tmp_path)
    now = from_millis(lake.clock())
    for minutes in (-30, 61):
        lake.append(("ann", now + timedelta(minutes=minutes), minutes))
    start, end = now - timedelta(hours=1), now + timedelta(hours=3)

    def rejected(**options: bool) -> list[int]:
        lake.backfill(LOCAL, pipeline, start, end, **options)
        return lake.rows(pipeline, "rejects").filter(~pc.field("stale"))["value"].to_pylist()

    assert rejected() == [61]
    DeltaTable(lake.path("events")).optimize.compact()
    moved_files(lake, 2, timedelta(hours=1))
    assert rejected(again=True) == [61]
    assert lake.latest(pipeline)["total"].to_pylist() == [-30]
    pipeline = session_pipeline(max_ahead=timedelta(minutes=59))
    assert rejected(again=True) == [], "other code judges anew"


def moved_files(lake: Lake, version: int, by: timedelta) -> None:
    """Set the time of a commit's files, earlier or later, like a writer that commits long after writing them."""
    (entry,) = Path(lake.path("events"), "_delta_log").glob(f"{version:020d}.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["modificationTime"] += int(by.total_seconds()) * 1000
    entry.write_text("\n".join(map(json.dumps, actions)) + "\n")


@pytest.mark.first(1)
@pytest.mark.parametrize("changes", ["refuse", "correct"])
@pytest.mark.parametrize("has_bounds", [True, False])
def test_rows_are_ahead_of_their_commit_in_a_backfill_as_in_a_stream(
    has_bounds: bool, changes: Any, tmp_path: Path
) -> None:
    """The files were written three hours before their commits, and the times of the rows are in between."""
    described = DeltaSource("events", timestamp="at", changes=changes)
    once, again, streamed = (session_pipeline(name=name, source=described) for name in ("once", "again", "streamed"))
    lake = Lake(tmp_path)
    now = from_millis(lake.clock())
    start, end = now - timedelta(hours=4), now + timedelta(hours=4)

    def ran_through(pipeline: Pipeline, **options: bool) -> None:
        lake.backfill(LOCAL, pipeline, start, end, **options)

    for minutes in (-30, 50, 90):
        row = ("ann", now + timedelta(minutes=minutes), minutes)
        if has_bounds:
            lake.append(row)
        else:
            lake.append_in_files([row])
        moved_files(lake, DeltaTable(lake.path("events")).version(), -timedelta(hours=3))
        ran_through(again, again=True)
    ran_through(once)
    lake.stream(LOCAL, streamed)
    for pipeline in (once, again, streamed):
        assert lake.rows(pipeline, "rejects").filter(~pc.field("stale"))["value"].to_pylist() == [90], pipeline.name
    assert (
        sorted(lake.latest(once)["total"].to_pylist()) == sorted(lake.latest(again)["total"].to_pylist()) == [-30, 50]
    )
