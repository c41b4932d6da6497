"""Which elements are combined into parts of windows, and the reason why others are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.windowing.columnar.longest import LongestInParts
from tidegate.windowing import Count, Sum, Variance
from tidegate.windowing.aggregates import AggregateColumns
from tidegate.windowing.assigners import (
    CalendarEventTimeWindows,
    CumulateEventTimeWindows,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from tidegate.windowing.columnar import Combining, stays_single
from tidegate.windowing.compute import Windows
from tidegate.windowing.triggers import ContinuousEventTimeTrigger, CountTrigger

INPUT = pa.schema([("n", pa.int64())])
COUNT = {"n": Count()}


@pytest.mark.parametrize(
    "assigner",
    [
        TumblingEventTimeWindows(10),
        SlidingEventTimeWindows(10, 4),
        CumulateEventTimeWindows(12, 4),
        CalendarEventTimeWindows.months("Europe/Berlin"),
    ],
    ids=["tumbling", "sliding", "cumulative", "calendar"],
)
def test_aligned_windows_are_combined(assigner: Any) -> None:
    assert stays_single(Windows(assigner, aggregate=COUNT)) is None


@pytest.mark.parametrize(
    ("windows", "reason"),
    [
        (Windows(EventTimeSessionWindows(10), aggregate=COUNT), "the order of the elements"),
        (Windows(TumblingEventTimeWindows(10), CountTrigger.of(2), aggregate=COUNT), "one by one"),
        (Windows(SlidingEventTimeWindows(3, 8), aggregate=COUNT), "in no window"),
        (Windows(TumblingEventTimeWindows(10), aggregate={"v": Variance("n")}), "'v' might differ"),
        (
            Windows(TumblingEventTimeWindows(10), aggregate=AggregateColumns({"l": LongestInParts("n")})),
            "'l' is your own code",
        ),
        (
            Windows(TumblingEventTimeWindows(10), ContinuousEventTimeTrigger(2), aggregate=COUNT),
            "the order of the elements",
        ),
    ],
)
def test_other_elements_stay_single_for_a_reason(windows: Windows, reason: str) -> None:
    assert reason in str(stays_single(windows))
    assert reason in str(Combining.of(windows))


def test_a_sum_that_leaves_its_type_is_left_to_the_operator() -> None:
    aggregate = AggregateColumns.of({"total": Sum("n")}, INPUT)
    combining = Combining.of(Windows(TumblingEventTimeWindows(10), aggregate=aggregate))
    assert isinstance(combining, Combining)
    zeros, values = np.zeros(3, np.int64), {"n": pa.array([2**63 - 1, 1, 5])}
    parts = combining.run(zeros, np.arange(3), zeros, values, None)
    assert (parts.counts.tolist(), parts.columns["acc_total"].to_pylist()) == ([1, 1, 1], [2**63 - 1, 1, 5])
