"""Restart: remove all tables of a pipeline, so that the next run computes everything again from the source.

It works whatever is damaged, because nothing of the old tables is kept or needed. Before it removes anything, it says
what will be rebuilt, and refuses if the source no longer has all the rows that were read. Starts no JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.manifest import Interval, Manifest
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, no_snapshot_yet, read_snapshot
from tidegate.pipelines.ledger.tables.damage import REMOVED, remove_tables
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Answer, Shown
from tidegate.pipelines.project.progress import Teller
from tidegate.pipelines.run.rerun import bounds
from tidegate.pipelines.sources.open_source import open_source
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing.time import to_millis


@dataclass(frozen=True, slots=True)
class RestartedSource:
    """A source that is read again from its beginning.

    Args:
        source: name of the source.
        read_up_to: newest version that the removed tables were computed from; None if no manifest can be read.
        version: newest version now.
    """

    source: str
    read_up_to: int | None
    version: int

    def __str__(self) -> str:
        read = "" if self.read_up_to is None else f"it was read up to version {self.read_up_to}, and "
        return f"source {self.source!r} from its first row on ({read}is now at version {self.version})"


@dataclass(frozen=True, slots=True)
class Restart(Answer):
    """The restart of a pipeline.

    Args:
        tables: the tables that are removed; the next run creates them again.
        epoch: newest epoch of the removed lineage; None if no table can tell.
        timeline: its timeline.
        sources: the sources that are read again.
        commands: the commands that compute everything again.
        has_forgotten: True if `tidegate forget` erased keys. Their rows return if the source still has them.
        dry_run: True if nothing was removed.
    """

    pipeline: str
    tables: tuple[str, ...]
    epoch: int | None
    timeline: int | None
    sources: tuple[RestartedSource, ...]
    commands: tuple[str, ...]
    has_forgotten: bool
    dry_run: bool

    def shown(self) -> Iterator[Shown]:
        lineage = "" if self.epoch is None else f" (epochs up to {self.epoch}, timeline {self.timeline})"
        done = "would be removed" if self.dry_run else "were removed"
        yield f"{self.pipeline}: tables {', '.join(self.tables)}{lineage} {done}; savepoints stay"
        yield f"the next run reads {'; '.join(map(str, self.sources))}"
        if self.has_forgotten:
            yield "keys that `tidegate forget` erased return if the source still has their rows: forget them again"
        yield f"to compute everything again: {', then '.join(f'`{command}`' for command in self.commands)}"


def restart(config: Config, pipeline: str, dry_run: bool, teller: Teller) -> Restart:
    value, tables = load_pipeline(config, pipeline), PipelineTables.of(config, pipeline)
    if not any(tables.warehouse.exists(tables.path(table)) for table in REMOVED):
        raise no_snapshot_yet(tables)
    planned = _planned(tables, value)
    if dry_run:
        return planned
    with Lease(tables, "restart", system_clock) as lease:
        # A driver may have run until this process got the lease.
        planned = _planned(tables, value)
        for line in planned.shown():
            teller.say(str(line))
        remove_tables(tables, lease.check_in_table)
    return Restart(**{name: getattr(planned, name) for name in Restart.__slots__} | {"dry_run": False})


def _planned(tables: PipelineTables, pipeline: Pipeline) -> Restart:
    """Return what a restart would do.

    Raises:
        Refused: a source no longer has all the rows that the tables were computed from.
    """
    manifest, rows = _newest_manifest(tables), _epoch_rows(tables)
    interval, name = _backfilled(tables, rows), tables.pipeline
    is_backfill = interval is not None and (manifest is None or _position(manifest, pipeline, 0).frontier is not None)
    stream = f"tidegate stream {name} --available-now"
    commands = [] if interval is None else [f"tidegate backfill {name} {bounds(interval)}"]
    commands += [] if is_backfill else [stream]
    faults = [
        f"epoch {row['epoch']} continued with another source table, and the rows of the earlier one are not in it"
        for row in rows
        if row["kind"] == "reset"
    ]
    sources = []
    for number, part in enumerate(pipeline.inputs):
        source = open_source(part.source, tables.warehouse)
        position = None if manifest is None else _position(manifest, pipeline, number)
        read = None if position is None else position.version
        sources.append(RestartedSource(part.source.table, read, source.head))
        try:
            if position is not None:
                source.check(position)
            if interval is None:
                for _ in source.unread(-1, None if position is None else position.version + (position.files > 0)):
                    pass
        except Refused as error:
            faults.append(str(error).rstrip("."))
    if faults:
        ways = " or ".join(tables.restores())
        raise Refused(
            f"pipeline {name!r} can't be computed again from its source without losing rows, so nothing was removed: "
            f"{'; '.join(faults)}. {f'Restore a savepoint, {ways}. ' if ways else ''}To compute it from the rows that "
            f"the source has now, move the folder {tables.warehouse.path(name)} away, which keeps all published rows, "
            f"and run `tidegate backfill {name}` with --start and --end"
        )
    newest = max(rows, key=lambda row: row["epoch"], default=None)
    return Restart(
        name,
        tuple(table for table in REMOVED if tables.warehouse.exists(tables.path(table))),
        manifest.epoch if manifest is not None else None if newest is None else newest["epoch"],
        manifest.timeline if manifest is not None else None if newest is None else newest["timeline"],
        tuple(sources),
        tuple(commands),
        any(row["kind"] == "forget" for row in rows),
        dry_run=True,
    )


def _position(manifest: Manifest, pipeline: Pipeline, number: int) -> Position:
    return manifest.position_in(pipeline.inputs[number].source.table)


def _newest_manifest(tables: PipelineTables) -> Manifest | None:
    """Return the newest manifest that can be read, or None if there is none."""
    with suppress(Refused, OSError):
        for version in (None, *(entry.version for entry in list_snapshots(tables))):
            with suppress(Refused, OSError):
                if (snapshot := read_snapshot(tables, version)) is not None:
                    return snapshot.manifest
    return None


def _epoch_rows(tables: PipelineTables) -> list[dict[str, Any]]:
    """Return the rows of table epochs, or none if the table can't be read."""
    if tables.warehouse.exists(tables.path(epochs.NAME)):
        columns = ["epoch", "timeline", "kind", "interval_start", "interval_end"]
        with suppress(Refused, OSError):
            rows = read_table(tables.warehouse, tables.newest(epochs.NAME), columns, ~pc.field("stale"))
            found: list[dict[str, Any]] = rows.to_pylist()
            return found
    return []


def _backfilled(tables: PipelineTables, rows: list[dict[str, Any]]) -> Interval | None:
    """Return the span of all intervals that a backfill ran, or None if none did or nothing can tell."""
    spans = [(to_millis(row["interval_start"]), to_millis(row["interval_end"])) for row in rows if row["interval_end"]]
    with suppress(Refused, OSError):
        of_snapshots = [entry.manifest["interval"] for entry in list_snapshots(tables)]
        spans += [(interval["start"], interval["end"]) for interval in of_snapshots if interval]
    return None if not spans else Interval(start=min(spans)[0], end=max(end for _, end in spans))
