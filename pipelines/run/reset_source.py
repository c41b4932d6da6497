"""Continue a pipeline on a recreated source: only the positions change, in an epoch without rows.

State, watermark and results are kept, so rows of the new source behind the watermark are late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tidegate.pipelines.definition.names import count_of
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.commit import StateFiles, commit_epoch
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.snapshots.stages import NewEpoch
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.sources.base import ReplacedSource, Source
from tidegate.pipelines.sources.open_source import open_source
from tidegate.windowing.time import Millis

Begin = Literal["beginning", "now"]
"""The point from which a stream reads a new source: its first commit, or the next one."""


@dataclass(frozen=True, slots=True)
class NewPosition:
    """The position that a reset sets in one source.

    Args:
        table: name of the source in manifests.
        before: the current position of the pipeline.
        after: the new position.
        begin: the point from which it is read; None for a backfill, which continues at its frontier.
    """

    table: str
    before: Position
    after: Position
    begin: Begin | None

    def __str__(self) -> str:
        left = f", and {count_of(self.before.files, 'file')} of the next" if self.before.files else ""
        was = f"source {self.table!r} was read up to version {self.before.version}{left}"
        if self.begin is None:
            return (
                f"{was}. The rows of the new one before the end of the newest interval count as read; the next "
                "interval reads its own rows"
            )
        if self.begin == "now":
            return f"{was}. All rows of the new one up to version {self.after.version} count as read"
        return (
            f"{was}. The new one is read from its first commit: rows behind the watermark are late, and rows of "
            "open windows that were read before count twice"
        )


def new_positions(
    tables: PipelineTables, pipeline: Pipeline, head: Snapshot, begin: Begin | None = None, force: bool = False
) -> list[NewPosition]:
    """Return the new position of each recreated source, or none if the newest epoch has already set them.

    Args:
        tables: the pipeline's tables.
        pipeline: the pipeline.
        head: the newest snapshot.
        begin: the point from which a stream reads the new source; None for its beginning. Not for backfills.
        force: True sets the positions in every source, even if it was not replaced.

    Raises:
        UsageError: `begin` is given for a backfill.
        Refused: no source was recreated, or a new one can't be read from its beginning.
    """
    chosen = []
    for part in pipeline.inputs:
        source, before = open_source(part.source, tables.warehouse), head.manifest.position_in(part.source.table)
        if not force and not _is_replaced(source, before):
            continue
        if before.frontier is not None and begin is not None:
            raise UsageError(
                f"--from {begin}: {pipeline.name} runs as a backfill, and its next interval reads the rows from its "
                "start on. Leave out the option"
            )
        starts = None if before.frontier is not None else begin or "beginning"
        version = -1 if starts == "beginning" else source.head
        if starts == "beginning":
            _check_readable(source)
        after = Position(version=version, frontier=before.frontier, own=dict(source.of_position(version)))
        chosen.append(NewPosition(part.source.table, before, after, starts))
    if not chosen and head.manifest.kind != "reset":
        paths = ", ".join(tables.warehouse.path(part.source.table) for part in pipeline.inputs)
        raise Refused(
            f"the source of {pipeline.name} has not been replaced, so nothing was reset: {paths}. To read it "
            "from another point anyway, give --force"
        )
    return [position for position in chosen if position.after != position.before]


def reset_source(tables: PipelineTables, head: Snapshot, positions: Sequence[NewPosition], now: Millis) -> Manifest:
    """Commit and publish an epoch that sets positions, and return its manifest. The caller holds the lease.

    Args:
        tables: the pipeline's tables.
        head: the newest snapshot, which is published.
        positions: the new positions.
        now: the driver's clock, int64 epoch milliseconds.

    Raises:
        Refused: another driver has committed.
    """
    quiet = NewEpoch.without_rows("reset", head.manifest, now)
    after = {position.table: position.after for position in positions}
    # The rest of a partially read commit will never arrive.
    partitions = {
        name: partition.model_copy(update={"pending": None}) for name, partition in quiet.time.partitions.items()
    }
    new = replace(
        quiet,
        read=replace(quiet.read, positions={**quiet.read.positions, **after}),
        time=replace(quiet.time, partitions=partitions),
    )
    files = StateFiles.without_shards(tables, head, new.epoch, new.kind)
    manifest = commit_epoch(tables, head.handle, new, files)
    publish(tables, manifest)
    return manifest


def _is_replaced(source: Source, position: Position) -> bool:
    try:
        source.check(position)
    except ReplacedSource:
        return True
    return False


def _check_readable(source: Source) -> None:
    """Check that every commit of a source can be read, before setting a position before the first one."""
    try:
        for _ in source.unread(-1):
            pass
    except Refused as error:
        raise Refused(
            f"the new source can't be read from its first commit: {error}. Or count its current rows as read: --from "
            "now. Nothing was changed"
        ) from error
