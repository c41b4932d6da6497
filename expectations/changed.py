"""The event-time partitions whose final windows changed since consumers were last notified, for partitioned schedules.

A partition is an hour, a day or a month in the pipeline's time zone, and a window belongs to the partition in which it
starts. Rows of a process function or a join belong to the partition of their event time. If epochs only added rows, the
new rows and the windows that became final name the partitions. If rows were removed (an interval was run again, a
restore, an erasure), the removed files are compared with the added ones, so a partition whose windows reappeared
unchanged has not changed.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from tidegate.expectations.pinned import Pinned
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.config import PartitionUnit
from tidegate.pipelines.definition.window_shape import WindowShape
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import is_on
from tidegate.pipelines.ledger.tables.checksum import hashes_of_rows
from tidegate.pipelines.ledger.tables.keys import digests
from tidegate.pipelines.sources.zones import offsets_of_instants
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis, to_millis
from tidegate.windowing.timestamps import epoch_millis

UNITS: Final = {"hour": "h", "day": "D", "month": "M"}
_YEARS: Final = (np.datetime64("0001-01-01", "ms"), np.datetime64("9999-12-31T23:59:59.999", "ms"))
NO_PARTITION: Final = np.iinfo(np.int64).min
_SALT: Final = secrets.token_bytes(16)
"""A secret of this process: with a plain hash, somebody could choose keys whose hashes collide."""

_SEEN: Final = frozenset({"window_start", "window_end", "event_time", "output"})
"""Leading columns that matter to readers; the others describe how a result was computed."""

Ints = npt.NDArray[Any]

_ROWS: Final = pa.schema(
    {
        "partition": pa.int64(),
        "window": pa.uint64(),
        "pane": pa.int64(),
        "content": pa.uint64(),
        "plus": pa.bool_(),
        "stale": pa.bool_(),
        "added": pa.bool_(),
        "was_final": pa.bool_(),
        "is_final": pa.bool_(),
    }
)
"""Rows that differ between the mark and now.

`window` identifies key and window by a number (0 for rows that are not panes), `pane` orders the rows of a window by
epoch, then by the number of the pane, `content` is a number for what readers see, and `plus` is false for a retraction.
`added` is false for a removed row. `was_final` and `is_final` say whether the row's window was final at the mark, and
whether it is final now.
"""


class Until(NamedTuple):
    """The results that readers know: those of epochs up to this one that are final at this watermark."""

    epoch: int
    watermark: Millis


class Partitions(NamedTuple):
    """Spans of the local clock of a time zone. A partition is a number of units since 1970 on that clock."""

    unit: PartitionUnit
    zone: str = "UTC"

    def of(self, instants: Ints) -> Ints:
        """Return the partitions of instants, as numpy's times of the unit."""
        partitions: Ints = self.local(instants).astype(f"datetime64[{UNITS[self.unit]}]")
        return partitions

    def local(self, instants: Ints) -> Ints:
        """Return what the clock shows at instants, both as numpy's times in milliseconds."""
        times = instants.astype(np.int64)
        shown: Ints = times + offsets_of_instants(np.floor_divide(times, 1000), self.zone) * 1000
        return shown.astype("datetime64[ms]")


def read_differences(
    pinned: Pinned, unit: Partitions, since: Until | None, before: list[dict[str, Any]] | None
) -> pa.Table:
    """Return the rows that differ, in the columns of `_ROWS`.

    `before` lists the files that the table had at the mark. It is None if no row has been removed since.
    """
    manifest, handle = pinned.manifest, pinned.scope.pinned.handles[results.NAME]
    listed = {file["path"] for file in before or ()}
    files, has_windows = active_files(handle), results.has_panes(arrow_schema(handle))
    present = {file["path"] for file in files}
    parts = []
    for file in files:
        is_new = before is not None and file["path"] not in listed
        if is_new or _may_differ(file, has_windows, since, manifest.final_through, pinned.proves.lateness):
            parts += [
                _added(batch, unit, since, manifest.final_through, is_new) for batch in _batches(pinned, file["path"])
            ]
    for path in listed - present:
        assert since is not None
        parts += [_removed(batch, unit, since) for batch in _batches(pinned, path)]
    return pa.concat_tables([_ROWS.empty_table(), *parts])


def differing(rows: pa.Table, shape: WindowShape | None) -> tuple[Ints, bool]:
    """Return the partitions whose final windows differ, and whether any window differs, even without a partition."""
    every_pane = shape is None or shape.every_pane_counts
    sides = [_seen(rows.filter(chosen), every_pane) for chosen in (rows["added"], pc.invert(rows["added"]))]
    pairs = pa.concat_tables(sides).group_by(["partition", "content", "is_retraction"])
    counted = pairs.aggregate([("added", "sum"), ("removed", "sum"), ("stale", "sum")])
    left = pc.max_element_wise(pc.subtract(counted["removed_sum"], counted["stale_sum"]), 0)
    # A retraction that was removed together with its pane changes nothing.
    differs = pc.if_else(
        counted["is_retraction"], pc.greater(counted["added_sum"], left), pc.not_equal(counted["added_sum"], left)
    )
    partitions: Ints = np.unique(counted.filter(differs)["partition"].to_numpy())
    return partitions[partitions != NO_PARTITION], len(partitions) > 0


def _seen(rows: pa.Table, every_pane: bool) -> pa.Table:
    """Return the partition and the contents of each row that readers saw at the mark or see now.

    These are results, and retractions that nothing replaced. Readers see every pane that was not retracted, or only the
    newest one of each window.
    """
    window, pane, plus, added, stale, is_final, was_final = (
        rows[name].to_numpy() for name in ("window", "pane", "plus", "added", "stale", "is_final", "was_final")
    )
    _, place = np.unique(window, return_inverse=True)
    newest, retracted = (np.full(len(window), -1, np.int64) for _ in range(2))
    np.maximum.at(newest, place, pane)
    np.maximum.at(retracted, place[~plus], pane[~plus])
    stands = plus & (pane > retracted[place])
    if not every_pane:
        stands &= pane == newest[place]
    # Rows that were stale at the mark count as already removed, so they are announced when they reappear.
    shown = stands & np.where(added, np.where(stale, was_final, is_final), was_final & ~stale)
    chosen = shown | (~plus & was_final & ~np.isin(window, window[stands]))
    return pa.table(
        {
            "partition": rows["partition"].to_numpy()[chosen],
            "content": rows["content"].to_numpy()[chosen],
            "is_retraction": ~plus[chosen],
            "added": (added & ~stale)[chosen].astype(np.int64),
            "removed": (~added)[chosen].astype(np.int64),
            "stale": (added & stale)[chosen].astype(np.int64),
        }
    )


def _added(batch: pa.RecordBatch, unit: Partitions, since: Until | None, watermark: Millis, is_new: bool) -> pa.Table:
    """Return the rows of a current file that were added since the mark, or all of them if the file is new."""
    rows = _numbers(batch, unit)
    is_final = _final(rows, watermark)
    if since is None:
        return _with(rows, added=True, was_final=False, is_final=is_final)
    was_there = pc.less_equal(batch["epoch"], since.epoch)
    # A retraction removes what was final at the time, whichever epoch wrote it.
    was_final = pc.and_(_final(rows, since.watermark), pc.or_(was_there, pc.invert(rows["plus"])))
    if is_new:
        return _with(rows, added=True, was_final=was_final, is_final=is_final)
    # After a restore that set the watermark back, a window that was final is open again.
    opened = pc.and_(was_there, pc.and_not(was_final, is_final))
    chosen = pc.or_(pc.invert(was_there), pc.xor(was_final, is_final))
    return _with(rows, added=pc.invert(opened), was_final=was_final, is_final=is_final).filter(chosen)


def _removed(batch: pa.RecordBatch, unit: Partitions, since: Until) -> pa.Table:
    """Return the rows of a removed file that readers knew."""
    rows = _numbers(batch, unit)
    gone = _with(rows, added=False, was_final=_final(rows, since.watermark), is_final=False)
    return gone.filter(pc.less_equal(batch["epoch"], since.epoch))


def _final(rows: pa.Table, watermark: Millis) -> pa.Array:
    return pc.less_equal(rows["final_at"].combine_chunks(), watermark)


def _with(rows: pa.Table, **flags: pa.Array | bool) -> pa.Table:
    """Add columns of flags, and return the columns of `_ROWS`."""
    for name, flag in flags.items():
        column = pa.array(np.full(len(rows), flag)) if isinstance(flag, bool) else flag
        rows = rows.append_column(name, column)
    return rows.select(_ROWS.names).cast(_ROWS)


def _may_differ(
    file: dict[str, Any], has_windows: bool, since: Until | None, watermark: Millis, lateness: Millis
) -> bool:
    """Return True if a file may have rows of epochs after the mark, or rows whose windows became final since."""
    newest, end = file.get("max.epoch"), file.get("max.window_end")
    if since is None or newest is None or newest > since.epoch:
        return True
    # Rows that are not panes are final from the start, and their column `window_end` is a user's.
    if since.watermark == watermark or not has_windows:
        return False
    return bool(end is None or to_millis(end) >= min(since.watermark, watermark) - lateness)


def _batches(pinned: Pinned, path: str) -> Iterator[pa.RecordBatch]:
    tables = pinned.tables
    schema = arrow_schema(pinned.scope.pinned.handles[results.NAME])
    where = pc.field("epoch") <= pinned.manifest.epoch
    return tables.warehouse.read_batches(tables.path(results.NAME), [path], schema, where=where)


def _numbers(batch: pa.RecordBatch, unit: Partitions) -> pa.Table:
    """Return the columns of `_ROWS` that depend only on the rows, and `final_at`."""
    panes = results.has_panes(batch.schema)
    names, count = batch.schema.names, len(batch)
    leading = [field.name for field in (results.LEADING if panes else results.ELEMENT_LEADING)]
    owners = _numbers_of_keys(batch, names[: names.index(leading[0])])
    shown = batch.select([name for name in names if name in _SEEN or name not in leading])
    content = hashes_of_rows(shown) * np.uint64(31) + owners
    columns: dict[str, Any] = {
        "partition": _partitions(batch, unit),
        "window": np.zeros(count, np.uint64),
        "pane": np.zeros(count, np.int64),
        "content": content,
        "plus": np.ones(count, bool),
        "stale": batch["stale"],
        "final_at": np.full(count, MIN_TIMESTAMP),
    }
    if panes:
        window = owners * np.uint64(31) + batch["window_id"].to_numpy().view(np.uint64)
        plus = pc.equal(batch["op"], "+").to_numpy(zero_copy_only=False)
        columns |= {
            "window": window,
            "pane": pc.add(pc.shift_left(batch["epoch"], 32), batch["pane"].cast(pa.int64())),
            "content": np.where(plus, content, ~window),
            "plus": plus,
            # The global window becomes final only at the end of input.
            "final_at": epoch_millis(batch["final_at"]).fill_null(MAX_TIMESTAMP),
        }
    return pa.table(columns)


def _numbers_of_keys(batch: pa.RecordBatch, key: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Number the rows by key. Different keys get different numbers, even if somebody chose the keys maliciously."""
    texts = digests(pa.Table.from_batches([batch]), key, _SALT).dictionary_encode()
    numbers = np.array([int(text[:16], 16) for text in texts.dictionary.to_pylist()], np.uint64)
    return np.asarray(numbers[texts.indices.to_numpy()], np.uint64)


def partitions_of(rows: pa.RecordBatch | pa.Table, unit: str) -> Ints:
    """Return the partition of each row in UTC, or `NO_PARTITION` if it has no time that Python can represent."""
    times = epoch_millis(rows[results.time_column(rows.schema)])
    return partitions_at(times.fill_null(NO_PARTITION).to_numpy(), unit)


def partitions_at(times: Ints, unit: str) -> Ints:
    """Return the partition of each time (int64 epoch milliseconds): the number of units since 1970."""
    moments = times.astype("datetime64[ms]")
    first, last = _YEARS
    is_named = (moments >= first) & (moments <= last)
    partitions: Ints = moments.astype(f"datetime64[{UNITS[unit]}]").astype(np.int64)
    return np.where(is_named, partitions, NO_PARTITION)


def partition_bounds(partition: int, unit: str) -> tuple[Millis, Millis]:
    """Return start and end of a partition, int64 epoch milliseconds."""
    bounds = np.array([partition, partition + 1]).astype(f"datetime64[{UNITS[unit]}]")
    start, end = bounds.astype("datetime64[ms]").astype(np.int64).tolist()
    return start, end


def _partitions(batch: pa.RecordBatch, unit: Partitions) -> Ints:
    """Return the partition of each row on the clock of the zone, like `partitions_of` in UTC."""
    moments = epoch_millis(batch[results.time_column(batch.schema)]).fill_null(NO_PARTITION).to_numpy()
    is_named = partitions_at(moments, unit.unit) != NO_PARTITION
    local = unit.local(np.where(is_named, moments, 0)).astype(np.int64)
    return np.where(is_named, partitions_at(local, unit.unit), NO_PARTITION)


MOST_KEYS: Final = 1000
"""Largest number of partitions that one event names. For each of them, Airflow creates a row and a run of each
consumer.
"""


@dataclass(frozen=True, slots=True)
class Mark:
    """The results that were announced to the readers of a pipeline.

    Args:
        table: id of table `results`; a recreated table has another id.
        version: version of that table.
        epoch: newest epoch whose rows are included.
        watermark: watermark of the epoch, int64 epoch milliseconds.
        first, last: starts of the first and the last partition that were ever announced; None if there are none.
        held: starts of the changed partitions that were held back because windows in them fail.
        unit: length of these partitions.
        zone: time zone of the partitions.
    """

    table: str
    version: int
    epoch: int
    watermark: Millis
    first: Millis | None = None
    last: Millis | None = None
    held: tuple[Millis, ...] = ()
    unit: PartitionUnit | None = None
    zone: str = "UTC"

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """Parse the JSON of a mark, or return None if it has other fields, perhaps from another version of tidegate."""
        try:
            given = json.loads(text)
            return cls(**given | {"held": tuple(given.get("held", ()))})
        except (AttributeError, TypeError, ValueError):
            return None

    @property
    def until(self) -> Until:
        """The epoch and the watermark up to which the mark describes the results."""
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
    """The partitions that changed: their starts, in order, as numpy's times of the unit.

    Once these are announced, readers know the results of `mark`. `is_any` is True if there is something to announce: a
    final window that changed and is not held back. Windows without bounds belong to no partition. `held` are partitions
    with failing windows that also changed, or were held back before.
    """

    unit: PartitionUnit
    starts: Ints
    mark: Mark
    is_any: bool
    held: Ints

    @property
    def are_few(self) -> bool:
        """Return True if there are few enough partitions for one event to name all of them."""
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


def changed_partitions(
    pinned: Pinned, unit: PartitionUnit, since: Mark | None, failing: Ints | None = None, zone: str = "UTC"
) -> Changed:
    """Return the partitions whose final windows changed.

    Windows without bounds belong to no partition. `since` describes the results that readers know. Without it, every
    partition counts as changed. If rows have been removed since then and their files no longer exist, every partition
    between the first and the last one that readers know counts. Partitions with a failing window are held back; they
    count as changed as soon as none of their windows fails. `zone` is the time zone of the partitions; if `since` has
    another zone, every partition counts as changed.
    """
    spans = Partitions(unit, zone)
    if since is not None and since.zone != zone:
        since = None
    handle, manifest = pinned.scope.pinned.handles[results.NAME], pinned.manifest
    mark = Mark(str(handle.metadata().id), handle.version(), manifest.epoch, manifest.final_through, zone=zone)
    if since is not None and since.table == mark.table and since.epoch > mark.epoch:
        # This is a check of an older epoch, and readers already know newer results.
        return Changed(unit, _starts(np.empty(0, np.int64), unit), since, False, since.held_by(unit))
    known = [] if since is None else [moment for moment in (since.first, since.last) if moment is not None]
    known_starts = np.array(known, "datetime64[ms]").astype(f"datetime64[{UNITS[unit]}]")
    try:
        partitions, is_any = differing(_since(pinned, spans, since), pinned.shape)
        starts = _starts(partitions, unit)
    except Refused:
        is_any, starts = True, _all_between(pinned, spans, known_starts)
    if since is not None:
        starts = np.union1d(starts, since.held_by(unit))
    bad = np.empty(0, "datetime64[ms]") if failing is None else failing.astype("datetime64[ms]")
    is_held = np.isin(starts, spans.of(bad))
    starts, held = starts[~is_held], starts[is_held]
    named = np.concatenate([starts, known_starts]).astype("datetime64[ms]").astype(np.int64)
    if len(named):
        mark = replace(mark, first=int(named.min()), last=int(named.max()))
    if len(held):
        mark = replace(mark, held=tuple(held.astype("datetime64[ms]").astype(np.int64).tolist()), unit=unit)
    # An event without a partition covers all partitions, so it waits for those that are held back.
    return Changed(unit, starts, mark, len(starts) > 0 or (is_any and not len(held)), held)


def _all_between(pinned: Pinned, spans: Partitions, known: Ints) -> Ints:
    """Return every partition between the first and the last one that readers know or that the results have now."""
    present = _starts(differing(read_differences(pinned, spans, None, None), pinned.shape)[0], spans.unit)
    span = np.concatenate([present, known])
    return np.arange(span.min(), span.max() + 1) if len(span) else span


def _since(pinned: Pinned, unit: Partitions, since: Mark | None) -> pa.Table:
    """Return the rows that differ from those of a mark; raise Refused if removed rows' files no longer exist."""
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
    """Convert partitions from numbers of units since 1970 to times."""
    return partitions.astype(f"datetime64[{UNITS[unit]}]")


def _only_added(pinned: Pinned, since: Mark) -> bool:
    """Return True if no row was removed since a mark, so that epoch numbers identify the new rows."""
    is_same = str(pinned.scope.pinned.handles[results.NAME].metadata().id) == since.table
    if not is_same or not is_on(pinned.manifest.line, since.epoch):
        return False
    erasing = pinned.scope.pinned.erasing
    return not pc.any(pc.and_(pc.greater(erasing["epoch"], since.epoch), pc.equal(erasing["kind"], "forget"))).as_py()
