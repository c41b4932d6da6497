"""Sessions under any order of arrival equal an oracle that joins elements whose windows touch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing import Count, EventTimeSessionWindows, Sum, Windows
from tidegate.windowing.assigners import DynamicEventTimeSessionWindows, WindowAssigner
from tidegate.windowing.testing import window_harness
from tidegate.windowing.time import MAX_TIMESTAMP


class Element(NamedTuple):
    key: str
    timestamp: int
    value: int
    gap: int


class Session(NamedTuple):
    key: str
    start: int
    end: int
    count: int
    total: int


ELEMENTS = st.lists(
    st.builds(
        Element,
        st.sampled_from("abc"),
        st.integers(-200, 200),
        st.integers(-9, 9),
        st.integers(min_value=1, max_value=30),
    ),
    max_size=40,
)


def joined(elements: Sequence[Element]) -> list[Session]:
    """Union-find over all pairs of one key whose spans `[t, t + gap]` overlap or touch."""
    leaders = list(range(len(elements)))

    def leader(i: int) -> int:
        while leaders[i] != i:
            i = leaders[i]
        return i

    for i, one in enumerate(elements):
        for j, other in enumerate(elements[:i]):
            apart = one.timestamp + one.gap < other.timestamp or other.timestamp + other.gap < one.timestamp
            if one.key == other.key and not apart:
                leaders[leader(i)] = leader(j)
    groups: dict[int, list[Element]] = defaultdict(list)
    for i, element in enumerate(elements):
        groups[leader(i)].append(element)
    return sorted(
        Session(
            group[0].key,
            min(element.timestamp for element in group),
            max(element.timestamp + element.gap for element in group),
            len(group),
            sum(element.value for element in group),
        )
        for group in groups.values()
    )


def sessions(assigner: WindowAssigner, elements: Sequence[Element], rescale_every: int | None = None) -> list[Session]:
    run = window_harness(Windows(assigner, aggregate={"n": Count(), "sum": Sum("value")}))
    for number, element in enumerate(elements, 1):
        run.element(element.key, element._asdict(), element.timestamp)
        if rescale_every and number % rescale_every == 0:
            run.restore(run.snapshot(), parallelism=number % 3 + 1)
    run.watermark(MAX_TIMESTAMP)
    assert (run.state_entries, run.event_time_timers) == (0, 0)
    return sorted(
        Session(r.key, r.window.start, r.window.end, r.value["n"], r.value["sum"])  # type: ignore[union-attr]
        for r in run.results()
    )


@given(ELEMENTS, st.integers(1, 30), st.randoms(use_true_random=False))
def test_sessions_of_one_gap_are_those_of_the_oracle_in_any_order(
    elements: list[Element], gap: int, shuffler: object
) -> None:
    same_gap = [element._replace(gap=gap) for element in elements]
    expected = joined(same_gap)
    shuffler.shuffle(same_gap)  # type: ignore[attr-defined]
    assert sessions(EventTimeSessionWindows.with_gap(gap), same_gap) == expected


@given(ELEMENTS, st.randoms(use_true_random=False))
def test_sessions_of_gaps_that_elements_bring_are_those_of_the_oracle_in_any_order(
    elements: list[Element], shuffler: object
) -> None:
    expected = joined(elements)
    shuffler.shuffle(elements)  # type: ignore[attr-defined]
    assert sessions(DynamicEventTimeSessionWindows(lambda row: row["gap"]), elements) == expected


@given(ELEMENTS, st.integers(1, 30), st.integers(1, 7))
def test_restores_on_the_way_change_no_session(elements: list[Element], gap: int, every: int) -> None:
    same_gap = [element._replace(gap=gap) for element in elements]
    assert sessions(EventTimeSessionWindows.with_gap(gap), same_gap, every) == joined(same_gap)
