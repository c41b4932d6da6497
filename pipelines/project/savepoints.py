"""Savepoints: named copies of a snapshot, with the published tables if wanted, in the warehouse or in another place.

No retention or VACUUM removes them. Starts no JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.names import check_address
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.snapshots.head import Snapshot, no_snapshot_yet
from tidegate.pipelines.ledger.snapshots.published import require_published
from tidegate.pipelines.ledger.snapshots.recovery import trusted_head
from tidegate.pipelines.ledger.snapshots.savepoint import (
    BrokenSavepoint,
    SavepointEntry,
    broken_savepoints,
    create_savepoint,
    delete_savepoint,
    find_snapshot,
    list_savepoints,
)
from tidegate.pipelines.ledger.snapshots.table_copies import TableContent
from tidegate.pipelines.ledger.snapshots.tables_at import with_contents
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Facts, Listing
from tidegate.pipelines.observe.report.columns import (
    BYTES,
    COUNT,
    INSTANT,
    NAMES,
    NUMBER,
    OBJECT,
    TEXT,
    WATERMARK,
    YES_NO,
    Column,
    Columns,
    Table,
)
from tidegate.pipelines.sources.open_source import place as source_place
from tidegate.pipelines.storage.warehouse import Warehouse

MANIFEST: Columns = (
    Column("epoch", NUMBER),
    Column("parent", NUMBER),
    Column("timeline", NUMBER),
    Column("kind", TEXT),
    Column("watermark", WATERMARK),
    Column("pipeline", TEXT, ""),
    Column("interval", OBJECT, ""),
    Column("fingerprint", TEXT, ""),
    Column("run_id", TEXT, ""),
)
"""What answers have of a snapshot's manifest."""

_ENTRY: Columns = (
    Column("name", TEXT),
    *(replace(column, head="") if column.name in ("parent", "kind") else column for column in MANIFEST),
    Column("windows", COUNT),
    Column("with_tables", YES_NO, "tables"),
    Column("size", BYTES, "bytes"),
    Column("created_at", INSTANT, "created"),
    Column("path", TEXT, ""),
)


def _of_entry(name: str) -> Callable[[Savepoint], object]:
    return lambda answer: _plain(answer.entry)[name]


@dataclass(frozen=True, slots=True)
class Savepoint(Facts):
    """A savepoint that was created.

    Args:
        entry: name, path, time and size, and the manifest of the copied snapshot.
        deleted: names of the older savepoints that were removed.
    """

    entry: SavepointEntry
    deleted: tuple[str, ...] = ()

    facts: ClassVar[Columns] = (
        *(replace(column, value=_of_entry(column.name)) for column in _ENTRY),
        Column("deleted", NAMES),
    )

    def lines(self) -> Iterator[str]:
        manifest, what = self.entry.manifest, "state and tables" if self.entry.with_tables else "state"
        yield (
            f"savepoint {self.entry.name} of {manifest.pipeline}: {what} of epoch {manifest.epoch}, in "
            f"{self.entry.path}"
        )
        if self.deleted:
            yield f"deleted: {', '.join(self.deleted)}"


@dataclass(frozen=True, slots=True)
class Savepoints(Listing):
    """The savepoints of a pipeline, newest first; last those that can't be read, with the reason in `broken`.

    Args:
        savepoints: the savepoints that can be read.
        broken: the savepoints that can't be read.
        never_run: a note if the pipeline has never run; otherwise None.
    """

    pipeline: str
    savepoints: tuple[SavepointEntry, ...]
    broken: tuple[BrokenSavepoint, ...]
    never_run: str | None = None

    columns: ClassVar[Columns] = (*_ENTRY, Column("broken", TEXT, "can't be read", is_optional=True))

    def main(self) -> Table:
        broken = ({"name": each.name, "path": each.path, "broken": each.reason} for each in self.broken)
        return Table("", self.columns, [*map(_plain, self.savepoints), *broken], f"savepoints of {self.pipeline}")


@dataclass(frozen=True, slots=True)
class SavepointDeleted(Facts):
    """A savepoint that was removed.

    Args:
        deleted: name of the savepoint.
    """

    pipeline: str
    deleted: str

    facts: ClassVar[Columns] = (Column("pipeline", TEXT), Column("deleted", TEXT))
    says: ClassVar[str] = "deleted savepoint {deleted} of {pipeline}"


@dataclass(frozen=True, slots=True)
class SavepointOrder:
    """The savepoint that somebody asks for.

    Args:
        name: its name.
        of: the snapshot to copy, as `restore` takes it.
        if_missing: True to keep a savepoint of this name that is a copy of the same snapshot.
        with_tables: True to also copy the published tables.
        to: folder or URI; None for the warehouse.
        keep: number of savepoints with the same beginning of the name to keep; None for all.
    """

    name: str
    of: str
    if_missing: bool
    with_tables: bool
    to: str | None
    keep: int | None


def savepoint_create(config: Config, pipeline: str, order: SavepointOrder) -> Savepoint:
    tables, place = PipelineTables.of(config, pipeline), place_of(config, pipeline, order.to)
    name, keep, now = order.name, order.keep, system_clock()
    if keep is not None and "-" not in name:
        name = f"{name}-{datetime.fromtimestamp(now / 1000, UTC):%Y%m%dT%H%M%S}"
    family = name.rpartition("-")[0]
    snapshot = find_snapshot(tables, order.of)
    if order.with_tables and order.of == "latest":
        snapshot = require_published(tables, snapshot)
    entry = _copy_of(place, name, snapshot) if order.if_missing else None
    if entry is None:
        # If somebody has rolled back table state, the name would refer to an older snapshot.
        trusted_head(tables)

        def create(contents: Mapping[str, TableContent] | None) -> SavepointEntry:
            return create_savepoint(tables, snapshot, name, now, place=place, contents=contents)

        entry = with_contents(tables, snapshot, now, create) if order.with_tables else create(None)
    # The new savepoint counts as the newest even if its host's clock is behind.
    others = [each.name for each in list_savepoints(place) if each.name != name]
    old = [] if keep is None else [each for each in others if each.rpartition("-")[0] == family][keep - 1 :]
    for each in old:
        delete_savepoint(place, each)
    return Savepoint(entry, tuple(old))


def savepoint_list(config: Config, pipeline: str, at: str | None) -> Savepoints:
    tables, place = PipelineTables.of(config, pipeline), place_of(config, pipeline, at)
    never_run = None if at is not None or tables.exist else str(no_snapshot_yet(tables))
    return Savepoints(pipeline, tuple(list_savepoints(place)), tuple(broken_savepoints(place)), never_run)


def savepoint_delete(config: Config, pipeline: str, name: str, at: str | None) -> SavepointDeleted:
    PipelineTables.of(config, pipeline)
    delete_savepoint(place_of(config, pipeline, at), name)
    return SavepointDeleted(pipeline, name)


def place_of(config: Config, pipeline: str, uri: str | None) -> PipelineTables:
    """Return a pipeline's folder in the warehouse or, if a folder or URI is given, in that place.

    Raises:
        UsageError: the place is inside the warehouse, or is not an address.
    """
    if uri is None:
        return PipelineTables(warehouse_of(config), pipeline)
    try:
        check_address(uri)
    except ValueError as error:
        raise UsageError(f"place {uri!r}: {error}") from error
    uri = config.place(uri)
    if source_place(uri).is_relative_to(source_place(config.warehouse_uri)):
        raise UsageError(f"{uri!r} is inside the warehouse, and would be lost with it: name a place outside it")
    return PipelineTables(Warehouse(uri, warehouse_of(config, uri).options), pipeline)


def _copy_of(tables: PipelineTables, name: str, snapshot: Snapshot) -> SavepointEntry | None:
    """Return the savepoint of that name if it is a copy of this snapshot, otherwise None."""
    wanted = name, snapshot.manifest.timeline, snapshot.manifest.epoch
    entries = list_savepoints(tables)
    return next(
        (entry for entry in entries if (entry.name, entry.manifest.timeline, entry.manifest.epoch) == wanted), None
    )


def _plain(entry: SavepointEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "path": entry.path,
        "created_at": entry.created_at,
        "size": entry.size,
        "with_tables": entry.with_tables,
        "windows": sum(shard.rows for shard in entry.manifest.shards),
        **entry.manifest.short(),
    }
