"""Deduplication keeps the first element of each key by event time, whatever the order of arrival, cuts and restores."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing import KeepFirst
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.testing import keyed_process_harness
from tidegate.windowing.time import MAX_TIMESTAMP

ROW = pa.struct([("id", pa.int64())])


def first_of(elements: list[tuple[str, int]], within: int | None) -> list[tuple[str, int, int]]:
    """By sorting all elements: key, time and number of each one that no earlier one of its key hides."""
    since: dict[str, int] = {}
    found = []
    for time, number, key in sorted((time, number, key) for number, (key, time) in enumerate(elements)):
        if key not in since or (within is not None and time >= since[key] + within):
            since[key] = time
            found.append((key, time, number))
    return found


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(-20, 60)), max_size=25),
    st.none() | st.integers(1, 30),
    st.data(),
)
def test_the_first_elements_are_those_of_a_sort_by_time(
    elements: list[tuple[str, int]], within: int | None, data: st.DataObject
) -> None:
    run = keyed_process_harness(KeepFirst(ROW, within), time_sorted=True)
    # The watermark stays behind all that still comes, and restores come anywhere.
    for number, (key, time) in enumerate(elements):
        run.element(key, {"id": number, "more": "x"}, time)
        behind = min([time for _, time in elements[number + 1 :]], default=MAX_TIMESTAMP) - 1
        run.watermark(max(run.current_watermark, data.draw(st.integers(-30, min(70, behind)))) if behind > -30 else -31)
        if data.draw(st.booleans()):
            run.restore(run.snapshot(), parallelism=data.draw(st.integers(1, 3)))
    found = [(r.key, r.timestamp, r.value["id"]) for r in run.element_results()]
    run.watermark(MAX_TIMESTAMP)
    found += [(r.key, r.timestamp, r.value["id"]) for r in run.element_results()]
    assert sorted(found) == sorted(first_of(elements, within))
    assert within is None or run.state_entries == 0


def test_it_says_what_it_needs() -> None:
    bad: list[Any] = [None, pa.int64(), pa.struct([])]
    for kind in bad:
        with pytest.raises(IllegalArgument, match=r"KeepFirst\.result_type"):
            KeepFirst(kind)
    with pytest.raises(IllegalArgument, match=r"KeepFirst\.within"):
        KeepFirst(ROW, within=0)
