"""The stream's loop over the log of its source: what it waits for, when it ends, and what it refuses. Arrivals, limits,
restarts, stops and new columns are random; whatever they are, the tables are those of one backfill over all commits in
the order of their arrival. No JVM runs, and nobody sleeps: a wait advances the timer.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.lake import DAY0, EVENTS, LOCAL, Lake, Row, at, hourly_pipeline, session_pipeline
from tests.pipelines.looping import Waits, continuous
from tests.recovery.arrivals import PIPELINE, Crash, commit_to, copy_of, differences, outcome, rows_of, run, source_of
from tests.recovery.test_equality import commits_come_hourly
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.definition.pipeline import Input
from tidegate.pipelines.errors import Refused, TidegateError
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import Count, IntervalJoin, TumblingProcessingTimeWindows, WatermarkStrategy, Windows
from tidegate.windowing.errors import IllegalArgument

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def replayed(lake: Lake, pipeline: Pipeline, folder: Path) -> Lake:
    """A copy of the source, backfilled once in the order of arrival."""
    beside = copy_of(lake, folder)
    beside.replay(LOCAL, pipeline)
    return beside


# --- random --------------------------------------------------------------------------------------

JOIN = hourly_pipeline(
    "pairs",
    compute=IntervalJoin.between(-20 * MINUTE, 20 * MINUTE),
    uses=("value",),
    right=Input(source=DeltaSource("others", timestamp="at"), uses=("value",)),
)
"""A join keeps the rows that it has seen, so a source may get columns only if the join names the ones it uses."""

PIPELINES = {
    "hours, commits may be cut": hourly_pipeline(
        watermark_by="user",
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(20 * MINUTE).with_idleness(90 * MINUTE),
        allowed_lateness=30 * MINUTE,
    ),
    "sessions, commits are read whole": session_pipeline(
        10 * MINUTE, watermark=WatermarkStrategy.for_bounded_out_of_orderness(20 * MINUTE), allowed_lateness=HOUR
    ),
    "hours of processing time": hourly_pipeline(
        compute=Windows(TumblingProcessingTimeWindows.of(50 * MINUTE), aggregate={"events": Count()})
    ),
    "two inputs": JOIN,
}


class Drawn:
    """A source to which random things happen: commits of one to four files, compactions, an added column."""

    def __init__(self, lake: Lake, pipeline: Pipeline, draw: random.Random) -> None:
        self.lake, self.draw, self.happened = lake, draw, 0
        self.tables = [part.source.table for part in pipeline.inputs]
        for table in self.tables:
            self.commit(table)

    def happen(self) -> None:
        """The next thing happens."""
        table = self.draw.choice(self.tables)
        act = self.draw.choice([self.commit, self.commit, self.commit, self.compact, self.widen])
        act(table)

    def commit(self, table: str) -> None:
        files = [self._rows() for _ in range(self.draw.randrange(1, 5))]
        path = self.lake.path(table)
        if DeltaTable.is_deltatable(path) and "note" in DeltaTable(path).schema().to_json():
            self._write(table, [row for rows in files for row in rows])
        else:
            self.lake.append_in_files(*files, table=table)
        self._settle(table)

    def compact(self, table: str) -> None:
        DeltaTable(self.lake.path(table)).optimize.compact()
        self._settle(table)

    def widen(self, table: str) -> None:
        self._write(table, self._rows())
        self._settle(table)

    def _write(self, table: str, rows: list[Row]) -> None:
        columns = pa.Table.from_pylist([dict(zip(EVENTS.names, row, strict=True)) for row in rows], schema=EVENTS)
        noted = columns.append_column("note", pa.array([str(value) for _, _, value in rows]))
        write_deltalake(self.lake.path(table), noted, mode="append", schema_mode="merge")

    def _rows(self) -> list[Row]:
        end = DAY0 + (self.happened + 1) * HOUR
        return [
            (
                self.draw.choice(["often", "often", "ann", "bob", None]),
                end - timedelta(seconds=self.draw.randrange(9000)),
                self.draw.randrange(9),
            )
            for _ in range(self.draw.randrange(1, 12))
        ]

    def _settle(self, table: str) -> None:
        """Commit times are an hour apart, and the clock is at the newest."""
        self.happened += 1
        clock = 0
        for other in self.tables:
            if DeltaTable.is_deltatable(self.lake.path(other)):
                commits_come_hourly(self.lake, other)
                clock = max(clock, self.lake.clock.now)
        self.lake.clock.now = clock


def streamed(lake: Lake, pipeline: Pipeline, draw: random.Random) -> None:
    """Random runs over a random source, each stopped at a random point; then to the end."""
    source = Drawn(lake, pipeline, draw)
    while source.happened < 10:
        limits = {name: draw.randrange(1, 5) for name in draw.sample(["files", "commits"], draw.randrange(3))}
        if draw.random() < 0.3:
            limits["bytes"] = draw.choice([1, 2000, 5000])
        here = replace(pipeline, parallelism=draw.choice([1, 2, 3]))
        left = draw.randrange(1, 5)
        looks = iter(range(draw.randrange(2, 12)))

        def at_times(number: int, left: int = left) -> None:
            if number <= left and draw.random() < 0.7:
                source.happen()

        def while_at_work(manifest: Manifest) -> None:
            if source.happened < 10 and draw.random() < 0.3:
                source.happen()

        def should_stop(looks: Any = looks) -> bool:
            return next(looks, None) is None

        continuous(lake, here, Waits(at_times), should_stop, on_epoch=while_at_work, **limits)
        if draw.random() < 0.5:
            lake.stream(LOCAL, here, **limits)
        source.happen()
    lake.stream(LOCAL, pipeline)


QUICK = ("two inputs",)
"""Pipelines of every run; hours and sessions are in tests/recovery/test_equality.py, and clocks in tests/property."""


@pytest.mark.parametrize(
    ("pipeline", "seed"),
    [
        pytest.param(
            pipeline, seed, id=f"{name}, {seed}", marks=() if seed == 0 and name in QUICK else pytest.mark.long
        )
        for name, pipeline in PIPELINES.items()
        for seed in range(12)
    ],
)
def test_however_commits_arrive_and_runs_stop_the_tables_are_those_of_one_backfill(
    lake: Lake, tmp_path: Path, pipeline: Pipeline, seed: int
) -> None:
    streamed(lake, pipeline, random.Random(seed))
    beside = replayed(lake, pipeline, tmp_path / "beside")
    # The rows of a random join may have no pairs (seed 2); windows always fire.
    assert rows_of(beside, pipeline)["results"] or len(pipeline.inputs) > 1
    # The replay ends at the newest commit; a clock epoch of the stream at that time records nothing more.
    assert differences(rows_of(lake, pipeline), rows_of(beside, pipeline)) == {}
    epochs = sorted(lake.rows(pipeline, "epochs").to_pylist(), key=lambda row: row["epoch"])
    assert sum(row["events_in"] for row in epochs) == sum(
        DeltaTable(lake.path(part.source.table)).to_pyarrow_table().num_rows for part in pipeline.inputs
    )


# --- polls, waits and stops ------------------------------------------------------------------------


def test_it_looks_after_each_interval_and_reads_what_a_look_finds_before_the_next(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1))
    looked: list[tuple[float, int]] = []

    def happens(number: int) -> None:
        if number == 3:
            for hour in (11, 12, 13):
                lake.append(("ann", at(f"{hour}:00"), 1))

    waits = Waits(happens)
    continuous(
        lake,
        hourly_pipeline(),
        waits,
        lambda: waits.now >= 10,
        on_epoch=lambda manifest: looked.append((waits.now, manifest.position_in("events").version)),
        files=1,
    )
    assert looked == [(0, 0), (5, 1), (5, 2), (5, 3)], "limits cut epochs, and make none of them wait"
    assert waits.waited == [1.0] * 10, "a request to stop is noticed within a second"


def test_an_interval_that_an_epoch_outlasts_makes_no_wait(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1))
    waits = Waits()

    def takes_long(manifest: Manifest) -> None:
        waits.now += 7
        if manifest.epoch < 3:
            lake.append(("ann", at("11:00"), 1))

    made = continuous(lake, hourly_pipeline(), waits, lambda: len(waits.waited) > 0, on_epoch=takes_long)
    assert [manifest.epoch for manifest in made] == [1, 2, 3]


def test_an_interval_without_a_wait_is_refused(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1))
    with pytest.raises(IllegalArgument, match="interval"):
        continuous(lake, hourly_pipeline(), Waits(), lambda: False, timedelta(0))


def test_time_passes_in_clock_epochs_at_most_once_a_second(lake: Lake) -> None:
    windows = Windows(TumblingProcessingTimeWindows.of(timedelta(seconds=1)), aggregate={"events": Count()})
    pipeline = hourly_pipeline(
        compute=windows, watermark=WatermarkStrategy.no_watermarks(), checkpoint_interval=timedelta(milliseconds=1)
    )
    lake.append(("ann", at("10:00"), 1))
    beats: list[float] = []

    def happens(number: int) -> None:
        lake.clock.now += 250

    waits = Waits(happens)
    continuous(
        lake,
        pipeline,
        waits,
        lambda: waits.now >= 4,
        timedelta(milliseconds=250),
        on_epoch=lambda manifest: beats.append(waits.now) if manifest.kind == "clock" else None,
    )
    assert len(beats) >= 3
    assert all(later - earlier >= 1 for earlier, later in pairwise(beats))


@pytest.mark.parametrize("run", ["available", "continuous"])
def test_a_request_to_stop_lets_the_epoch_end_and_leaves_the_rest_to_the_next_run(lake: Lake, run: str) -> None:
    for hour in (10, 11, 12, 13):
        lake.append(("ann", at(f"{hour}:00"), 1))
    asked: list[str] = []

    def tell(step: str) -> None:
        if step == "operated":
            asked.append(step)

    made: list[Manifest] = []
    with lake.driver(LOCAL, hourly_pipeline(), tell) as driver:
        stream = Stream(driver, made.append, EpochLimits(files=1))
        if run == "available":
            stream.run_available(lambda: bool(asked))
            stream.end_of_input()
        else:
            stream.run_continuously(HOUR, lambda: bool(asked))
    assert [manifest.position_in("events").version for manifest in made] == [0]
    assert len(lake.rows(hourly_pipeline(), "epochs")) == 1, "it is published"
    assert lake.stream(LOCAL, hourly_pipeline())[0].position_in("events").version == 3


def test_nothing_is_begun_after_a_request_that_came_before(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1))
    assert continuous(lake, hourly_pipeline(), Waits(), lambda: True) == []


def test_what_comes_while_a_run_is_at_work_is_left_to_the_next(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1))
    made: list[Manifest] = []

    def one_more(manifest: Manifest) -> None:
        made.append(manifest)
        lake.append(("ann", at("11:00"), 1))

    with lake.driver(LOCAL, hourly_pipeline()) as driver:
        Stream(driver, one_more).run_available()
    assert [manifest.position_in("events").version for manifest in made] == [0]


def test_an_error_in_an_epoch_ends_the_run_with_that_error(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1))
    error = KeyError("of the user")

    def fail(manifest: Manifest) -> None:
        raise error

    with pytest.raises(KeyError) as raised:
        continuous(lake, hourly_pipeline(), Waits(), lambda: False, on_epoch=fail)
    assert raised.value is error


def test_an_engine_that_ends_by_itself_ends_the_stream_though_nothing_is_to_do(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append(("ann", at("10:00"), 1))
    looks: list[int] = []

    def gone(*ignored: object) -> None:
        looks.append(1)
        if len(looks) == 3:
            raise TidegateError("Spark's process is gone")

    with lake.driver(LOCAL, hourly_pipeline()) as driver:
        monkeypatch.setattr(driver.engine, "check", gone)
        waits = Waits()
        with pytest.raises(TidegateError, match="is gone"):
            Stream(driver, lambda manifest: None, pause=waits.pause, timer=waits.timer).run_continuously(
                HOUR, lambda: False
            )
    assert waits.now == 2, "after a poll, and then once a second"


# --- --restore none: a new timeline from the beginning of the source ---------------------------------

OWN = ("timeline", "epoch", "parent")


def from_scratch(lake: Lake, pipeline: Pipeline = PIPELINE, crash_after: str | None = None) -> list[Manifest]:
    """Stream from the beginning of the source, and return the manifests of its epochs."""
    made: list[Manifest] = []

    def tell(step: str) -> None:
        if step == crash_after:
            raise Crash

    with lake.driver(LOCAL, pipeline, tell) as driver:  # type: ignore[arg-type]
        Stream(driver, made.append, EpochLimits(files=1), from_scratch=True).run_available()
    return made


@pytest.fixture(scope="module")
def three_commits(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = source_of(tmp_path_factory.mktemp("three") / "lake", commits=2)
    run(LOCAL, lake)
    return lake


@pytest.fixture
def streamed_before(three_commits: Lake, tmp_path: Path) -> Lake:
    """A stream that has read three commits."""
    return copy_of(three_commits, tmp_path / "lake")


def test_it_gives_what_the_stream_gave_on_a_new_timeline_without_a_row_of_the_old_one(streamed_before: Lake) -> None:
    before, last = outcome(streamed_before, without=OWN), streamed_before.snapshot(PIPELINE).manifest
    made = from_scratch(streamed_before)
    assert (made[0].epoch, made[0].timeline, made[0].parent) == (last.epoch + 1, last.timeline + 1, None)
    assert made[0].line == ((made[0].epoch, made[0].epoch),)
    assert outcome(streamed_before, without=OWN) == before
    assert {row["timeline"] for row in streamed_before.rows(PIPELINE, "results").to_pylist()} == {last.timeline + 1}


def test_until_its_first_commit_the_old_timeline_is_untouched(streamed_before: Lake) -> None:
    before = outcome(streamed_before)
    with pytest.raises(Crash):
        from_scratch(streamed_before, crash_after="operated")
    assert outcome(streamed_before) == before
    commit_to(streamed_before, 9)
    run(LOCAL, streamed_before)
    assert streamed_before.snapshot(PIPELINE).manifest.timeline == 1


def test_a_crash_after_its_first_commit_goes_on_with_the_new_timeline(streamed_before: Lake) -> None:
    before = outcome(streamed_before, without=OWN)
    with pytest.raises(Crash):
        from_scratch(streamed_before, crash_after="committed")
    run(LOCAL, streamed_before)
    assert streamed_before.snapshot(PIPELINE).manifest.timeline == 2
    assert outcome(streamed_before, without=OWN) == before


def test_a_snapshot_of_the_old_timeline_can_still_be_restored(streamed_before: Lake) -> None:
    from tidegate.pipelines.ledger.snapshots.restore import restore
    from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot

    before, last = outcome(streamed_before, without=OWN), streamed_before.snapshot(PIPELINE).manifest.epoch
    from_scratch(streamed_before)
    tables = streamed_before.tables(PIPELINE)
    restore(tables, find_snapshot(tables, str(last)), streamed_before.clock())
    assert outcome(streamed_before, without=OWN)["results"] == before["results"]


def test_what_is_fixed_for_a_timeline_is_free_again(streamed_before: Lake) -> None:
    other = replace(PIPELINE, max_parallelism=16, key=("value",), watermark_by="value")
    with pytest.raises(Refused, match="key column 'user' is string in the snapshot and absent in the code"):
        run(LOCAL, streamed_before, pipeline=other)
    made = from_scratch(streamed_before, other)
    assert (made[-1].max_parallelism, set(made[-1].schemas.key)) == (16, {"value"})
