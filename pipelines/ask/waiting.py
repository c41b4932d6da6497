"""The reasons why windows have not fired yet, and the source partitions that hold event time back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.ask.reason import Cause, Reason
from tidegate.pipelines.ledger.manifest import Interval, Manifest
from tidegate.pipelines.ledger.snapshots.head import Snapshot, state_rows
from tidegate.pipelines.ledger.tables.keys import rows_of_key
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.columnar.slices import as_windows
from tidegate.windowing.lateness import cleanup_time
from tidegate.windowing.sides import SIDES
from tidegate.windowing.state.rows import BUCKET, HELD, KEY, SLICE, WINDOW
from tidegate.windowing.time import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Millis,
    to_millis,
)


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """Event time of a source partition. Times are int64 epoch milliseconds.

    Args:
        name: value of `watermark_by`; empty for a source without it.
        watermark: watermark of the partition alone.
        idle: True if the pipeline's watermark does not wait for the partition.
        last_commit: time of the last source commit with rows of the partition.
        quiet: milliseconds without rows, since `last_commit`; the JSON of `tidegate why` has this name too.
        aligned: True if the pipeline's watermark waits for the partition: it is not idle, and it has caught up if it
            was idle before.
        holds: True if the pipeline's watermark can't move until this partition's watermark does.
        behind: milliseconds from this watermark to the next partition that would hold the pipeline's watermark back;
            None if this partition does not hold it back, or has no watermark yet.
        idle_from: time at which the partition becomes idle if no rows arrive; None if it is already idle, or never
            becomes idle.
    """

    name: str
    watermark: Millis
    idle: bool
    last_commit: Millis | None
    quiet: Millis | None
    aligned: bool
    holds: bool
    behind: Millis | None = None
    idle_from: Millis | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """An open window, a process function's state of a key, or an element of a join, and the reason why it waits.

    Times are int64 epoch milliseconds.

    Args:
        key: value of each key column.
        start: start of the window, or time of a join's element; None for the global window and a function's key.
        end: end of the window, exclusive.
        fired: number of panes that the window has emitted.
        next_event_time_timer: time that the watermark must reach.
        next_processing_time_timer: time that the clock must reach.
        missing: milliseconds from the watermark to `next_event_time_timer`, or, if the clock ends the windows, from the
            clock to the time at which the window fires.
        lateness_left: milliseconds for which the window still accepts late elements; None before the watermark passes
            its end.
        reason: why it waits.
    """

    key: dict[str, Any]
    start: Millis | None
    end: Millis | None
    fired: int
    next_event_time_timer: Millis | None
    next_processing_time_timer: Millis | None
    missing: Millis | None
    lateness_left: Millis | None
    reason: Reason


_UNITS = {KEY: "keys", BUCKET: "elements"}


def unit_of(manifest: Manifest) -> str:
    """Return a noun for what waits in the state: `windows`, the `elements` of a join, or the `keys` of a function."""
    return _UNITS.get(manifest.schemas.namespace, "windows")


def partitions(
    manifest: Manifest, now: Millis, timeouts: Mapping[str, Millis | None] | None = None
) -> list[PartitionStatus]:
    """Return the event time of every source partition, those that hold the watermark back first, then by watermark.

    `timeouts` has the milliseconds without a commit after which a partition becomes idle, by input: `""` for the only
    one, otherwise the input's side.
    """
    sides = {name: name.partition(":")[0] if manifest.inputs else "" for name in manifest.partitions}
    watermarks = {name: manifest.inputs.get(side, manifest.watermark) for name, side in sides.items()}
    aligned = {name: partition.watermark for name, partition in manifest.partitions.items() if partition.aligned}
    statuses = []
    for name, partition in manifest.partitions.items():
        timeout = (timeouts or {}).get(sides[name])
        last_commit = partition.last_commit
        # An input that is ahead of the other one does not hold back event time, whatever its own partitions do. After
        # the end of input, nothing holds event time back.
        is_behind = partition.watermark <= watermarks[name] <= manifest.watermark < MAX_TIMESTAMP
        holds, has_begun = name in aligned and is_behind, partition.watermark > MIN_TIMESTAMP
        others = [watermark for other, watermark in aligned.items() if other != name]
        statuses.append(
            PartitionStatus(
                name,
                partition.watermark,
                partition.idle,
                last_commit,
                # The clock that dated the commit may be ahead of this one.
                None if last_commit is None else max(0, now - last_commit),
                name in aligned,
                holds,
                max(0, min(others) - partition.watermark) if holds and others and has_begun else None,
                None if partition.idle or timeout is None or last_commit is None else last_commit + timeout + 1,
            )
        )
    return sorted(statuses, key=lambda status: (not status.holds, status.idle, status.watermark, status.name))


def open_windows(
    warehouse: Warehouse,
    snapshot: Snapshot,
    lateness: Millis,
    now: Millis,
    key: Sequence[str] | None = None,
    limit: int | None = None,
    following: Interval | None = None,
) -> tuple[list[Waiting], int]:
    """Return the first windows (or keys, or elements of a join) of a snapshot, and how many there are in all.

    They are ordered by their end. A key is given as strings, one for each column. `following` is the interval that a
    backfill runs next, or None if none follows, or for a stream.

    Raises:
        UsageError: a string of the key is not a value of its column.
    """
    manifest = snapshot.manifest
    names = tuple(manifest.schemas.key)
    kind = manifest.schemas.namespace
    can_wait = [kind] if kind in (KEY, BUCKET) else [WINDOW, SLICE]
    rows = state_rows(warehouse, snapshot, pc.field("namespace").isin(can_wait))
    if key is not None:
        rows = rows_of_key(rows, names, key)
    waits_for = blocked(manifest, now, following)
    rows = _elements(rows) if kind == BUCKET else as_windows(rows, names)
    # Nulls sort last, so windows without an end come last.
    first = rows.sort_by([(name, "ascending") for name in ("window_end", "key_group")]).slice(0, limit)
    waiting = [_waiting(row, names, manifest, lateness, waits_for) for row in first.to_pylist()]
    return sorted(waiting, key=lambda window: (window.end is None, window.end or 0, str(window.key))), len(rows)


def _elements(rows: pa.Table) -> pa.Table:
    """Return the rows of a join with one for each element: a row has all elements of a key, a side and a time."""
    lengths = [pc.fill_null(pc.list_value_length(rows[side]), 0).to_numpy() for side in SIDES]
    # Each copy of a row would have all of its elements.
    return rows.drop_columns(SIDES).take(pa.array(np.repeat(np.arange(len(rows)), sum(lengths))))


def _waiting(
    row: dict[str, Any], names: tuple[str, ...], manifest: Manifest, lateness: Millis, blocked: Reason
) -> Waiting:
    end = None if row["window_end"] is None else to_millis(row["window_end"])
    held = () if HELD in names else row.get(HELD) or ()
    timers = _Timers(
        min((*(row["event_time_timers"] or ()), *held), default=None),
        min(row["processing_time_timers"] or (), default=None),
        min(held, default=None),
    )
    through = manifest.ended_through
    due = timers.clock if manifest.ends_by_clock else timers.event
    missing = None if due is None else max(0, due - through)
    fired = int(row["pane"])
    passed = not manifest.ends_by_clock and end is not None and end - 1 <= through
    left = None if end is None or not passed else max(0, cleanup_time(end - 1, lateness) - manifest.watermark)
    is_due, is_late = missing == 0, passed and fired > 0
    reason = (None if timers.event is None else _until(row, timers, manifest, blocked, is_due, is_late)) or _by_clock(
        row, timers, manifest, is_due
    )
    return Waiting(
        {name: row[name] for name in names},
        None if row["window_start"] is None else to_millis(row["window_start"]),
        end,
        fired,
        timers.event,
        timers.clock,
        missing,
        left,
        reason,
    )


@dataclass(frozen=True, slots=True)
class _Timers:
    """The first timer of a row in event time (held elements included) and by the clock, and its first held element."""

    event: Millis | None
    clock: Millis | None
    held: Millis | None


def _until(
    row: dict[str, Any], timers: _Timers, manifest: Manifest, blocked: Reason, is_due: bool, is_late: bool
) -> Reason | None:
    """Return the reason of a row that waits for the watermark, or None if it is due."""
    if row["namespace"] == BUCKET:
        return Reason(Cause.KEPT, timers.event, side=row["side"], because=blocked)
    if timers.held is not None and timers.event == timers.held:
        return Reason(Cause.FUNCTION, timers.event, because=blocked)
    if is_late:
        return Reason(Cause.LATE_ELEMENTS, timers.event)
    if is_due:
        return None
    if manifest.watermark == MIN_TIMESTAMP:
        return Reason(Cause.NO_WATERMARK, because=blocked)
    return Reason(Cause.WATERMARK, timers.event, because=blocked)


def _by_clock(row: dict[str, Any], timers: _Timers, manifest: Manifest, is_due: bool) -> Reason:
    """Return the reason of a row that is due, waits for the clock, or for more elements."""
    if is_due:
        return Reason(Cause.DUE)
    if timers.clock is not None:
        # The clock must pass the timer of a window that it ends.
        return Reason(Cause.CLOCK, timers.clock + 1 if manifest.ends_by_clock else timers.clock)
    return Reason(Cause.NO_TIMER_OF_FUNCTION if row["namespace"] == KEY else Cause.NO_TIMER_OF_TRIGGER)


def blocked(manifest: Manifest, now: Millis, following: Interval | None = None) -> Reason:
    """Return why the watermark does not move. The arguments are those of `open_windows`."""
    position, name = next(iter(manifest.positions.values())), manifest.pipeline
    if position.frontier is not None:
        if following is None:
            return Reason(Cause.END_OF_BACKFILL, remedy=Remedy(Act.END_BACKFILL, name))
        remedy = Remedy(Act.BACKFILL, name, start=following.start, end=following.end)
        return Reason(Cause.NEXT_INTERVAL, following.start, remedy=remedy)
    for side in manifest.inputs:
        if not any(name == side or name.startswith(f"{side}:") for name in manifest.partitions):
            return Reason(Cause.NO_ROWS, side=side)
    statuses = partitions(manifest, now)
    if all(status.idle for status in statuses):
        return Reason(Cause.IDLE)
    # If no partition holds it back, the partitions that are not idle were idle before and must catch up.
    slowest = statuses[0]
    is_side = slowest.name in manifest.inputs
    return Reason(
        Cause.HELD_BACK if slowest.holds else Cause.CATCHING_UP,
        slowest.watermark,
        side=slowest.name if is_side else None,
        partition=None if is_side else slowest.name,
        quiet=slowest.quiet,
    )
