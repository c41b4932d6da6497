"""News of a source: its commits with rows, and nothing that only rewrites rows, with few requests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.commit_times import vacuum_with_no_hours
from tidegate.pipelines.sources.delta.news import LogNews
from tidegate.pipelines.storage.delta_log import entry_name
from tidegate.pipelines.storage.warehouse import Warehouse

ROWS = pa.table({"user": ["ann", "bob"], "value": [1, 2]})


class Table:
    """A table of events in a folder, and the number of its commits."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.path, self.options = str(folder / "events"), options

    def append(self, commits: int = 1) -> int:
        for _ in range(commits):
            write_deltalake(self.path, ROWS, mode="append", **self.options)
        return self.open().version()

    def open(self) -> DeltaTable:
        return DeltaTable(self.path)

    def entry(self, version: int) -> Path:
        return Path(self.path, "_delta_log", entry_name(version))

    def news(self, changes: str = "refuse", **options: Any) -> LogNews:
        return LogNews(Warehouse(str(Path(self.path).parent)), self.path, changes, **options)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def test_a_table_that_does_not_exist_yet_is_no_news_until_its_first_rows(table: Table) -> None:
    news = table.news()
    assert news.first_after(-1) is None
    DeltaTable.create(table.path, schema=ROWS.schema)
    assert news.first_after(-1) is None, "columns alone are nothing to read"
    assert table.append() == 1
    assert news.first_after(-1) == 1
    assert news.first_after(1) is None


def test_the_first_commit_with_rows_is_told_until_it_is_read(table: Table) -> None:
    table.append(3)
    news = table.news()
    assert [news.first_after(-1), news.first_after(-1), news.first_after(0)] == [0, 0, 1]
    assert news.first_after(2) is None
    table.append()
    assert news.first_after(2) == 3


def optimize(table: Table) -> None:
    table.open().optimize.compact()


def compact_and_vacuum(table: Table) -> None:
    optimize(table)
    vacuum_with_no_hours(table.path)


def set_a_property(table: Table) -> None:
    table.open().alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})


@pytest.mark.parametrize("maintain", [optimize, compact_and_vacuum, set_a_property])
@pytest.mark.parametrize("partitioned", [False, True])
def test_maintenance_is_no_news(maintain: Callable[[Table], None], partitioned: bool, tmp_path: Path) -> None:
    table = Table(tmp_path, **({"partition_by": ["user"]} if partitioned else {}))
    read = table.append(3)
    news = table.news()
    assert news.first_after(read) is None
    maintain(table)
    assert table.open().version() > read
    assert news.first_after(read) is None
    assert table.news().first_after(read) is None, "a watcher that comes later sees the same"
    rows = table.append()
    assert news.first_after(read) == table.news().first_after(read) == rows


@pytest.mark.parametrize("maintain", [optimize, set_a_property])
def test_maintenance_is_told_after_a_day_until_the_stream_has_passed_it(
    maintain: Callable[[Table], None], table: Table
) -> None:
    """Delta removes log entries after a day at the earliest, and a stream has to read those after its position."""
    assert table.news(clock=lambda: 1 << 60).first_after(table.append(3)) is None
    read = table.open().version()
    maintain(table)
    committed = table.open().history(1)[0]["timestamp"]
    now = [committed + 86_400_000 - 1]
    news = table.news(clock=lambda: now[0])
    assert news.first_after(read) is None
    now[0] += 1
    assert [news.first_after(read)] * 2 == [read + 1] * 2
    assert table.news(clock=lambda: now[0]).first_after(read) == read + 1, "a watcher that comes later sees the same"
    assert news.first_after(read + 1) is None
    now[0] += 1 << 40
    assert news.first_after(read + 1) is None, "nothing waits"
    assert table.news(clock=lambda: now[0]).first_after(-1) == 0, "an unread table has no position to move"


def delete(table: Table) -> None:
    table.open().delete("value = 1")


def update(table: Table) -> None:
    table.open().update({"value": "5"}, predicate="value = 1")


def overwrite(table: Table) -> None:
    write_deltalake(table.path, ROWS, mode="overwrite")


def by_deletion_vector(table: Table) -> None:
    """As Spark deletes a row of a table with deletion vectors: the same file is removed, and added with a vector."""
    version = table.open().version()
    (add,) = [json.loads(line)["add"] for line in table.entry(version).read_text().splitlines() if '"add"' in line]
    vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    remove = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}
    actions = [{"remove": remove}, {"add": {**add, "deletionVector": vector, "dataChange": True}}]
    table.entry(version + 1).write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize("change", [delete, update, overwrite, by_deletion_vector])
@pytest.mark.parametrize(("changes", "is_news"), [("refuse", True), ("correct", True), ("ignore", False)])
def test_changed_rows_are_news_unless_the_stream_passes_over_them(
    changes: str, is_news: bool, change: Callable[[Table], None], table: Table
) -> None:
    read = table.append()
    news = table.news(changes)
    assert news.first_after(read) is None
    change(table)
    assert news.first_after(read) == (read + 1 if is_news else None)


def test_a_position_that_went_back_is_looked_at_from_there(table: Table) -> None:
    table.append(4)
    news = table.news()
    assert news.first_after(3) is None
    assert news.first_after(1) == 2, "as after a restore of a snapshot"


def test_a_log_that_was_cleaned_up_is_followed_from_its_newest_version(table: Table) -> None:
    read = table.append(4)
    table.open().create_checkpoint()
    content = table.entry(read).read_text()
    for version in range(read + 1):
        table.entry(version).unlink()
    news = table.news()
    assert news.first_after(read) is None, "the checkpoint has that version"
    assert news.first_after(read - 2) == read, "the stream says what it can't read"
    assert news.first_after(-1) == read
    table.entry(read + 1).write_text(content)
    assert news.first_after(read) == read + 1


def test_a_table_that_was_put_back_or_replaced_is_told_to_the_stream(table: Table, tmp_path: Path) -> None:
    read = table.append(4)
    news = table.news()
    assert news.first_after(read) is None
    table.entry(read).unlink()
    assert news.first_after(read) == read - 1
    shutil.rmtree(table.path)
    assert news.first_after(read) is None, "a table that is gone may come back"
    assert table.append() == 0
    assert news.first_after(read) == 0


def test_a_damaged_entry_is_an_error_and_not_silence(table: Table) -> None:
    read = table.append()
    news = table.news()
    table.entry(read + 1).write_text("{")
    with pytest.raises(ValueError, match="Expecting property name"):
        news.first_after(read)
