"""Files of a source may be called anything and share base names: each keeps its own commit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.lake import EVENTS, at, hourly_pipeline
from tests.named_files import add_file, spelled_by_spark
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.epoch.file_slices import of_commits
from tidegate.pipelines.epoch.plan_commits import _judged
from tidegate.pipelines.epoch.read_commits import ReadCommit
from tidegate.pipelines.sources.choose_reader import slice_of
from tidegate.pipelines.sources.commits import SourceFile
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.sources.file_measure import measure_files
from tidegate.pipelines.sources.open_input import OpenInput
from tidegate.pipelines.storage import Warehouse

NAMES = st.lists(
    st.tuples(
        st.sampled_from(["", "d=1/", "d=2 x/", "a b/c%/", "ü/"]),
        st.text(st.sampled_from("ab %+üß日=&#?'()~,;@!"), min_size=1, max_size=6),
    ).map(lambda parts: f"{parts[0]}p{parts[1]}"),
    min_size=1,
    max_size=5,
    unique=True,
)


class Frames:
    """Stands where Spark's frames would: notes which commit each file's rows are told to be of."""

    def __init__(self) -> None:
        self.origins: dict[str, tuple[int, int]] = {}

    def files(self, version: int, actions: Sequence[str]) -> None:
        """No rows."""

    def judged(self, frame: object, source: object, origins: dict[str, tuple[int, int]]) -> None:
        self.origins = dict(origins)


def placed(names: Sequence[str], spelled: Callable[[SourceFile], SourceFile] = lambda file: file) -> None:
    """Hold the commit that each file of a table is of against where Spark will look for it.

    Args:
        names: of the files, a commit each.
        spelled: a seeded bug in how files are told apart.
    """
    with tempfile.TemporaryDirectory() as folder:
        table = f"{folder}/events"
        for number, name in enumerate(names):
            add_file(table, pa.Table.from_pylist([{"user": "u", "at": at("01:00"), "value": number}], EVENTS), name)
        log = SourceLog(Warehouse(folder), table)
        commits = [
            ReadCommit(replace(commit, time=number), tuple(map(spelled, commit.files)), 1, True, step=number)
            for number, commit in enumerate(log.unread(-1))
        ]
        frames: Any = Frames()
        bound = bind(hourly_pipeline(), EVENTS, EVENTS)
        _judged(OpenInput(log, frames, bound, log.warehouse), commits)
        for number, name in enumerate(names):
            told = unquote(spelled_by_spark(table, name)).removeprefix(f"file:{table}/")
            assert frames.origins.get(told) == (number, number), name
        assert measure_files(of_commits(slice_of(bound, log), commits)).rows == dict.fromkeys(range(len(names)), 1)
        assert {file.path for file in log.active("at")} == set(names)
        assert log.versions_of(log.active("at"), log.head) == {name: n + 1 for n, name in enumerate(names)}


@settings(max_examples=25)
@given(NAMES)
def test_every_file_is_of_its_own_commit(names: list[str]) -> None:
    placed(names)


def by_base_name(file: SourceFile) -> SourceFile:
    return replace(file, path=file.path.rsplit("/", 1)[-1])


def as_the_log_spells_it(file: SourceFile) -> SourceFile:
    return replace(file, path=quote(file.path))


@pytest.mark.parametrize("bug", [by_base_name, as_the_log_spells_it])
def test_the_draws_find_files_that_are_told_apart_otherwise(bug: Callable[[SourceFile], SourceFile]) -> None:
    @settings(database=None, phases=[Phase.generate], max_examples=60)
    @given(NAMES)
    def drawn(names: list[str]) -> None:
        placed(names, bug)

    with pytest.raises(AssertionError):
        drawn()
