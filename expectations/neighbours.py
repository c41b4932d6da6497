"""The new windows of a check for a pipeline's own suites, with those that they are compared with.

A window stands if its newest pane is not retracted. Windows after the oldest new one are in the slices of the check
anyway. Older ones are read from table `results`, newest file first, until all that are needed were found. The newest
pane of a window has its latest end, so the rows that end after a time include the newest pane of every window that ends
after it.

A result counts for new windows only. Two windows are compared if one of them is new, or if they became neighbours: the
windows between them were retracted, or an interval between them was run again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.expectations.changed import NO_PARTITION, partition_bounds, partitions_at, partitions_of
from tidegate.expectations.needs import Reads
from tidegate.expectations.pinned import Pinned, as_frame
from tidegate.expectations.scope import are_fresh, final_through
from tidegate.expectations.typed import typed
from tidegate.expectations.unexpected_rows import matches
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.columns import TIMESTAMP
from tidegate.pipelines.definition.config import PartitionUnit
from tidegate.pipelines.definition.row_sets import numbered
from tidegate.pipelines.storage.warehouse import arrow_schema
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis, from_millis, show_millis, to_millis
from tidegate.windowing.timestamps import epoch_millis

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

_NONE: Final = -1


@dataclass(frozen=True)
class Part:
    """Rows to evaluate expectations on, and which of them count in a result.

    Args:
        rows: the rows, numbered from 0.
        counts: whether a row that breaks an expectation counts; None if every row does.
        before: place of the window that each row is compared with, -1 for none; None if rows are not compared.
        owner: place of the new window that a broken row counts for; None if it is the row itself.
        new: whether a row is new; None if all are.
        time: text of the partition that the rows make up, or "".
    """

    rows: pd.DataFrame
    counts: Bools | None = None
    before: Ints | None = None
    owner: Ints | None = None
    new: Bools | None = None
    time: str = ""

    @property
    def judged(self) -> int:
        """Return the number of rows that count in a result."""
        return len(self.rows) if self.new is None else int(self.new.sum())


@dataclass(frozen=True)
class _Windows:
    """Standing windows, and whether each is new."""

    rows: pa.Table
    new: Bools

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, chosen: Bools) -> _Windows:
        return _Windows(self.rows.filter(pa.array(chosen)), self.new[chosen])

    def take(self, places: Ints) -> _Windows:
        return _Windows(self.rows.take(pa.array(places)), self.new[places])

    @staticmethod
    def of(parts: Sequence[_Windows]) -> _Windows:
        return _Windows(pa.concat_tables([each.rows for each in parts]), np.concatenate([each.new for each in parts]))


@dataclass(frozen=True)
class NewWindows:
    """The windows that are new to a check.

    Args:
        pinned: the rows of the check.
        unit: length of the event-time partitions.
        shown: False for windows that became final, or whose result changed since; True for windows whose row in table
            `windows` is new or changed, final or not.
        early: True if that table has early panes.
    """

    pinned: Pinned
    unit: PartitionUnit
    shown: bool = False
    early: bool = False

    @cached_property
    def _is_panes(self) -> bool:
        return results.has_panes(self.pinned.slices.schema)

    @cached_property
    def _time(self) -> str:
        return results.time_column(self.pinned.slices.schema)

    @cached_property
    def _end(self) -> str:
        return "window_end" if self._is_panes else self._time

    @cached_property
    def _id(self) -> list[str]:
        return [*self.pinned.key, "window_id"]

    def __bool__(self) -> bool:
        return bool(len(self._new)) or bool(len(self._gone))

    def alone(self, reads: Reads) -> Iterator[Part]:
        """Yield the new windows, if there are any."""
        frame, known = self._frame(_Windows(self._new, np.ones(len(self._new), np.bool_)), reads)
        frame = frame[~known].reset_index(drop=True)
        if len(frame):
            yield Part(frame)

    def neighbours(self, by: Sequence[str], reads: Reads) -> Iterator[Part]:
        """Yield the new windows, each with the windows before and after it that have equal values in `by`."""
        if not self and not self._rerun:
            return
        touched = pa.concat_tables([each.select([*by, self._time]) for each in self._changes])
        parts = []
        for windows in self._standing():
            timed = windows.where(pc.is_valid(windows.rows[self._time]).to_numpy())
            parts.append(timed if self._rerun else timed.where(_are_in(timed.rows, touched, by)))
        windows = _Windows.of(parts)
        windows = _Windows.of([windows, self._before(windows, by)])
        if not len(windows):
            return
        group, of_gone_groups = numbered([windows.rows, self._gone], by)
        starts, ends = (epoch_millis(windows.rows[name]).to_numpy() for name in (self._time, self._end))
        ids = windows.rows["window_id"].to_numpy() if self._is_panes else np.zeros(len(windows), np.int64)
        order = np.lexsort((ids, ends, starts, group))
        windows, group, starts = windows.take(order), group[order], starts[order]
        before = np.where(np.diff(group, prepend=_NONE) == 0, np.arange(len(windows)) - 1, _NONE)
        after_gone = _next_of(group, starts, of_gone_groups, epoch_millis(self._gone[self._time]).to_numpy())
        compared = windows.new | windows.new[before] | after_gone
        for first, end in self._rerun:
            compared |= (starts[before] < end) & (starts >= first)
        frame, known = self._frame(windows, reads)
        counts = (before != _NONE) & compared & ~known & ~known[before]
        places = np.arange(len(windows))
        owner = np.where(windows.new | (before == _NONE) | ~windows.new[before], places, before)
        yield Part(frame, counts, before, owner, windows.new & ~known)

    def standing(self, reads: Reads, columns: Sequence[str] | None) -> Iterator[Part]:
        """Yield all standing windows; with `columns`, only these columns and those that identify a window."""
        if not len(self._new):
            return
        named = None
        if columns is not None and not self.pinned.acknowledged:
            wanted = {*self.pinned.key, "window_start", "window_end", self._time, *columns}
            named = [name for name in self.pinned.slices.schema.names if name in wanted]
        parts = [*self._standing(), *(windows for _, windows in self._older(at_once=True, columns=named))]
        windows = _Windows.of(
            [each if named is None else _Windows(each.rows.select(named), each.new) for each in parts]
        )
        frame, known = self._frame(windows, reads)
        new = windows.new[~known]
        yield Part(frame[~known].reset_index(drop=True), counts=new, new=new)

    def partitions(self, reads: Reads) -> Iterator[Part]:
        """Yield the windows of each complete partition that has new windows, or that was not complete before.

        Windows without a time are in no partition: the new ones among them are one part.
        """
        windows = _Windows.of([*self._standing()])
        touched = {*partitions_of(pa.concat_tables(self._changes), self.unit).tolist()}
        longest, then = self._longest(windows.rows), self._final_then
        back_to = self._back_to(touched, longest)
        reached = self._reached
        for first, older in self._older() if back_to < reached else ():
            windows = _Windows.of([windows, older])
            if first <= back_to:
                break
        numbers = partitions_of(windows.rows, self.unit)
        order = np.argsort(numbers, kind="stable")
        windows, numbers = windows.take(order), numbers[order]
        frame, known = self._frame(windows, reads)
        edges = [*np.flatnonzero((np.diff(numbers, prepend=0, append=0) != 0) | _ends(len(numbers))).tolist()]
        for left, right in pairwise(edges):
            number, chosen, time = int(numbers[left]), ~known[left:right], ""
            if number == NO_PARTITION:
                chosen &= windows.new[left:right]
            else:
                start, end = partition_bounds(number, self.unit)
                last = self._last_end(end, longest)
                was_complete = self.pinned.since is not None and last <= then
                if last > self._final_now or (was_complete and number not in touched):
                    continue
                time = _between(start, end)
            if chosen.any():
                yield Part(
                    frame[left:right][chosen].reset_index(drop=True), new=windows.new[left:right][chosen], time=time
                )

    def _back_to(self, touched: Collection[int], longest: Millis) -> Millis:
        """Return the start of the oldest partition to judge: one with changes, or the first that was not complete."""
        if self.pinned.since is None:
            return MAX_TIMESTAMP
        numbers, then = [number for number in touched if number != NO_PARTITION], self._final_then
        if then - longest > MIN_TIMESTAMP and then < MAX_TIMESTAMP:
            number = int(partitions_at(np.array([then - longest]), self.unit)[0])
            while number != NO_PARTITION and self._last_end(partition_bounds(number, self.unit)[1], longest) <= then:
                number += 1
            numbers += [] if number == NO_PARTITION else [number]
        return min((partition_bounds(number, self.unit)[0] for number in numbers), default=MAX_TIMESTAMP)

    # The standing windows, and what changed since the last check.

    def _stand(self, rows: pa.Table) -> _Windows:
        pinned = self.pinned
        newest = results.latest(rows, tuple(pinned.key))
        if not self.shown:
            final = results.final(newest, pinned.manifest.final_through)
            return _Windows(final, are_fresh(final, pinned.scope.pinned.epochs, pinned.since))
        rows = self._listed(newest)
        return _Windows(rows, rows["epoch"].to_numpy() > (0 if pinned.since is None else pinned.since))

    def _listed(self, newest: pa.Table) -> pa.Table:
        if not self._is_panes or self.early:
            return newest
        return newest.filter(pc.not_equal(newest["timing"], "early"))

    def _standing(self) -> Iterator[_Windows]:
        """Yield the standing windows of each slice."""
        return (self._stand(rows) for rows in self.pinned.slices)

    @cached_property
    def _changes(self) -> tuple[pa.Table, pa.Table]:
        """The new windows, and windows that stood at the last check and were retracted since."""
        new, gone, since = [], [], self.pinned.since
        for rows in self.pinned.slices:
            windows = self._stand(rows)
            new.append(windows.rows.filter(pa.array(windows.new)))
            if since is None or not self._is_panes:
                gone.append(rows.slice(0, 0))
                continue
            before = results.latest(rows.filter(pc.less_equal(rows["epoch"], since)), tuple(self.pinned.key))
            before = self._listed(before) if self.shown else results.final(before, self._final_then)
            gone.append(before.filter(pa.array(~_are_in(before, windows.rows, self._id))))
        return pa.concat_tables(new), pa.concat_tables(gone)

    @property
    def _new(self) -> pa.Table:
        return self._changes[0]

    @property
    def _gone(self) -> pa.Table:
        return self._changes[1]

    @cached_property
    def _rerun(self) -> list[tuple[Millis, Millis]]:
        """The intervals that were run again since the last check.

        The windows of the earlier run are no longer in the table, so nothing else shows which ones were lost.
        """
        scope, since = self.pinned.scope, self.pinned.since
        if since is None or scope.proof is not None:
            return []
        epochs = scope.pinned.epochs
        newer = epochs.filter(pc.and_(pc.greater(epochs["epoch"], since), epochs["interval_start"].is_valid()))
        bounds = [epoch_millis(newer[name]).to_pylist() for name in ("interval_start", "interval_end")]
        return [*zip(*bounds, strict=True)]

    @cached_property
    def _final_now(self) -> Millis:
        return self.pinned.manifest.final_through

    @cached_property
    def _final_then(self) -> Millis:
        pinned = self.pinned
        if pinned.since is None:
            return MIN_TIMESTAMP
        return final_through(pinned.scope.pinned.epochs, pinned.since)

    def _longest(self, rows: pa.Table) -> Millis:
        """Return an upper bound of the time from a window's start until it is final."""
        shape = self.pinned.shape
        if shape is None or not self._is_panes:
            return 0
        size = shape.size
        if size is None:
            lengths = pc.subtract(epoch_millis(rows["window_end"]), epoch_millis(rows["window_start"]))
            size = int(pc.max(lengths).as_py() or 0)
        return size + (0 if self.shown else shape.lateness)

    def _last_end(self, end: Millis, longest: Millis) -> Millis:
        """Return the time at which every window that starts before the end of a partition is final."""
        shape = self.pinned.shape
        start = end - 1
        if longest and shape is not None and shape.size is not None and shape.slide is not None:
            start = (end - 1 - shape.offset) // shape.slide * shape.slide + shape.offset
        return start + max(longest, 1) - 1

    def _frame(self, windows: _Windows, reads: Reads) -> tuple[pd.DataFrame, Bools]:
        """Return the windows as a frame, and whether each was acknowledged with its present result."""
        frame = as_frame(typed(windows.rows, reads), self.pinned.key)
        known = np.zeros(len(frame), np.bool_)
        for epoch, where, _ in self.pinned.acknowledged:
            if len(frame):
                known |= matches(where, as_frame(windows.rows, self.pinned.key)).to_numpy() & (
                    frame["epoch"].to_numpy() <= epoch
                )
        return frame, known

    # Windows that are older than the slices.

    @property
    def _reached(self) -> Millis:
        """Time from which on the slices contain every window, by its end, int64 epoch milliseconds."""
        scope = self.pinned.scope
        if scope.proof is None:
            return MIN_TIMESTAMP
        return MAX_TIMESTAMP if scope.looks_from is None or not self._is_panes else scope.looks_from

    def _before(self, windows: _Windows, by: Sequence[str]) -> _Windows:
        """Return the older windows that are neighbours of a changed window.

        Of each key, the slices lack only the last window before them. If the rows are not panes, the slices have no
        neighbours of a changed row, so all older rows that were read are returned.
        """
        found = windows.where(np.zeros(len(windows), np.bool_))
        names = [*by, self._time]
        places = pa.concat_tables([windows.rows.select(names), self._gone.select(names)])
        changed = np.concatenate([windows.new, np.ones(len(self._gone), np.bool_)])
        (group,) = numbered([places], by)
        order = np.lexsort((~changed, epoch_millis(places[self._time]).to_numpy(), group))
        first = order[np.diff(group[order], prepend=_NONE) != 0]
        # A key without a window has nothing to compare, unless an older row follows the retracted one.
        held = np.isin(group[first], group[: len(windows)]) | (not self._is_panes)
        wanted = places.take(pa.array(first[changed[first] & held]))
        if not len(wanted):
            return found
        for reached, older in self._older(wanted, by):
            found = _Windows.of([found, older])
            of_wanted, of_found = numbered([wanted, found.rows], by)
            limit = np.zeros(len(wanted), np.int64)
            limit[of_wanted] = epoch_millis(wanted[self._time]).to_numpy()
            starts = epoch_millis(found.rows[self._time]).to_numpy()
            earlier = starts <= limit[of_found]
            if self._is_panes:
                found = found.where(earlier)
                found = found.take(_last_of_each(found.rows, by, self._time, self._end))
                earlier = np.ones(len(found), np.bool_)
                starts = epoch_millis(found.rows[self._time]).to_numpy()
            # A window that ends before this time starts before it, too.
            sure = found.rows.filter(pa.array(earlier & (starts >= reached)))
            if _are_in(wanted, sure, by).all():
                break
        return found

    def _older(
        self,
        wanted: pa.Table | None = None,
        by: Sequence[str] = (),
        *,
        at_once: bool = False,
        columns: Sequence[str] | None = None,
    ) -> Iterator[tuple[Millis, _Windows]]:
        """Yield the standing windows that the slices lack, in steps, each with the end back to which all were read.

        With `wanted`, only windows that have the same values in the columns `by`. `at_once` reads all in one step.
        """
        pinned, scope = self.pinned, self.pinned.scope
        if scope.proof is None:
            return
        handle = scope.pinned.handles[results.NAME]
        schema = arrow_schema(handle)
        if columns is not None:
            needed = {*columns, *self._id, "pane", "op", "timing", "stale", "epoch", "final_at"}
            schema = pa.schema([field for field in schema if field.name in needed], schema.metadata)
        until = self._reached
        where = scope.pinned.current & (pc.field("epoch") <= scope.proof.epoch) & pc.is_valid(pc.field(self._end))
        files = sorted(scope.files_of(results.NAME), key=lambda file: -_bound(file, "max", self._end, MAX_TIMESTAMP))
        seen = pa.concat_tables([rows.select(self._id) for rows in pinned.slices]) if self._is_panes else None
        taken, step = 0, len(files) if at_once else 1
        while taken < len(files):
            first = min(_bound(file, "min", self._end, MIN_TIMESTAMP) for file in files[taken : taken + step])
            taken, step = taken + step, step * 2
            if taken >= len(files):
                first = MIN_TIMESTAMP
            if first >= until:
                continue
            names = [
                file["path"]
                for file in files
                if _bound(file, "max", self._end, MAX_TIMESTAMP) >= first
                and _bound(file, "min", self._end, MIN_TIMESTAMP) < until
            ]
            here = where
            if first > MIN_TIMESTAMP:
                here = here & (pc.field(self._end) >= _moment(first))
            if until < MAX_TIMESTAMP:
                here = here & (pc.field(self._end) < _moment(until))
            batches, path = [], pinned.tables.path(results.NAME)
            whole = arrow_schema(handle)
            for batch in pinned.tables.warehouse.read_batches(path, names, whole, schema.names, where=here):
                rows = pa.Table.from_batches([batch]).cast(schema)
                batches.append(rows if wanted is None else rows.filter(pa.array(_are_in(rows, wanted, by))))
            rows = pa.concat_tables([schema.empty_table(), *batches])
            if seen is not None:
                rows = rows.filter(pa.array(~_are_in(rows, seen, self._id)))
                seen = pa.concat_tables([seen, rows.select(self._id)])
            windows = self._stand(rows)
            yield first, _Windows(windows.rows, np.zeros(len(windows), np.bool_))
            until = first


def _bound(file: dict[str, Any], kind: str, column: str, unknown: Millis) -> Millis:
    """Return the smallest or largest time in a file, int64 epoch milliseconds."""
    moment: datetime | None = file.get(f"{kind}.{column}")
    return unknown if moment is None else to_millis(moment)


def _moment(time: Millis) -> pa.Scalar:
    return pa.scalar(from_millis(time)).cast(TIMESTAMP)


def _are_in(rows: pa.Table, others: pa.Table, names: Sequence[str]) -> Bools:
    if not len(others):
        return np.zeros(len(rows), np.bool_)
    of_rows, of_others = numbered([rows, others], names)
    return np.isin(of_rows, of_others)


def _last_of_each(rows: pa.Table, by: Sequence[str], time: str, end: str) -> Ints:
    """Return the place of the last row of each group."""
    (group,) = numbered([rows], by)
    order = np.lexsort((epoch_millis(rows[end]).to_numpy(), epoch_millis(rows[time]).to_numpy(), group))
    is_last = np.diff(group[order], append=_NONE) != 0
    places: Ints = order[is_last]
    return places


def _next_of(group: Ints, starts: Ints, of_gone: Ints, gone: Ints) -> Bools:
    """Mark the first row of each group at or after each retracted window; the rows are ordered."""
    found = np.zeros(len(group), np.bool_)
    for number, time in zip(of_gone.tolist(), gone.tolist(), strict=True):
        first, last = np.searchsorted(group, number), np.searchsorted(group, number, "right")
        place = first + np.searchsorted(starts[first:last], time)
        if place < last:
            found[place] = True
    return found


def _ends(count: int) -> Bools:
    """Mark the first place, and the place after the last one."""
    ends = np.zeros(count + 1, np.bool_)
    ends[[0, -1]] = True
    return ends


def _between(start: Millis, end: Millis) -> str:
    return " to ".join(map(show_millis, (start, end)))
