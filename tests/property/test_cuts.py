"""Pipelines of event time: the cut of commits into epochs, shards and clock epochs change neither panes nor rejects.

Drawn are the options that decide what a row does: a small `max_ahead`, `where` with `watermark_from="all"`,
source partitions, idleness, every trigger and accumulation, and lateness.
"""

from __future__ import annotations

import warnings
from collections import Counter
from datetime import timedelta
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from tests.property.test_restore import OF_ALL_WINDOWS, OF_FIXED_WINDOWS, TIMEOUT
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import (
    Accumulation,
    Count,
    CumulateEventTimeWindows,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64()), ("x", pa.int64())])
ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(-25, 12), st.integers(0, 9)), max_size=4)
"""User, milliseconds from the commit to the event, and value of each row; `where` keeps values below 7."""

STEPS = st.lists(st.tuples(st.integers(1, 12), ROWS), min_size=1, max_size=8)
"""Milliseconds since the commit before, and rows."""

# Delta triggers and process functions compare whole rows here: a row is a dict.
SHAPES = st.one_of(
    st.tuples(
        st.sampled_from(
            [TumblingEventTimeWindows.of(10), SlidingEventTimeWindows.of(12, 5), CumulateEventTimeWindows.of(12, 4)]
        ),
        st.none() | OF_FIXED_WINDOWS.filter(lambda trigger: "DeltaTrigger" not in repr(trigger)),
    ),
    st.tuples(st.just(EventTimeSessionWindows.with_gap(6)), st.none() | OF_ALL_WINDOWS),
)
OPTIONS = st.fixed_dictionaries(
    {
        "max_ahead": st.sampled_from([0, 3, 100]),
        "watermark_from": st.sampled_from(["kept", "all"]),
        "watermark_by": st.sampled_from([None, "user"]),
        "idle": st.sampled_from([None, 15]),
        "delay": st.sampled_from([0, 4]),
        "lateness": st.sampled_from([0, 7]),
        "accumulation": st.sampled_from(Accumulation),
    }
)


def keep(row: dict[str, Any]) -> dict[str, Any] | None:
    return row if row["x"] < 7 else None


def harness_of(shape: Any, options: dict[str, Any]) -> PipelineHarness:
    assigner, trigger = shape
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(options["delay"])
    if options["idle"] is not None:
        strategy = strategy.with_idleness(options["idle"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compute = Windows(
            assigner,
            trigger,
            allowed_lateness=options["lateness"],
            accumulation=options["accumulation"],
            aggregate={"n": Count(), "x": Sum("x")},
        )
        pipeline = Pipeline(
            name="p",
            source=DeltaSource("events", timestamp="at", unit="ms"),
            where="x < 7",
            watermark_from=options["watermark_from"],
            watermark_by=options["watermark_by"],
            key=("user",),
            watermark=strategy,
            compute=compute,
            max_ahead=timedelta(milliseconds=options["max_ahead"]),
        )
    return PipelineHarness(pipeline, SCHEMA, derive=keep)


def play(harness: PipelineHarness, steps: Any, cut: set[int] | None, shards: int) -> int:
    """Commit the steps, and run an epoch after those of the cut; return the number of rows."""
    clock, rows = 1_000, 0
    for number, (wait, events) in enumerate(steps):
        clock += wait
        harness.commit([{"user": user, "at": clock + ahead, "x": x} for user, ahead, x in events], at=clock)
        rows += len(events)
        if cut is not None and number in cut:
            harness.run(shards)
    # A row far ahead lets every window end.
    for user in "ab":
        clock += 1
        harness.commit([{"user": user, "at": clock + 10_000, "x": 0}], at=clock + 10_000)
    harness.run(shards)
    harness.pass_time(clock + 30_000)
    return rows + 2


def seen(harness: PipelineHarness) -> list[Counter[Any]]:
    ours = ("epoch", "emitted_at", "timeline")
    tables = (harness.results(), harness.late(), harness.rejected())
    return [
        Counter(repr([value for name, value in row.items() if name not in ours]) for row in rows) for rows in tables
    ]


PLAIN = {
    "max_ahead": 100,
    "watermark_from": "kept",
    "watermark_by": None,
    "idle": None,
    "delay": 0,
    "lateness": 0,
    "accumulation": Accumulation.ACCUMULATING,
}


@example([(1, [("a", 0, 1)]), (6, [("b", 0, 1)]), (30, [("b", 0, 1)])], {0, 1}, 1, TIMEOUT, PLAIN)
@given(STEPS, st.sets(st.integers(0, 7)), st.sampled_from([1, 3]), SHAPES, OPTIONS)
def test_no_cut_changes_what_comes_out(
    steps: Any, cut: set[int], shards: int, shape: Any, options: dict[str, Any]
) -> None:
    whole, parts = (harness_of(shape, options) for _ in range(2))
    rows = play(whole, steps, None, 1)
    assert play(parts, steps, cut, shards) == rows
    assert seen(parts) == seen(whole)
    for harness in (whole, parts):
        counters = harness.counters
        assert counters["on_time"] + counters["late"] + counters["rejected"] + counters["filtered"] == rows
        assert counters["late"] == len(harness.late())
        assert counters["rejected"] == len(harness.rejected())
        marks = Counter((row["user"], row["window_id"], row["pane"], row["op"]) for row in harness.results())
        assert max(marks.values(), default=1) == 1
