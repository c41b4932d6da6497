"""A table can't be opened because of damage, of the Delta library or of a permission, and the message says which."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.hand_made import HandMade, column
from tests.lake import EVENTS, at
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.failures import with_remedy
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.storage.delta_log import LAST_CHECKPOINT, checkpoint_name, entry_name
from tidegate.pipelines.storage.warehouse import Warehouse

COLUMNS = [column("user", "string"), column("at", "timestamp"), column("value", "long")]


@pytest.fixture
def table(tmp_path: Path) -> HandMade:
    """A table with a checkpoint of version 2, and two versions after it."""
    table = HandMade(tmp_path / "events", COLUMNS)
    for number in range(4):
        table.commit(table.file(pa.table([["ann"], [at("10:00")], [number]], schema=EVENTS)))
        if number == 1:
            DeltaTable(str(table.folder)).create_checkpoint()
    return table


def opened(table: HandMade, version: int | None = None) -> SourceLog:
    log = SourceLog(Warehouse(str(table.folder.parent)), str(table.folder))
    if version is not None:
        log.active("at", version)
    return log


def log_file(table: HandMade, name: str) -> Path:
    return table.folder / "_delta_log" / name


def entry(table: HandMade, version: int) -> Path:
    return log_file(table, entry_name(version))


def without_first_entries(table: HandMade) -> None:
    for name in (checkpoint_name(2), LAST_CHECKPOINT, entry_name(0)):
        log_file(table, name).unlink()


DAMAGE: dict[str, tuple[Callable[[HandMade], Any], str]] = {
    "an entry is no JSON": (lambda table: entry(table, 3).write_text("{cut"), r"0003\.json in its log is damaged"),
    "an entry is missing": (lambda table: entry(table, 3).unlink(), r"0003\.json is missing"),
    "a checkpoint is cut": (
        lambda table: os.truncate(log_file(table, checkpoint_name(2)), 300),
        r"0002\.checkpoint\.parquet in its log is damaged",
    ),
    "the checkpoint is missing": (
        lambda table: log_file(table, checkpoint_name(2)).unlink(),
        r"lacks the checkpoint that _last_checkpoint names",
    ),
    "the first entry is missing": (without_first_entries, r"0000\.json is missing"),
    "the columns are cut": (
        lambda table: table.commit({"metaData": {**table.metadata()["metaData"], "schemaString": "{"}}),
        r"the columns in its log are damaged",
    ),
}


@pytest.mark.parametrize(("harm", "told"), DAMAGE.values(), ids=DAMAGE)
def test_damage_names_the_file_and_is_undone_by_a_copy_of_the_log(
    table: HandMade, harm: Callable[[HandMade], Any], told: str
) -> None:
    copy = {file.name: file.read_bytes() for file in (table.folder / "_delta_log").iterdir()}
    harm(table)
    with pytest.raises(Refused, match=rf"can't be opened: .*{told}.*\. Restore its log from a copy; nothing"):
        opened(table)
    for file in (table.folder / "_delta_log").iterdir():
        file.unlink()
    for name, content in copy.items():
        log_file(table, name).write_bytes(content)
    assert opened(table).head == 4


def committed(action: dict[str, Any]) -> Callable[[HandMade], Any]:
    return lambda table: table.commit(action)


def with_type(kind: str) -> Callable[[HandMade], Any]:
    def change(table: HandMade) -> None:
        fields = json.dumps({"type": "struct", "fields": [column("user", kind)]})
        table.commit({"metaData": {**table.metadata()["metaData"], "schemaString": fields}})

    return change


UNSUPPORTED = {
    "a newer protocol": committed({"protocol": {"minReaderVersion": 4, "minWriterVersion": 9}}),
    "an unknown feature": committed(
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["geospatial"],
                "writerFeatures": ["geospatial"],
            }
        }
    ),
    "an unknown type": with_type("geometry"),
}


@pytest.mark.parametrize("change", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_what_the_library_does_not_support_is_called_a_feature(
    table: HandMade, change: Callable[[HandMade], Any]
) -> None:
    change(table)
    with pytest.raises(Refused, match=r"[Uu]nsupported.*Neither the tasks nor Spark can read .*DROP FEATURE"):
        opened(table)


def test_what_the_library_reads_wrongly_is_called_neither_damage_nor_a_feature(table: HandMade) -> None:
    # Spark writes a wall-clock column only into a table with the feature, but reads one without it.
    with_type("timestamp_ntz")(table)
    with pytest.raises(Refused, match=r"the Delta library \(deltalake .*log is not damaged.*CREATE TABLE"):
        opened(table)


def test_an_older_version_that_is_damaged_is_not_called_cleaned_up(table: HandMade) -> None:
    entry(table, 1).write_text("{cut")
    with pytest.raises(Refused, match=r"opened at version 1: .*0001\.json in its log is damaged.*Restore its log"):
        opened(table, 1)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Give up the permissions of root for a while."""
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_missing_permission_is_called_so(table: HandMade) -> None:
    for folder in (table.folder, *table.folder.parents):
        if "pytest" in str(folder):
            folder.chmod(0o755)
    entry(table, 4).chmod(0)
    with as_nobody(), pytest.raises(OSError, match="Permission denied") as failed:
        opened(table)
    assert "This user has no permission there: grant it" in with_remedy(failed.value)
    entry(table, 4).chmod(0o644)
    with as_nobody():
        assert opened(table).head == 4
