"""Batches of the stream: positions to and from Spark's offsets, and the commits of two sources."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.manifest import Position
from tidegate.pipelines.run.spark_checkpoint import ends_of_batch, seed_checkpoint
from tidegate.pipelines.run.stream import _interleaved
from tidegate.pipelines.sources.log import SourceCommit, SourceFile


@dataclass
class Log:
    """A log of versions from 0 on, each with its commit time and number of files."""

    versions: list[tuple[int, int]]

    def commits(self, after: int, until: int | None = None) -> list[SourceCommit]:
        return [
            SourceCommit(version, time, tuple(SourceFile(f"{version}-{i}", time) for i in range(files)))
            for version, (time, files) in enumerate(self.versions)
            if version > after and (until is None or version <= until)
        ]


def taken(left: Log, right: Log, begins: tuple[int, int], ends: tuple[Position, Position]) -> list[tuple[str, int]]:
    source: Any = SimpleNamespace(inputs=[SimpleNamespace(log=log) for log in (left, right)])
    positions = [Position(version=version) for version in begins]
    return [("right" if read.number else "left", read.commit.version) for read in _interleaved(source, positions, ends)]


LEFT, RIGHT = Log([(10, 1), (20, 2), (30, 1)]), Log([(15, 1), (25, 2)])


def test_everything_that_the_batch_reaches_is_taken_in_the_order_of_commit_times() -> None:
    ends = Position(version=2), Position(version=1)
    assert taken(LEFT, RIGHT, (-1, -1), ends) == [("left", 0), ("right", 0), ("left", 1), ("right", 1), ("left", 2)]


def test_what_comes_after_a_commit_that_the_batch_does_not_reach_waits() -> None:
    assert taken(LEFT, RIGHT, (-1, -1), (Position(version=2), Position(version=-1))) == [("left", 0)]
    assert taken(LEFT, RIGHT, (-1, -1), (Position(version=0), Position(version=1))) == [("left", 0), ("right", 0)]
    assert taken(LEFT, RIGHT, (0, 0), (Position(version=2), Position(version=0))) == [("left", 1)]


def test_a_commit_is_taken_when_all_its_files_are_there() -> None:
    half, whole = Position(version=0, files=1), Position(version=0, files=2)
    assert taken(LEFT, RIGHT, (0, 0), (Position(version=2), half)) == [("left", 1)]
    assert taken(LEFT, RIGHT, (0, 0), (Position(version=2), whole)) == [("left", 1), ("right", 1), ("left", 2)]


GROWTH = st.tuples(st.integers(0, 3), st.integers(0, 3))


@given(st.lists(st.integers(0, 20)), st.lists(st.integers(0, 20)), st.lists(GROWTH))
def test_batches_of_any_size_take_the_same_order(left: list[int], right: list[int], growths: list[Any]) -> None:
    logs = [Log([(time, 1) for time in times]) for times in (left, right)]
    heads = [Position(version=len(times) - 1) for times in (left, right)]
    whole = taken(logs[0], logs[1], (-1, -1), (heads[0], heads[1]))
    begins, reached = {"left": -1, "right": -1}, [-1, -1]
    found: list[tuple[str, int]] = []
    for growth in [*growths, (1000, 1000)]:
        reached = [min(at + more, head.version) for at, more, head in zip(reached, growth, heads, strict=True)]
        ends = Position(version=reached[0]), Position(version=reached[1])
        batch = taken(logs[0], logs[1], (begins["left"], begins["right"]), ends)
        found += batch
        begins |= dict(batch)
    assert len(found) == len(left) + len(right)
    assert found == whole


def test_a_seeded_checkpoint_says_where_each_source_stands(tmp_path: Path) -> None:
    positions = [("one", Position(version=4, files=2)), ("two", Position(version=-1)), ("three", Position(version=0))]
    seed_checkpoint(tmp_path, positions, beats=True)
    lines = (tmp_path / "offsets" / "0").read_text().splitlines()
    assert lines[0] == "v1"
    assert lines[3] == "-", "Spark's sign for a source without an offset"
    assert json.loads(lines[-1]) == 0
    assert ends_of_batch(tmp_path, 0) == [
        Position(version=4, files=2, table_id="one"),
        Position(version=-1),
        Position(version=0, table_id="three"),
    ]


def test_two_tables_of_one_id_end_where_each_of_them_does(tmp_path: Path) -> None:
    positions = [("copied", Position(version=9)), ("copied", Position(version=2))]
    seed_checkpoint(tmp_path, positions)
    assert [end.version for end in ends_of_batch(tmp_path, 0)] == [9, 2]


def test_a_batch_without_an_offset_of_delta_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text("v1\n{}\n17")
    with pytest.raises(TidegateError, match="batch 3 of the stream has no offset"):
        ends_of_batch(tmp_path, 3)
