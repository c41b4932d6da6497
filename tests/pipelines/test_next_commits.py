"""The commits of the next epoch: nothing twice, nothing left out, in a fixed order, within the limits."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.epoch.plan_commits import ReadCommit
from tidegate.pipelines.run.limits import DEFAULT_FILES, DEFAULT_ROWS, EpochLimits
from tidegate.pipelines.run.next_commits import UNREAD, Ends, next_commits
from tidegate.pipelines.sources.base import ReplacedSource
from tidegate.pipelines.sources.commits import SourceCommit, SourceFile
from tidegate.windowing.errors import IllegalArgument


@dataclass
class Log:
    """A log of versions from 0 on, each with its commit time and the bytes of its files."""

    versions: Sequence[tuple[int, Sequence[int]]]
    ids: Collection[str] = ("one",)

    def check(self, position: Position) -> None:
        """Refuse a position of another table."""
        if position.own["id"] not in self.ids:
            raise ReplacedSource("it was replaced")

    @property
    def head(self) -> int:
        return len(self.versions) - 1

    def unread(self, after: int, until: int | None = None) -> Iterator[SourceCommit]:
        for version, (time, sizes) in enumerate(self.versions):
            if sizes and version > after and (until is None or version <= until):
                files = [SourceFile(f"{version}-{i}", time, rows=size % 7, size=size) for i, size in enumerate(sizes)]
                yield SourceCommit(version, time, tuple(files))


def read(
    logs: Sequence[Log],
    positions: Sequence[Position],
    limits: EpochLimits,
    ends: Ends | None = None,
    may_split_commits: bool = True,
) -> list[ReadCommit]:
    inputs = [SimpleNamespace(log=log) for log in logs]
    source: Any = SimpleNamespace(
        inputs=inputs,
        right=inputs[1] if len(inputs) > 1 else None,
        bound=SimpleNamespace(may_split_commits=may_split_commits),
    )
    return next_commits(source, positions, limits, ends)


def end_at(version: int, table_id: str = "one") -> Position:
    return Position(version=version, own={"id": table_id})


def after(positions: Sequence[Position], commits: Sequence[ReadCommit]) -> list[Position]:
    """The positions of an epoch over the commits."""
    reached = list(positions)
    for commit in commits:
        version = commit.commit.version
        reached[commit.number] = (
            Position(version=version) if commit.complete else Position(version=version - 1, files=commit.end)
        )
    return reached


def epochs(
    logs: Sequence[Log], limits: Sequence[EpochLimits], may_split_commits: bool = True
) -> list[list[ReadCommit]]:
    """Return all epochs up to the end; each uses the next of the limits, and begins as a new run does."""
    positions = [UNREAD for _ in logs]
    made: list[list[ReadCommit]] = []
    while commits := read(logs, positions, limits[len(made) % len(limits)], may_split_commits=may_split_commits):
        made.append(commits)
        positions = after(positions, commits)
    return made


def files_of(epoch: Sequence[ReadCommit]) -> list[SourceFile]:
    return [file for commit in epoch for file in commit.files]


def names(epoch: Sequence[ReadCommit]) -> list[str]:
    return [file.path for file in files_of(epoch)]


def keeps(limits: EpochLimits, files: Sequence[SourceFile], commits: int) -> bool:
    return (
        (limits.files is None or len(files) <= limits.files)
        and (limits.bytes is None or sum(file.size or 0 for file in files) <= limits.bytes)
        and (limits.rows is None or sum(file.rows or 0 for file in files) <= limits.rows)
        and (limits.commits is None or commits <= limits.commits)
    )


LIMIT = st.none() | st.integers(1, 5)
LIMITS = st.builds(EpochLimits, LIMIT, st.none() | st.integers(1, 40), LIMIT, st.none() | st.integers(1, 12))
COMMITS = st.lists(st.tuples(st.integers(0, 20), st.lists(st.integers(0, 30), max_size=4)), max_size=8)


@given(COMMITS, st.lists(LIMITS, min_size=1, max_size=4), st.booleans())
def test_every_file_is_read_once_and_every_epoch_is_as_large_as_its_limits_let_it(
    versions: list[tuple[int, list[int]]], limits: list[EpochLimits], may_split: bool
) -> None:
    log = Log(versions)
    made = epochs([log], limits, may_split)
    everything = [file.path for commit in log.unread(-1) for file in commit.files]
    assert [name for epoch in made for name in names(epoch)] == everything
    unread = [(commit.version, file) for commit in log.unread(-1) for file in commit.files]
    for number, epoch in enumerate(made):
        limit, files = limits[number % len(limits)], files_of(epoch)
        assert all(commit.complete for commit in epoch[:-1]), "only the last commit of an epoch may be read in part"
        assert may_split or epoch[-1].complete
        smallest = len(files) == 1 if may_split else len(epoch) == 1
        assert keeps(limit, files, len(epoch)) or smallest
        taken, unread = unread[: len(files)], unread[len(files) :]
        if unread and keeps(limit, files, len(epoch)):
            version = unread[0][0]
            following = [file for other, file in unread if other == version] if not may_split else [unread[0][1]]
            more = len(epoch) + (version != taken[-1][0])
            assert not keeps(limit, [*files, *following], more), "more would have fitted"


def test_a_limit_ends_an_epoch_inside_a_commit_only_if_the_windows_allow_it() -> None:
    log = Log([(1, [5, 5]), (2, [5, 5])])
    assert [names(epoch) for epoch in epochs([log], [EpochLimits(files=3)])] == [["0-0", "0-1", "1-0"], ["1-1"]]
    whole = [["0-0", "0-1"], ["1-0", "1-1"]]
    assert [names(epoch) for epoch in epochs([log], [EpochLimits(files=3)], False)] == whole
    assert [names(epoch) for epoch in epochs([log], [EpochLimits(files=1)], False)] == whole
    assert [names(epoch) for epoch in epochs([log], [EpochLimits(commits=1)])] == whole
    assert [names(epoch) for epoch in epochs([log], [EpochLimits(bytes=11)])] == whole
    assert [len(epoch) for epoch in epochs([log], [EpochLimits(bytes=1)])] == [1, 1, 1, 1]
    assert [names(epoch) for epoch in epochs([log], [EpochLimits(rows=15)])] == [["0-0", "0-1", "1-0"], ["1-1"]]
    assert [names(epoch) for epoch in epochs([log], [EpochLimits(rows=15)], False)] == whole
    assert [len(epoch) for epoch in epochs([log], [EpochLimits(rows=1)])] == [1, 1, 1, 1]


def test_only_bytes_lift_the_limit_of_files_that_nobody_asked_for() -> None:
    assert EpochLimits().files == EpochLimits(commits=1).files == DEFAULT_FILES
    assert EpochLimits(bytes=1).files is None
    assert EpochLimits(files=7, bytes=1).files == 7
    assert EpochLimits().rows == EpochLimits(files=7, bytes=1, commits=1).rows == DEFAULT_ROWS
    assert EpochLimits(rows=7).files == DEFAULT_FILES


@pytest.mark.parametrize("value", [0, -1, 1.5, "many", True])
@pytest.mark.parametrize("field", ["files", "bytes", "commits", "rows"])
def test_a_limit_that_is_none_is_refused_by_its_name(field: str, value: Any) -> None:
    told = f"limits.{field} = {value!r}: give a whole number above zero, or None for the default"
    with pytest.raises(IllegalArgument, match=re.escape(told)):
        EpochLimits(**{field: value})


TIMES = st.lists(st.integers(0, 20), max_size=8)


@given(TIMES, TIMES, st.lists(LIMITS, min_size=1, max_size=4))
def test_limits_of_any_kind_take_the_commits_of_two_inputs_whole_and_in_one_order(
    left: list[int], right: list[int], limits: list[EpochLimits]
) -> None:
    logs = [Log([(time, [3, 3]) for time in times]) for times in (left, right)]
    (whole,) = epochs(logs, [EpochLimits(files=1000)]) or [[]]
    made = epochs(logs, limits)
    assert [(commit.number, commit.commit.version) for epoch in made for commit in epoch] == [
        (commit.number, commit.commit.version) for commit in whole
    ]
    assert len(whole) == len(left) + len(right)
    for number, epoch in enumerate(made):
        assert all(commit.complete for commit in epoch)
        assert keeps(limits[number % len(limits)], files_of(epoch), len(epoch)) or len(epoch) == 1


@given(TIMES, TIMES, st.tuples(st.integers(-1, 8), st.integers(-1, 8)))
def test_what_came_after_the_start_of_a_run_waits_and_so_does_what_follows_it(
    left: list[int], right: list[int], ends: tuple[int, int]
) -> None:
    logs = [Log([(time, [1]) for time in times]) for times in (left, right)]
    ends = (min(ends[0], logs[0].head), min(ends[1], logs[1].head))
    (whole,) = epochs(logs, [EpochLimits()]) or [[]]
    taken = read(logs, [UNREAD, UNREAD], EpochLimits(), [end_at(version) for version in ends])
    assert taken == whole[: len(taken)]
    assert all(commit.commit.version <= ends[commit.number] for commit in taken)
    if len(taken) < len(whole):
        following = whole[len(taken)]
        assert following.commit.version > ends[following.number]


def test_a_table_that_replaced_the_one_of_the_start_is_left_to_the_next_run() -> None:
    assert read([Log([(1, [1])], ["new"])], [UNREAD], EpochLimits(), [end_at(7, "old")]) == []
    assert len(read([Log([(1, [1])], ["new"])], [UNREAD], EpochLimits(), [end_at(7, "new")])) == 1


def test_a_table_that_got_another_id_since_the_start_is_read_up_to_the_same_end() -> None:
    log = Log([(1, [1]), (2, [1]), (3, [1])], ["one", "two"])
    assert [each.commit.version for each in read([log], [UNREAD], EpochLimits(), [end_at(1, "one")])] == [0, 1]


def test_two_tables_of_one_id_end_where_each_of_them_does() -> None:
    logs = [Log([(1, [1]), (2, [1])]), Log([(1, [1]), (2, [1]), (3, [1])])]
    taken = read(logs, [UNREAD, UNREAD], EpochLimits(), [end_at(0), end_at(1)])
    assert [(commit.number, commit.commit.version) for commit in taken] == [(0, 0), (1, 0)]


def test_no_more_entries_of_the_log_are_read_than_an_epoch_takes() -> None:
    listed: list[int] = []

    class Counting(Log):
        def unread(self, after: int, until: int | None = None) -> Iterator[SourceCommit]:
            for commit in super().unread(after, until):
                listed.append(commit.version)
                yield commit

    read([Counting([(time, [1]) for time in range(100)])], [Position(version=10)], EpochLimits(commits=3))
    assert listed == [11, 12, 13, 14]
