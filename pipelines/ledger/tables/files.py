"""Data files of tidegate's tables: write them with statistics that readers can trust, and read those of table `state`.

Wrong or partial statistics make readers lose rows, so a file has only a few: the number of rows, and bounds for key
groups, epochs, window bounds and kinds of panes. Times are ISO text, and the upper bound is rounded up.

In version 1 of table state, all rows are current. In version 2, a shard has a base and at most one delta. The delta has
all rows of each key that changed since the base was written, and a mark for each of these keys that no longer has rows.
So a row of the base is current unless a row of the delta has the same key hash: keys with equal hashes change together.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction, RemoveAction

from tidegate.pipelines.definition import state
from tidegate.pipelines.definition.columns import TIMESTAMP
from tidegate.pipelines.errors import FilesMissing
from tidegate.pipelines.ledger.manifest import DataFile
from tidegate.pipelines.storage.footers import footer_checksum
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.time import Millis, from_millis, to_millis

_DESCRIBED = (*state.BOUNDED, "epoch", "reopened", "window_start", "window_end", "pane", "timing", "op")

_WORDS = ("+", "-", "early", "late", "on_time")
"""Values of columns `op` and `timing`. The bounds of these columns show whether a file has only first panes."""

_PARTITION = "partition."

_SUMMED = "results-"
"""Prefix of the names of files whose rows have a checksum: published results, even after a compaction."""

CHECKSUM = "tidegateChecksum"
"""Name of the checksum among the statistics of a file, in the manifest and in the log. Other readers ignore it."""

FOOTER = "tidegateFooter"
"""Name of the checksum of a file's footer among its statistics, like `CHECKSUM`."""

_OF_A_GROUP = 65_536
"""Number of rows in a row group of results. Rows are roughly in the order of their windows, so a search for the windows
of a short time, as in a correction, reads a small part of a large file."""

_OF_A_BASE = 1024
"""Number of rows in a row group of a base that epochs read in part. Smaller groups cost more than they save: each has
some 15 columns, which take 16 KiB of memory in a cached footer."""

_SAMPLE = 65_536
"""Number of sampled rows that decide whether a column of a large file is stored as a dictionary."""

_FIRST_MILLI = to_millis(datetime.min)
_LAST_MILLI = to_millis(datetime.max)


def write_rows(warehouse: Warehouse, path: str, prefix: str, table: pa.Table) -> tuple[DataFile, ...]:
    """Write rows into a file in a table's folder. Return the file, or none without rows.

    `prefix` ends with the epoch, which `epoch_of` reads, or names what wrote the file.
    """
    if not len(table):
        return ()
    name = f"{prefix}-{uuid.uuid4().hex}.parquet"
    # Readers fill a column that a file lacks with nulls. Table state has many such columns, and writing them takes
    # time.
    given = [column for column in table.column_names if table[column].null_count < len(table)]
    rows = table.select(given)
    is_result = prefix.startswith(_SUMMED)
    options: dict[str, Any] = {"use_dictionary": _in_dictionaries(rows)}
    if is_result:
        options["row_group_size"] = _OF_A_GROUP
    elif state.HASH.name in rows.column_names and state.MARK.name not in rows.column_names:
        # Zstandard takes longer to start than to decompress so few values.
        options |= {"row_group_size": _OF_A_BASE, "compression": "lz4"}
    written = warehouse.write_parquet(path, name, rows, **options)
    described = {**statistics(table), FOOTER: written.footer}
    if is_result:
        # Commands that write nothing should not wait for this import.
        from tidegate.pipelines.ledger.tables.checksum import checksum_of

        described[CHECKSUM] = f"{checksum_of(table):016x}"
    return (DataFile(path=name, size=written.size, rows=len(table), stats=json.dumps(described)),)


def _has_nested(schema: pa.Schema) -> bool:
    return any(pa.types.is_nested(field.type) for field in schema)


def _in_dictionaries(rows: pa.Table) -> list[str] | bool:
    """Return the columns that Parquet stores as dictionaries: all except those with few repeated values.

    `window_id` is a hash, and the bounds of sessions hardly repeat: Parquet would abandon their dictionaries after a
    megabyte, which makes writing slower and the file larger than no dictionary.
    """
    # For nested columns, every leaf would have to be named.
    if _has_nested(rows.schema):
        return True
    names = [name for name in rows.column_names if name != "window_id"]
    if len(rows) < 2 * _SAMPLE:
        return names
    return [name for name in names if pc.count_distinct(rows[name][:_SAMPLE]).as_py() < _SAMPLE // 2]


def epoch_of(name: str) -> int | None:
    """Return the epoch in a file's name, or None for a file that a compaction or a restore assembled."""
    named = re.match(r"[a-z]+-(\d{6,})-", name)
    return int(named[1]) if named else None


def statistics(table: pa.Table, described: Sequence[str] = _DESCRIBED) -> dict[str, Any]:
    """Return the Delta statistics of a file with these rows, with bounds of the described columns."""
    low, high, nulls = {}, {}, {}
    for name in described:
        if name not in table.schema.names:
            continue
        column = table[name]
        is_text = name in ("timing", "op") and pa.types.is_string(column.type)
        if not pa.types.is_integer(column.type) and column.type != TIMESTAMP and not is_text:
            # This is a user's column of the same name, and readers don't agree on the order of values for every type.
            continue
        bounds = pc.min_max(column)
        if is_text and not {bounds["min"].as_py(), bounds["max"].as_py()} <= {*_WORDS}:
            continue
        nulls[name] = column.null_count
        if column.null_count == len(column):
            continue
        if pa.types.is_timestamp(column.type):
            first, last = bounds["min"].value // 1000, -(-bounds["max"].value // 1000)
            if first >= _FIRST_MILLI and last <= _LAST_MILLI:
                low[name], high[name] = _iso(first), _iso(last)
        else:
            low[name], high[name] = bounds["min"].as_py(), bounds["max"].as_py()
    return {"numRecords": len(table), "minValues": low, "maxValues": high, "nullCount": nulls}


def copied(file: dict[str, Any], name: str, columns: Collection[str] = state.BOUNDED) -> DataFile:
    """Return a copy of an active file, with the statistics of some columns; by default, of a file of table state."""
    bounds: dict[str, dict[str, Any]] = {"min": {}, "max": {}, "null_count": {}}
    for column in (column for column in _DESCRIBED if column in columns):
        for kind, values in bounds.items():
            if (value := file.get(f"{kind}.{column}")) is not None:
                values[column] = _iso(to_millis(value)) if isinstance(value, datetime) else value
    stats = {
        "numRecords": file["num_records"],
        "minValues": bounds["min"],
        "maxValues": bounds["max"],
        "nullCount": bounds["null_count"],
    }
    return DataFile(path=name, size=file["size_bytes"], rows=file["num_records"], stats=json.dumps(stats))


def with_footers(warehouse: Warehouse, path: str, files: Sequence[DataFile]) -> list[DataFile]:
    """Return files that were copied into a table's folder, with the checksums of their footers."""
    described = []
    for file in files:
        with warehouse.open_file(path, file.path) as opened:
            stats = json.loads(file.stats) | {FOOTER: footer_checksum(opened)}
        described.append(file.model_copy(update={"stats": json.dumps(stats)}))
    return described


def _iso(millis: Millis) -> str:
    return from_millis(millis).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def check_written(warehouse: Warehouse, path: str, files: Sequence[DataFile]) -> None:
    """Refuse files that are missing or have a different size, and make the files durable before the log names them."""
    sizes = warehouse.sizes(path, [file.path for file in files])
    for file in files:
        if sizes[file.path] != file.size:
            fault = "is missing" if sizes[file.path] is None else f"has {sizes[file.path]} bytes, not {file.size}"
            raise FilesMissing(
                f"file {file.path} of table {path} {fault}. Do all workers write to the driver's storage (a local path "
                "must be a shared mount)? Or did something other than tidegate tables vacuum the table?"
            )
    if files:
        warehouse.make_durable(path)


def add_action(
    file: DataFile, data_change: bool = True, partition: Mapping[str, str | None] | None = None
) -> AddAction:
    """Return the action that adds a file to a table. `data_change` is False if the table had these rows before."""
    return AddAction(file.path, file.size, partition or {}, _now(), data_change, file.stats)


def remove_action(file: dict[str, Any], data_change: bool = True) -> RemoveAction:
    """Return the action that removes an active file, as `active_files` lists it."""
    return RemoveAction(file["path"], data_change, _now(), file["size_bytes"], partition_of(file))


def partition_of(file: dict[str, Any]) -> dict[str, str | None]:
    """Return the value of each partition column of an active file, as recorded in the log."""
    named = {name: value for name, value in file.items() if name.startswith(_PARTITION)}
    return {name.removeprefix(_PARTITION): None if value is None else str(value) for name, value in named.items()}


def _now() -> int:
    return time.time_ns() // 1_000_000


def deltas_of(files: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names of the files whose statistics allow rows of a delta."""
    return [file["path"] for file in files if file.get(f"null_count.{state.MARK.name}") != file["num_records"]]


def holding(warehouse: Warehouse, path: str, deltas: Sequence[str], columns: pa.Schema) -> pc.Expression | None:
    """Return the condition for the current state rows of some files, or None if all rows are current."""
    hashed, marked = state.HASH.name, pc.field(state.MARK.name).is_valid()
    return _unless_replaced(warehouse.read_files(path, deltas, columns, [hashed], marked)[hashed])


def held(rows: pa.Table) -> pa.Table:
    """Return the current rows among all state rows of some keys."""
    condition = _unless_replaced(rows.filter(rows[state.MARK.name].is_valid())[state.HASH.name])
    return rows if condition is None else rows.filter(condition)


def _unless_replaced(changed: pa.ChunkedArray) -> pc.Expression | None:
    if not len(changed):
        return None
    mark, hashed = pc.field(state.MARK.name), pc.field(state.HASH.name)
    return pc.if_else(mark.is_null(), ~hashed.isin(pc.unique(changed)), mark == state.DELTA_ROW)


def read_state(
    warehouse: Warehouse,
    path: str,
    names: Sequence[str],
    deltas: Sequence[str],
    columns: pa.Schema,
    wanted: Sequence[str] | None = None,
    where: pc.Expression | None = None,
) -> pa.Table:
    """Return the current rows of some files, without the manifest column.

    The files must include every file with rows of their key groups. Without `where`, the manifest's row is included.
    """
    condition = holding(warehouse, path, deltas, columns)
    if condition is not None:
        where = condition if where is None else where & condition
    chosen = state.row_columns(columns) if wanted is None else list(wanted)
    return warehouse.read_files(path, names, columns, chosen, where)
