"""A position belongs to a table whose log has its id at the recorded version, whatever id the table has got since."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tests.hand_made import HandMade, column
from tests.lake import EVENTS, LOCAL, Lake, at, hourly_pipeline
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.sources.base import ReplacedSource
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.storage.delta_log import checkpoint_name, entry_name
from tidegate.pipelines.storage.warehouse import Warehouse

COLUMNS = [column("user", "string"), column("at", "timestamp"), column("value", "long")]


NOTED = EVENTS.append(pa.field("note", pa.string()))
"""The columns that a MERGE leaves."""


def table_at(folder: Path) -> HandMade:
    return HandMade(folder / "events", COLUMNS)


def log_of(table: HandMade) -> SourceLog:
    return SourceLog(Warehouse(str(table.folder.parent)), str(table.folder))


def rows(*values: int) -> pa.Table:
    return pa.table([["ann"] * len(values), [at("10:00")] * len(values), list(values)], schema=EVENTS)


def append(table: HandMade) -> None:
    table.commit(table.file(rows(1)))


def position_at_head(log: SourceLog) -> Position:
    return Position(version=log.head, own=dict(log.of_position(log.head)))


def remove_entries(table: HandMade, *versions: int) -> None:
    for version in versions:
        (table.folder / "_delta_log" / entry_name(version)).unlink()


STEPS = st.lists(st.sampled_from(["append", "new id", "checkpoint", "alter"]), min_size=1, max_size=8)


@given(STEPS)
def test_every_position_of_a_table_belongs_to_it_after_any_change_of_its_metadata(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = table_at(Path(folder))
        positions: list[Position] = []
        metadata: dict[str, Any] = {}
        for step in steps:
            if step == "append":
                append(table)
            elif step == "checkpoint":
                DeltaTable(str(table.folder)).create_checkpoint()
            else:
                metadata = table.metadata() if step == "new id" or not metadata else metadata
                table.commit(metadata)
            log = log_of(table)
            positions.append(position_at_head(log))
            # A position at an older version may have been made with the head's id.
            positions += [Position(version=version, own=dict(log.of_position(version))) for version in range(log.head)]
            for position in positions:
                log.check(position)
        shutil.rmtree(table.folder)
        other = table_at(Path(folder))
        for _ in range(table.version):
            append(other)
        for position in positions:
            with pytest.raises(ReplacedSource, match="was replaced"):
                log_of(other).check(position)


def test_the_log_tells_the_id_from_a_checkpoint_once_its_entries_are_cleaned_up(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    append(table)
    read = position_at_head(log_of(table))
    DeltaTable(str(table.folder)).create_checkpoint()
    table.commit(table.metadata())
    append(table)
    remove_entries(table, 0, 1)
    log = log_of(table)
    log.check(read)
    assert [commit.version for commit in log.unread(read.version)] == [3]


def test_an_id_whose_version_is_cleaned_up_is_refused_until_the_log_is_put_back(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    append(table)
    read = position_at_head(log_of(table))
    table.commit(table.metadata())
    append(table)
    DeltaTable(str(table.folder)).create_checkpoint()
    shutil.copytree(table.folder, tmp_path / "copy")
    remove_entries(table, 0, 1)
    with pytest.raises(
        ReplacedSource, match=r"may have been replaced.*no longer be read at that version.*up to version 1 back"
    ):
        log_of(table).check(read)
    for version in (0, 1):
        name = entry_name(version)
        shutil.copy(tmp_path / "copy" / "_delta_log" / name, table.folder / "_delta_log" / name)
    log_of(table).check(read)


def test_an_id_whose_checkpoint_is_damaged_is_refused_too(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    append(table)
    read = position_at_head(log_of(table))
    DeltaTable(str(table.folder)).create_checkpoint()
    table.commit(table.metadata())
    DeltaTable(str(table.folder)).create_checkpoint()
    remove_entries(table, 0, 1)
    (table.folder / "_delta_log" / checkpoint_name(1)).write_bytes(b"PAR1 no footer PAR1")
    with pytest.raises(ReplacedSource, match="may have been replaced"):
        log_of(table).check(read)


def merge_with_a_new_column(lake: Lake) -> None:
    """Commit a MERGE with `merge_schema`, for which deltalake gives the table another id."""
    before = DeltaTable(lake.path("events")).metadata().id
    rows = {"user": ["bob", "zoe"], "at": [at("11:30"), at("16:00")], "value": [5, 0], "note": ["x", "y"]}
    merge = DeltaTable(lake.path("events")).merge(
        pa.table(rows, schema=NOTED),
        "s.user = t.user and s.at = t.at",
        source_alias="s",
        target_alias="t",
        merge_schema=True,
    )
    merge.when_not_matched_insert_all().execute()
    assert DeltaTable(lake.path("events")).metadata().id != before


def totals(windows: pa.Table) -> dict[str, int]:
    return dict(zip(windows["user"].to_pylist(), windows["total"].to_pylist(), strict=True))


def test_a_stream_follows_a_table_to_which_a_merge_gave_a_column_and_another_id(lake: Lake) -> None:
    pipeline = hourly_pipeline()
    lake.append(("ann", at("10:00"), 1))
    lake.stream(LOCAL, pipeline)
    merge_with_a_new_column(lake)
    lake.stream(LOCAL, pipeline)
    lake.write(pa.table([["cid"], [at("19:00")], [0], [None]], schema=NOTED))
    lake.stream(LOCAL, pipeline)
    assert totals(lake.final(pipeline)) == {"ann": 1, "bob": 5, "zoe": 0}


def test_so_does_a_backfill(lake: Lake) -> None:
    pipeline = hourly_pipeline()
    lake.append(("ann", at("10:00"), 1))
    lake.backfill(LOCAL, pipeline, at("10:00"), at("11:00"))
    merge_with_a_new_column(lake)
    lake.backfill(LOCAL, pipeline, at("11:00"), at("12:00"))
    assert totals(lake.latest(pipeline)) == {"ann": 1, "bob": 5}
