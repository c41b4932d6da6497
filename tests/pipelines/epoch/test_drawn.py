"""The law of late data on drawn streams: assigners, idleness, source partitions, lateness, cuts, changes on the way."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import DeltaTable

from tests.commit_times import date_commit, newest_entry
from tests.lake import DAY0, LOCAL, Clock, Lake, Row, hourly_pipeline
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition import results
from tidegate.pipelines.epoch import affected, passed
from tidegate.pipelines.errors import Refused
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

pytestmark = pytest.mark.slow

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
USERS = ("ann", "bob", "cem")
END = DAY0 + 4 * DAY
"""Every drawn event is long before it, and the last commit long after."""

ASSIGNERS: dict[str, Callable[[random.Random], WindowAssigner]] = {
    "tumbling": lambda draw: TumblingEventTimeWindows.of(draw.choice([20, 60, 90]) * MINUTE),
    "sliding": lambda draw: SlidingEventTimeWindows.of(draw.choice([60, 90]) * MINUTE, draw.choice([20, 30]) * MINUTE),
    "cumulative": lambda draw: CumulateEventTimeWindows.of(60 * MINUTE, draw.choice([20, 30]) * MINUTE),
    "sessions": lambda draw: EventTimeSessionWindows.with_gap(draw.choice([10, 25, 60]) * MINUTE),
    "gaps": lambda draw: EventTimeSessionWindows.with_dynamic_gap(GapColumn("value")),
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
        """A commit some time after the one before, of events up to then; its users may all but one be silent."""
        self.lake.clock.now += self.draw.choice([5, 15, 45, 120]) * 60_000
        users = self.draw.sample(USERS, self.draw.choice([1, 1, 2, 3]))
        now = DAY0 + timedelta(milliseconds=self.lake.clock.now - to_millis(DAY0))
        times = [now - int(self.draw.expovariate(1 / 60)) * MINUTE for _ in range(self.draw.randrange(1, 5))]
        self.append([(self.draw.choice(users), time, self.gap()) for time in times])

    def gap(self) -> int:
        """A value that serves as a gap too."""
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
        """Events long after all others, of everybody: whatever was open is final."""
        self.lake.clock.now = to_millis(END + 2 * DAY)
        self.append([(user, END + 2 * DAY, 60_000) for user in USERS])
        self.stream()

    def change(self, **fields: Any) -> None:
        """Other code from here on."""
        compute = {name: value for name, value in fields.items() if name in ("assigner", "allowed_lateness")}
        others = {name: value for name, value in fields.items() if name not in compute}
        windows = replace(cast("Windows", self.pipeline.compute), **compute)
        self.pipeline = replace(self.pipeline, compute=windows, **others)

    def final(self) -> list[tuple[Any, ...]]:
        return compared(self.lake.final(self.pipeline).to_pylist())

    def from_scratch(self) -> list[tuple[Any, ...]]:
        """Return the results of a backfill with today's code."""
        fresh = replace(self.pipeline, name="fresh")
        self.lake.backfill(LOCAL, fresh, DAY0 - 2 * DAY, END)
        return compared(self.lake.final(fresh).to_pylist())

    def counted(self) -> int:
        """Return the number of elements in the newest results, without the windows at the end."""
        rows = results.latest(self.lake.rows(self.pipeline, "results"), ("user",)).to_pylist()
        return sum(row["events"] for row in rows if row["window_start"] < END)

    def late(self) -> int:
        """Return the number of late rows that no window holds."""
        rows = self.lake.rows(self.pipeline, "late").to_pylist()
        return sum(row["reopened"] is None for row in rows)

    def events(self) -> int:
        source = DeltaTable(self.lake.path("events")).to_pyarrow_table()
        return sum(time < END for time in source["at"].to_pylist())


def compared(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("user", "window_start", "window_end", "events", "total", "largest")
    return sorted(tuple(row[name] for name in names) for row in rows if row["window_start"] < END)


def the_law_holds(folder: Path, kind: str, seed: int) -> bool:
    """Everything reopened, on the way and at the end, gives the windows of a backfill from scratch."""
    drawn = Drawn.of(folder, kind, seed)
    drawn.arrive(4)
    drawn.stream()
    if drawn.draw.random() < 0.5:
        drawn.lake.reopen(LOCAL, drawn.pipeline)
    drawn.change(parallelism=drawn.draw.choice([1, 2, 4]), checkpoint_interval=drawn.draw.choice([1, 9]) * MINUTE)
    drawn.arrive(4)
    drawn.end()
    drawn.lake.reopen(LOCAL, drawn.pipeline)
    return drawn.final() == drawn.from_scratch() and drawn.late() == 0


def nothing_counts_twice(folder: Path, kind: str, seed: int) -> bool:
    """With another assigner on the way every element is counted once, or is a late row that waits."""
    drawn = Drawn.of(folder, kind, seed)
    drawn.arrive(5)
    drawn.stream()
    drawn.change(assigner=ASSIGNERS[kind](drawn.draw))
    drawn.arrive(3)
    drawn.end()
    try:
        drawn.lake.reopen(LOCAL, drawn.pipeline)
    except Refused:
        drawn.draw.random()
    return drawn.counted() + drawn.late() == drawn.events()


SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2)))


@pytest.mark.first(2)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ASSIGNERS)
def test_a_stream_reopened_is_the_backfill_from_scratch(tmp_path: Path, kind: str, seed: int) -> None:
    assert the_law_holds(tmp_path, kind, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["tumbling", "sessions", "calendar"])
def test_no_element_counts_twice_after_a_change_of_shape(tmp_path: Path, kind: str, seed: int) -> None:
    assert nothing_counts_twice(tmp_path, kind, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 40))
@pytest.mark.parametrize("kind", ASSIGNERS)
def test_both_hold_on_many_streams(tmp_path: Path, kind: str, seed: int) -> None:
    assert the_law_holds(tmp_path / "law", kind, seed)
    if kind in ("tumbling", "sessions", "calendar"):
        assert nothing_counts_twice(tmp_path / "change", kind, seed)


def found_by_a_draw(folder: Path, law: Callable[[Path, str, int], bool], kind: str, seeds: int) -> bool:
    return any(not law(folder / str(seed), kind, seed) for seed in range(seeds))


@pytest.mark.long
def test_the_draws_find_a_watermark_that_forgets_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged_at = passed.judged_at
    monkeypatch.setattr(passed, "judged_at", lambda tables, newest, by_clock=False: judged_at(tables, newest))
    assert found_by_a_draw(tmp_path, the_law_holds, "sliding", 12)


def test_the_draws_find_windows_of_two_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affected, "check_shape", lambda *given: None)
    assert found_by_a_draw(tmp_path, nothing_counts_twice, "tumbling", 8)
