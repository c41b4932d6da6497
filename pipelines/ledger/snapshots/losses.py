"""Losses: published rows that a restore can't bring back. The error lists them; users can give them up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tidegate.pipelines.definition import state
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import DataFile
from tidegate.pipelines.ledger.snapshots.foreign_changes import GIVE_UP
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema


class Losses:
    """Collects the losses of a restore, so that one error lists all of them.

    `give_up` is called with a description of each loss. If it is None, any loss is refused.
    """

    def __init__(self, tables: PipelineTables, target: Snapshot, give_up: Callable[[str], None] | None) -> None:
        self._tables = tables
        self._target = target
        self._give_up = give_up
        self.texts: list[str] = []

    @property
    def accepted(self) -> bool:
        """True if the user accepts losses."""
        return self._give_up is not None

    def add(self, text: str) -> None:
        """Record the description of a loss."""
        self.texts.append(text)

    def settle(self) -> None:
        """Report all losses to `give_up`, or refuse them, before the restore commits."""
        if self._give_up is None and self.texts:
            epoch = self._target.manifest.epoch
            target = epoch if self._target.path == self._tables.path(state.NAME) else self._savepoint
            raise Refused(
                f"{'; '.join(self.texts)}. Put the missing files back, or continue without them: `tidegate restore "
                f"{self._tables.pipeline} {target} {GIVE_UP}`"
            )
        if self._give_up is not None:
            for text in self.texts:
                self._give_up(text)

    @property
    def _savepoint(self) -> str:
        return f"savepoint:{self._target.path.rpartition('/')[2]}"

    def readable(self, table: str, files: Sequence[DataFile]) -> tuple[DataFile, ...]:
        """Return the readable files of a restored lineage, recording the rows of the other files as lost."""
        path = self._tables.path(table)
        sizes = self._tables.warehouse.sizes(path, [file.path for file in files])
        kept = []
        for file in files:
            if sizes[file.path] == file.size and not (self.accepted and _fault(self._tables, table, file.path)):
                kept.append(file)
            else:
                self.add(f"{file.rows} rows of table {path} are lost with file {file.path}")
        return tuple(kept)

    def rows_of(self, table: str, files: Sequence[dict[str, Any]], removed: Collection[int]) -> tuple[str, ...]:
        """Return the paths of damaged files to give up; record their rows as lost unless their epochs are removed."""
        for file in files:
            first, last = file.get("min.epoch"), file.get("max.epoch")
            if first is None or last is None or not {*range(first, last + 1)} <= {*removed}:
                span = f"epochs {first} to {last}" if first != last else f"epoch {first}"
                self.add(
                    f"{file['num_records']} rows of {span} of table {self._tables.path(table)} are lost with file "
                    f"{file['path']}, which can't be read"
                )
        return tuple(file["path"] for file in files)


def damaged_files(tables: PipelineTables) -> dict[str, list[dict[str, Any]]]:
    """Return the active files that can't be read, by published table. This reads every active file."""
    return {
        table: [file for file in active_files(tables.open(table)) if _fault(tables, table, file["path"])]
        for table in PUBLISHED
    }


def _fault(tables: PipelineTables, table: str, file: str) -> str | None:
    """Return the reason why a file can't be read, or None if it can."""
    try:
        tables.warehouse.read_files(tables.path(table), [file], arrow_schema(tables.open(table)))
    except Refused as error:
        return str(error)
    return None
