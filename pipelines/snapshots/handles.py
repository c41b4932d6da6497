"""Handles of tables after a commit of this process, which save opening the tables for the next epoch."""

from __future__ import annotations

from dataclasses import dataclass, field

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidegate.pipelines.tables.pipeline_tables import PipelineTables


@dataclass(frozen=True, slots=True)
class Handles:
    """The handles of published tables after this process committed to them.

    Opening a table takes longer than reading the entry of that commit. A table to which others committed is opened.
    """

    _kept: dict[str, DeltaTable] = field(default_factory=dict)
    _shared: dict[str, DeltaTable | None] = field(default_factory=dict)

    def open(self, tables: PipelineTables, table: str) -> DeltaTable:
        """Return a table at its newest version, as `PipelineTables.open` does."""
        handle = self._kept.pop(table, None)
        if handle is not None and is_moved(handle):
            return handle
        if table not in self._shared:
            # Most runs publish one epoch, and looked at the tables before.
            self._shared[table] = handle = tables.look(table)
            return handle
        return tables.open(table)

    def keep(self, table: str, handle: DeltaTable) -> None:
        """Keep a handle whose next version is a commit of this process, unless other readers may hold it."""
        if handle is self._shared.get(table):
            self._shared[table] = None
        else:
            self._kept[table] = handle


def is_moved(handle: DeltaTable) -> bool:
    """Move a handle by the entries since its version, and return True if there was one, which this process committed.

    Our commits allow no retry, so the entry after the version of their handle is theirs. If there are more, others
    committed, and the table has to be opened again: it may have a property with which our commits would be wrong.
    """
    ours = handle.version() + 1
    try:
        handle.update_incremental()
    except (DeltaError, OSError):
        # Opening the table reads it again, and says what is wrong.
        return False
    return handle.version() == ours
