"""An interval of a backfill that ran before and is run again: where it goes on from, and what it replaces.

Each run recorded where it came from, so the line of runs is followed back from the head: by the log of table
`state` as far as it reaches, and beyond that by table `epochs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.compute as pc

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import QUIET, Interval, StaleInterval
from tidegate.pipelines.run.intervals import describe
from tidegate.pipelines.snapshots.head import Snapshot, list_snapshots, read_snapshot
from tidegate.pipelines.snapshots.savepoint import list_savepoints
from tidegate.pipelines.storage import read_table
from tidegate.pipelines.tables import epochs
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import Millis, from_millis, show_millis, to_millis


@dataclass(frozen=True, slots=True)
class RanInterval:
    """One run of a backfill on the line of the head.

    Args:
        interval: the span of event time.
        epoch: of the run.
        parent: the epoch it went on from; None for the first run of the pipeline.
        version: of table `state` with its snapshot; None where that is no longer retained.
        epochs: its own, and those of what corrected its windows before the next interval ran.
    """

    interval: Interval
    epoch: int
    parent: int | None
    version: int | None
    epochs: tuple[int, ...]


@dataclass(frozen=True)
class History:
    """The runs behind a snapshot.

    Args:
        tables: of the pipeline.
        ran: the newest first, back to the first run, to a stream's epoch, or to what nothing is known of.
        versions: of table `state` with the snapshot of each retained epoch.
    """

    tables: PipelineTables
    ran: tuple[RanInterval, ...]
    versions: dict[int, int]

    @classmethod
    def of(cls, tables: PipelineTables, head: Snapshot) -> History:
        """The runs behind the head."""
        known = _epochs(tables)
        ran: list[RanInterval] = []
        corrections: tuple[int, ...] = ()
        for epoch in _line(known, head.manifest.epoch):
            if epoch.interval is not None:
                mine = (epoch.number, *corrections)
                ran.append(RanInterval(epoch.interval, epoch.number, epoch.parent, epoch.version, mine))
                corrections = ()
            elif epoch.kind in ("reopen", "clock"):
                # What a reopening or the end of input put out belongs to the intervals before it.
                corrections += (epoch.number,)
            elif epoch.kind not in QUIET:
                break
        versions = {epoch.number: epoch.version for epoch in known.values() if epoch.version is not None}
        return cls(tables, tuple(ran), versions)

    @property
    def first(self) -> RanInterval | None:
        """The first run of the pipeline, before which there is nothing; None where nothing is known of it."""
        return self.ran[-1] if self.ran and self.ran[-1].parent is None else None

    def find(self, interval: Interval) -> tuple[RanInterval, tuple[StaleInterval, ...]]:
        """The run of an interval, and what running it again replaces: the run, and every one after it.

        Raises:
            Refused: no run had these bounds.
        """
        after: list[StaleInterval] = []
        for run in self.ran:
            after.append(StaleInterval(start=run.interval.start, end=run.interval.end, epochs=run.epochs))
            if run.interval == interval:
                return run, tuple(after)
        told = ", ".join(describe(run.interval) for run in reversed(self.ran)) or "none"
        raise Refused(
            f"interval {describe(interval)} of {self.tables.pipeline} overlaps what was run: {told}. Run one of "
            "these again as it was, or go on from the last one's end"
        )

    def snapshot_of(self, run: RanInterval) -> Snapshot | None:
        """The snapshot at the end of a run; None where it is no longer retained."""
        return None if run.version is None else read_snapshot(self.tables, run.version)

    def parent_of(self, run: RanInterval) -> Snapshot | None:
        """The snapshot that a run goes on from; None before the first run of the pipeline.

        Raises:
            Refused: it is no longer retained, so the run can't be repeated.
        """
        if run.parent is None:
            return None
        if run.parent not in self.versions:
            raise Refused(
                f"interval {describe(run.interval)} of {self.tables.pipeline} can't be run again: it goes on from the "
                f"snapshot of epoch {run.parent}, which is no longer retained. {self._ways(run.interval.start)}"
            )
        return read_snapshot(self.tables, self.versions[run.parent])

    def untold(self, run: RanInterval) -> Refused:
        """The refusal of a run of which no snapshot tells whether anything changed since."""
        return Refused(
            f"interval {describe(run.interval)} of {self.tables.pipeline} was run by epoch {run.epoch}, whose snapshot "
            "is no longer retained, so nothing tells whether its rows or the code changed. "
            f"{self._ways(run.interval.start)}"
        )

    def _ways(self, start: Millis) -> str:
        """How the windows from a time on are computed again although the snapshot before it is gone."""
        name, ways = self.tables.pipeline, []
        if (savepoint := self._savepoint(start)) is not None:
            saved, frontier = savepoint
            ways.append(
                f"go back to a savepoint, `tidegate restore {name} savepoint:{saved}`, and backfill from "
                f"{show_millis(frontier)} on"
            )
        if self.first is not None:
            ways.append(
                "run everything again from the first interval, "
                f"`tidegate backfill {name} {bounds(self.first.interval)} --again --and-following`"
            )
        else:
            ways.append("backfill a pipeline of another name")
        return (
            f"{ways[0][0].upper()}{ways[0][1:]}{''.join(f'; or {way}' for way in ways[1:])}. Corrections that come "
            "later than that need more snapshots: `retain_snapshots` and `retain_days` in tidegate.toml"
        )

    def _savepoint(self, start: Millis) -> tuple[str, Millis] | None:
        """The savepoint nearest before a time on this line, and the event time that it stands at."""
        line = {run.epoch for run in self.ran} | {run.parent for run in self.ran}
        found = []
        for entry in list_savepoints(self.tables):
            frontiers = [position.frontier for position in entry.manifest.positions.values()]
            if entry.manifest.epoch in line and (frontier := frontiers[0]) is not None and frontier <= start:
                found.append((frontier, entry.name))
        return max(found)[::-1] if found else None


def bounds(interval: Interval) -> str:
    """An interval as options of `tidegate backfill`."""
    return " ".join(
        f"--{name} {from_millis(time).isoformat().removesuffix('+00:00')}"
        for name, time in (("start", interval.start), ("end", interval.end))
    )


@dataclass(frozen=True, slots=True)
class _Epoch:
    """What is known of an epoch; `version` is of table `state`, None where its snapshot is gone."""

    number: int
    parent: int | None
    kind: str
    interval: Interval | None
    version: int | None = None


def _epochs(tables: PipelineTables) -> dict[int, _Epoch]:
    """Every epoch that the log or table `epochs` knows, by number."""
    columns = ["epoch", "parent", "kind", "interval_start", "interval_end"]
    rows = read_table(tables.warehouse, tables.open(epochs.NAME), columns, ~pc.field("stale"))
    known = {}
    for row in rows.to_pylist():
        start, end = row["interval_start"], row["interval_end"]
        interval = None if start is None else Interval(start=to_millis(start), end=to_millis(end))
        known[row["epoch"]] = _Epoch(row["epoch"], row["parent"], row["kind"], interval)
    for entry in list_snapshots(tables):
        told = entry.manifest
        ran = told.get("interval")
        interval = None if ran is None else Interval(**ran)
        known[told["epoch"]] = _Epoch(told["epoch"], told["parent"], told["kind"], interval, entry.version)
    return known


def _line(known: dict[int, _Epoch], epoch: int | None) -> Iterator[_Epoch]:
    """An epoch, and those that it came from."""
    while epoch is not None and epoch in known:
        yield known[epoch]
        epoch = known[epoch].parent
