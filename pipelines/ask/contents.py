"""Contents of snapshots: windows and timers as rows, counts and checksums by key group, and differences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.ledger.snapshots.head import Snapshot, state_rows
from tidegate.pipelines.ledger.tables.checksum import hashes_of_rows
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.columnar.slices import as_windows
from tidegate.windowing.operators.joins import WINDOW_JOIN
from tidegate.windowing.state.rows import BUCKET, KEY

_INTERNAL = {
    "side",
    "missing",
    "late_firing",
    "emitted",
    "trigger_state",
    "user_state",
    "in_flight",
    "filled",
}

_SHOWN = {KEY: {"user_state"}, BUCKET: {"side"}, WINDOW_JOIN: {"side"}}
"""Internal columns that are shown to users, by namespace: a function's state, and the side of an element."""


def window_rows(tables: PipelineTables, snapshot: Snapshot, key_group: int | None = None) -> pa.Table:
    """Return the state rows in readable form: ordered by key group, without internal and empty columns."""
    rows = state_rows(tables.warehouse, snapshot, None if key_group is None else pc.field("key_group") == key_group)
    key = snapshot.manifest.schemas.key
    hidden = _INTERNAL - _SHOWN.get(snapshot.manifest.schemas.namespace, set()) - key.keys()
    rows = rows.drop_columns([name for name in rows.column_names if name in hidden])
    empty = [name for name in rows.column_names if name not in key and len(rows) and rows[name].null_count == len(rows)]
    order = [("key_group", "ascending"), ("window_start", "ascending")]
    return rows.drop_columns(empty).sort_by([item for item in order if item[0] not in empty])


def key_group_counts(rows: pa.Table, key: Sequence[str]) -> list[dict[str, Any]]:
    """Return the number of windows and timers of each key group that has windows, from rows of `window_rows`."""
    rows = as_windows(rows, key)
    window_counts: Counter[int] = Counter(rows["key_group"].to_pylist())
    timers: dict[str, Counter[int]] = {name: Counter() for name in ("event_time_timers", "processing_time_timers")}
    for name, counts in timers.items():
        if name in rows.column_names:
            for group, times in zip(rows["key_group"].to_pylist(), rows[name].to_pylist(), strict=True):
                counts[group] += len(times or ())
    return [
        {
            "key_group": group,
            "windows": window_counts[group],
            **{name: counts[group] for name, counts in timers.items()},
        }
        for group in sorted(window_counts)
    ]


def checksums(rows: pa.Table) -> dict[int, str]:
    """Return a checksum of each key group. It depends only on the rows, not on files, shards or order."""
    sums: Counter[int] = Counter()
    for batch in rows.to_batches(max_chunksize=65_536):
        groups, of_groups = np.unique(batch.column("key_group").to_numpy(), return_inverse=True)
        added = np.zeros(len(groups), np.uint64)
        np.add.at(added, of_groups, hashes_of_rows(batch))
        sums.update(dict(zip(groups.tolist(), added.tolist(), strict=True)))
    return {group: f"{sums[group] % 2**64:016x}" for group in sorted(sums)}


_TIMERS = {"event_time_timers": "event time", "processing_time_timers": "processing time"}
_PLACE = ("namespace", "side", "window_start", "window_end")


class Timer(NamedTuple):
    """A timer of a key and window. `at` is int64 epoch milliseconds."""

    row: dict[str, Any]
    domain: str
    at: int


@dataclass(frozen=True)
class Change:
    """A window that is in both snapshots.

    Args:
        before: its row in the first snapshot.
        after: its row in the second snapshot.
        columns: columns whose values differ; they include the bounds if a session grew.
    """

    before: dict[str, Any]
    after: dict[str, Any]
    columns: tuple[str, ...]


@dataclass
class Difference:
    """The difference from one snapshot to another. Rows have the columns of table `state`."""

    added: list[dict[str, Any]] = field(default_factory=list)
    removed: list[dict[str, Any]] = field(default_factory=list)
    changed: list[Change] = field(default_factory=list)
    timers_added: list[Timer] = field(default_factory=list)
    timers_removed: list[Timer] = field(default_factory=list)


def compare(warehouse: Warehouse, first: Snapshot, second: Snapshot) -> Difference:
    """Return the difference from the first snapshot to the second."""
    key = tuple(second.manifest.schemas.key)
    before, after = (
        {tuple(row[name] for name in (*key, *_PLACE)): row for row in state_rows(warehouse, snapshot).to_pylist()}
        for snapshot in (first, second)
    )
    difference = Difference()
    for place in before.keys() & after.keys():
        _note_change(difference, before[place], after[place])
    removed, added = (
        {place: rows[place] for place in rows.keys() - others} for rows, others in ((before, after), (after, before))
    )
    _match_grown(difference, removed, added, len(key))
    difference.removed, difference.added = list(removed.values()), list(added.values())
    for rows, timers in ((removed, difference.timers_removed), (added, difference.timers_added)):
        timers += [Timer(row, *timer) for row in rows.values() for timer in _timers_of(row)]
    for part in (difference.added, difference.removed):
        part.sort(key=lambda row: (row["window_end"] is None, row["window_end"], str([row[name] for name in key])))
    return difference


def _note_change(difference: Difference, before: dict[str, Any], after: dict[str, Any]) -> None:
    # Values are compared as text, so that NaN equals NaN, even within lists and structs.
    columns = tuple(name for name in after if name not in _TIMERS and repr(before.get(name)) != repr(after[name]))
    if columns:
        difference.changed.append(Change(before, after, columns))
    old, new = set(_timers_of(before)), set(_timers_of(after))
    difference.timers_removed += [Timer(before, *timer) for timer in sorted(old - new)]
    difference.timers_added += [Timer(after, *timer) for timer in sorted(new - old)]


def _match_grown(
    difference: Difference, removed: dict[tuple[Any, ...], Any], added: dict[tuple[Any, ...], Any], key_columns: int
) -> None:
    """Record a removed window as a change of the added window that contains it: a session that grew.

    Windows of a fixed size never contain each other.
    """
    by_key: defaultdict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for place in added:
        by_key[place[: key_columns + 2]].append(place)
    for place in sorted(removed, key=lambda place: str(place[-2])):
        start, end = place[-2:]
        grown = [
            candidate
            for candidate in by_key[place[: key_columns + 2]]
            if candidate in added and start is not None and candidate[-2] is not None
            if candidate[-2] <= start and end <= candidate[-1]
        ]
        if grown:
            _note_change(difference, removed.pop(place), added.pop(grown[0]))


def _timers_of(row: dict[str, Any]) -> list[tuple[str, int]]:
    return [(domain, at) for name, domain in _TIMERS.items() for at in row.get(name) or ()]
