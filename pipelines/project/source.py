"""Setting the position in a source table that was dropped and created again. Starts no JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.head import require_snapshot, required
from tidegate.pipelines.ledger.snapshots.recovery import recover
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import NUMBER, OBJECT, TEXT, YES_NO, Column, Columns, Table
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.run.reset_source import Begin, NewPosition, new_positions
from tidegate.pipelines.run.reset_source import reset_source as run


@dataclass(frozen=True, slots=True)
class SourceReset(Facts):
    """New positions in the sources of a pipeline.

    Args:
        epoch: epoch that set them; None if nothing changed.
        positions: the positions.
        dry_run: True if they were only computed.
    """

    pipeline: str
    epoch: int | None
    positions: tuple[NewPosition, ...]
    dry_run: bool = False

    facts: ClassVar[Columns] = (Column("pipeline", TEXT), Column("epoch", NUMBER), Column("dry_run", YES_NO))
    holds: ClassVar[Mapping[str, Columns]] = {
        "positions": (
            Column("source", TEXT, value=lambda position: position.table),
            Column("before", OBJECT),
            Column("after", OBJECT),
            Column("begin", TEXT),
        )
    }

    def tables(self) -> Iterator[Table]:
        yield Table("positions", self.holds["positions"], self.positions, is_shown=False)

    def lines(self) -> Iterator[str]:
        done = "would be reset" if self.dry_run else f"reset by epoch {self.epoch}"
        yield from (f"{self.pipeline}: {done}; {item}" for item in self.positions)
        if not self.positions:
            yield f"{self.pipeline}: its source has already been reset"


def source_reset(
    config: Config, pipeline: str, keep_results: bool, begin: Begin | None, force: bool, dry_run: bool
) -> SourceReset:
    if not keep_results:
        raise UsageError(
            f"add --keep-results: state and results of {pipeline} are kept, and rows of the new table behind its "
            f"watermark are late; or compute everything again instead",
            Remedy(Act.STREAM_FROM_SCRATCH, pipeline),
            Remedy(Act.RERUN_ALL, pipeline),
        )
    value = load_pipeline(config, pipeline)
    tables = PipelineTables.of(config, pipeline)
    head = require_snapshot(tables)
    if dry_run:
        return SourceReset(pipeline, None, tuple(new_positions(tables, value, head, begin, force)), dry_run)
    with Lease(tables, "source reset", system_clock) as lease:
        head = required(tables, recover(tables))
        positions = new_positions(tables, value, head, begin, force)
        lease.check()
        epoch = run(tables, head, positions, system_clock()).epoch if positions else None
    return SourceReset(pipeline, epoch, tuple(positions))
