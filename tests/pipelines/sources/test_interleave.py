"""The order in which the commits of two sources are taken is a function of their logs alone."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tidegate.pipelines.sources.commits import interleaved


@dataclass(frozen=True)
class Commit:
    version: int
    time: int


def log(*times: int) -> list[Commit]:
    return [Commit(version, time) for version, time in enumerate(times)]


def order(*logs: list[Commit]) -> list[tuple[int, int]]:
    return [(number, commit.version) for number, commit in interleaved(logs)]


def test_commits_are_taken_by_their_times_and_the_first_input_goes_first() -> None:
    assert order(log(10, 30, 40), log(20, 30)) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]


def test_a_time_that_goes_back_does_not_change_the_order_of_the_versions() -> None:
    assert order(log(10, 30, 20), log(25, 30)) == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1)]


def test_one_log_is_taken_as_it_is() -> None:
    assert order(log(30, 10, 20)) == [(0, 0), (0, 1), (0, 2)]


@given(st.lists(st.integers(0, 50)), st.lists(st.integers(0, 50)))
def test_every_commit_is_taken_once_and_each_source_in_its_own_order(left: list[int], right: list[int]) -> None:
    taken = order(log(*left), log(*right))
    assert len(taken) == len(left) + len(right)
    for number, times in ((0, left), (1, right)):
        assert [version for side, version in taken if side == number] == list(range(len(times)))
