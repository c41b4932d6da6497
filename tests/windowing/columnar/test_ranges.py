"""The merged contents of a range of rows are those of its rows, however they are merged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing import CollectList, Count, Min, SlidingEventTimeWindows, Sum, Windows
from tidegate.windowing.aggregates import AggregateColumns
from tidegate.windowing.aggregates.vectorised import Groups
from tidegate.windowing.columnar.contents import ColumnarContents
from tidegate.windowing.columnar.sliced import merged_ranges

INPUT = pa.schema([("value", pa.int64()), ("x", pa.float64())])
AGGREGATES = {"n": Count(), "least": Min("value"), "all": CollectList("value"), "total": Sum("value"), "sum": Sum("x")}


@st.composite
def rows_of_keys(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int, int]:
    """Rows as (key, slice), the number of slices of a window, and how many copies of its ranges are wanted."""
    slices = st.lists(st.integers(0, 40), min_size=1, max_size=30, unique=True).map(sorted)
    keys = draw(st.lists(slices, min_size=1, max_size=3))
    return (
        [(key, at) for key, of_key in enumerate(keys) for at in of_key],
        draw(st.integers(1, 20)),
        draw(st.sampled_from([1, 1, 30])),
    )


@given(rows_of_keys())
def test_each_range_is_the_merge_of_its_rows(drawn: tuple[list[tuple[int, int]], int, int]) -> None:
    rows, length, copies = drawn
    windows = Windows(SlidingEventTimeWindows(10, 1), aggregate=AggregateColumns.of(AGGREGATES, INPUT))
    functions = ColumnarContents.of(windows)
    assert functions is not None
    numbers = np.arange(len(rows)) * 7 % 11
    values = {"value": pa.array(numbers), "x": pa.array(numbers / 8)}
    contents = functions.accumulate(values, np.array([at for _, at in rows]), np.arange(len(rows)), each(len(rows)))
    wanted = [
        [place for place, (of, at) in enumerate(rows) if of == key and start <= at < start + length]
        for key in {key for key, _ in rows}
        for start in range(-length, 41)
    ] * copies
    wanted = [places for places in wanted if places]
    firsts, lasts = (np.array([places[end] for places in wanted]) for end in (0, -1))
    blocks = np.unique([key * 1000 + at // length for key, at in rows], return_inverse=True)[1]

    came = merged_ranges(functions, contents, firsts, lasts, blocks)
    together = [array.take(pa.array(np.concatenate(wanted))) for array in contents]
    expected = functions.merge(together, Groups.of_sizes(np.array([len(places) for places in wanted])))
    assert [result.to_pylist() for result in functions.results(came)] == [
        result.to_pylist() for result in functions.results(expected)
    ]


def each(rows: int) -> Groups:
    return Groups.of_sizes(np.ones(rows, np.int64))
