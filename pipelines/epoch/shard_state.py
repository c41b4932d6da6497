"""The state of a shard in an epoch: the rows that the operator gets, and the files that hold the rows afterwards.

An epoch gets all rows of its shard, and writes all of them as a new base. If it can change only a few of many rows, it
gets only the rows of keys with an event or a due timer, and writes a delta (`tables.files`); the base stays. Few row
groups of the base are read: its rows are in the order of their keys' hashes, and the statistics of each group bound
hashes and timers. When the delta exceeds a share of the base, the next epoch writes a new base.

Every epoch rewrites the delta, so the share is small: with d changed rows in an epoch over b rows, a share s costs s *
b / 2 rows for the delta and d / s for the base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import state
from tidegate.pipelines.definition.columns import with_values
from tidegate.pipelines.definition.event_columns import KEY_PREFIX
from tidegate.pipelines.definition.row_sets import distinct
from tidegate.pipelines.epoch.job import ShardJob
from tidegate.pipelines.ledger.manifest import DataFile, Shard
from tidegate.pipelines.ledger.tables.files import deltas_of, read_state, write_rows
from tidegate.pipelines.ledger.tables.keys import are_in
from tidegate.pipelines.storage.warehouse import unreadable
from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.columnar.key_codes import encode_keys
from tidegate.windowing.columnar.order import numbers_of
from tidegate.windowing.columnar.slices import open_windows
from tidegate.windowing.compute import Compute, Windows
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.state.migration import migrated
from tidegate.windowing.state.rows import StateSchema
from tidegate.windowing.time import Millis
from tidegate.windowing.timestamps import in_schema

if TYPE_CHECKING:
    import pyarrow.parquet as pq

SMALLEST = 65_536
"""Smallest number of rows of a shard with a delta: smaller shards are faster to rewrite."""

SHARE = 32
"""Largest size of a delta as a fraction of its base; an epoch that may change more rows writes a base."""

_NEVER = np.iinfo(np.int64).max
_BY_EVENTS, _BY_CLOCK = state.DUE.name, state.DUE_BY_CLOCK.name


@dataclass(frozen=True)
class Split:
    """The files of a shard whose base can be read in part: the base, and the delta if there is one."""

    base: str
    delta: str | None = None


def split_of(files: Sequence[dict[str, Any]]) -> Split | None:
    """Return the files of a shard as base and delta, according to their statistics; None if all must be read."""
    deltas = deltas_of(files)
    bases = [file for file in files if file["path"] not in deltas]
    if len(bases) != 1 or len(deltas) > 1 or bases[0].get(f"min.{state.HASH.name}") is None:
        return None
    return Split(bases[0]["path"], deltas[0] if deltas else None)


def can_have_deltas(compute: Compute, rows: StateSchema) -> bool:
    """Return True if an epoch changes only state rows of keys with an event or a due timer.

    State of user code may have a time to live, and process functions and joins keep elements without a timer.
    """
    declared = rows.trigger_state or rows.user_state
    return isinstance(compute, Windows) and bool(rows.key.names) and not declared


def is_read_in_part(before: Shard, rows: int) -> bool:
    """Return True if so few rows of a shard may change that the others need not be read."""
    return before.rows >= SMALLEST and rows * SHARE <= before.rows


Written: TypeAlias = tuple[tuple[DataFile, ...], tuple[str, ...]]
"""The state files of a shard after an epoch: the new one, if there are rows, and the names of those that stay."""


class WholeState:
    """All state rows of a shard. If the epoch changes only a `few` of them, sorting the base pays off."""

    def __init__(self, job: ShardJob, rows: pa.Table, few: bool) -> None:
        self.rows = rows
        self._job = job
        self._few = few

    @classmethod
    def read(
        cls, job: ShardJob, shard: Shard, files: Sequence[str], deltas: Sequence[str], others: bool, events: int
    ) -> WholeState:
        """Read the state of a shard from all its files. With `others`, these may also have rows of other shards."""
        groups, schema = pc.field("key_group"), job.schemas[state.NAME]
        rows = read_state(
            job.warehouse,
            job.paths[state.NAME],
            files,
            deltas,
            schema,
            where=(groups >= shard.first) & (groups <= shard.last) if others else None,
        )
        if job.old_format is not None:
            rows = migrated(rows, job.old_format, job.state, job.left_behind)
        return cls(job, rows, len(rows) >= SMALLEST and events * SHARE <= len(rows))

    def count_after(self, rows: int) -> int:
        """Return the number of the shard's rows after the epoch, given the number that the operator returned."""
        return rows

    def open_windows_after(self, windows: int) -> int:
        """Return the number of open windows after the epoch, given the number that the operator returned."""
        return windows

    def next_timers(self, timers: tuple[Millis | None, Millis | None]) -> tuple[Millis | None, Millis | None]:
        """Return the shard's next timers in event time and processing time, given those of the operator."""
        return timers

    def write(self, rows: pa.Table, prefix: str) -> Written:
        """Write the rows after the epoch, with the columns of the table."""
        job = self._job
        if self._few and can_have_deltas(job.compute, job.state):
            rows = _in_order(_described(rows, job.key))
        return write_rows(job.warehouse, job.paths[state.NAME], prefix, rows), ()


class TouchedState:
    """The state rows of the keys that an epoch may change, and the facts that it needs about the shard's other keys.

    `touched` has the hashes of the keys in ascending order. The delta includes marks.
    """

    def __init__(self, job: ShardJob, base: _Base, delta: pa.Table, touched: Int64s, before: Shard) -> None:
        self._job = job
        self._base = base
        self._before = before
        self._touched = touched
        self._in_delta = np.unique(_ints(delta, state.HASH.name))
        own = pa.array(np.isin(_ints(delta, state.HASH.name), touched))
        self._mine, self._others = delta.filter(own), delta.filter(pc.invert(own))
        of_delta = self._mine.filter(pc.equal(self._mine[state.MARK.name], state.DELTA_ROW))
        of_base = base.rows_of(np.setdiff1d(touched, self._in_delta, assume_unique=True))
        rows = pa.concat_tables([of_delta, of_base]).sort_by("key_group")
        self.rows = state.operators(rows)

    @classmethod
    def read(cls, job: ShardJob, split: Split, before: Shard, events: pa.Table) -> TouchedState | None:
        """Read the rows that an epoch may change. Return None if there are many."""
        if not is_read_in_part(before, len(events)):
            return None
        path, schema = job.paths[state.NAME], job.schemas[state.NAME]
        base = _Base(job, split.base)
        delta = job.warehouse.read_files(path, [split.delta] if split.delta is not None else [], schema)
        in_delta = np.unique(_ints(delta, state.HASH.name))
        reached = {
            _BY_EVENTS: max(step.watermark for step in job.steps),
            _BY_CLOCK: max(step.clock for step in job.steps),
        }
        due = np.zeros(len(delta), np.bool_)
        for name, time in reached.items():
            due |= _ints(delta, name, _NEVER) <= time
        hashes = [_ints(delta, state.HASH.name)[due], np.setdiff1d(base.due(reached), in_delta)]
        if len(events):
            keys = {name: events[f"{KEY_PREFIX}{name}"] for name in job.key.names}
            hashes.append(encode_keys(job.key, (keys, len(events))).hashes.view(np.int64))
        touched = np.unique(np.concatenate(hashes))
        return cls(job, base, delta, touched, before) if is_read_in_part(before, len(touched)) else None

    def count_after(self, rows: int) -> int:
        return self._before.rows - len(self.rows) + rows

    def open_windows_after(self, windows: int) -> int:
        return (
            self._before.counters.get("open_windows", 0) - len(open_windows(self.rows, self._job.key.names)) + windows
        )

    def next_timers(self, timers: tuple[Millis | None, Millis | None]) -> tuple[Millis | None, Millis | None]:
        by_events, by_clock = (
            min(
                _NEVER if timer is None else timer,
                int(_ints(self._others, name, _NEVER).min(initial=_NEVER)),
                self._base.lowest(name, self._replaced),
            )
            for name, timer in zip((_BY_EVENTS, _BY_CLOCK), timers, strict=True)
        )
        return (None if by_events == _NEVER else by_events), (None if by_clock == _NEVER else by_clock)

    def write(self, rows: pa.Table, prefix: str) -> Written:
        job, names = self._job, list(self._job.key.names)
        rows = _described(rows, job.key)
        delta = pa.concat_tables([self._others, _marked(rows, state.DELTA_ROW), self._gone(rows, names)])
        write = (job.warehouse, job.paths[state.NAME])
        if len(delta) * SHARE <= len(self._base):
            return write_rows(*write, prefix, delta), (self._base.name,)
        resting = self._others.filter(pc.equal(self._others[state.MARK.name], state.DELTA_ROW))
        whole = pa.concat_tables([self._base.without(self._replaced), _marked(resting, None), rows])
        return write_rows(*write, prefix, _in_order(whole)), ()

    @cached_property
    def _replaced(self) -> Int64s:
        """Hashes of the keys whose rows in the base are no longer valid after the epoch."""
        return np.union1d(self._in_delta, self._touched)

    def _gone(self, rows: pa.Table, names: list[str]) -> pa.Table:
        """Return a mark for each key that had rows in the base or the delta and has none after the epoch."""
        schema = self._job.schemas[state.NAME]
        columns = ["key_group", *names]
        before = distinct(pa.concat_tables([self.rows.select(columns), self._mine.select(columns)]))
        gone = before.filter(pc.invert(are_in(before, rows, names)))
        marked = _described(in_schema(gone, schema), self._job.key)
        return _marked(marked, state.DELTA_GONE)


@dataclass(frozen=True, slots=True)
class _Footer:
    """Contents of a base's footer: the smallest and largest hash in each row group, and its first timer by column.

    Files never change, and reading a footer takes longer than reading a few rows.
    """

    metadata: pq.FileMetaData
    first: Int64s
    last: Int64s
    due: dict[str, Int64s]

    @classmethod
    def of(cls, metadata: pq.FileMetaData) -> _Footer:
        places = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]

        def bounds(name: str) -> npt.NDArray[np.int64]:
            """Return the smallest and the largest value of a column in each row group."""
            found = (
                [group.column(places[name]).statistics for group in groups] if name in places else [None] * len(groups)
            )
            known = [
                (each.min, each.max) if each is not None and each.has_min_max else (_NEVER, _NEVER) for each in found
            ]
            return np.array(known, np.int64).reshape(-1, 2)

        hashes = bounds(state.HASH.name)
        due = {name: bounds(name)[:, 0] for name in (_BY_EVENTS, _BY_CLOCK)}
        return cls(metadata, hashes[:, 0], hashes[:, 1], due)


_KEPT_GROUPS = 16_384
"""Number of row groups whose footers this process caches: those of 16 million state rows, about 260 MiB."""

_footers: dict[tuple[str, str], _Footer] = {}
"""The most recently read footers of bases, by folder and name of the file."""


class _Base:
    """A base that is read in part: only row groups that may have rows of certain keys or due timers are read."""

    def __init__(self, job: ShardJob, name: str) -> None:
        self.name = name
        self._columns = job.schemas[state.NAME]
        self._path = job.paths[state.NAME]
        kept = _footers.pop((self._path, name), None)
        self._file = job.warehouse.open_parquet(self._path, name, None if kept is None else kept.metadata)
        footer = _Footer.of(self._file.metadata) if kept is None else kept
        _footers[self._path, name] = footer
        while len(_footers) > 1 and sum(len(each.first) for each in _footers.values()) > _KEPT_GROUPS:
            del _footers[next(iter(_footers))]
        self._first, self._last, self._due = footer.first, footer.last, footer.due

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def due(self, reached: dict[str, Millis]) -> Int64s:
        """Return the hashes of keys with a row whose timer is due at one of these times."""
        may_be = np.zeros(len(self._first), np.bool_)
        for name, time in reached.items():
            may_be |= self._due[name] <= time
        rows = self._read(may_be, [state.HASH.name, *reached])
        due = np.zeros(len(rows), np.bool_)
        for name, time in reached.items():
            due |= _ints(rows, name, _NEVER) <= time
        return np.unique(_ints(rows, state.HASH.name)[due])

    def rows_of(self, hashes: Int64s) -> pa.Table:
        """Return the rows of keys with these hashes, which are in ascending order."""
        rows = self._read(self._may_have(hashes))
        own = _ints(rows, state.HASH.name)
        begins = np.searchsorted(own, hashes)
        places, _ = numbers_of(begins, np.searchsorted(own, hashes, "right") - begins)
        return rows.take(pa.array(places))

    def without(self, hashes: Int64s) -> pa.Table:
        """Return the rows of all other keys."""
        rows = self._read(np.ones(len(self._first), np.bool_))
        return rows.filter(pa.array(~np.isin(_ints(rows, state.HASH.name), hashes)))

    def lowest(self, name: str, replaced: Int64s) -> Millis:
        """Return the first timer of the rows whose keys have other hashes."""
        best, due, mixed = int(_NEVER), self._due[name], self._may_have(replaced)
        for number in np.argsort(due).tolist():
            if due[number] >= best:
                break
            if not mixed[number]:
                best = int(due[number])
                break
            rows = self._read(np.arange(len(due)) == number, [state.HASH.name, name])
            holds = ~np.isin(_ints(rows, state.HASH.name), replaced)
            best = min(best, int(_ints(rows, name, _NEVER)[holds].min(initial=_NEVER)))
        return best

    def _may_have(self, hashes: Int64s) -> Bools:
        """Return a flag for each row group: whether its bounds enclose one of these hashes, which are ascending."""
        if not len(hashes):
            return np.zeros(len(self._first), np.bool_)
        following = np.searchsorted(hashes, self._first)
        found: Bools = hashes[np.minimum(following, len(hashes) - 1)] <= self._last
        return found & (following < len(hashes))

    def _read(self, groups: Bools, columns: list[str] | None = None) -> pa.Table:
        wanted = np.flatnonzero(groups).tolist()
        chosen = self._columns if columns is None else pa.schema([self._columns.field(name) for name in columns])
        if not wanted:
            return chosen.empty_table()
        try:
            rows = self._file.read_row_groups(wanted, columns)
        except (OSError, pa.ArrowInvalid) as error:
            raise unreadable(self._path, error) from error
        return in_schema(rows, chosen)


def _described(rows: pa.Table, key: KeySchema) -> pa.Table:
    """Return state rows with the hash of their key and their first timers."""
    keys = encode_keys(
        key, ({name: rows[name].cast(kind) for name, kind in zip(key.names, key.types, strict=True)}, len(rows))
    )
    columns = {
        state.HASH.name: pa.array(keys.hashes.view(np.int64)[keys.codes[0]]),
        _BY_EVENTS: pc.list_element(rows["event_time_timers"], 0),
        _BY_CLOCK: pc.list_element(rows["processing_time_timers"], 0),
    }
    for name, values in columns.items():
        rows = with_values(rows, name, values)
    return rows


def _marked(rows: pa.Table, mark: int | None) -> pa.Table:
    return with_values(rows, state.MARK.name, pa.repeat(pa.scalar(mark, pa.int32()), len(rows)))


def _in_order(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(np.argsort(_ints(rows, state.HASH.name), kind="stable")))


def _ints(rows: pa.Table, name: str, null: int = 0) -> Int64s:
    return np.asarray(rows[name].fill_null(null).to_numpy(), np.int64)
