"""Why a window has not fired: what it waits for, and which source partition holds event time back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow.compute as pc

from tidegate.pipelines.manifest import Manifest
from tidegate.pipelines.snapshots.contents import state_rows
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.storage import Warehouse
from tidegate.windowing.state.rows import BUCKET, HELD, KEY, WINDOW
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, saturating_add, show_millis, to_millis


@dataclass(frozen=True, slots=True)
class PartitionStanding:
    """Event time of a source partition. Times: int64 epoch milliseconds.

    Args:
        name: value of `watermark_by`; empty for a source that has none.
        watermark: of the partition alone.
        idle: whether nobody waits for it.
        last_commit: when a commit last carried rows of it.
        quiet: milliseconds since then.
        aligned: whether it is waited for at all: it is not idle, and not behind after having been so.
        holds: whether the pipeline's watermark stays where it is until this one moves on.
        behind: how far it is behind the one that would hold it back else, milliseconds; None where it does not hold.
        idle_from: when nobody waits for it any more if nothing comes; None where it is idle, or will never be.
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
    """An open window, or what a process function or a join keeps. Times: int64 epoch milliseconds.

    Args:
        key: by column.
        start: of the window, or the time of a join's element; None for the global window and a function's key.
        end: not included.
        fired: how many panes have gone out.
        next_event_time_timer: that the watermark has to reach.
        next_processing_time_timer: that the clock has to reach.
        missing: how far the watermark is from that timer, in milliseconds.
        lateness_left: how much longer late elements are taken; None where the window is still open anyway.
        reason: in words, with the way on.
    """

    key: dict[str, Any]
    start: Millis | None
    end: Millis | None
    fired: int
    next_event_time_timer: Millis | None
    next_processing_time_timer: Millis | None
    missing: Millis | None
    lateness_left: Millis | None
    reason: str


def partitions(
    manifest: Manifest, now: Millis, timeouts: Mapping[str, Millis | None] | None = None
) -> list[PartitionStanding]:
    """Every source partition: those that hold the watermark back first, by how far they are behind.

    Args:
        manifest: of a snapshot.
        now: int64 epoch milliseconds.
        timeouts: after how long without a commit a partition is idle, by input: `""` of a single one, else its side.
    """
    sides = {name: name.partition(":")[0] if manifest.inputs else "" for name in manifest.partitions}
    watermarks = {name: manifest.inputs.get(side, manifest.watermark) for name, side in sides.items()}
    aligned = {
        name: known.watermark for name, known in manifest.partitions.items() if known.is_aligned(watermarks[name])
    }
    standings = []
    for name, known in manifest.partitions.items():
        timeout = (timeouts or {}).get(sides[name])
        # An input that is ahead of the other holds nothing back, whatever its own partitions do.
        holds = name in aligned and known.watermark <= watermarks[name] <= manifest.watermark
        others = [watermark for other, watermark in aligned.items() if other != name]
        waits = None if known.idle or timeout is None or known.last_commit is None else known.last_commit + timeout + 1
        standings.append(
            PartitionStanding(
                name,
                known.watermark,
                known.idle,
                known.last_commit,
                None if known.last_commit is None else now - known.last_commit,
                name in aligned,
                holds,
                max(0, min(others) - known.watermark) if holds and others else None,
                waits,
            )
        )
    return sorted(standings, key=lambda one: (not one.holds, one.idle, one.watermark, one.name))


def open_windows(
    warehouse: Warehouse,
    snapshot: Snapshot,
    lateness: Millis,
    now: Millis,
    key: Sequence[str] | None = None,
    limit: int | None = None,
) -> tuple[list[Waiting], int]:
    """The windows (keys, elements of a join) of a snapshot and what each waits for; and how many there are.

    Those that end first come before others.

    Args:
        warehouse: where the tables are.
        snapshot: to look into.
        lateness: that the pipeline allows, milliseconds.
        now: int64 epoch milliseconds.
        key: texts of the key columns' values, in order; None for all keys.
        limit: how many are told; None for all.
    """
    manifest = snapshot.manifest
    names = tuple(manifest.schemas.key)
    rows = state_rows(warehouse, snapshot, pc.field("namespace") == _namespace(manifest))
    for name, text in zip(names, key or (), strict=False):
        rows = rows.filter(pc.fill_null(pc.equal(rows[name].cast("string"), text), text == "null"))
    blocked = _blocked(manifest, now)
    # Nulls come last: what has no end.
    first = rows.sort_by([(name, "ascending") for name in ("window_end", "key_group")]).slice(0, limit)
    waiting = [_waiting(row, names, manifest, lateness, blocked) for row in first.to_pylist()]
    return sorted(waiting, key=lambda window: (window.end is None, window.end or 0, str(window.key))), len(rows)


def _waiting(
    row: dict[str, Any], names: tuple[str, ...], manifest: Manifest, lateness: Millis, blocked: str
) -> Waiting:
    end = None if row["window_end"] is None else to_millis(row["window_end"])
    held = row.get(HELD) or ()
    event_timer = min((*(row["event_time_timers"] or ()), *held), default=None)
    clock_timer = min(row["processing_time_timers"] or (), default=None)
    missing = None if event_timer is None else max(0, event_timer - manifest.watermark)
    fired = int(row["pane"])
    passed = end is not None and end - 1 <= manifest.watermark
    left = None if end is None or not passed else max(0, saturating_add(end - 1, lateness) - manifest.watermark)
    if row["namespace"] == BUCKET and event_timer is not None:
        reason = f"a {row['side']} element: kept until the watermark is {show_millis(event_timer)}; {blocked}"
    elif held and event_timer is not None and event_timer == min(held):
        reason = f"its function gets an element when the watermark reaches {show_millis(event_timer)}; {blocked}"
    elif passed and fired:
        reason = f"it has fired, and takes late elements until the watermark is {show_millis(event_timer)}"
    elif event_timer is not None and missing == 0:
        reason = "it is due: the next epoch fires it"
    elif event_timer is not None and manifest.watermark == MIN_TIMESTAMP:
        reason = f"no event has moved the watermark yet; {blocked}"
    elif event_timer is not None:
        reason = f"the watermark must reach {show_millis(event_timer)}; {blocked}"
    elif clock_timer is not None:
        reason = f"it fires by the clock, in the first epoch from {show_millis(clock_timer)} on"
    elif row["namespace"] == KEY:
        reason = "its function has set no timer: only further elements can make it put out something"
    else:
        reason = "its trigger has set no timer: only further elements can make it fire"
    return Waiting(
        {name: row[name] for name in names},
        None if row["window_start"] is None else to_millis(row["window_start"]),
        end,
        fired,
        event_timer,
        clock_timer,
        missing,
        left,
        reason,
    )


def _namespace(manifest: Manifest) -> str:
    """What the rows are of that wait: windows, keys of a process function, elements of a join."""
    kind = manifest.schemas.namespace
    return kind if kind in (KEY, BUCKET) else WINDOW


def _blocked(manifest: Manifest, now: Millis) -> str:
    """What the watermark itself waits for."""
    position = next(iter(manifest.positions.values()))
    if position.frontier is not None:
        return (
            f"in a backfill that is the run of the interval from {show_millis(position.frontier)}, "
            f"`tidegate backfill {manifest.pipeline} --start ...`"
        )
    for side in manifest.inputs:
        if not any(name == side or name.startswith(f"{side}:") for name in manifest.partitions):
            return f"nothing of the {side} source came yet, and that holds it back"
    standings = partitions(manifest, now)
    if all(standing.idle for standing in standings):
        return "every source partition is idle, so only new events move it"
    # Where none holds it back, what is not idle came back and is behind.
    slowest = standings[0]
    who = f"source partition {slowest.name!r}" if slowest.name else "the source"
    if slowest.name in manifest.inputs:
        who = f"the {slowest.name} source"
    quiet = "" if slowest.quiet is None else f", quiet for {show_length(slowest.quiet)}"
    if not slowest.holds:
        return f"{who} was idle and has to catch up first, from {show_millis(slowest.watermark)}{quiet}"
    return f"{who} holds it back at {show_millis(slowest.watermark)}{quiet}"


def show_length(length: Millis) -> str:
    """A length of time for people, to the second."""
    return f"{'-' if length < 0 else ''}{timedelta(seconds=abs(length) // 1000)}"
