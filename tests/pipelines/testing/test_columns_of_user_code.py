"""Elements have the columns that assigners, triggers and gaps read, in addition to those of named aggregates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from tests.windowing.contracts.scripted import named
from tidegate import (
    Count,
    CountTrigger,
    DeltaSource,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GapColumn,
    Max,
    Pipeline,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.pipelines.ask.explain import explanation_of
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing.errors import IllegalArgument

SOURCE = pa.schema([("user", pa.string()), ("at", pa.int64()), ("n", pa.int64()), ("gap", pa.int64())])
EVENTS = [(1, 3), (2, 50), (3, 51), (100, 0)]


class Doubled(GapColumn):
    """Computes a different gap from the column."""

    def __call__(self, element: Any) -> int:
        return 2 * super().__call__(element)


class AboveFifty(EventTimeTrigger):
    """Also fires at elements above fifty."""

    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> Any:
        result = super().on_element(element, timestamp, window, ctx)
        return type(result).FIRE if element["n"] > 50 else result


class ByNumber(TumblingEventTimeWindows):
    """Puts large numbers into longer windows."""

    def assign_windows(self, element: Any, timestamp: Any, ctx: Any) -> Any:
        longer = type(self)(self.size * 2)
        assigner = TumblingEventTimeWindows.of(longer.size if element["n"] > 10 else self.size)
        return assigner.assign_windows(element, timestamp, ctx)


@dataclass(frozen=True)
class Shown(ProcessWindowFunction):
    """Emits the columns of the elements."""

    result_type = pa.struct([("count", pa.int64()), ("columns", pa.string())])

    def process(self, key: Any, ctx: Any, elements: Any) -> Any:
        yield {"count": len(elements), "columns": ",".join(elements[0])}


def pipeline(windows: Windows, uses: tuple[str, ...] | None = None) -> Pipeline:
    return Pipeline(
        name="counts",
        source=DeltaSource("events", timestamp="at", unit="ms"),
        key=("user",),
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        compute=windows,
        uses=uses,
    )


def counts(windows: Windows, uses: tuple[str, ...] | None = None) -> list[tuple[int, int]]:
    """Count and end of each pane, milliseconds."""
    harness = PipelineHarness(pipeline(windows, uses), SOURCE)
    harness.commit([{"user": "ann", "at": at, "n": n, "gap": 5} for at, n in EVENTS], at=100)
    harness.run()
    return [(row["count"], round(row["window_end"].timestamp() * 1000)) for row in harness.results()]


TEN, COUNT = TumblingEventTimeWindows(10), {"count": Count()}
FAR = DeltaTrigger.of(5, lambda old, new: abs(old["n"] - new["n"]), pa.struct([("n", pa.int64())]))
READING = [
    (Windows(TEN, FAR, aggregate=COUNT), [(2, 10)]),
    (Windows(TEN, AboveFifty(), aggregate=COUNT), [(3, 10), (3, 10)]),
    (Windows(ByNumber(10), aggregate=COUNT), [(1, 10), (2, 20)]),
    (Windows(EventTimeSessionWindows.with_dynamic_gap(Doubled("gap")), aggregate=COUNT), [(3, 13)]),
    (Windows(EventTimeSessionWindows.with_dynamic_gap(lambda element: element["gap"]), aggregate=COUNT), [(3, 8)]),
]


@pytest.mark.parametrize(("windows", "expected"), READING, ids=named)
@pytest.mark.filterwarnings("ignore::tidegate.windowing.errors.LostElementsWarning")
@pytest.mark.parametrize("uses", [None, ("n", "gap")])
def test_code_beside_named_aggregates_reads_the_columns_of_an_element(
    windows: Windows, expected: list[tuple[int, int]], uses: tuple[str, ...] | None
) -> None:
    assert counts(windows, uses) == expected
    assert "all columns" in str(explanation_of(pipeline(windows)))


@pytest.mark.filterwarnings("ignore::tidegate.windowing.errors.LostElementsWarning")
def test_the_columns_of_aggregates_and_gaps_need_no_place_in_uses() -> None:
    sessions = EventTimeSessionWindows.with_dynamic_gap(GapColumn("gap"))
    largest = COUNT | {"largest": Max("n")}
    assert counts(Windows(sessions, AboveFifty(), aggregate=largest), uses=("n",)) == [(3, 8), (3, 8)]
    assert counts(Windows(sessions, process=Shown()), uses=("n",)) == [(3, 8)]


def test_windows_of_the_library_get_the_columns_of_their_aggregates_alone() -> None:
    for trigger in (None, CountTrigger.of(1)):
        harness = PipelineHarness(pipeline(Windows(TEN, trigger, aggregate={"largest": Max("n")})), SOURCE)
        assert harness.bound.used == ("n",)


def largest(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return a if a["n"] >= b["n"] else b


def test_a_reduce_without_uses_gives_all_columns_but_the_key() -> None:
    harness = PipelineHarness(pipeline(Windows(TumblingEventTimeWindows.of(10), reduce=largest)), SOURCE)
    harness.backfill([{"user": "ann", "at": at, "n": n, "gap": 0} for at, n in EVENTS], 0, 200)
    assert [(row["user"], row["at"], row["n"]) for row in harness.final()] == [("ann", 3, 51), ("ann", 100, 0)]


def test_a_column_that_a_reduce_can_t_have_is_named_with_the_way_out() -> None:
    made = pipeline(Windows(TumblingEventTimeWindows.of(10), reduce=largest), uses=("user", "n"))
    with pytest.raises(IllegalArgument, match=r"compute.reduce = 'user': a key .* name its columns with uses="):
        PipelineHarness(made, SOURCE)
    PipelineHarness(pipeline(made.compute, uses=("n",)), SOURCE)
