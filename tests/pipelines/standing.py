"""Compares table `windows` with the views of results, which don't read it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import results, windows
from tidegate.pipelines.ledger.snapshots.head import require_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import read_table, stored_schema
from tidegate.windowing.time import MAX_TIMESTAMP
from tidegate.windowing.timestamps import epoch_millis


def rows_of(tables: PipelineTables) -> pa.Table:
    """Return the rows of table windows, without its partition column."""
    handle = tables.open(windows.NAME)
    return read_table(tables.warehouse, handle, stored_schema(handle).names)


def check_windows(tables: PipelineTables) -> None:
    """Check that the table has what the views latest and final of results have, each window once."""
    manifest = require_snapshot(tables).manifest
    handle, found = tables.open(windows.NAME), rows_of(tables)
    key = tuple(manifest.schemas.key)
    latest = results.latest(read_table(tables.warehouse, tables.open(results.NAME)), key)
    if handle.metadata().configuration[windows.EARLY] == "false":
        latest = latest.filter(pc.not_equal(latest["timing"], "early"))
    watermark = manifest.final_through
    for view, expected in (("latest", latest), ("final", results.final(latest, watermark))):
        rows = found if view == "latest" else final(found, watermark)
        wanted, has = counted(expected.select(found.column_names)), counted(rows)
        assert has == wanted, f"{view}: too many {has - wanted}, missing {wanted - has}"


def final(rows: pa.Table, watermark: int) -> pa.Table:
    """The rows whose `final_at` the watermark has reached, as a reader selects them."""
    if watermark == MAX_TIMESTAMP:
        return rows
    return rows.filter(pc.less_equal(epoch_millis(rows["final_at"]), watermark))


def counted(rows: pa.Table) -> Counter[Any]:
    return Counter(tuple(map(repr, row.values())) for row in rows.to_pylist())
