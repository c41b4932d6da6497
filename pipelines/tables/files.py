"""Data files of our tables: written, described by statistics that readers can trust, added and removed.

Wrong or partial statistics make readers lose rows, so there are few: the number of rows always, and
bounds only for key groups, epochs and window bounds. Times are ISO text, the upper one rounded up.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction, RemoveAction

from tidegate.pipelines.errors import FilesMissing
from tidegate.pipelines.manifest import DataFile
from tidegate.pipelines.storage import Warehouse
from tidegate.windowing.time import Millis, from_millis, to_millis

_DESCRIBED = ("key_group", "epoch", "reopened", "window_start", "window_end")

_SUMMED = "results-"
"""Files whose rows have a checksum: what was published, and what a compaction made of it."""

CHECKSUM = "tidegateChecksum"
"""Stands in the statistics of a file, in the manifest and in the log; readers pass over what they don't know there."""

_FIRST_MILLI = to_millis(datetime.min)
_LAST_MILLI = to_millis(datetime.max)


def write_file(warehouse: Warehouse, path: str, prefix: str, table: pa.Table) -> DataFile | None:
    """Write rows into a table's folder; None where there are none.

    Args:
        warehouse: where the table is.
        path: the table's folder.
        prefix: beginning of the file's name, for people who look.
        table: the rows, in the table's schema.
    """
    if not len(table):
        return None
    name = f"{prefix}-{uuid.uuid4().hex}.parquet"
    # Readers take a column that a file doesn't have as null; state has many, and nested ones cost even then.
    given = [one for one in table.column_names if table[one].null_count < len(table)]
    rows = table.select(given)
    size = warehouse.write_parquet(path, name, rows, use_dictionary=_in_dictionaries(rows.schema))
    described = statistics(table)
    if prefix.startswith(_SUMMED):
        # Commands that write nothing should not wait for this import.
        from tidegate.pipelines.tables.checksum import checksum_of

        described[CHECKSUM] = f"{checksum_of(table):016x}"
    return DataFile(path=name, size=size, rows=len(table), stats=json.dumps(described))


def _in_dictionaries(schema: pa.Schema) -> list[str] | bool:
    """Columns of which Parquet makes dictionaries: all but `window_id`, a hash that few rows share."""
    # Of nested columns every leaf would have to be named.
    if any(pa.types.is_nested(field.type) for field in schema):
        return True
    return [name for name in schema.names if name != "window_id"]


def epoch_of(name: str) -> int | None:
    """The epoch that wrote a file, by its name; None for what a compaction or a restore put together."""
    named = re.match(r"[a-z]+-(\d{6,})-", name)
    return int(named[1]) if named else None


def statistics(table: pa.Table) -> dict[str, Any]:
    """Delta statistics of a file with these rows."""
    low, high, nulls = {}, {}, {}
    for name in _DESCRIBED:
        if name not in table.schema.names:
            continue
        column = table[name]
        nulls[name] = column.null_count
        if column.null_count == len(column):
            continue
        bounds = pc.min_max(column)
        if pa.types.is_timestamp(column.type):
            first, last = bounds["min"].value // 1000, -(-bounds["max"].value // 1000)
            if first >= _FIRST_MILLI and last <= _LAST_MILLI:
                low[name], high[name] = _iso(first), _iso(last)
        else:
            low[name], high[name] = bounds["min"].as_py(), bounds["max"].as_py()
    return {"numRecords": len(table), "minValues": low, "maxValues": high, "nullCount": nulls}


def _iso(millis: Millis) -> str:
    return from_millis(millis).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def check_written(warehouse: Warehouse, path: str, files: Sequence[DataFile]) -> None:
    """Refuse files that are not there with their size, and make the others last: the log would point to nothing.

    Raises:
        FilesMissing: a file is missing or cut short; the message names it.
    """
    sizes = warehouse.sizes(path, [file.path for file in files])
    for file in files:
        if sizes[file.path] != file.size:
            found = "is missing" if sizes[file.path] is None else f"has {sizes[file.path]} bytes, not {file.size}"
            raise FilesMissing(
                f"file {file.path} of table {path} {found}. Do all workers write to the driver's storage (a local path "
                "must be a shared mount)? Or did something other than tidegate vacuum the table?"
            )
    if files:
        warehouse.make_durable(path)


def add_action(file: DataFile, data_change: bool = True) -> AddAction:
    """The action that adds a file to a table; without a change of data where its rows were there before."""
    return AddAction(file.path, file.size, {}, _now(), data_change, file.stats)


def remove_action(file: dict[str, Any], data_change: bool = True) -> RemoveAction:
    """The action that removes an active file, as `active_files` lists it."""
    return RemoveAction(file["path"], data_change, _now(), file["size_bytes"], {})


def _now() -> int:
    return time.time_ns() // 1_000_000
