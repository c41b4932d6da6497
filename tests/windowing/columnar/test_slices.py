"""Window slices: which windows share them, and what happens to them when the code changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.windowing.columnar.longest import Longest, LongestInParts
from tidegate.windowing import (
    Accumulation,
    ContinuousEventTimeTrigger,
    Count,
    EventTimeTrigger,
    Max,
    Mean,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    Variance,
    Windows,
)
from tidegate.windowing.aggregates import AggregateColumns
from tidegate.windowing.columnar import ColumnarOperator, choose_operator
from tidegate.windowing.columnar.slices import Slicing, open_windows, windows_of_rows
from tidegate.windowing.epochs import Elements, EpochOutcome, Timeline
from tidegate.windowing.epochs.row_operator import RowOperator
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.window.snapshot import state_schema
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.state.migration import StateFormat, migrated
from tidegate.windowing.time import MIN_TIMESTAMP

KEY = KeySchema(("key",), (pa.string(),))
INPUT = pa.schema([("n", pa.int64()), ("x", pa.float64())])
HOUR, MINUTE = 3_600_000, 60_000
COUNT = {"events": Count(), "total": Sum("n")}


def windows_of(size: int, slide: int, aggregates: Any = None, **settings: Any) -> Windows:
    functions = AggregateColumns.of(aggregates or COUNT, INPUT)
    return Windows(SlidingEventTimeWindows(size, slide), aggregate=functions, **settings)


def elements(*some: tuple[str, int, int], x: Any = None) -> Elements:
    """Elements of (key, time, n)."""
    keys, times, numbers = (list(column) for column in zip(*some, strict=True)) if some else ([], [], [])
    return Elements(
        timestamps=np.array(times, np.int64),
        commits=np.zeros(len(some), np.int64),
        keys={"key": pa.array(keys, pa.string())},
        columns={"n": pa.array(numbers, pa.int64()), "x": pa.array(x or [0.0] * len(some), pa.float64())},
    )


class Run:
    """The operators of some windows, one after the other, over one state."""

    def __init__(self) -> None:
        self.state: pa.Table | None = None
        self.watermark = MIN_TIMESTAMP
        self._format: StateFormat | None = None

    def __call__(
        self, windows: Windows, given: Elements, after: int, *, by_row: bool = False, closed: int = MIN_TIMESTAMP
    ) -> EpochOutcome:
        panes = PanePolicy(windows.accumulation, retract_merged=True, coalesce_late=True, closed_through=closed)
        schema = state_schema(windows, KEY, None, panes)
        state = schema.to_table([], 16) if self.state is None else self.state
        if self._format is not None and self._format != StateFormat.of(schema):
            state = migrated(state, self._format, schema)
        operator = RowOperator(windows, schema, panes, 16) if by_row else ColumnarOperator(windows, schema, panes, 16)
        outcome = operator.run(given, state, Timeline.of_commits(self.watermark, [(after, True)]))
        self.state, self.watermark, self._format = outcome.state, after, StateFormat.of(schema)
        return outcome


def panes(outcome: EpochOutcome) -> list[dict[str, Any]]:
    return sorted(
        outcome.panes.to_pylist(),
        key=lambda pane: [pane[name] for name in ("key_key", "window_start", "window_end", "pane")],
    )


EVENTS = elements(("a", 0, 1), ("a", 7, 2), ("b", 7, 4), ("a", 12, 8), ("a", 15, 16), ("a", 16, 32))
LATER = elements(("a", 17, 64), ("b", 30, 128), ("a", 31, 256))


@pytest.mark.parametrize(
    ("windows", "reason"),
    [
        (windows_of(HOUR, MINUTE), None),
        (windows_of(90 * MINUTE, HOUR), None),
        (windows_of(HOUR, MINUTE, trigger=PurgingTrigger(EventTimeTrigger())), None),
        (windows_of(HOUR, MINUTE, accumulation=Accumulation.RETRACTING), None),
        (windows_of(HOUR, MINUTE, {"x": Mean("x"), "most": Max("x")}), None),
        (windows_of(HOUR, MINUTE, allowed_lateness=1), "late elements within the allowed lateness"),
        (windows_of(HOUR, MINUTE, trigger=ContinuousEventTimeTrigger(10)), "before the end of a window"),
        (windows_of(HOUR, MINUTE, {"events": Count(), "spread": Variance("x")}), "'spread' might differ in its last"),
        (windows_of(HOUR, HOUR - 1), "the common divisor of size and slide is only 1 ms"),
        (
            Windows(SlidingEventTimeWindows(60, 1), aggregate=Longest("x")),
            "Longest does not declare merges_exactly = True",
        ),
        (Windows(SlidingEventTimeWindows(60, 1), aggregate=LongestInParts("x")), None),
    ],
)
def test_windows_that_overlap_share_slices_or_say_why_not(windows: Windows, reason: str | None) -> None:
    choice = choose_operator(windows)
    if reason is None:
        assert isinstance(choice.slicing, Slicing)
        assert "an element is kept once, in a slice of" in choice.reason
    else:
        assert "without sharing slices" in choice.reason
        assert reason in choice.reason


def test_other_windows_say_nothing_of_slices() -> None:
    for assigner in (TumblingEventTimeWindows(60), SlidingEventTimeWindows(60, 60), SlidingEventTimeWindows(60, 90)):
        choice = choose_operator(Windows(assigner, aggregate=COUNT))
        assert (choice.columnar, choice.slicing, "slice" in choice.reason) == (True, None, False)
    assert choose_operator(Windows(SlidingProcessingTimeWindows(60, 1), aggregate=COUNT)).slicing is None


def test_an_element_is_in_one_state_row_that_shows_its_open_windows() -> None:
    run = Run()
    state = run(windows_of(10, 2), elements(("a", 5, 1), ("a", 4, 2), ("b", 9, 4)), 6).state.sort_by("window_start")
    shown = ("namespace", "window_start", "window_end", "state_window_start", "event_time_timers", "acc_total")
    rows = [[row[name] for name in shown] for row in state.to_pylist()]
    start = [
        [value if isinstance(value, str | list | int) else value.timestamp() * 1000 for value in row] for row in rows
    ]
    # The window [-4, 6) has fired, and the next window of element 9 is its first one.
    assert start == [["slice", 4, 6, -2, [7, 9], 3], ["slice", 8, 10, 0, [9, 11], 4]]
    assert windows_of_rows(state).tolist() == [4, 5]
    windows = open_windows(state, ["key"]).sort_by([("key", "ascending"), ("window_start", "ascending")])
    bounds = [(row["key"], row["window_start"].timestamp() * 1000) for row in windows.to_pylist()]
    assert bounds == [*(("a", at) for at in (-2, 0, 2, 4)), *(("b", at) for at in (0, 2, 4, 6, 8))]
    assert windows["event_time_timers"].to_pylist() == [[at + 9] for _, at in bounds]


@pytest.mark.parametrize(
    "then",
    [
        windows_of(10, 5),
        windows_of(12, 2),
        windows_of(10, 2, allowed_lateness=5),
        windows_of(10, 2, trigger=ContinuousEventTimeTrigger(3)),
        windows_of(10, 2, {"events": Count(), "total": Sum("n"), "most": Max("n")}),
        windows_of(10, 2),
    ],
    ids=["slide", "size", "lateness", "trigger", "aggregate", "none"],
)
def test_slices_go_on_as_whole_windows_would_where_the_code_changes(then: Windows) -> None:
    """The row operator has whole windows, and both then run the new code."""
    sliced, whole = Run(), Run()
    first = windows_of(10, 2)
    assert panes(sliced(first, EVENTS, 13)) == panes(whole(first, EVENTS, 13, by_row=True))
    assert sliced.state is not None
    assert set(sliced.state["namespace"].to_pylist()) == {"slice"}
    for given, after in ((LATER, 21), (elements(), 60)):
        came, expected = sliced(then, given, after), whole(then, given, after, by_row=True)
        assert panes(came) == panes(expected)
        assert came.counters == expected.counters


def test_the_sums_of_doubles_have_the_same_bits() -> None:
    """Cents, numbers of many sizes and signs, and hundreds of numbers per window."""
    draw = np.random.default_rng(5)
    numbers = np.where(draw.random(4000) < 0.5, draw.integers(-9999, 9999, 4000) / 100, draw.normal(0, 1e9, 4000) ** 3)
    times = draw.integers(0, 5000, 4000)
    given = elements(*(("ab"[i % 2], int(time), 0) for i, time in enumerate(times)), x=numbers.tolist())
    aggregates = {"sum": Sum("x"), "mean": Mean("x")}
    slices = windows_of(1000, 10, aggregates)
    alone = replace(
        slices, trigger=EventTimeTrigger(), aggregate=AggregateColumns.of({**aggregates, "v": Variance("x")}, INPUT)
    )
    assert isinstance(choose_operator(slices).slicing, Slicing)
    assert not isinstance(choose_operator(alone).slicing, Slicing)
    came, expected = (panes(Run()(windows, given, 10_000)) for windows in (slices, alone))
    assert len(came) > 1000
    assert came == [{name: value for name, value in pane.items() if name != "value_v"} for pane in expected]
