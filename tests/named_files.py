"""Source tables whose files and columns have names as people and programs choose them: exporters, Hive, hand-written
SQL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction


def add_file(
    table: str, rows: pa.Table, name: str, written: int = 0, partition: Mapping[str, str] | None = None
) -> None:
    """Commit one file under a given name.

    Args:
        table: path of a Delta table; it is made with the columns of the rows where it is not there.
        rows: without the partition columns.
        name: relative path of the file, as the file system knows it.
        written: its time in the log, int64 epoch milliseconds.
        partition: values of the partition columns.
    """
    partition = dict(partition or {})
    if not DeltaTable.is_deltatable(table):
        columns = [*rows.schema, *(pa.field(column, pa.string()) for column in partition)]
        DeltaTable.create(table, Schema.from_arrow(pa.schema(columns)), partition_by=list(partition))
    file = Path(table, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, file)
    handle = DeltaTable(table)
    stats = json.dumps({"numRecords": len(rows)})
    action = AddAction(name, file.stat().st_size, partition, written, True, stats)
    handle.create_write_transaction([action], "append", handle.schema(), partition_by=list(partition) or None)


def spelled_by_spark(table: str, name: str) -> str:
    """Return `_metadata.file_path` of a file as Spark gives it: a URI."""
    return "file:" + quote(f"{table}/{name}", safe="/+:@!$&'()*,;=~")
