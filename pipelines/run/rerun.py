"""Re-runs of a backfill's intervals: the snapshot that a re-run continues from, and the results that it replaces.

Each run recorded its parent epoch, so the lineage of runs is followed back from the head, through the log of table
`state` and, where that ends, table `epochs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import QUIET, Interval, StaleInterval
from tidegate.pipelines.ledger.snapshots.head import Snapshot, list_snapshots, read_snapshot
from tidegate.pipelines.ledger.snapshots.savepoint import list_savepoints
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.run.intervals import describe
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing.time import Millis, to_millis


@dataclass(frozen=True, slots=True)
class RanInterval:
    """One run of a backfill on the lineage of the head.

    Args:
        interval: the span of event time.
        epoch: epoch of the run.
        parent: the epoch that it continued from; None for the first run of the pipeline.
        version: version of table `state` with its snapshot; None if that is no longer retained.
        epochs: the epoch of the run, and epochs that corrected its windows before the next interval ran.
        corrected: version of the source up to which a later epoch corrected changed rows; None if none did.
    """

    interval: Interval
    epoch: int
    parent: int | None
    version: int | None
    epochs: tuple[int, ...]
    corrected: int | None = None


@dataclass(frozen=True)
class IntervalHistory:
    """The runs that led to a snapshot.

    Args:
        tables: tables of the pipeline.
        ran: the runs, newest first, back to the first run, to a stream's epoch, or to the end of the records.
        versions: version of table `state` by retained epoch.
    """

    tables: PipelineTables
    ran: tuple[RanInterval, ...]
    versions: dict[int, int]

    @classmethod
    def of(cls, tables: PipelineTables, head: Snapshot) -> IntervalHistory:
        """Return the runs that led to the head."""
        recorded = _epochs(tables)
        ran: list[RanInterval] = []
        corrections: tuple[int, ...] = ()
        corrected: int | None = None
        for epoch in _line(recorded, head.manifest.epoch):
            if epoch.kind == "change" and corrected is None:
                corrected = epoch.source_version
            if epoch.interval is not None:
                of_run = (epoch.number, *corrections)
                ran.append(RanInterval(epoch.interval, epoch.number, epoch.parent, epoch.version, of_run, corrected))
                corrections = ()
            elif epoch.kind in ("reopen", "change", "clock"):
                # The results of a correction or the end of input belong to the intervals before it.
                corrections += (epoch.number,)
            elif epoch.kind not in QUIET:
                break
        versions = {epoch.number: epoch.version for epoch in recorded.values() if epoch.version is not None}
        return cls(tables, tuple(ran), versions)

    @property
    def first(self) -> RanInterval | None:
        """Return the first run of the pipeline, or None if the records do not reach back to it."""
        return self.ran[-1] if self.ran and self.ran[-1].parent is None else None

    def find(self, interval: Interval) -> tuple[RanInterval, tuple[StaleInterval, ...]]:
        """Return the run of an interval, and the intervals that a re-run replaces: its own and all later ones.

        Raises:
            Refused: no interval with these bounds was run.
        """
        after: list[StaleInterval] = []
        for run in self.ran:
            after.append(StaleInterval(start=run.interval.start, end=run.interval.end, epochs=run.epochs))
            if run.interval == interval:
                return run, tuple(after)
        intervals = ", ".join(describe(run.interval) for run in reversed(self.ran)) or "none"
        raise Refused(
            f"interval {describe(interval)} of {self.tables.pipeline} overlaps intervals that were run: {intervals}. "
            "Run one of them again with the same bounds, or begin at the end of the last one"
        )

    def snapshot_of(self, run: RanInterval) -> Snapshot | None:
        """Return the snapshot at the end of a run, or None if it is no longer retained."""
        return None if run.version is None else read_snapshot(self.tables, run.version)

    def parent_of(self, run: RanInterval) -> Snapshot | None:
        """Return the snapshot that a run continued from, or None for the first run of the pipeline.

        Raises:
            Refused: the snapshot is no longer retained, so the run can't be repeated.
        """
        if run.parent is None:
            return None
        if run.parent not in self.versions:
            raise Refused(
                f"interval {describe(run.interval)} of {self.tables.pipeline} can't be run again: it continues from "
                f"the snapshot of epoch {run.parent}, which is no longer retained",
                *self._remedies(run.interval.start),
            )
        return read_snapshot(self.tables, self.versions[run.parent])

    def changed(self, run: RanInterval) -> Refused:
        """Return the error for a run that continues from a snapshot after which rows of the source changed."""
        return Refused(
            f"interval {describe(run.interval)} of {self.tables.pipeline} can't be run again: it continues from the "
            f"snapshot of epoch {run.parent}, and rows of the source have changed since. Their windows have already "
            "been corrected, without running an interval again; for new code, everything has to run again",
            *self.rerun_all(),
            Remedy(Act.NEW_NAME, self.tables.pipeline),
        )

    def rerun_all(self) -> list[Remedy]:
        """Return the remedy that runs everything again from the first interval; none if that is not recorded."""
        if self.first is None:
            return []
        first = self.first.interval
        return [Remedy(Act.RERUN_ALL, self.tables.pipeline, start=first.start, end=first.end)]

    def unknown(self, run: RanInterval) -> Refused:
        """Return the error for a run whose snapshot no longer exists, so that later changes to its rows are unknown."""
        return Refused(
            f"interval {describe(run.interval)} of {self.tables.pipeline} was run by epoch {run.epoch}, whose snapshot "
            "is no longer retained, so tidegate can't tell whether its rows or the code changed",
            *self._remedies(run.interval.start),
        )

    def check_source(self, run: RanInterval, head: Snapshot, snapshot: Snapshot | None) -> None:
        """Refuse to run an interval again from a snapshot whose source was replaced before the head.

        Raises:
            Refused: `tidegate source reset` was run in between.
        """
        positions = {} if snapshot is None else snapshot.manifest.positions
        for table, position in positions.items():
            if position.own != head.manifest.position_in(table).own:
                raise Refused(
                    f"interval {describe(run.interval)} of {self.tables.pipeline} was run over source {table!r} as it "
                    "was before it was reset, so the new rows of the new table can't be determined",
                    *self._remedies(run.interval.start),
                )

    def _remedies(self, start: Millis) -> list[Remedy]:
        """Return the remedies that recompute the windows after a time if the snapshot before it no longer exists."""
        name, ways = self.tables.pipeline, list[Remedy]()
        if (savepoint := self._savepoint(start)) is not None:
            saved, frontier = savepoint
            ways.append(Remedy(Act.RESTORE_AND_BACKFILL, name, f"savepoint:{saved}", start=frontier))
        return [*ways, *(self.rerun_all() or [Remedy(Act.NEW_NAME, name)]), Remedy(Act.RETAIN_MORE, name)]

    def _savepoint(self, start: Millis) -> tuple[str, Millis] | None:
        """Return the name and event time of the newest savepoint on this lineage before a time, if any."""
        line = {run.epoch for run in self.ran} | {run.parent for run in self.ran}
        candidates = []
        for entry in list_savepoints(self.tables):
            frontiers = [position.frontier for position in entry.manifest.positions.values()]
            if entry.manifest.epoch in line and (frontier := frontiers[0]) is not None and frontier <= start:
                candidates.append((frontier, entry.name))
        return max(candidates)[::-1] if candidates else None


@dataclass(frozen=True, slots=True)
class _Epoch:
    """The record of an epoch. `version` is that of table `state`, or None if the epoch's snapshot no longer exists."""

    number: int
    parent: int | None
    kind: str
    interval: Interval | None
    source_version: int | None
    version: int | None = None


def _epochs(tables: PipelineTables) -> dict[int, _Epoch]:
    """Return every epoch that the log or table `epochs` has, by number."""
    columns = ["epoch", "parent", "kind", "interval_start", "interval_end", "source_version"]
    rows = read_table(tables.warehouse, tables.newest(epochs.NAME), columns, ~pc.field("stale"))
    recorded = {}
    for row in rows.to_pylist():
        start, end = row["interval_start"], row["interval_end"]
        interval = None if start is None else Interval(start=to_millis(start), end=to_millis(end))
        read = row["source_version"]
        recorded[row["epoch"]] = _Epoch(row["epoch"], row["parent"], row["kind"], interval, read)
    for entry in list_snapshots(tables):
        fields = entry.manifest
        ran = fields.get("interval")
        interval = None if ran is None else Interval(**ran)
        number = fields["epoch"]
        read = recorded[number].source_version if number in recorded else None
        recorded[number] = _Epoch(number, fields["parent"], fields["kind"], interval, read, entry.version)
    return recorded


def _line(recorded: dict[int, _Epoch], epoch: int | None) -> Iterator[_Epoch]:
    """Yield an epoch and the epochs before it on its lineage, as far as they are recorded."""
    while epoch is not None and epoch in recorded:
        yield recorded[epoch]
        epoch = recorded[epoch].parent
