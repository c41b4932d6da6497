"""Times and durations have one range. What lies outside is refused or rejected before anything is committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dateutil.relativedelta import relativedelta
from deltalake import DeltaTable

from tests.lake import LOCAL, Lake, at, conserved, hourly_pipeline
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.definition import rejects
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Interval
from tidegate.pipelines.ledger.snapshots.commit import commit_snapshot
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.run.intervals import cut, cut_gap, interval_after
from tidegate.pipelines.storage.warehouse import arrow_schema
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import (
    AfterProcessingTime,
    CalendarEventTimeWindows,
    ContinuousEventTimeTrigger,
    Count,
    CumulateEventTimeWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GapColumn,
    GlobalWindows,
    IntervalJoin,
    KeepFirst,
    KeyedProcess,
    KeyedProcessFunction,
    ProcessingTimeoutTrigger,
    SlidingEventTimeWindows,
    TimeEvictor,
    TimeWindow,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.state import StateTtlConfig
from tidegate.windowing.time import FIRST_TIME, LAST_TIME, LONGEST_DURATION, MAX_TIMESTAMP, MIN_TIMESTAMP, to_millis
from tidegate.windowing.triggers import Trigger
from tidegate.windowing.watermarks import WatermarkGenerator

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
COLUMNS = pa.schema(
    [("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("value", pa.int64()), ("gap", pa.int64())]
)
FIRST, LAST = (datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, 23, 59, 59, 999_000, tzinfo=UTC))


def row(time: datetime | None, user: str = "ann", gap: int | None = 60_000) -> dict[str, Any]:
    return {"user": user, "at": time, "value": 1, "gap": gap}


def reasons(pipeline: Pipeline, *rows: dict[str, Any]) -> list[str]:
    """Return the reasons for which a backfill rejects rows; a row without a reason is usable."""
    harness = PipelineHarness(pipeline, COLUMNS)
    harness.commit(list(rows), at=LAST)
    harness.run()
    counted = harness.counters
    assert counted["usable"] + counted["rejected"] == len(rows)
    return [each["reason"] for each in harness.rejected()]


# --- durations ---------------------------------------------------------------------------------

TOO_LONG = timedelta(days=365_001)
DURATIONS: dict[str, Callable[[Any], object]] = {
    "size": TumblingEventTimeWindows.of,
    "offset": lambda value: TumblingEventTimeWindows.of(LONGEST_DURATION, value),
    "slide": lambda value: SlidingEventTimeWindows.of(1000, value),
    "max_size": lambda value: CumulateEventTimeWindows.of(value, 1000),
    "step": lambda value: CumulateEventTimeWindows.of(LONGEST_DURATION, value),
    "gap": EventTimeSessionWindows.with_gap,
    "count": lambda value: CalendarEventTimeWindows.days(
        "UTC", value // timedelta(days=1) if value != 2**63 else value
    ),
    "allowed_lateness": lambda value: hourly_pipeline(allowed_lateness=value),
    "max_ahead": lambda value: hourly_pipeline(max_ahead=value),
    "checkpoint_interval": lambda value: hourly_pipeline(checkpoint_interval=value),
    "delay": WatermarkStrategy.for_bounded_out_of_orderness,
    "wait": lambda value: WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(0, value),
    "idle_timeout": lambda value: replace(WatermarkStrategy.for_monotonous_timestamps(), idle_timeout=value),
    "interval": ContinuousEventTimeTrigger.of,
    "timeout": lambda value: ProcessingTimeoutTrigger.of(EventTimeTrigger(), value),
    "ttl": StateTtlConfig,
    "upper": lambda value: IntervalJoin(0, value),
    "lower": lambda value: IntervalJoin(value, 0),
    "KeepFirst.within": lambda value: KeepFirst(pa.struct([("value", pa.int64())]), value),
}


@pytest.mark.parametrize("field", DURATIONS)
@pytest.mark.parametrize("value", [TOO_LONG, timedelta.max, 2**63])
def test_a_duration_that_is_too_long_is_refused_when_it_is_given(field: str, value: Any) -> None:
    with pytest.raises(IllegalArgument, match=rf"^{field} = .*(a duration is at most 365,000 d|give at most)"):
        DURATIONS[field](value)


@pytest.mark.parametrize("make", [TimeEvictor.of, AfterProcessingTime])
def test_evictors_and_terms_have_the_same_limit(make: Callable[[Any], object]) -> None:
    make(LONGEST_DURATION)
    with pytest.raises(IllegalArgument, match="a duration is at most 365,000 d"):
        make(LONGEST_DURATION + 1)


# --- event times -------------------------------------------------------------------------------


def test_a_clock_that_was_never_set_is_rejected_and_the_bound_can_be_moved() -> None:
    ticks = [datetime(1969, 12, 31, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 0, 1)]
    rows = [row(time if time.tzinfo else time.replace(tzinfo=UTC)) for time in ticks]
    pipeline = hourly_pipeline(max_ahead=LONGEST_DURATION)
    assert reasons(pipeline, *rows) == [rejects.BEFORE] * 2
    early = replace(pipeline, source=DeltaSource("events", timestamp="at", not_before=datetime(1960, 1, 1)))
    assert reasons(early, *rows) == []
    late = replace(pipeline, source=DeltaSource("events", timestamp="at", not_before=NOON))
    assert reasons(late, row(NOON - timedelta(microseconds=1)), row(NOON)) == [rejects.BEFORE]


@pytest.mark.parametrize(("zone", "hour"), [("Asia/Tokyo", 15), ("America/New_York", 5), ("UTC", 0)])
def test_a_wall_clock_that_was_never_set_shows_the_beginning_of_1970_in_its_zone(zone: str, hour: int) -> None:
    wall = pa.schema([field if field.name != "at" else pa.field("at", pa.timestamp("us")) for field in COLUMNS])
    pipeline = hourly_pipeline(source=DeltaSource("events", timestamp="at", zone=zone))
    harness = PipelineHarness(pipeline, wall)
    harness.commit([row(datetime(1970, 1, 1)), row(datetime(1970, 1, 1, 0, 0, 0, 1000))], at=NOON)
    harness.run()
    assert [each["at"] for each in harness.rejected()] == [datetime(1970, 1, 1)]


@pytest.mark.parametrize("value", ["1960-01-01", 0, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)])
def test_a_bound_that_is_no_time_of_the_range_is_refused(value: Any) -> None:
    with pytest.raises(IllegalArgument, match=r"^source\.not_before = .*: give a "):
        DeltaSource("events", timestamp="at", not_before=value)


def test_the_bound_is_part_of_the_fingerprint_and_its_default_is_not() -> None:
    def fingerprint(**source: Any) -> str:
        pipeline = hourly_pipeline(source=DeltaSource("events", timestamp="at", **source))
        return PipelineHarness(pipeline, COLUMNS).bound.fingerprint

    assert len({fingerprint(), fingerprint(not_before=NOON), fingerprint(not_before=FIRST)}) == 3
    assert fingerprint(not_before=None) == fingerprint()


DAY, YEAR = timedelta(days=1), timedelta(days=366)
ASSIGNERS = {
    "hours": (TumblingEventTimeWindows.of(timedelta(hours=1)), timedelta(hours=1)),
    "sliding": (SlidingEventTimeWindows.of(timedelta(hours=2), timedelta(hours=1)), timedelta(hours=2)),
    "growing": (CumulateEventTimeWindows.of(timedelta(hours=2), timedelta(hours=1)), timedelta(hours=2)),
    "sessions": (EventTimeSessionWindows.with_gap(timedelta(hours=1)), timedelta(hours=1)),
    "gaps": (EventTimeSessionWindows.with_dynamic_gap(GapColumn("gap")), timedelta(hours=1)),
    "days": (CalendarEventTimeWindows.days("Pacific/Auckland"), 3 * DAY),
    "years": (CalendarEventTimeWindows.months("America/New_York", 12), 374 * DAY),
    "centuries": (TumblingEventTimeWindows.of(timedelta(days=36_500)), timedelta(days=36_500)),
    "global": (GlobalWindows.create_with_end_of_stream_trigger(), timedelta(0)),
}


@pytest.mark.parametrize("name", ASSIGNERS)
@pytest.mark.parametrize("lateness", [timedelta(0), timedelta(days=1000)])
def test_a_row_whose_windows_would_leave_the_range_is_rejected(name: str, lateness: timedelta) -> None:
    assigner, length = ASSIGNERS[name]
    before = timedelta(0) if name == "gaps" else length
    after = length + (timedelta(0) if name == "global" else lateness)
    compute = Windows(assigner, allowed_lateness=lateness, aggregate={"n": Count()})
    source = DeltaSource("events", timestamp="at", not_before=FIRST)
    pipeline = hourly_pipeline(source=source, compute=compute, max_ahead=LONGEST_DURATION)
    gap = length // timedelta(milliseconds=1)
    instant = timedelta(milliseconds=1)
    inside = [row(FIRST + before, "a", gap), row(LAST - after, "b", gap)]
    outside = [row(FIRST + before - instant, "c", gap), row(LAST - after + instant, "d", gap)]
    assert reasons(pipeline, *inside, *outside) == [rejects.OUT_OF_RANGE] * 2


def test_a_gap_is_at_most_the_longest_duration() -> None:
    compute = Windows(EventTimeSessionWindows.with_dynamic_gap(GapColumn("gap")), aggregate={"n": Count()})
    pipeline = hourly_pipeline(compute=compute)
    rows = [row(NOON, gap=gap) for gap in (LONGEST_DURATION, LONGEST_DURATION + 1, 2**59, 2**63 - 1)]
    assert reasons(pipeline, *rows) == [rejects.GAP_OUT_OF_RANGE] * 3


# --- values of user code -----------------------------------------------------------------------


@dataclass(frozen=True)
class Reminds(KeyedProcessFunction):
    """Sets or deletes a timer."""

    due: Any
    method: str = "register_event_time_timer"
    result_type = pa.struct([("n", pa.int64())])

    def process_element(self, value: Any, ctx: Any) -> None:
        due = ctx.timestamp + 1000 if self.due is None else self.due
        getattr(ctx.timer_service(), self.method)(due)

    def on_timer(self, timestamp: Any, ctx: Any) -> Any:
        yield {"n": 1}


METHODS = [f"{what}_{domain}_time_timer" for what in ("register", "delete") for domain in ("event", "processing")]
WRONG_TIMES: list[Any] = [
    NOON,
    "2024-03-01",
    to_millis(NOON) + 0.5,
    float("nan"),
    True,
    10**30,
    MIN_TIMESTAMP + 1,
    FIRST_TIME - 1,
    LAST_TIME,
    [],
]


def run_of(function: KeyedProcessFunction) -> PipelineHarness:
    harness = PipelineHarness(hourly_pipeline("reminders", compute=KeyedProcess(function)), COLUMNS)
    harness.commit([row(NOON)], at=NOON)
    harness.commit([row(NOON + timedelta(hours=5))], at=NOON + timedelta(hours=5))
    harness.run()
    return harness


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("due", WRONG_TIMES, ids=str)
def test_a_timer_needs_whole_milliseconds_in_the_range(method: str, due: Any) -> None:
    with pytest.raises(IllegalArgument) as refused:
        run_of(Reminds(due, method))
    assert str(refused.value).startswith(f"pipeline reminders: time of a timer of Reminds = {due!r}: give epoch millis")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "due", [np.int64(to_millis(NOON) + 5), FIRST_TIME, LAST_TIME - 1, MAX_TIMESTAMP, to_millis(NOON) - 5], ids=str
)
def test_every_time_of_the_range_and_the_end_of_input_are_allowed(method: str, due: Any) -> None:
    harness = run_of(Reminds(due, method))
    fired = method.startswith("register_event") and due < to_millis(NOON + timedelta(hours=3))
    assert len(harness.results()) == fired


def test_the_advice_for_a_datetime_is_the_number_to_give() -> None:
    with pytest.raises(IllegalArgument, match=rf"returns {to_millis(NOON)} for this one"):
        run_of(Reminds(NOON))


@dataclass(frozen=True)
class WakesUp(Trigger):
    """A trigger with a timer of its own."""

    due: Any

    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> Any:
        ctx.register_event_time_timer(self.due)
        return EventTimeTrigger().on_element(element, timestamp, window, ctx)

    def on_event_time(self, time: Any, window: Any, ctx: Any) -> Any:
        return EventTimeTrigger().on_event_time(time, window, ctx)

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.delete_event_time_timer(self.due)


def harness_of(compute: Windows, **options: Any) -> PipelineHarness:
    harness = PipelineHarness(hourly_pipeline(compute=compute, **options), COLUMNS)
    harness.commit([row(NOON)], at=NOON)
    return harness


@pytest.mark.parametrize("due", WRONG_TIMES, ids=str)
def test_a_timer_of_a_trigger_too(due: Any) -> None:
    hours = TumblingEventTimeWindows.of(timedelta(hours=1))
    with pytest.raises(IllegalArgument, match=r"^pipeline hours: time of a timer of WakesUp = "):
        harness_of(Windows(hours, WakesUp(due), aggregate={"n": Count()})).run()


@dataclass(frozen=True)
class Opens(WindowAssigner):
    """Puts each element into a window that does not depend on it."""

    start: Any
    end: Any

    def assign_windows(self, element: Any, timestamp: Any, ctx: Any) -> Sequence[TimeWindow]:
        return [TimeWindow(self.start, self.end)]

    def get_default_trigger(self) -> Trigger:
        return EventTimeTrigger()

    is_event_time = True


@pytest.mark.parametrize(
    ("start", "end"), [(0, LAST_TIME), (FIRST_TIME - 1, 5), (0, 5.5), (0, None), (MIN_TIMESTAMP, MAX_TIMESTAMP)]
)
def test_a_window_of_a_users_assigner_lies_in_the_range(start: Any, end: Any) -> None:
    with pytest.raises(IllegalArgument, match=r"^pipeline hours: window of Opens = TimeWindow\(start=.*give bounds in"):
        harness_of(Windows(Opens(start, end), aggregate={"n": Count()})).run()


def test_a_gap_of_a_users_function_lies_in_the_range() -> None:
    sessions = EventTimeSessionWindows.with_dynamic_gap(lambda element: LONGEST_DURATION + 1)
    with pytest.raises(IllegalArgument, match=r"^pipeline hours: gap = .*at most 365,000 d"):
        harness_of(Windows(sessions, aggregate={"n": Count()})).run()


@dataclass
class Emits(WatermarkGenerator):
    """Emits a fixed watermark for each event."""

    watermark: Any

    def on_event(self, event: Any, timestamp: Any, output: Any) -> None:
        output.emit_watermark(self.watermark)

    def on_periodic_emit(self, output: Any) -> None:
        pass


@pytest.mark.parametrize("watermark", [10**30, LAST_TIME, 0.5, NOON, None], ids=str)
def test_a_watermark_of_a_users_generator_lies_in_the_range(watermark: Any) -> None:
    hours = Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"n": Count()})
    strategy = WatermarkStrategy.for_generator(lambda: Emits(watermark))
    with pytest.raises(IllegalArgument, match=r"^pipeline hours: watermark of a generator = "):
        harness_of(hours, watermark=strategy).run()


def test_a_watermark_before_the_range_is_none() -> None:
    hours = Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"n": Count()})
    for strategy in (
        WatermarkStrategy.for_bounded_out_of_orderness(LONGEST_DURATION),
        WatermarkStrategy.for_generator(lambda: Emits(-(10**17))),
    ):
        source = DeltaSource("events", timestamp="at", not_before=FIRST)
        harness = PipelineHarness(hourly_pipeline(compute=hours, watermark=strategy, source=source), COLUMNS)
        harness.commit([row(datetime(900, 1, 1, tzinfo=UTC))], at=NOON)
        harness.run()
        assert harness.watermark == MIN_TIMESTAMP


# --- a committed watermark that no table can hold ----------------------------------------------


@pytest.mark.first(1)
@pytest.mark.parametrize("watermark", [-86_398_290_619_200_001, LAST_TIME, FIRST_TIME - 1])
def test_an_epoch_with_a_time_that_no_table_holds_is_refused_and_the_restore_continues(
    tmp_path: Path, watermark: int
) -> None:
    """Only a faulty version commits one: here by hand."""
    lake, pipeline = Lake(tmp_path), hourly_pipeline()
    lake.append(("ann", at("10:10"), 1))
    lake.stream(LOCAL, pipeline)
    tables = lake.tables(pipeline)
    head = read_snapshot(tables)
    assert head is not None
    wrong = head.manifest.model_copy(update={"epoch": 2, "parent": 1, "watermark": watermark, "run_id": "faulty"})
    commit_snapshot(tables, head.handle, wrong, arrow_schema(head.handle), [], {file["path"] for file in head.files})
    lake.append(("ann", at("12:10"), 1))
    project = lake.project(pipeline)
    with pytest.raises(Refused, match=r"epoch 2 of hours can't be published: its watermark .*Go back to epoch 1"):
        project.stream("hours")
    # Until then, a check is about the newest published epoch.
    for options in ({"sample": "all"}, {"new": True}, {"sample": "all", "budget": 1.0}):
        found = project.verify("hours", **options)
        assert (found.epoch, found.faults) == (1, ())
    project.restore("hours", 1)
    project.stream("hours")
    assert project.results("hours").to_arrow()["events"].to_pylist() == [1]
    for options in ({"sample": "all"}, {"new": True}, {"sample": "all", "budget": 1.0}):
        assert project.verify("hours", **options).faults == ()


# --- intervals at the edges ----------------------------------------------------------------------


def test_an_interval_that_would_leave_the_years_ends_there() -> None:
    day = 86_400_000
    whole = Interval(start=to_millis(datetime(9990, 1, 1)), end=to_millis(datetime(9995, 1, 1)))
    centuries = relativedelta(years=100)
    assert [*cut(datetime(9990, 1, 1, tzinfo=UTC), datetime(9995, 1, 1, tzinfo=UTC), centuries)] == [whole]
    first = Interval(start=FIRST_TIME + 3 * day, end=FIRST_TIME + 4 * day)
    assert cut_gap(FIRST_TIME, first, centuries) == [Interval(start=FIRST_TIME, end=first.start)]
    last = to_millis(datetime.max)
    for length in (day + 1, 40 * day, LONGEST_DURATION):
        assert interval_after(Interval(start=0, end=length), LAST_TIME - 1) == Interval(start=LAST_TIME - 1, end=last)


# --- a source whose rows change ------------------------------------------------------------------


def test_a_rejected_row_corrects_nothing_when_it_is_added_or_deleted(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    source = DeltaSource("events", timestamp="at", changes="correct", not_before=at("10:00"))
    pipeline = hourly_pipeline(source=source)
    lake.append(("ann", at("10:10"), 1), ("ann", at("10:20"), 2), ("ann", at("13:00"), 3))
    lake.stream(LOCAL, pipeline)

    def totals() -> list[int]:
        lake.stream(LOCAL, pipeline)
        assert lake.project(pipeline).verify("hours", sample="all").faults == ()
        assert lake.project(pipeline).quality.check("hours").to_dict()["success"]
        assert conserved(lake.rows(pipeline, "epochs").to_pylist())
        return sorted(lake.latest(pipeline)["total"].to_pylist())

    assert totals() == [3]
    lake.append(("ann", at("09:10"), 4))
    assert totals() == [3]
    assert lake.rows(pipeline, "rejects")["reason"].to_pylist() == [rejects.BEFORE]
    DeltaTable(lake.path("events")).delete("value = 4")
    assert totals() == [3]
    DeltaTable(lake.path("events")).update({"at": "at - INTERVAL '2 hours'"}, predicate="value = 2")
    assert totals() == [1]


# --- a final window stays as it is ---------------------------------------------------------------


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("make", "trigger"),
    [("tumbling", ContinuousEventTimeTrigger.of(timedelta(minutes=2))), ("sessions", None)],
    ids=["early", "end"],
)
def test_no_window_is_final_that_a_longer_lateness_lets_change(tmp_path: Path, make: str, trigger: Any) -> None:
    """The lateness grows while a window waits for late elements, and while one has fired early."""
    minutes = 10
    assigner = (
        TumblingEventTimeWindows.of(timedelta(minutes=minutes))
        if make == "tumbling"
        else EventTimeSessionWindows.with_gap(timedelta(minutes=minutes))
    )

    def waiting(lateness: int) -> Pipeline:
        return hourly_pipeline(
            watermark=WatermarkStrategy.for_monotonous_timestamps(),
            compute=Windows(
                assigner, trigger, allowed_lateness=timedelta(minutes=lateness), aggregate={"events": Count()}
            ),
        )

    lake, seen = Lake(tmp_path), dict[tuple[str, int], int]()
    steps = [
        (10, 1),
        (10, 12),
        (60, 25),
        (60, 5),
        (60, 14),
        (90, 40),
        (90, 3),
        (90, 100),
        (90, 17),
        (10, 130),
        (10, 200),
    ]
    for lateness, minute in steps:
        lake.append(("ann", at("10:00") + timedelta(minutes=minute), 1))
        pipeline = waiting(lateness)
        lake.stream(LOCAL, pipeline)
        project = lake.project(pipeline)
        final = {(each["user"], each["window_start"]): each["events"] for each in rows_of(project)}
        assert {window: final.get(window) for window in seen} == seen, f"changed at {minute} with {lateness}"
        seen = final
    assert len(seen) >= 3
    assert project.quality.check("hours").to_dict()["success"]
    assert project.verify("hours", sample="all").faults == ()


def rows_of(project: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = project.results("hours").to_arrow().to_pylist()
    return rows
