"""Pane numbers of sessions that reappear after a correction removed all their elements.

Readers take the newest pane of each window id of a key. A session without elements is removed from the state, and while
late elements are allowed, a session with the same bounds may start again with pane 0. So the manifest stores the number
of the session's next pane, and the epoch in which it first fires adds that number to its panes in the tables and in the
state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.columns import with_values
from tidegate.pipelines.epoch.job import ShardJob
from tidegate.pipelines.ledger.manifest import NextPane
from tidegate.pipelines.ledger.tables.keys import digests, key_hashes
from tidegate.windowing.keys import window_identity
from tidegate.windowing.state.rows import WINDOW, StateRow
from tidegate.windowing.time import Millis
from tidegate.windowing.windows import TimeWindow

Numbers: TypeAlias = Mapping[tuple[str | int, int], int]
"""First pane number of each window, by the digest or hash of its key and by its id."""

Window: TypeAlias = tuple[Any, int]
"""A key in memory, and the id of one of its windows. Windows of other keys may have the same id."""


def numbers_of_new(job: ShardJob, rows: pa.Table) -> Numbers:
    """Return the first pane numbers of reappearing windows that may fire in an epoch."""
    if not job.next_panes:
        return {}
    numbers = {(item.digest or item.key, item.window_id): item.pane for item in job.next_panes}
    in_flight = rows.filter(pc.and_(pc.equal(rows["namespace"], WINDOW), rows["in_flight"]))
    keys = pa.array([item.key for item in job.next_panes], pa.int64())
    in_flight = in_flight.filter(pc.is_in(key_hashes(in_flight, job.key.names), value_set=keys))
    for names, row in zip(_names(in_flight, job.key.names), job.state.from_table(in_flight), strict=True):
        if row.pane and (identity := window_id(job, row)) is not None:
            for name in names:
                numbers.pop((name, identity), None)
    return numbers


def still_needed(items: Iterable[NextPane], watermark: Millis) -> tuple[NextPane, ...]:
    """Return the pane numbers of windows that may still reappear at a watermark."""
    return tuple(item for item in items if item.until > watermark)


def window_id(job: ShardJob, row: StateRow) -> int | None:
    """Return the id of the time window of a state row, or None for other state."""
    if not isinstance(row.state_window, TimeWindow):
        return None
    return window_identity(job.key.hash_of(row.key), *row.state_window)


def renumbered(panes: pa.Table, key: tuple[str, ...], numbers: Numbers) -> pa.Table:
    """Return rows of table results in which panes of reappearing windows continue from the stored numbers."""
    ids = pa.array({identity for _, identity in numbers}, pa.int64())
    places = np.flatnonzero(pc.is_in(panes["window_id"], value_set=ids).to_numpy())
    again = panes.take(pa.array(places))
    added = np.zeros(len(panes), np.int64)
    added[places] = [
        _number(numbers, names, identity)
        for names, identity in zip(_names(again, key), again["window_id"].to_pylist(), strict=True)
    ]
    return with_values(panes, "pane", pc.add(panes["pane"], pa.array(added).cast(panes["pane"].type)))


def renumbered_state(job: ShardJob, rows: pa.Table, numbers: Numbers) -> pa.Table:
    """Return state rows after an epoch, with the pane numbers of fired windows adjusted in the same way."""
    named = zip(_names(rows, job.key.names), job.state.from_table(rows), strict=True)
    return job.state.to_table((_renumbered(job, row, names, numbers) for names, row in named), job.max_parallelism)


def _renumbered(job: ShardJob, row: StateRow, names: tuple[str, int], numbers: Numbers) -> StateRow:
    hashed = job.key.hash_of(row.key)

    def added(window: Any) -> int:
        return _number(numbers, names, window_identity(hashed, *window)) if isinstance(window, TimeWindow) else 0

    emitted = row.emitted and [pane._replace(pane=pane.pane + added(pane.identity)) for pane in row.emitted]
    return replace(row, pane=row.pane + (added(row.state_window) if row.pane else 0), emitted=emitted)


def _names(rows: pa.Table, key: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield the digest of each row's key, and its hash, by which older versions of tidegate named it."""
    return zip(digests(rows, key).to_pylist(), key_hashes(rows, key).to_pylist(), strict=True)


def _number(numbers: Numbers, names: tuple[str, int], identity: int) -> int:
    return next((numbers[name, identity] for name in names if (name, identity) in numbers), 0)


def windows_of(job: ShardJob, rows: pa.Table) -> Iterator[Window]:
    """Yield the windows of rows."""
    names = [*job.key.names, "window_id"]
    columns = [rows[name].to_pylist() for name in names] if len(rows) else []
    return ((job.key.key_of(values[:-1]), values[-1]) for values in zip(*columns, strict=True))


def next_panes(
    job: ShardJob, kept: Iterable[StateRow], out: Sequence[dict[str, Any]], newest: Mapping[Window, int], rows: pa.Table
) -> list[tuple[str, int, int]]:
    """Return the key's digest, id and next pane number of windows without state after the correction."""
    if not len(rows):
        return []
    fired = {(row.key, window_id(job, row)) for row in kept if row.pane}
    numbers = {window: newest.get(window, -1) for window in windows_of(job, rows) if window not in fired}
    for row in out:
        window = job.key.key_of([row[name] for name in job.key.names]), row["window_id"]
        if window in numbers:
            numbers[window] = max(numbers[window], row["pane"])
    digest_of = dict(zip(windows_of(job, rows), digests(rows, job.key.names).to_pylist(), strict=True))
    return [(digest_of[window], window[1], pane + 1) for window, pane in numbers.items()]
