"""The files of table `state`, and which of their rows are current.

In version 1, all rows are current. In version 2, a shard has a base and at most one delta. The delta has all rows of
each key that changed since the base was written, and a mark for each of these keys that no longer has rows. So a row of
the base is current unless a row of the delta has the same key hash: keys with equal hashes change together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import state
from tidegate.pipelines.storage.warehouse import Warehouse


def deltas_of(files: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names of the files that, by their statistics, may have rows of a delta."""
    return [file["path"] for file in files if file.get(f"null_count.{state.MARK.name}") != file["num_records"]]


def holding(warehouse: Warehouse, path: str, deltas: Sequence[str], columns: pa.Schema) -> pc.Expression | None:
    """Return the condition for the current state rows of some files, or None if all rows are current."""
    if not state.has_deltas(columns):
        return None
    hashed, marked = state.HASH.name, pc.field(state.MARK.name).is_valid()
    return _unless_replaced(warehouse.read_files(path, deltas, columns, [hashed], marked)[hashed])


def held(rows: pa.Table) -> pa.Table:
    """Return the current rows among all state rows of some keys."""
    if not state.has_deltas(rows.schema):
        return rows
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
