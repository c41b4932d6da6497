"""Deleted and added rows, by the change feed of a Delta table and by a comparison of its files: both agree."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.lake import DAY0, EVENTS, LOCAL, Clock, Lake, at
from tests.pipelines.correct.lakes import HOURS
from tests.pipelines.correct.test_changed_rows import opened, seen
from tests.pipelines.sources.changing import Changing
from tidegate.pipelines.correct.changed_rows import ChangedRows, changed_rows
from tidegate.pipelines.definition.event_columns import STATUS
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.commits import ChangedFiles
from tidegate.pipelines.sources.delta.changes import Changes
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.windowing.time import to_millis

FEED = {"delta.enableChangeDataFeed": "true"}


def log_of(lake: Lake) -> SourceLog:
    log = opened(lake).log
    assert isinstance(log, SourceLog)
    return log


def both_ways(lake: Lake, after: int, until: int) -> tuple[ChangedFiles, ChangedFiles | None]:
    """The files of both methods."""
    log = log_of(lake)
    commits = [log._actions(version) for version in range(after + 1, until + 1)]
    changes = Changes(commits, log._path_of, partial(log._adds, after))
    return changes.files(), changes.fed()


def rows_of(lake: Lake, changed: ChangedFiles, until: int) -> tuple[Any, ...]:
    """Everything that a correction knows about changed files."""
    rows: ChangedRows = changed_rows(opened(lake), changed, until)
    rejected = Counter(str(row) for row in rows.rejected_rows().to_pylist())
    return seen(rows.deleted), seen(rows.added), rejected, rows.deleted_unusable, rows.dropped, dict(rows.largest)


def check(lake: Lake, after: int, until: int) -> bool:
    """Compare the two methods; return True if there is a feed."""
    by_files, by_feed = both_ways(lake, after, until)
    if by_feed is None:
        return False
    assert rows_of(lake, by_feed, until) == rows_of(lake, by_files, until)
    return True


@pytest.mark.first(2)
@pytest.mark.parametrize("partition", [None, "user"])
@pytest.mark.parametrize("seed", range(4))
def test_the_feed_and_the_files_tell_the_same_rows(tmp_path: Path, seed: int, partition: str | None) -> None:
    lake = Lake(tmp_path / "lake", Clock(to_millis(DAY0)))
    changing = Changing(lake, random.Random(seed))
    parts = None if partition is None else [partition]
    write_deltalake(lake.path("events"), changing.drawn(20), configuration=FEED, partition_by=parts)
    changing.settle()
    fed = 0
    for _ in range(7):
        before = changing.version
        changing.happen()
        fed += check(lake, before, changing.version)
    for _ in range(4):
        after, until = sorted(changing.draw.sample(range(changing.version + 1), 2))
        fed += check(lake, after, until)
    assert fed


def many(lake: Lake) -> DeltaTable:
    """A file with so many rows that the feed of a few of them is smaller."""
    rows = [{"user": f"user{number}", "at": at("10:00"), "value": number * number} for number in range(3000)]
    write_deltalake(lake.path("events"), pa.Table.from_pylist(rows, schema=EVENTS), configuration=FEED)
    return DeltaTable(lake.path("events"))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake", Clock(to_millis(DAY0)))


def paths(changed: ChangedFiles) -> list[str]:
    return [file.path for file in (*changed.deleted, *changed.added)]


def test_the_feed_is_read_where_it_is_smaller_than_the_files(lake: Lake) -> None:
    many(lake).update({"value": "1"}, predicate="user = 'user7'")
    changed = log_of(lake).changed(0, 1)
    assert changed.by_feed
    assert all(path.startswith("_change_data/") for path in paths(changed))
    DeltaTable(lake.path("events")).update({"value": "value + 1"})
    assert not log_of(lake).changed(1, 2).by_feed, "the feed of all rows is larger than the files"


def test_appends_and_whole_files_that_went_have_no_feed_and_are_read_beside_it(lake: Lake) -> None:
    table = many(lake)
    lake.append(("ann", at("11:00"), 1))
    table.update_incremental()
    (added,) = [path for path in table.file_uris() if len(pq.read_table(path)) == 1]
    table.update({"value": "1"}, predicate="user = 'user7'")
    (rewritten,) = [path for path in table.file_uris() if path != added]
    table.delete()
    _, by_feed = both_ways(lake, 0, 3)
    assert by_feed is not None
    feed = [path for path in paths(by_feed) if path.startswith("_change_data/")]
    assert len(feed) == 2, "each side of one file"
    assert {*paths(by_feed)} - {*feed} == {Path(rewritten).name}, "a file that came and went is not read"
    assert check(lake, 0, 3)


def test_without_the_files_of_the_feed_those_of_the_table_are_compared(lake: Lake) -> None:
    many(lake).update({"value": "1"}, predicate="user = 'user7'")
    before = rows_of(lake, log_of(lake).changed(0, 1), 1)
    for file in Path(lake.path("events"), "_change_data").rglob("*.parquet"):
        file.unlink()
    changed = log_of(lake).changed(0, 1)
    assert not changed.by_feed
    assert rows_of(lake, changed, 1) == before


def test_with_the_feed_the_files_of_the_older_version_may_be_gone(lake: Lake) -> None:
    table = many(lake)
    (old,) = table.file_uris()
    lake.stream(LOCAL, HOURS)
    table.update({"value": "-7"}, predicate="user = 'user7'")
    Path(old).unlink()
    (manifest,) = lake.stream(LOCAL, HOURS)
    assert (manifest.kind, manifest.counters["rows_deleted"], manifest.counters["events_in"]) == ("change", 1, 1)


def test_a_row_that_came_by_the_feed_and_can_not_be_used_is_rejected_with_all_its_columns(lake: Lake) -> None:
    many(lake).update({"at": "null"}, predicate="user = 'user7'")
    changed = changed_rows(opened(lake), log_of(lake).changed(0, 1), 1)
    assert changed.by_feed
    (rejected,) = changed.rejected_rows().to_pylist()
    assert (rejected["user"], rejected["value"], rejected[STATUS]) == ("user7", 49, "null_timestamp")


def test_an_unknown_kind_of_change_is_refused(lake: Lake) -> None:
    many(lake).update({"value": "1"}, predicate="user = 'user7'")
    (file,) = Path(lake.path("events"), "_change_data").rglob("*.parquet")
    rows = pq.read_table(file, partitioning=None)
    strange = pa.array(["renamed"] * len(rows))
    pq.write_table(rows.set_column(rows.schema.get_field_index("_change_type"), "_change_type", strange), file)
    with pytest.raises(Refused, match="_change_type has 'renamed'"):
        changed_rows(opened(lake), log_of(lake).changed(0, 1), 1)
