"""Restart: remove all tables of a pipeline, so that the next run computes everything again from the source.

It works whatever is damaged, because nothing of the old tables is kept or needed. Before it removes anything, it says
what will be rebuilt, and refuses if the source no longer has all the rows that were read. Starts no JVM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

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
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import NAMES, NUMBER, OBJECT, TEXT, YES_NO, Column, Columns, Table
from tidegate.pipelines.project.progress import Teller
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import spelled
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
class Restart(Facts):
    """The restart of a pipeline.

    Args:
        removed: the tables that are removed; the next run creates them again.
        epoch: newest epoch of the removed lineage; None if no table can tell.
        timeline: its timeline.
        sources: the sources that are read again.
        runs: the runs that compute everything again, in order.
        has_forgotten: True if keys were erased. Their rows return if the source still has them.
        dry_run: True if nothing was removed.
    """

    pipeline: str
    removed: tuple[str, ...]
    epoch: int | None
    timeline: int | None
    sources: tuple[RestartedSource, ...]
    runs: tuple[Remedy, ...]
    has_forgotten: bool
    dry_run: bool

    facts: ClassVar[Columns] = (
        Column("pipeline", TEXT),
        Column("removed", NAMES),
        Column("epoch", NUMBER),
        Column("timeline", NUMBER),
        Column("runs", OBJECT),
        Column("has_forgotten", YES_NO),
        Column("dry_run", YES_NO),
    )
    holds: ClassVar[Mapping[str, Columns]] = {
        "sources": (Column("source", TEXT), Column("read_up_to", NUMBER), Column("version", NUMBER))
    }

    def tables(self) -> Iterator[Table]:
        yield Table("sources", self.holds["sources"], self.sources, is_shown=False)

    def lines(self) -> Iterator[str]:
        lineage = "" if self.epoch is None else f" (epochs up to {self.epoch}, timeline {self.timeline})"
        done = "would be removed" if self.dry_run else "were removed"
        yield f"{self.pipeline}: tables {', '.join(self.removed)}{lineage} {done}; savepoints stay"
        yield f"the next run reads {'; '.join(map(str, self.sources))}"
        if self.has_forgotten:
            yield "keys that were erased return if the source still has their rows: forget them again"
        yield f"to compute everything again: {', then '.join(map(spelled, self.runs))}"


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
        for line in planned.lines():
            teller.say(line)
        remove_tables(tables, lease.check_document)
    return replace(planned, dry_run=False)


def _planned(tables: PipelineTables, pipeline: Pipeline) -> Restart:
    """Return what a restart would do.

    Raises:
        Refused: a source no longer has all the rows that the tables were computed from.
    """
    manifest, rows = _newest_manifest(tables), _epoch_rows(tables)
    interval = _backfilled(tables, rows)
    sources, faults = _sources(tables, pipeline, manifest, is_whole=interval is None)
    faults = [
        *(
            f"epoch {row['epoch']} continued with another source table, and the rows of the earlier one are not in it"
            for row in rows
            if row["kind"] == "reset"
        ),
        *faults,
    ]
    if faults:
        raise Refused(
            f"pipeline {tables.pipeline!r} can't be computed again from its source without losing rows, so nothing was "
            f"removed: {'; '.join(faults)}. To compute it from the rows that the source has now, move the folder "
            f"{tables.warehouse.path(tables.pipeline)} away, which keeps all published rows, and backfill it",
            *tables.savepoints(),
            Remedy(Act.FIRST_BACKFILL, tables.pipeline),
        )
    newest = max(rows, key=lambda row: row["epoch"], default={"epoch": None, "timeline": None})
    return Restart(
        tables.pipeline,
        tuple(table for table in REMOVED if tables.warehouse.exists(tables.path(table))),
        newest["epoch"] if manifest is None else manifest.epoch,
        newest["timeline"] if manifest is None else manifest.timeline,
        tuple(sources),
        tuple(_runs(tables, pipeline, manifest, interval)),
        any(row["kind"] == "forget" for row in rows),
        dry_run=True,
    )


def _runs(
    tables: PipelineTables, pipeline: Pipeline, manifest: Manifest | None, interval: Interval | None
) -> Iterator[Remedy]:
    """Yield the runs that compute everything again: a backfill of its interval, and the stream that took over."""
    if interval is not None:
        yield Remedy(Act.BACKFILL, tables.pipeline, start=interval.start, end=interval.end)
    if interval is None or (manifest is not None and _position(manifest, pipeline, 0).frontier is None):
        yield Remedy(Act.STREAM, tables.pipeline)


def _sources(
    tables: PipelineTables, pipeline: Pipeline, manifest: Manifest | None, is_whole: bool
) -> tuple[list[RestartedSource], list[str]]:
    """Return the sources that a restart reads, and why one lacks rows. `is_whole` also looks for each version."""
    sources, faults = list[RestartedSource](), list[str]()
    for number, part in enumerate(pipeline.inputs):
        source = open_source(part.source, tables.warehouse)
        position = None if manifest is None else _position(manifest, pipeline, number)
        read = None if position is None else position.version
        sources.append(RestartedSource(part.source.table, read, source.head))
        try:
            if position is not None:
                source.check(position)
            if is_whole:
                for _ in source.unread(-1, None if position is None else position.version + (position.files > 0)):
                    pass
        except Refused as error:
            faults.append(error.message.rstrip("."))
    return sources, faults


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
