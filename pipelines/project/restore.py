"""A restore: a snapshot becomes the newest one again. Starts no JVM, unless a lost table has columns of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.foreign_changes import put_back
from tidegate.pipelines.ledger.snapshots.restore import restore as run
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.damaged_log import set_aside_damaged
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Answer, Shown
from tidegate.windowing.time import show_millis

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Restored(Answer):
    """The outcome of a restore.

    Args:
        manifest: manifest of the newest snapshot.
        given_up: descriptions of published rows that are lost.
        set_aside: damaged log entries, and tables whose files were restored.
    """

    manifest: Manifest
    given_up: tuple[str, ...]
    set_aside: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {**self.manifest.short(), "given_up": list(self.given_up), "set_aside": list(self.set_aside)}

    def shown(self) -> Iterator[Shown]:
        manifest = self.manifest
        yield from self.set_aside
        if manifest.kind == "restore" and manifest.parent is not None:
            yield (
                f"{manifest.pipeline} is back at the snapshot of epoch {manifest.parent}, now epoch {manifest.epoch} "
                f"on timeline {manifest.timeline}; watermark {show_millis(manifest.watermark)}"
            )
        else:
            yield f"epoch {manifest.epoch} is already the newest snapshot of {manifest.pipeline}: nothing to do"
        yield from (f"given up: {text}" for text in self.given_up)


def restore(config: Config, pipeline: str, target: str, keep_stale: bool, give_up_results: bool) -> Restored:
    """Make a snapshot the newest one of a pipeline; see `find_snapshot` for how to name it."""
    tables = PipelineTables.of(config, pipeline)
    given_up: list[str] = []

    def schemas() -> dict[str, pa.Schema]:
        from tidegate.pipelines.definition.load import load_pipeline
        from tidegate.pipelines.epoch.open_input import bind_to_source

        return bind_to_source(config, load_pipeline(config, pipeline)).table_schemas

    if not tables.exist:
        # Without tables the call can only fail, and it should fail before it creates a table for its lease.
        find_snapshot(tables, target)
    with Lease(tables, "restore", system_clock) as lease:
        set_aside = set_aside_damaged(tables, lease.check)
        snapshot = find_snapshot(tables, target)
        set_aside = [*set_aside, *put_back(tables, give_up_results)]
        manifest = run(
            tables, snapshot, system_clock(), keep_stale, given_up.append if give_up_results else None, schemas
        )
    return Restored(manifest, tuple(given_up), tuple(set_aside))
