"""Restores that bring their tables: a pipeline under a new name, or tables that were lost. Starts no JVM."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.names import check_name
from tidegate.pipelines.epoch.open_input import bind_to_source
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.compatibility import compare as compare_code
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.snapshots.published import newest_published
from tidegate.pipelines.ledger.snapshots.restore_tables import restore_tables, restored_from
from tidegate.pipelines.ledger.snapshots.savepoint import SAVEPOINT, check_nothing_forgotten, find_snapshot
from tidegate.pipelines.ledger.snapshots.table_copies import TableContent, check_state_in, contents_in
from tidegate.pipelines.ledger.snapshots.tables_at import with_contents
from tidegate.pipelines.ledger.tables.damage import remove_tables
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.project.savepoints import place_of
from tidegate.pipelines.project.snapshots import Restored


def restore_from(config: Config, pipeline: str, source: str, target: str, at: str | None) -> Restored:
    """Let a pipeline without epochs begin from another one's snapshot, with the rows that it had published.

    Args:
        config: the project.
        pipeline: name of the pipeline, which the project has.
        source: name of the pipeline that it begins from; the project need not have it any more.
        target: `latest`, an epoch or `savepoint:NAME` of that pipeline.
        at: folder or URI of the savepoint; None for the warehouse.

    Raises:
        UsageError: a name is wrong, or there is no such snapshot.
        Refused: the pipeline has epochs, its code can't continue from the snapshot, or the snapshot has no tables.
        LeaseHeld: the pipeline is running.
    """
    tables, other = PipelineTables.of(config, pipeline), _source(config, pipeline, source, target, at)
    snapshot = _found(other, target)
    check_continues(config, pipeline, snapshot.manifest)
    with Lease(tables, "restore", system_clock) as lease:
        if (begun := restored_from(tables, snapshot)) is not None:
            return Restored(begun)

        def begin(contents: Mapping[str, TableContent]) -> Manifest:
            def check() -> None:
                check_nothing_forgotten(other, snapshot)
                lease.check_document()

            return restore_tables(tables, snapshot, contents, system_clock(), check)

        if (contents := contents_in(other.warehouse, snapshot.path)) or not other.exist:
            if not contents:
                raise Refused(
                    f"savepoint {snapshot.path} holds only the state, and the tables of {source} are not there: name a "
                    f"savepoint that was created with --tables"
                )
            return Restored(begin(contents))
        return Restored(with_contents(other, snapshot, system_clock(), begin))


def replace_tables(config: Config, pipeline: str, target: str, at: str | None) -> Restored:
    """Replace all tables of a pipeline, whatever their condition, by those of a savepoint.

    Raises:
        UsageError: there is no such savepoint.
        Refused: the savepoint holds only the state, or a file of it is missing.
        LeaseHeld: the pipeline is running.
    """
    if not target.startswith(SAVEPOINT):
        raise UsageError("--tables: give savepoint:NAME, a savepoint that was created with --tables")
    tables, place = PipelineTables.of(config, pipeline), place_of(config, pipeline, at)
    snapshot = find_snapshot(place, target)
    contents = contents_in(place.warehouse, snapshot.path)
    if not contents:
        raise Refused(f"savepoint {snapshot.path} holds only the state: name one that was created with --tables")
    # Nothing is removed before all files that replace it are known to be there.
    check_state_in(place.warehouse, snapshot)
    with Lease(tables, "restore", system_clock) as lease:
        remove_tables(tables, lease.check_document)
        return Restored(restore_tables(tables, snapshot, contents, system_clock(), lease.check_document))


def check_continues(config: Config, pipeline: str, manifest: Manifest) -> None:
    """Refuse a snapshot from which the code of a pipeline can't continue.

    Raises:
        Refused: the message names each field that differs, with the remedy.
    """
    bound = bind_to_source(config, load_pipeline(config, pipeline))
    for part in bound.pipeline.inputs:
        manifest.position_in(part.source.table)
    compare_code(bound, manifest).check(pipeline, manifest.epoch)


def _source(config: Config, pipeline: str, source: str, target: str, at: str | None) -> PipelineTables:
    try:
        check_name(source)
    except ValueError as error:
        raise UsageError(f"--from: {error}") from error
    if source == pipeline:
        raise UsageError(f"--from names {source!r} itself: leave it out, or name another pipeline")
    if at is not None and not target.startswith(SAVEPOINT):
        raise UsageError("--at is the place of a savepoint: give savepoint:NAME")
    return PipelineTables(warehouse_of(config), source) if at is None else place_of(config, source, at)


def _found(other: PipelineTables, target: str) -> Snapshot:
    """Return the snapshot; for `latest` the newest published one, because the pipeline may be running."""
    snapshot = find_snapshot(other, target)
    return (newest_published(other, snapshot) or snapshot) if target == "latest" else snapshot
