"""The law of late data on random streams whose code changes: assigners, idleness, partitions, lateness, epoch sizes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import DeltaTable

from tests.commit_times import date_commit, newest_entry
from tests.conditions import CONDITIONS, is_kept
from tests.lake import DAY0, LOCAL, Clock, Lake, Row, hourly_pipeline
from tidegate.pipelines import Pipeline
from tidegate.pipelines.correct import affected, source_rows
from tidegate.pipelines.correct import correct as corrections
from tidegate.pipelines.correct.correct import reopen_possible
from tidegate.pipelines.correct.request import Selection
from tidegate.pipelines.correct.source_rows import SourceRows
from tidegate.pipelines.definition import results
from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.windowing import (
    CalendarEventTimeWindows,
    Count,
    CumulateEventTimeWindows,
    EventTimeSessionWindows,
    GapColumn,
    Max,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.time import to_millis

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

USERS = ("ann", "bob", "cem")

END = DAY0 + 4 * DAY

"""Every random event is long before it, and the last commit long after."""

ASSIGNERS: dict[str, Callable[[random.Random], WindowAssigner]] = {
    "tumbling": lambda draw: TumblingEventTimeWindows.of(draw.choice([20, 60, 90]) * MINUTE),
    "sliding": lambda draw: SlidingEventTimeWindows.of(draw.choice([60, 90]) * MINUTE, draw.choice([20, 30]) * MINUTE),
    "cumulative": lambda draw: CumulateEventTimeWindows.of(60 * MINUTE, draw.choice([20, 30]) * MINUTE),
    "sessions": lambda draw: EventTimeSessionWindows.with_gap(draw.choice([10, 25, 60]) * MINUTE),
    "gaps": lambda draw: EventTimeSessionWindows.with_dynamic_gap(GapColumn("value")),
    "with pauses": lambda draw: SlidingEventTimeWindows.of(
        draw.choice([10, 20]) * MINUTE, draw.choice([30, 45]) * MINUTE
    ),
    "calendar": lambda draw: CalendarEventTimeWindows.days(draw.choice(["UTC", "Europe/Berlin"])),
}


@dataclass
class Drawn:
    """A stream over a source, and a pipeline whose code may change on the way."""

    lake: Lake
    draw: random.Random
    pipeline: Pipeline

    @classmethod
    def of(cls, folder: Path, kind: str, seed: int) -> Drawn:
        draw = random.Random(f"{kind} {seed}")
        watermark = WatermarkStrategy.for_bounded_out_of_orderness(draw.choice([0, 30]) * MINUTE)
        if draw.random() < 0.7:
            watermark = watermark.with_idleness(draw.choice([20, 50]) * MINUTE)
        aggregate = {"events": Count(), "total": Sum("value"), "largest": Max("value")}
        windows = Windows(
            ASSIGNERS[kind](draw), allowed_lateness=draw.choice([0, 0, 25]) * MINUTE, aggregate=cast("Any", aggregate)
        )
        pipeline = hourly_pipeline(
            compute=windows,
            watermark=watermark,
            watermark_by=draw.choice(["user", None]),
            max_ahead=9 * DAY,
            parallelism=draw.choice([1, 2, 3]),
        )
        return cls(Lake(folder, Clock(to_millis(DAY0))), draw, pipeline)

    def commit(self) -> None:
        """Commit some time after the previous commit, with events up to then; all but one of its users may have no
        input.
        """
        self.lake.clock.now += self.draw.choice([5, 15, 45, 120]) * 60_000
        users = self.draw.sample(USERS, self.draw.choice([1, 1, 2, 3]))
        now = DAY0 + timedelta(milliseconds=self.lake.clock.now - to_millis(DAY0))
        times = [now - int(self.draw.expovariate(1 / 60)) * MINUTE for _ in range(self.draw.randrange(1, 5))]
        self.append([(self.draw.choice(users), time, self.gap()) for time in times])

    def gap(self) -> int:
        """A value that also serves as a gap."""
        return self.draw.choice([5, 20, 70]) * 60_000

    def append(self, rows: list[Row]) -> None:
        self.lake.append(*rows)
        date_commit(newest_entry(self.lake.path("events")), self.lake.clock.now)

    def stream(self) -> None:
        """Read what is there, in epochs of one to three files."""
        self.lake.stream(LOCAL, self.pipeline, files=self.draw.choice((1, 2, 3)))

    def arrive(self, commits: int) -> None:
        for _ in range(commits):
            self.commit()
            if self.draw.random() < 0.5:
                self.stream()

    def end(self) -> None:
        """Add events of every user long after all others, so that whatever was open is final."""
        self.lake.clock.now = to_millis(END + 2 * DAY)
        self.append([(user, END + 2 * DAY, 60_000) for user in USERS])
        self.stream()

    def change(self, **fields: Any) -> None:
        """Use different code from here on."""
        compute = {name: value for name, value in fields.items() if name in ("assigner", "allowed_lateness")}
        others = {name: value for name, value in fields.items() if name not in compute}
        windows = replace(cast("Windows", self.pipeline.compute), **compute)
        self.pipeline = replace(self.pipeline, compute=windows, **others)

    def final(self) -> list[tuple[Any, ...]]:
        return compared(self.lake.final(self.pipeline).to_pylist())

    def from_scratch(self) -> list[tuple[Any, ...]]:
        """Return the results of a backfill with the current code."""
        fresh = replace(self.pipeline, name="fresh")
        self.lake.backfill(LOCAL, fresh, DAY0 - 2 * DAY, END)
        return compared(self.lake.final(fresh).to_pylist())

    def counted(self) -> int:
        """Return the number of elements in the newest results, without the windows at the end."""
        rows = results.latest(self.lake.rows(self.pipeline, "results"), ("user",)).to_pylist()
        return sum(row["events"] for row in rows if row["window_start"] < END)

    def late(self) -> int:
        """Return the number of late rows that are in no window."""
        rows = self.lake.rows(self.pipeline, "late").to_pylist()
        return sum(row["reopened"] is None for row in rows)

    def without_window(self) -> int:
        """Return the number of rows that belonged to no window when they were read."""
        return sum(self.lake.rows(self.pipeline, "epochs")["no_window"].to_pylist())

    def events(self) -> int:
        source = DeltaTable(self.lake.path("events")).to_pyarrow_table()
        return sum(time < END for time in source["at"].to_pylist())


def compared(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("user", "window_start", "window_end", "events", "total", "largest")
    return sorted(tuple(row[name] for name in names) for row in rows if row["window_start"] < END)


def nothing_counts_twice(folder: Path, kind: str, seed: int) -> bool:
    """After a change of the assigner, every element is counted once, is a waiting late row, or was read into no window.

    The new windows may have gaps, so that late rows belong to none of them.
    """
    drawn = Drawn.of(folder, kind, seed)
    drawn.arrive(5)
    drawn.stream()
    drawn.change(
        assigner=ASSIGNERS[kind if kind not in FIXED else drawn.draw.choice((kind, "with pauses"))](drawn.draw)
    )
    drawn.arrive(3)
    drawn.end()
    with drawn.lake.driver(LOCAL, drawn.pipeline) as driver:
        done = reopen_possible(driver, Selection())
    waiting = drawn.late()
    assert waiting == sum(each.rows for each in done.left)
    return drawn.counted() + waiting + drawn.without_window() == drawn.events()


WHERE = (None, *CONDITIONS)

FIXED = ("tumbling", "calendar")

"""Windows whose bounds don't depend on elements; each element is in one of them."""


def free_change(draw: random.Random) -> dict[str, Any]:
    """Some of the fields that don't move windows, each with another value."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(draw.choice([0, 10, 60]) * MINUTE)
    idle = draw.choice([None, 15, 40])
    fields = {
        "watermark": strategy if idle is None else strategy.with_idleness(idle * MINUTE),
        "watermark_by": draw.choice(["user", None]),
        "allowed_lateness": draw.choice([0, 15, 60]) * MINUTE,
        "parallelism": draw.choice([1, 2, 4]),
        "checkpoint_interval": draw.choice([1, 9]) * MINUTE,
    }
    return {name: fields[name] for name in draw.sample(list(fields), draw.choice([1, 2, 3]))}


def the_law_holds(folder: Path, kind: str, seed: int) -> bool:
    """Fields that don't move windows may change: after everything is reopened, the windows are those of a new
    backfill.
    """
    drawn = Drawn.of(folder, kind, seed)
    for _ in range(3):
        drawn.arrive(3)
        drawn.stream()
        if drawn.draw.random() < 0.3:
            drawn.lake.reopen(LOCAL, drawn.pipeline)
        drawn.change(**free_change(drawn.draw))
    drawn.end()
    drawn.lake.reopen(LOCAL, drawn.pipeline)
    return drawn.final() == drawn.from_scratch() and drawn.late() == 0


Window = tuple[str, int, int]

"""Key and bounds, int64 epoch milliseconds."""


@dataclass
class Told(Drawn):
    """A stream whose rows are identified by their values, and the windows that it should have after changes of `where`.

    Args:
        windows: windows of each row, by its value.
        seen: the values of the rows that were read.
        contents: the values in each window.
    """

    windows: dict[int, Window] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    contents: dict[Window, set[int]] = field(default_factory=dict)
    number: int = 0

    def gap(self) -> int:
        """A value that no other row has."""
        self.number += 1
        return self.number

    def append(self, rows: list[Row]) -> None:
        """Record the window of each row."""
        assigner = cast("Windows", self.pipeline.compute).assigner
        for user, time, value in rows:
            (window,) = assigner.assign_windows({}, to_millis(time), None)  # type: ignore[arg-type]
            self.windows[value] = (user, window.start, window.end)
        super().append(rows)

    def stream(self) -> None:
        """Return the rows that were read, those that the current `where` keeps, and those of the latter in table
        late.
        """
        super().stream()
        late = set(self.lake.rows(self.pipeline, "late")["value"].to_pylist())
        for value in self.windows.keys() - self.seen - late:
            if self.keeps(value):
                self.contents.setdefault(self.windows[value], set()).add(value)
        self.seen |= self.windows.keys()

    def end(self) -> None:
        """Add events long after all others, which every condition keeps."""
        self.lake.clock.now = to_millis(END + 2 * DAY)
        self.append([(user, END + 2 * DAY, 1_000_000 + 6 * number) for number, user in enumerate(USERS)])
        self.stream()

    def keeps(self, value: int) -> bool:
        """Return True if the current `where` keeps a row."""
        return is_kept(self.pipeline.where, {"value": value})

    def reopened(self) -> None:
        """Windows of waiting late rows contain all rows that were read and that the current `where` keeps."""
        rows = self.lake.rows(self.pipeline, "late").to_pylist()
        waited = {self.windows[row["value"]] for row in rows if row["reopened"] is None}
        self.lake.reopen(LOCAL, self.pipeline)
        for waiting in waited:
            held = {value for value, window in self.windows.items() if window == waiting and self.keeps(value)}
            self.contents[waiting] = held

    def expected(self) -> set[tuple[Any, ...]]:
        """Return key, bounds, number and sum of each window with elements, without the open ones at the end."""
        last = max(end for _, _, end in self.windows.values())
        return {(*window, len(held), sum(held)) for window, held in self.contents.items() if held and window[2] < last}


def where_is_held(folder: Path, kind: str, seed: int) -> bool:
    """Rows are filtered by the `where` of the run that reads them, and rows of a reopened window by the current one."""
    told = Told.of(folder, kind, seed)
    told.change(where=told.draw.choice(WHERE))
    for _ in range(3):
        told.arrive(3)
        told.stream()
        if told.draw.random() < 0.5:
            told.reopened()
        told.change(where=told.draw.choice(WHERE))
    told.end()
    told.reopened()
    found = {
        (row["user"], to_millis(row["window_start"]), to_millis(row["window_end"]), row["events"], row["total"])
        for row in told.lake.latest(told.pipeline).to_pylist()
    }
    return found == told.expected()


SHAPES = ("tumbling", "sessions", "calendar", "with pauses")


@pytest.mark.first(2)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ASSIGNERS)
def test_a_stream_reopened_is_the_backfill_from_scratch(tmp_path: Path, kind: str, seed: int) -> None:
    assert the_law_holds(tmp_path, kind, seed)


@pytest.mark.first(2)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", SHAPES)
def test_no_element_counts_twice_after_a_change_of_shape(tmp_path: Path, kind: str, seed: int) -> None:
    assert nothing_counts_twice(tmp_path, kind, seed)


@pytest.mark.first(1)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", FIXED)
def test_a_changed_where_holds_for_what_is_read_and_reopened_from_then_on(tmp_path: Path, kind: str, seed: int) -> None:
    assert where_is_held(tmp_path, kind, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 40))
@pytest.mark.parametrize("kind", ASSIGNERS)
def test_all_hold_on_many_streams(tmp_path: Path, kind: str, seed: int) -> None:
    assert the_law_holds(tmp_path / "law", kind, seed)
    if kind in FIXED:
        assert where_is_held(tmp_path / "where", kind, seed)
    if kind in SHAPES:
        assert nothing_counts_twice(tmp_path / "shape", kind, seed)


def found_by_a_draw(folder: Path, law: Callable[[Path, str, int], bool], kind: str, seeds: Iterable[int]) -> bool:
    return any(not law(folder / str(seed), kind, seed) for seed in seeds)


@pytest.mark.long
def test_the_draws_find_a_watermark_that_forgets_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged_at = source_rows.judged_at
    monkeypatch.setattr(source_rows, "judged_at", lambda tables, newest, by_clock=False: judged_at(tables, newest))
    assert found_by_a_draw(tmp_path, the_law_holds, "sliding", range(20, 32))


def test_the_draws_find_windows_of_two_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affected, "check_shape", lambda *given: None)
    assert found_by_a_draw(tmp_path, nothing_counts_twice, "tumbling", range(8))


def test_the_draws_find_a_reopening_that_ignores_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(engine: Engine, source: OpenInput, *given: Any) -> SourceRows:
        pipeline = replace(source.bound.pipeline, where=None)
        return SourceRows(engine, OpenInput.open(engine, given[1], pipeline), *given)

    monkeypatch.setattr(corrections, "SourceRows", everything)
    assert found_by_a_draw(tmp_path, where_is_held, "tumbling", range(8))
