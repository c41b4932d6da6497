"""Contents of a snapshot: its windows and timers as rows, and counts and checksums for each key group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.storage import Warehouse, arrow_schema
from tidegate.pipelines.tables import state
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.state.rows import BUCKET, KEY

_INTERNAL = {
    "side",
    "missing",
    "late_firing",
    "emitted",
    "trigger_state",
    "user_state",
    "in_flight",
    "filled",
}

_SHOWN = {KEY: {"user_state"}, BUCKET: {"side"}}
"""Internal columns that people look at nevertheless, by namespace: a function's state, and the side of an element."""


def state_rows(
    warehouse: Warehouse, snapshot: Snapshot, where: pc.Expression | None = None, columns: list[str] | None = None
) -> pa.Table:
    """Return the state rows of a snapshot or savepoint, without its manifest; all columns, or those that are named."""
    real = pc.field("key_group") != state.MANIFEST_KEY_GROUP
    rows = warehouse.read_files(
        snapshot.path,
        [file["path"] for file in snapshot.files],
        arrow_schema(snapshot.handle),
        columns,
        real if where is None else real & where,
    )
    return rows.drop_columns([state.MANIFEST.name]) if columns is None else rows


def window_rows(tables: PipelineTables, snapshot: Snapshot, key_group: int | None = None) -> pa.Table:
    """Return the state rows for people to look at: ordered by key group, without internal and empty columns."""
    rows = state_rows(tables.warehouse, snapshot, None if key_group is None else pc.field("key_group") == key_group)
    key = snapshot.manifest.schemas.key
    hidden = _INTERNAL - _SHOWN.get(snapshot.manifest.schemas.namespace, set()) - key.keys()
    rows = rows.drop_columns([name for name in rows.column_names if name in hidden])
    empty = [name for name in rows.column_names if name not in key and len(rows) and rows[name].null_count == len(rows)]
    order = [("key_group", "ascending"), ("window_start", "ascending")]
    return rows.drop_columns(empty).sort_by([item for item in order if item[0] not in empty])


def key_group_counts(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the number of windows and timers of each key group that has windows."""
    window_counts: Counter[int] = Counter(rows["key_group"].to_pylist())
    timers: dict[str, Counter[int]] = {name: Counter() for name in ("event_time_timers", "processing_time_timers")}
    for name, counts in timers.items():
        if name in rows.column_names:
            for group, times in zip(rows["key_group"].to_pylist(), rows[name].to_pylist(), strict=True):
                counts[group] += len(times or ())
    return [
        {
            "key_group": group,
            "windows": window_counts[group],
            **{name: counts[group] for name, counts in timers.items()},
        }
        for group in sorted(window_counts)
    ]


def checksums(rows: pa.Table) -> dict[int, str]:
    """Return a checksum of each key group. It depends on the rows alone, not on files, shards or order."""
    sums: Counter[int] = Counter()
    names = sorted(rows.column_names)
    for batch in rows.select(names).to_batches(max_chunksize=65_536):
        groups = batch.column(names.index("key_group")).to_pylist()
        for group, row in zip(groups, zip(*_columns(batch), strict=True), strict=True):
            # A sum does not depend on the order of the rows.
            sums[group] += xxh64_intdigest(repr(row).encode())
    return {group: f"{sums[group] % 2**64:016x}" for group in sorted(sums)}


def _columns(batch: pa.RecordBatch) -> Iterable[list[Any]]:
    return (column.to_pylist() for column in batch.columns)
