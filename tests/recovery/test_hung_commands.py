"""Pairs of commands: one hangs before or after a mutating operation for longer than its lease, the other works. Nothing
is lost or doubled, everything that is listed can be read, and the exit code says what happened. When no more input
arrives, idle partitions are not waited for, `why` names one that is waited for, and clocks advance.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import DAY0, LOCAL, Clock, Lake, at, hourly_pipeline
from tests.recovery.hung import COMMANDS, Hung
from tests.recovery.test_equality import commits_come_hourly
from tidegate.pipelines import Pipeline
from tidegate.pipelines.ask.waiting import open_windows, partitions
from tidegate.pipelines.definition import state
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots import retention
from tidegate.pipelines.ledger.tables import commits
from tidegate.pipelines.ledger.tables.commits import CommitProperties, commit
from tidegate.pipelines.run.backfill import replay
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import (
    EventTimeSessionWindows,
    Sum,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.time import to_millis

pytestmark = pytest.mark.recovery

DRAWN = 10
"""Pairs that are tried in every run; each takes one to two seconds."""

PLACES = max(1, int(os.environ.get("TIDEGATE_EXAMPLES", "2000")) // 1000)
"""Places at which a command of each pair hangs in the long form. A command has up to 360; all places of all pairs take
days.
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hung]:
    with Hung.make(tmp_path_factory) as project:
        yield project


@pytest.mark.first(1)
@pytest.mark.parametrize("seed", range(DRAWN))
def test_a_command_that_hangs_over_another_one_loses_and_doubles_nothing(made: Hung, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    first, second = draw.choice([*COMMANDS]), draw.choice([*COMMANDS])
    operation = draw.randint(1, max(1, made.copy(tmp_path / "counted").operations(first)))
    assert made.copy(tmp_path / "copy").faults(first, second, operation, draw.random() < 0.5) == []


@pytest.mark.long
@pytest.mark.parametrize("second", COMMANDS)
@pytest.mark.parametrize("first", COMMANDS)
def test_wherever_a_command_hangs_over_another_one_nothing_is_lost(
    made: Hung, tmp_path: Path, first: str, second: str
) -> None:
    operations = made.copy(tmp_path / "counted").operations(first)
    places = [(operation, after) for operation in range(1, operations + 1) for after in (False, True)]
    drawn = random.Random(f"{first} over {second}").sample(places, min(len(places), PLACES))
    copy = made.copy
    found = {place: faults for place in drawn if (faults := copy(tmp_path / "copy").faults(first, second, *place))}
    assert found == {}


@pytest.mark.long
@pytest.mark.parametrize(("first", "second"), [("optimize", "vacuum"), ("vacuum", "restore")])
def test_this_does_not_rest_on_a_look_at_the_lease(made: Hung, tmp_path: Path, first: str, second: str) -> None:
    """Its clock may be wrong, or a process may hang right after the check."""
    operations = made.copy(tmp_path / "counted").operations(first)
    with pytest.MonkeyPatch.context() as planted:
        no_lease_is_looked_at(planted)
        for operation in range(3, min(operations, 12)):
            assert made.copy(tmp_path / "copy").faults(first, second, operation, False) == []


def state_alone_is_fenced(planted: pytest.MonkeyPatch) -> None:
    def fence(tables: retention.PipelineTables, *decided: object) -> None:
        commit(tables.warehouse, tables.open(state.NAME), [], {})

    planted.setattr(retention, "_fence", fence)


def commits_are_tried_again(planted: pytest.MonkeyPatch) -> None:
    def with_retries(**properties: object) -> CommitProperties:
        return CommitProperties(**{**properties, "max_commit_retries": 15})  # type: ignore[arg-type]

    planted.setattr(commits, "CommitProperties", with_retries)


def no_lease_is_looked_at(planted: pytest.MonkeyPatch) -> None:
    planted.setattr(Lease, "check", lambda self: None)


@pytest.mark.first(1)
@pytest.mark.parametrize("bug", [state_alone_is_fenced, commits_are_tried_again])
def test_without_a_protection_a_command_that_hangs_does_harm(
    made: Hung, tmp_path: Path, bug: Callable[[pytest.MonkeyPatch], None]
) -> None:
    with pytest.MonkeyPatch.context() as planted:
        bug(planted)
        # Before the first commit of `optimize`, the fourth operation, after the files that it writes.
        places = range(4, 12)
        assert any(made.copy(tmp_path / "copy").faults("optimize", "vacuum", place, False) for place in places)


HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)

PATIENT = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(0))


def stream(
    lake: Lake, pipeline: Pipeline, clock: Any = None, on_epoch: Callable[[Manifest], None] = lambda manifest: None
) -> list[Manifest]:
    """Run the commits that exist, then advance the clock; return the manifests of the epochs."""
    if clock is not None:
        lake.clock.now = to_millis(clock)
    made: list[Manifest] = []

    def keep(manifest: Manifest) -> None:
        made.append(manifest)
        on_epoch(manifest)

    with lake.driver(LOCAL, pipeline) as driver:  # type: ignore[arg-type]
        Stream(driver, keep).run_available()
    return made


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """One hour of two users; then bob has no input, and ann continues."""
    lake = Lake(tmp_path, Clock(0))
    lake.append(("ann", at("00:10"), 1), ("bob", at("00:20"), 2))
    lake.append(("ann", at("01:10"), 3))
    lake.append(("ann", at("02:10"), 4))
    commits_come_hourly(lake, "events")
    return lake


def test_without_idleness_a_silent_partition_holds_the_windows_and_why_names_it(lake: Lake) -> None:
    pipeline = hourly_pipeline(watermark=PATIENT, watermark_by="user")
    stream(lake, pipeline, clock=at("09:00"))
    assert len(lake.rows(pipeline, "results")) == 0
    head = lake.snapshot(pipeline)
    slowest = partitions(head.manifest, lake.clock())[0]
    assert (slowest.name, slowest.holds, slowest.watermark) == ("bob", True, to_millis(at("00:20")) - 1)
    assert slowest.quiet == to_millis(at("09:00")) - to_millis(DAY0)
    waiting, count = open_windows(lake.tables(pipeline).warehouse, head, 0, lake.clock())
    assert count == len(waiting) == 4
    assert all("source partition 'bob' holds it back" in str(window.reason) for window in waiting)


def test_why_does_not_blame_a_partition_that_came_back_and_is_not_waited_for_yet(lake: Lake) -> None:
    pipeline = hourly_pipeline(watermark=PATIENT.with_idleness(90 * MINUTE), watermark_by="user")
    stream(lake, pipeline, clock=at("03:00"))
    lake.append(("bob", at("01:30"), 5), ("ann", at("02:50"), 6))
    commits_come_hourly(lake, "events")
    stream(lake, pipeline)
    head = lake.snapshot(pipeline)
    told = [(one.name, one.aligned, one.holds) for one in partitions(head.manifest, lake.clock())]
    assert told == [("ann", True, True), ("bob", False, False)]
    waiting, _ = open_windows(lake.tables(pipeline).warehouse, head, 0, lake.clock())
    assert all("source partition 'ann' holds it back" in str(window.reason) for window in waiting)
    stream(lake, pipeline, clock=at("09:00"))
    lake.append(("bob", at("01:40"), 5))
    commits_come_hourly(lake, "events")
    stream(lake, pipeline, clock=at("09:10"))
    waiting, _ = open_windows(lake.tables(pipeline).warehouse, lake.snapshot(pipeline), 0, lake.clock())
    assert all("source partition 'bob' was idle and has to catch up first" in str(window.reason) for window in waiting)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "watermark",
    [
        PATIENT.with_idleness(150 * MINUTE),
        WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(timedelta(0), 5 * MINUTE, MINUTE),
    ],
    ids=["idle partitions", "a generator that goes on by itself"],
)
def test_nobody_can_tell_whether_a_stream_looked_between_two_commits(lake: Lake, watermark: WatermarkStrategy) -> None:
    """The clock advances event time before the rows of the next commit are compared with it."""
    sessions = Windows(EventTimeSessionWindows.with_gap(10 * MINUTE), aggregate={"total": Sum("value")})
    often, once, again = (
        hourly_pipeline(name, compute=sessions, watermark=watermark, watermark_by="user")
        for name in ("often", "once", "again")
    )
    for minute in (1, 31, 59):
        stream(lake, often, clock=at("02:00") + minute * MINUTE)
    assert lake.snapshot(often).manifest.watermark > to_millis(at("00:20")), "time went on without bob"
    lake.append(("bob", at("00:30"), 5), ("ann", at("02:30"), 5), ("ann", at("02:58"), 6))
    lake.append(("bob", at("03:30"), 7))
    commits_come_hourly(lake, "events")
    for pipeline in (often, once):
        stream(lake, pipeline, clock=at("04:00"))
    with lake.driver(LOCAL, again) as driver:  # type: ignore[arg-type]
        list(replay(driver))

    def seen(pipeline: Pipeline) -> list[Any]:
        late = lake.rows(pipeline, "late").select(["user", "at"])
        final = lake.final(pipeline).select(["user", "window_start", "window_end", "total"])
        ordered = [table.sort_by([(name, "ascending") for name in table.column_names[:2]]) for table in (late, final)]
        return [*map(pa.Table.to_pylist, ordered), lake.snapshot(pipeline).manifest.watermark]

    assert seen(often) == seen(once) == seen(again)
    assert seen(often)[0], "rows came late"


def test_the_clock_does_not_go_on_over_a_commit_that_came_while_a_run_was_at_work(lake: Lake) -> None:
    goes_on = WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(timedelta(0), 5 * MINUTE, MINUTE)
    pipeline = hourly_pipeline(watermark=goes_on)

    def one_more(manifest: Manifest) -> None:
        if manifest.epoch == 1:
            lake.append(("bob", at("03:05"), 5))
            commits_come_hourly(lake, "events")
            lake.clock.now = to_millis(at("09:00"))

    made = stream(lake, pipeline, at("02:01"), one_more)
    assert [(one.kind, one.processing_time) for one in made] == [
        ("stream", to_millis(at("02:00"))),
        ("clock", to_millis(at("03:00"))),
    ]
    stream(lake, pipeline)
    assert lake.rows(pipeline, "late").num_rows == 0
    assert lake.snapshot(pipeline).manifest.counters["open_windows"] == 0
