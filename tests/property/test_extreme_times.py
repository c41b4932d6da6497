"""Extreme times and durations go through every command: each returns a result, or refuses with an error of ours."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.commit_times import date_commit, newest_entry
from tests.lake import Lake, conserved, hourly_pipeline
from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.errors import TidegateError
from tidegate.windowing import (
    CalendarEventTimeWindows,
    Count,
    EventTimeSessionWindows,
    GapColumn,
    IntervalJoin,
    KeyedProcess,
    KeyedProcessFunction,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    Variance,
    WatermarkStrategy,
    Windows,
    count_windows,
)
from tidegate.windowing.errors import WindowingError
from tidegate.windowing.state import ValueStateDescriptor
from tidegate.windowing.time import FIRST_TIME, LAST_TIME, LONGEST_DURATION, to_millis

LEAST, GREATEST = -(2**63), 2**63 - 1
DAY = 86_400_000
YEARS = [to_millis(datetime(year, 1, 1, tzinfo=UTC)) for year in (1, 1582, 1969, 1970, 9999)]
OCTOBER_1582 = to_millis(datetime(1582, 10, 10, tzinfo=UTC))
EDGES = [FIRST_TIME, FIRST_TIME + 1, LAST_TIME - 1, *YEARS, OCTOBER_1582, 0, 1, -1, DAY, -DAY]
BEYOND = [FIRST_TIME - 1, LAST_TIME, LEAST, LEAST + 1, GREATEST, GREATEST - 1, 2**53, -(2**53)]
PRESENT = to_millis(datetime(2024, 3, 1, tzinfo=UTC))
ZONES = ["UTC", "Pacific/Kiritimati", "Etc/GMT+12", "Europe/Berlin"]
DURATIONS = [1, 999, 3_600_000, DAY, 36_500 * DAY, LONGEST_DURATION - 1, LONGEST_DURATION]
BEFORE_ALL = [None, datetime(1, 1, 2), datetime(1582, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999_999)]


class Reminds(KeyedProcessFunction):
    """Counts the rows of a key, and sets a timer at an element's time plus its gap."""

    result_type = pa.struct([("rows", pa.int64()), ("due", pa.int64())])
    rows = ValueStateDescriptor("rows", pa.int64())

    def states(self) -> list[Any]:
        return [self.rows]

    def process_element(self, value: Any, ctx: Any) -> None:
        rows = ctx.get_state(self.rows)
        rows.update((rows.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp + (value["gap"] or 0))

    def on_timer(self, timestamp: Any, ctx: Any) -> Any:
        yield {"rows": ctx.get_state(self.rows).value(), "due": timestamp}


AGGREGATE = {"aggregate": {"n": Count(), "total": Sum("ratio"), "spread": Variance("ratio")}}
COMPUTES: dict[str, Callable[[random.Random, int], Any]] = {
    "tumbling": lambda draw, late: Windows(
        TumblingEventTimeWindows.of(draw.choice(DURATIONS)), allowed_lateness=late, **AGGREGATE
    ),
    "sliding": lambda draw, late: Windows(
        SlidingEventTimeWindows.of(2 * (size := draw.choice(DURATIONS[2:-2])), size), allowed_lateness=late, **AGGREGATE
    ),
    "sessions": lambda draw, late: Windows(
        EventTimeSessionWindows.with_gap(draw.choice(DURATIONS)), allowed_lateness=late, **AGGREGATE
    ),
    "gaps": lambda draw, late: Windows(
        EventTimeSessionWindows.with_dynamic_gap(GapColumn("gap")), allowed_lateness=late, **AGGREGATE
    ),
    "years": lambda draw, late: Windows(
        CalendarEventTimeWindows.months(draw.choice(ZONES), 12), allowed_lateness=late, **AGGREGATE
    ),
    "count": lambda draw, late: count_windows(2, **AGGREGATE),
    "timers": lambda draw, late: KeyedProcess(Reminds()),
    "join": lambda draw, late: IntervalJoin(-draw.choice(DURATIONS), draw.choice(DURATIONS)),
}


def source_column(kind: str, times: list[int], draw: random.Random) -> pa.Array:
    """Return times, int64 epoch milliseconds, as a column; a time that the type can't hold becomes the nearest."""
    if kind == "ms":
        return pa.array(times, pa.int64())
    first, last = to_millis(datetime.min.replace(tzinfo=UTC)), to_millis(datetime.max.replace(tzinfo=UTC))
    micros = [min(max(time, first), last) * 1000 + draw.choice([0, 0, 1, 999]) for time in times]
    return pa.array(micros, pa.timestamp("us", None if kind == "ntz" else "UTC"))


class Extreme:
    """A pipeline over extreme rows, drawn from a seed."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.lake, self.draw = lake, random.Random(seed)
        draw, names = self.draw, list(COMPUTES)
        self.kind = draw.choice(["ms", "utc", "ntz"])
        self.compute = COMPUTES[names[seed % len(names)]](draw, draw.choice([0, 0, DAY, LONGEST_DURATION]))
        self.tables = ("events", "right") if isinstance(self.compute, IntervalJoin) else ("events",)
        self.pipeline = self._pipeline()
        self.project = lake.project(self.pipeline, settings={"hours": {"timezone": draw.choice(ZONES)}})
        self.far_future = draw.random() < 0.5

    def _pipeline(self) -> Pipeline:
        draw, bound = self.draw, self.draw.choice([0, *DURATIONS])
        source = DeltaSource(
            "events",
            timestamp="at",
            unit="ms" if self.kind == "ms" else None,
            zone=draw.choice(ZONES) if self.kind == "ntz" else None,
            not_before=draw.choice(BEFORE_ALL),
            changes=draw.choice(["correct", "ignore"]),
        )
        options: dict[str, Any] = {
            "source": source,
            "compute": self.compute,
            "watermark": WatermarkStrategy.for_bounded_out_of_orderness(bound),
            "max_ahead": draw.choice([DAY, LONGEST_DURATION]),
            "parallelism": 2,
        }
        if len(self.tables) > 1:
            options["right"] = Input(source=replace(source, table="right"))
        try:
            return hourly_pipeline(**options)
        except WindowingError:
            options["source"] = replace(source, changes="ignore")
            if "right" in options:
                options["right"] = Input(source=replace(source, table="right", changes="ignore"))
            return hourly_pipeline(**options)

    def commit(self) -> None:
        """Append rows in one commit of each table."""
        draw, rows = self.draw, self.draw.randint(1, 12)
        for table in self.tables:
            pool = [*EDGES, *(BEYOND if draw.random() < 0.5 else []), PRESENT, PRESENT + 1, PRESENT + 7 * DAY]
            times = [draw.choice(pool) + draw.choice([0, 0, 1, -1, DAY]) for _ in range(rows)]
            times = [min(max(time, LEAST), GREATEST) for time in times]
            gaps = [
                draw.choice([1, 60_000, DAY, LONGEST_DURATION, LONGEST_DURATION + 1, 0, -1, LEAST, GREATEST, None])
                if draw.random() < 0.4
                else 60_000
                for _ in range(rows)
            ]
            columns = {
                "user": [draw.choice(["ann", "bob", "cem"]) for _ in range(rows)],
                "at": source_column(self.kind, times, draw),
                "gap": pa.array(gaps, pa.int64()),
                "ratio": pa.array([draw.choice([0.5, 1e300, -1e300]) for _ in range(rows)]),
            }
            self.lake.write(pa.table(columns), table)
            if self.far_future:
                date_commit(newest_entry(self.lake.path(table)), to_millis(datetime(9990, 1, 1, tzinfo=UTC)))

    def read_all(self) -> None:
        for command in self.reading():
            attempted(command)

    def reading(self) -> Iterator[Callable[[], Any]]:
        """Yield every command that changes nothing."""
        project, name, key = self.project, "hours", ("ann",)
        for view in ("final", "latest", "all"):
            for zone in (None, "Pacific/Kiritimati", "Etc/GMT+12"):
                yield lambda view=view, zone=zone: project.results(name, view=view, local=zone)  # type: ignore[misc]
        yield lambda: project.runs(name, stale=True)
        yield lambda: project.list()
        yield lambda: project.explain(name)
        yield lambda: project.tables.lineage(name)
        yield lambda: project.verify(name, sample="all").require()
        yield lambda: project.trace(name, key)
        yield lambda: project.trace(name, key, page=True)
        yield lambda: project.why(name, key=key)
        yield lambda: project.quality.check(name).require()
        yield lambda: project.late.summary(name)
        yield lambda: project.report(name)
        yield lambda: project.snapshots.list(name)
        yield lambda: project.snapshots.show(name)
        yield lambda: project.snapshots.diff(name, 1)
        yield lambda: project.snapshots.check(name)
        yield lambda: project.advise(name)
        yield lambda: project.advise(name, bound=[timedelta(0), timedelta(milliseconds=LONGEST_DURATION)], page=True)

    def change(self) -> None:
        """Delete rows of the source."""
        for table in self.tables:
            DeltaTable(self.lake.path(table)).delete("user = 'bob'")

    def check_conserved(self) -> None:
        """Each row of an epoch is on time, late or filtered. A pipeline whose runs were refused has no tables."""
        with suppress(TidegateError):
            self.project.runs("hours")
            assert conserved(self.lake.rows(self.pipeline, "epochs").to_pylist())


def attempted(command: Callable[[], Any]) -> bool:
    """Run a command to its end, and show its answer. Return False if it refused with an error of ours."""
    try:
        answer = command()
    except TidegateError as error:
        if isinstance(error.__cause__, OverflowError | pa.ArrowInvalid):
            raise
        return False
    assert str(answer)
    for show in ("to_dict", "to_arrow", "_repr_html_"):
        if hasattr(answer, show):
            getattr(answer, show)()
    return True


@pytest.mark.first(1)
@pytest.mark.parametrize("seed", range(3, 163))
def test_extreme_times_go_through_every_command(lake: Lake, seed: int) -> None:
    life = Extreme(lake, seed)
    project = life.project
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        life.commit()
        if life.draw.random() < 0.4:
            edges = sorted(life.draw.sample([-DAY, 0, PRESENT, FIRST_TIME + DAY, LAST_TIME - DAY, YEARS[1]], 2))
            start, end = (datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC")) + timedelta(milliseconds=each) for each in edges)
            attempted(lambda: project.backfill("hours", start, end))
            life.read_all()
        for _ in range(2):
            attempted(lambda: project.stream("hours"))
            life.commit()
        attempted(lambda: project.stream("hours"))
        life.check_conserved()
        life.read_all()
        life.change()
        attempted(lambda: project.stream("hours"))
        life.check_conserved()
        for command in (
            lambda: project.stream("hours", end_of_input=life.draw.random() < 0.3),
            lambda: project.late.reopen("hours"),
            lambda: project.restore("hours", 1),
            lambda: project.stream("hours"),
            lambda: project.forget("hours", ("ann",)),
            lambda: project.stream("hours"),
            lambda: project.tables.vacuum("hours", snapshots=1, days=0),
        ):
            attempted(command)
        life.check_conserved()
        life.read_all()
