"""Random pipelines that the columnar operator supports, with their input divided into epochs, for property tests."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tests.property.world import INPUT, KEYS, ROWS, key_columns, times
from tests.windowing.columnar.longest import Longest, LongestInParts
from tidegate.pipelines.epoch.event_times import EventOrder
from tidegate.windowing.aggregates import (
    AggregateColumns,
    AllTrue,
    AnyTrue,
    ApproxCountDistinct,
    ApproxQuantile,
    CollectList,
    CollectSet,
    Count,
    CountIf,
    First,
    Last,
    Max,
    MaxBy,
    Mean,
    Min,
    MinBy,
    StandardDeviation,
    Sum,
    TopN,
    Variance,
)
from tidegate.windowing.assigners import (
    CalendarEventTimeWindows,
    CumulateEventTimeWindows,
    DynamicEventTimeSessionWindows,
    EventTimeSessionWindows,
    GapColumn,
    MergingWindowAssigner,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from tidegate.windowing.compute import Windows
from tidegate.windowing.epochs import Elements, Timeline
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.panes import Accumulation
from tidegate.windowing.triggers import ContinuousEventTimeTrigger, EventTimeTrigger, PurgingTrigger, Trigger

MAX_PARALLELISM = 16

AGGREGATES = {
    "count": Count(),
    "count_s": Count("é 日本"),
    "count_b": CountIf("b"),
    **{f"sum_{name}": Sum(name) for name in ("n", "N", "x", "`mixed`", "cents[2]", "wide", "tiny")},
    **{f"mean_{name}": Mean(name) for name in ("N", "x", "`mixed`", "cents[2]", "Small", "wide", "tiny")},
    **{f"min_{name}": Min(name) for name in ("n", "x", "f", "cents[2]", "b", "an.int", "raw", "wall")},
    **{f"max_{name}": Max(name) for name in ("x", "é 日本", "at time", "N", "day", "wide", "tiny")},
    **{f"first_{name}": First(name) for name in INPUT.names if name not in ("gap", "N")},
    **{f"last_{name}": Last(name) for name in INPUT.names if name != "gap"},
    **{f"first_valid_{name}": First(name, ignore_nulls=True) for name in ("é 日本", "x", "cents[2]", "wide")},
    **{f"last_valid_{name}": Last(name, ignore_nulls=True) for name in ("`mixed`", "at time", "b", "raw")},
    "min_by_valid": MinBy("é 日本", "x", ignore_nulls=True),
    "max_by_valid": MaxBy("x", "cents[2]", ignore_nulls=True),
    "min_by": MinBy("é 日本", "x"),
    "max_by": MaxBy("x", "cents[2]"),
    "max_by_int": MaxBy("raw", "an.int"),
    **{f"list_{name}": CollectList(name) for name in ("x", "é 日本", "Small", "day", "raw")},
    **{f"set_{name}": CollectSet(name) for name in ("x", "at time", "an.int", "wide", "wall")},
    "top_x": TopN(2, by="x"),
    "top_s": TopN(3, by="é 日本", ties=["f", "an.int"], also=["raw"]),
    "top_N": TopN(2, by="N", ties=["cents[2]"], also=["at time", "x", "N"], largest=False),
    "any_b": AnyTrue("b"),
    "all_b": AllTrue("b"),
    **{f"var_{name}": Variance(name) for name in ("n", "N", "`mixed`")},
    "var_d": Variance("cents[2]", sample=False),
    "dev_x": StandardDeviation("x"),
    "distinct_s": ApproxCountDistinct("é 日本"),
    "distinct_x": ApproxCountDistinct("x", log_size=5),
    "median_x": ApproxQuantile("x", 0.5),
    "median_N": ApproxQuantile("N", 0.5),
}

HASHED = ("count", "count_s", "count_b", "sum_n", "sum_N", "min_n", "min_an.int", "max_N")
"""Aggregates that Arrow's hash aggregation computes, unless a sum may leave int64."""

CALENDARS = [
    CalendarEventTimeWindows.days("Europe/Berlin"),
    CalendarEventTimeWindows.weeks("America/New_York", first_day=6),
    CalendarEventTimeWindows.months("Asia/Kathmandu"),
]
CALENDAR_SCALE = 20 * 3_600_000
"""Milliseconds that one step of random times means for calendar windows, which a few steps must cross."""


class Event(NamedTuple):
    key: int
    time: int
    value: dict[str, Any]


class Case(NamedTuple):
    """A pipeline, its commits with the watermark after each, and where the input is divided into epochs."""

    windows: Windows
    key: KeySchema
    keys: list[tuple[Any, ...]]
    commits: list[list[Event]]
    watermarks: list[int]
    cuts: list[int]
    lag: int | None
    swap: bool
    closed: int | None = None
    """Windows that ended this many milliseconds before an epoch are not opened again, whatever their lateness."""


@st.composite
def assigners(draw: st.DrawFn) -> Any:
    match draw(st.sampled_from(["tumbling", "sliding", "cumulate", "calendar", "session", "session", "dynamic"])):
        case "calendar":
            return draw(st.sampled_from(CALENDARS))
        case "dynamic":
            return DynamicEventTimeSessionWindows(GapColumn("gap"))
        case "tumbling":
            size = draw(st.integers(1, 25))
            return TumblingEventTimeWindows(size, draw(st.integers(1 - size, size - 1)))
        case "sliding":
            slide = draw(st.integers(1, 15))
            return SlidingEventTimeWindows(draw(st.integers(1, 40)), slide, draw(st.integers(1 - slide, slide - 1)))
        case "cumulate":
            step, steps = draw(st.integers(1, 15)), draw(st.integers(1, 4))
            return CumulateEventTimeWindows(steps * step, step, draw(st.integers(1 - steps * step, steps * step - 1)))
        case _:
            return EventTimeSessionWindows(draw(st.integers(1, 12)))


@st.composite
def overlapping(draw: st.DrawFn) -> SlidingEventTimeWindows:
    """Draw windows that share slices."""
    width, slide = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    size = draw(st.integers(slide + 1, 12))
    offset = draw(st.integers(1 - slide * width, slide * width - 1))
    return SlidingEventTimeWindows(size * width, slide * width, offset)


@st.composite
def cases(draw: st.DrawFn, sliced: bool = False, hashed: bool = False) -> Case:
    """Draw a case.

    Args:
        draw: draws values.
        sliced: True draws mostly windows that share slices.
        hashed: True draws only aggregates that Arrow's hash aggregation computes.
    """
    possible_aggregates = [name for name in sorted(AGGREGATES) if not (sliced and name.startswith(("var", "dev")))]
    possible_aggregates = [name for name in possible_aggregates if name in HASHED or not hashed]
    chosen = draw(st.lists(st.sampled_from(possible_aggregates), min_size=1, max_size=4, unique=True))
    assigner = draw(overlapping() if sliced else assigners())
    scale = CALENDAR_SCALE if isinstance(assigner, CalendarEventTimeWindows) else 1
    triggers: list[Trigger | None] = [None, EventTimeTrigger(), PurgingTrigger(EventTimeTrigger())]
    accumulation = draw(st.sampled_from(list(Accumulation)))
    if not isinstance(assigner, MergingWindowAssigner) and accumulation is not Accumulation.DISCARDING and not sliced:
        triggers += [ContinuousEventTimeTrigger(draw(st.integers(1, 15)) * scale)] * 2
    windows = Windows(
        assigner,
        trigger=draw(st.sampled_from(triggers)),
        allowed_lateness=0 if sliced else draw(st.sampled_from([0, 0, 3, 10, 40])) * scale,
        accumulation=accumulation,
        aggregate=draw(
            st.sampled_from(
                [AggregateColumns.of({name: AGGREGATES[name] for name in chosen}, INPUT)] * 9
                + [LongestInParts("é 日本") if sliced else Longest("é 日本")]
            )
        ),
    )
    names, kinds = draw(key_columns())
    key = KeySchema(names, kinds)
    possible = list(product(*(KEYS[kind] for kind in kinds)))
    keys = possible[draw(st.integers(0, len(possible) - 1)) :][:3]
    # Small numbers, so that times are equal, sessions touch and windows are shared; key 0 is hot.
    keys_of = st.sampled_from([0, 0, *range(len(keys))])
    events = st.builds(Event, keys_of, draw(times(scale)), st.sampled_from(ROWS))
    commits = draw(st.lists(st.lists(events, max_size=8), min_size=1, max_size=4))
    steps = draw(st.lists(st.integers(-5, 30), min_size=len(commits), max_size=len(commits)))
    watermarks = ((np.cumsum(steps) + draw(st.integers(-30, 10))) * scale).tolist()
    lag = EventOrder.of(windows).lag if draw(st.sampled_from([False, False, False, True])) else None
    cuts = draw(st.lists(st.integers(0, sum(map(len, commits))), max_size=2)) if lag is None else []
    closed = draw(st.sampled_from([None, None, 0, 5 * scale]))
    return Case(windows, key, keys, commits, watermarks, sorted(cuts), lag, draw(st.booleans()), closed)


class Epoch(NamedTuple):
    elements: Elements
    timeline: Timeline


def epochs_of(case: Case) -> list[Epoch]:
    """The input in epochs: each ends at a cut, which may be inside a commit."""
    if case.lag is not None:
        return list(event_order_epochs(case))
    found, watermark, seen = [], -(2**63), 0
    pending: list[tuple[int, Event]] = []
    steps: list[tuple[int, bool]] = []
    cuts = list(case.cuts)
    for events, after in zip(case.commits, case.watermarks, strict=True):
        for position in range(len(events) + 1):
            while cuts and cuts[0] == seen and (pending or steps):
                cuts.pop(0)
                inside = [*steps, (after, False)]
                timeline = Timeline.of_commits(watermark, inside)
                found.append(Epoch(elements_of(case, pending), timeline))
                watermark, pending, steps = timeline.final, [], []
            if position < len(events):
                pending.append((len(steps), events[position]))
                seen += 1
        steps.append((after, True))
    found.append(Epoch(elements_of(case, pending), Timeline.of_commits(watermark, steps)))
    return found


def event_order_epochs(case: Case) -> Any:
    """Each commit as the slice of one interval, with stragglers from before it."""
    assert case.lag is not None
    watermark = case.watermarks[0] - 20
    for events, after in zip(case.commits, case.watermarks, strict=True):
        final = max([watermark, after, *(event.time - case.lag for event in events)])
        yield Epoch(
            elements_of(case, [(0, event) for event in events]), Timeline.in_event_order(watermark, final, case.lag)
        )
        watermark = final


def elements_of(case: Case, events: list[tuple[int, Event]]) -> Elements:
    return Elements(
        timestamps=np.array([event.time for _, event in events], np.int64),
        commits=np.array([commit for commit, _ in events], np.int64),
        keys={
            name: pa.array([case.keys[event.key][i] for _, event in events], kind)
            for i, (name, kind) in enumerate(zip(case.key.names, case.key.types, strict=True))
        },
        columns={field.name: pa.array([event.value[field.name] for _, event in events], field.type) for field in INPUT},
    )


SIGNS_MIX = Case(
    Windows(
        TumblingEventTimeWindows(1),
        accumulation=Accumulation.DISCARDING,
        aggregate=AggregateColumns.of({"var_n": AGGREGATES["var_n"]}, INPUT),
    ),
    KeySchema((), ()),
    [()],
    [[Event(0, 1, ROWS[0] | {"n": number}) for number in numbers] for numbers in ((3, 1), (-5, 1))],
    [0, 0],
    [],
    None,
    False,
)
"""The mean is 0, and the row operator's mean is a rounding error."""
