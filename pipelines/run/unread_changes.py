"""Unread versions of a source that bring a forgotten key back, until its deletion is read.

A stream reads each version that changed rows by itself. If a key was deleted in the newest one, older unread versions
still have it: reading them puts the key into the results again, and the next correction retracts it. Retractions stay.
"""

from __future__ import annotations

from contextlib import suppress

from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import Position
from tidegate.pipelines.snapshots.head import read_snapshot
from tidegate.pipelines.sources.base import ChangingSource
from tidegate.pipelines.sources.open_source import open_source
from tidegate.pipelines.tables.pipeline_tables import PipelineTables


def check_read_before_forgetting(tables: PipelineTables, pipeline: Pipeline) -> None:
    """Refuse to forget a key while a stream has several unread versions, of which one changed rows.

    With a single unread version nothing comes back that the source does not have. A backfill reads the newest version
    only.

    Raises:
        Refused: read the source first; the message tells how.
    """
    head = read_snapshot(tables)
    table = pipeline.source.table
    if head is None or getattr(pipeline.source, "changes", None) != "correct" or table not in head.manifest.positions:
        return
    position = head.manifest.positions[table]
    unread = _unread(tables, pipeline, position) if position.frontier is None else ()
    if len(unread) > 1:
        raise Refused(
            f"stream {pipeline.name!r} has not read versions {unread[0]} to {unread[-1]} of source {table} yet, which "
            "changed rows. If an older one of them has the key, reading it would bring the key back, so nothing was "
            f"erased. Read them first: `tidegate stream {pipeline.name} --available-now`, then run forget again"
        )


def _unread(tables: PipelineTables, pipeline: Pipeline, position: Position) -> tuple[int, ...]:
    """Return the unread versions with data if one of them changed rows, else none."""
    # A source that can't be read any more brings nothing back.
    with suppress(Refused):
        log = open_source(pipeline.source, tables.warehouse)
        log.check(position)
        commits = list(log.unread(position.version))
        if commits and commits[0].changes and position.files and commits[0].version == position.version + 1:
            # Its correction is done; only its watermark is left.
            commits = commits[1:]
        if isinstance(log, ChangingSource) and any(commit.changes for commit in commits):
            return tuple(commit.version for commit in commits)
    return ()
