"""Losses: published rows that a restore can't have any more. They are named, and given up on request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import DataFile
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.snapshots.publish import GIVE_UP
from tidegate.pipelines.storage import active_files, arrow_schema
from tidegate.pipelines.tables import state
from tidegate.pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables


class Losses:
    """What a restore can't have, found bit by bit and told at once.

    Args:
        tables: the pipeline's tables.
        target: what is restored.
        give_up: hears of each loss; None refuses to lose anything.
    """

    def __init__(self, tables: PipelineTables, target: Snapshot, give_up: Callable[[str], None] | None) -> None:
        self._tables = tables
        self._target = target
        self._give_up = give_up
        self.found: list[str] = []

    @property
    def accepted(self) -> bool:
        """Whether losses are given up."""
        return self._give_up is not None

    def add(self, text: str) -> None:
        """Note a loss, in words."""
        self.found.append(text)

    def settle(self) -> None:
        """Tell what is lost, before anything of it is given up.

        Raises:
            Refused: losses were not to be given up.
        """
        if self._give_up is None and self.found:
            named = self._target.manifest.epoch
            target = named if self._target.path == self._tables.path(state.NAME) else self._savepoint
            raise Refused(
                f"{'; '.join(self.found)}. Put back what is missing, or go on without it: `tidegate restore "
                f"{self._tables.pipeline} {target} {GIVE_UP}`"
            )
        if self._give_up is not None:
            for text in self.found:
                self._give_up(text)

    @property
    def _savepoint(self) -> str:
        return f"savepoint:{self._target.path.rpartition('/')[2]}"

    def readable(self, table: str, files: Sequence[DataFile]) -> tuple[DataFile, ...]:
        """The files of a line that comes back which are there; the rows of others are lost."""
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
        """Give up active files that can't be read; those of whose epochs nothing stays are no loss."""
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
    """By published table, the active files that can't be read. It reads all of them."""
    return {
        table: [file for file in active_files(tables.open(table)) if _fault(tables, table, file["path"])]
        for table in PUBLISHED
    }


def _fault(tables: PipelineTables, table: str, file: str) -> str | None:
    """Why a file can't be read; None where it can."""
    try:
        tables.warehouse.read_files(tables.path(table), [file], arrow_schema(tables.open(table)))
    except Refused as error:
        return str(error)
    return None
