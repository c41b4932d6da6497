"""The event-time partitions whose final windows changed since consumers were last notified, for partitioned schedules.

A partition is an hour, a day or a month in UTC, and a window belongs to the one in which it starts; rows of a process
function or a join belong to that of their event time. If epochs only added rows, the new rows and the windows that
became final name the partitions. If rows were removed (an interval was run again, a restore, an erasure), the removed
files are compared with the added ones, so a partition whose windows reappeared unchanged has not changed.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from tidegate.expectations.differences import UNITS, Ints, Until, differing, read_differences
from tidegate.expectations.pinned import Pinned
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.config import PartitionUnit
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import is_on
from tidegate.pipelines.storage.warehouse import active_files
from tidegate.windowing.time import Millis

MOST_KEYS: Final = 1000
"""Largest number of partitions that one event names: for each one, Airflow creates a row and a run of each consumer."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The results that were announced to the readers of a pipeline.

    Args:
        table: id of table `results`; a recreated table has another id.
        version: version of that table.
        epoch: newest epoch whose rows are included.
        watermark: watermark of the epoch, int64 epoch milliseconds.
        first, last: starts of the first and the last partition that were ever announced; None if there are none.
        held: starts of the partitions that changed but were held back because windows in them fail.
        unit: length of these partitions.
    """

    table: str
    version: int
    epoch: int
    watermark: Millis
    first: Millis | None = None
    last: Millis | None = None
    held: tuple[Millis, ...] = ()
    unit: PartitionUnit | None = None

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """Read the JSON of a mark; None if it has other fields, for instance from another version of tidegate."""
        try:
            given = json.loads(text)
            return cls(**given | {"held": tuple(given.get("held", ()))})
        except (AttributeError, TypeError, ValueError):
            return None

    @property
    def until(self) -> Until:
        """Return the epoch and the watermark."""
        return Until(self.epoch, self.watermark)

    def held_by(self, unit: PartitionUnit) -> Ints:
        """Return the partitions of the given unit that contain those that were held back."""
        kind, old = f"datetime64[{UNITS[unit]}]", UNITS[self.unit or unit]
        starts = np.array(self.held, "datetime64[ms]").astype(f"datetime64[{old}]")
        lasts = (starts + 1).astype("datetime64[ms]") - 1
        spans = [
            np.arange(first.astype(kind), last.astype(kind) + 1) for first, last in zip(starts, lasts, strict=True)
        ]
        return np.unique(np.concatenate([np.empty(0, kind), *spans]))

    def to_dict(self) -> dict[str, Any]:
        """Return the mark as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Changed:
    """The partitions that changed.

    Args:
        unit: length of a partition.
        starts: their starts, in order, as numpy's times of that unit.
        mark: the results that the readers know once these are announced.
        is_any: True if there is something to announce: a final window changed that is not held back. Windows without
            bounds belong to no partition.
        held: starts of the partitions with failing windows that also changed, or were held back before.
    """

    unit: PartitionUnit
    starts: Ints
    mark: Mark
    is_any: bool
    held: Ints

    @property
    def are_few(self) -> bool:
        """Return True if an event can name all of them."""
        return len(self.starts) + len(self.held) <= MOST_KEYS

    def __str__(self) -> str:
        held = f"; held back: {self._span(self.held)}" if len(self.held) else ""
        return f"{self._span(self.starts)}{held}"

    def _span(self, starts: Ints) -> str:
        if not len(starts):
            return "none"
        first, last = _keys(starts[[0, -1]])
        return f"{len(starts)} by {self.unit}, from {first} to {last}"

    def to_dict(self) -> dict[str, Any]:
        """Return the partitions as plain values. If there are too many to name, `keys` is None."""
        ends = _keys(self.starts[[0, -1]]) if len(self.starts) else [None, None]
        return {
            "unit": self.unit,
            "is_any": self.is_any,
            "count": len(self.starts),
            "first": ends[0],
            "last": ends[1],
            "keys": _keys(self.starts) if self.are_few else None,
            "held": len(self.held),
            "held_keys": _keys(self.held) if self.are_few else None,
            "mark": self.mark.to_dict(),
        }


def _keys(starts: Ints) -> list[str]:
    """Return the keys of partitions: their starts, in the format of Airflow's own partition mappers."""
    return [str(text) for text in np.datetime_as_string(starts, unit="s")]


def changed_partitions(pinned: Pinned, unit: PartitionUnit, since: Mark | None, failing: Ints | None = None) -> Changed:
    """Return the partitions whose final windows changed.

    Windows without bounds belong to no partition. Without `since`, the results that the readers know, every partition
    counts; so does every one from the first that they know to the last if rows were removed since then and their files
    no longer exist. Partitions with a window that fails are held back; they count as changed once none of theirs fails.
    """
    handle, manifest = pinned.scope.pinned.handles[results.NAME], pinned.manifest
    mark = Mark(str(handle.metadata().id), handle.version(), manifest.epoch, manifest.final_through)
    if since is not None and since.table == mark.table and since.epoch > mark.epoch:
        # A check of an older epoch: the readers already know more.
        return Changed(unit, _starts(np.empty(0, np.int64), unit), since, False, since.held_by(unit))
    starts: Ints | None = None
    is_any = True
    with suppress(Refused):
        partitions, is_any = differing(_since(pinned, unit, since), pinned.shape)
        starts = _starts(partitions, unit)
    earlier = [] if since is None else [moment for moment in (since.first, since.last) if moment is not None]
    earlier_starts = np.array(earlier, "datetime64[ms]").astype(f"datetime64[{UNITS[unit]}]")
    if starts is None:
        present = _starts(differing(read_differences(pinned, unit, None, None), pinned.shape)[0], unit)
        span = np.concatenate([present, earlier_starts])
        starts = np.arange(span.min(), span.max() + 1) if len(span) else span
    if since is not None:
        starts = np.union1d(starts, since.held_by(unit))
    bad = np.empty(0, "datetime64[ms]") if failing is None else failing
    is_held = np.isin(starts, bad.astype(starts.dtype))
    starts, held = starts[~is_held], starts[is_held]
    named = np.concatenate([starts, earlier_starts]).astype("datetime64[ms]").astype(np.int64)
    if len(named):
        mark = replace(mark, first=int(named.min()), last=int(named.max()))
    if len(held):
        mark = replace(mark, held=tuple(held.astype("datetime64[ms]").astype(np.int64).tolist()), unit=unit)
    # An event without a partition covers all partitions, so it waits for those that are held back.
    return Changed(unit, starts, mark, len(starts) > 0 or (is_any and not len(held)), held)


def _since(pinned: Pinned, unit: str, since: Mark | None) -> pa.Table:
    """Return the rows that differ from those of a mark.

    Raises:
        Refused: rows were removed since then, and their files no longer exist.
    """
    if since is None or _only_added(pinned, since):
        return read_differences(pinned, unit, None if since is None else since.until, None)
    path = pinned.tables.path(results.NAME)
    if str(pinned.scope.pinned.handles[results.NAME].metadata().id) != since.table:
        raise Refused(f"table {path} was recreated")
    try:
        before = pinned.tables.warehouse.open(path, since.version)
    except DeltaError as error:
        raise Refused(f"version {since.version} of table {path} no longer exists") from error
    return read_differences(pinned, unit, since.until, active_files(before))


def _starts(partitions: Ints, unit: str) -> Ints:
    """Return partitions, given as numbers of units since 1970, as times."""
    return partitions.astype(f"datetime64[{UNITS[unit]}]")


def _only_added(pinned: Pinned, since: Mark) -> bool:
    """Return True if no row was removed since a mark, so that epoch numbers identify the new rows."""
    is_same = str(pinned.scope.pinned.handles[results.NAME].metadata().id) == since.table
    if not is_same or not is_on(pinned.manifest.line, since.epoch):
        return False
    erasing = pinned.scope.pinned.erasing
    return not pc.any(pc.and_(pc.greater(erasing["epoch"], since.epoch), pc.equal(erasing["kind"], "forget"))).as_py()
