"""Files of a source may be called anything and share base names: each keeps its own commit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.lake import EVENTS, at, hourly_pipeline
from tests.named_files import add_file
from tests.pipelines.sources.slices import files_over
from tidegate.pipelines.epoch.file_measure import measure_files
from tidegate.pipelines.epoch.plan_commits import ReadCommit, of_commits
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.commits import SourceFile
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.storage.warehouse import Warehouse

NAMES = st.lists(
    st.tuples(
        st.sampled_from(["", "d=1/", "d=2 x/", "a b/c%/", "ü/"]),
        st.text(st.sampled_from("ab %+üß日=&#?'()~,;@!"), min_size=1, max_size=6),
    ).map(lambda parts: f"{parts[0]}p{parts[1]}"),
    min_size=1,
    max_size=5,
    unique=True,
)


def placed(
    names: Sequence[str],
    spelled: Callable[[SourceFile], SourceFile] = lambda file: file,
    brought: Callable[[Path], Warehouse] = lambda folder: Warehouse(str(folder)),
) -> None:
    """Count the row of each file of a table with its own commit.

    Args:
        names: of the files, a commit each.
        spelled: a seeded bug in how files are told apart.
        brought: brings the folder of the table to where it is read.
    """
    with tempfile.TemporaryDirectory() as folder:
        table = f"{folder}/events"
        for number, name in enumerate(names):
            add_file(table, pa.Table.from_pylist([{"user": "u", "at": at("01:00"), "value": number}], EVENTS), name)
        warehouse = brought(Path(folder))
        log = SourceLog(warehouse, warehouse.path("events"))
        commits = [
            ReadCommit(replace(commit, time=number), tuple(map(spelled, commit.files)), 1, True, step=number)
            for number, commit in enumerate(log.unread(-1))
        ]
        files = of_commits(files_over(log, hourly_pipeline()), commits)
        assert measure_files(files).rows == dict.fromkeys(range(len(names)), 1)
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

    with pytest.raises(Refused, match="is missing"):
        drawn()
