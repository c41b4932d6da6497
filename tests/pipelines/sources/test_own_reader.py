"""A source whose files are not Parquet has a reader of its own, without statistics: the windows are the same."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from tests.lake import EVENTS, LOCAL, Lake, assert_same_windows, at, hourly_pipeline, session_pipeline
from tests.listed_files import ListedFiles, OpenList
from tests.recovery.arrivals import run
from tests.recovery.test_listed_files import listed
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.sources.commits import FilePart, SourceFile
from tidegate.pipelines.storage.warehouse import Warehouse


@dataclass(frozen=True)
class FeatherPart:
    """An open Feather file, as one group without statistics."""

    table: pa.Table
    columns: pa.Schema

    def groups(self, timestamp: str | None = None, since: int = 0, until: int = 0) -> Iterator[tuple[int, int]]:
        yield 0, 0

    def rows_of(self, group: int) -> int:
        return len(self.table)

    def size_of(self, group: int, names: Sequence[str]) -> int:
        return 0

    def kept(self, first: int, group: int) -> None:
        return None

    def bounds(self, group: int, name: str) -> None:
        return None

    def bounds_of_times(self, group: int, name: str) -> None:
        return None

    def may_be_null(self, group: int, name: str) -> bool:
        return True

    def read(self, group: int, names: Sequence[str]) -> Iterator[pa.Table]:
        rows = self.table.select(list(names)).cast(pa.schema([self.columns.field(name) for name in names]))
        yield rows[:3]
        yield rows[3:]


@dataclass(frozen=True)
class FeatherReader:
    """Reader of Feather files in a folder."""

    folder: str
    columns: pa.Schema

    @contextmanager
    def open(self, part: FilePart) -> Iterator[FeatherPart]:
        yield FeatherPart(feather.read_table(f"{self.folder}/{part.path}"), self.columns)


class OpenFeather(OpenList):
    """A list of Feather files."""

    def _schema_of(self, file: SourceFile) -> pa.Schema:
        return feather.read_table(Path(self.path).parent / file.path).schema

    def reader(self, columns: pa.Schema) -> FeatherReader:  # type: ignore[override]
        return FeatherReader(str(Path(self.path).parent), columns)


@dataclass(frozen=True)
class ListedFeather(ListedFiles):
    """Feather files that a list names."""

    def open(self, warehouse: Warehouse) -> OpenFeather:
        return OpenFeather(warehouse, warehouse.path(self.table))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """The same events in a table and in Feather files next to it, with rejected and late rows."""
    lake = Lake(tmp_path)
    lake.append(("ann", at("05:00"), 1), ("bob", at("05:10"), 2), (None, at("05:20"), 3))
    lake.append(("ann", at("01:00"), 4), ("bob", None, 5), ("cem", at("09:00"), 6))
    listed(lake)
    path = Path(lake.path("events.list"))
    for file in Path(lake.path("events")).glob("*.parquet"):
        feather.write_feather(pq.read_table(file).cast(EVENTS), str(file.with_suffix(".feather")))
    path.write_text(path.read_text().replace(".parquet", ".feather"))
    return lake


@pytest.mark.parametrize("make", [hourly_pipeline, session_pipeline])
def test_a_reader_without_statistics_gives_the_same_rows(lake: Lake, make: type[Pipeline]) -> None:
    table = make(source=DeltaSource("events", timestamp="at"))
    listed_ = replace(table, name="feather", source=ListedFeather("events.list", timestamp="at"))
    for pipeline in (table, listed_):
        run(LOCAL, lake, pipeline=pipeline)
    assert_same_windows(lake.latest(listed_), lake.latest(table))
    for name in ("late", "rejects"):
        assert len(lake.rows(listed_, name)) == len(lake.rows(table, name)) > 0, name


def test_a_reader_can_be_sent_to_a_task(lake: Lake) -> None:
    source = ListedFeather("events.list", timestamp="at").open(Warehouse(lake.path("")))
    reader = pickle.loads(pickle.dumps(source.reader(EVENTS)))
    (first, _) = source.unread(-1)
    with reader.open(FilePart.of(first.files[0], 0, 0)) as part:
        assert pa.concat_tables(part.read(0, ["value"]))["value"].to_pylist() == [1, 2, 3]
