"""What changed between two snapshots: windows and timers that came, went or changed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from tidegate.pipelines.snapshots.contents import state_rows
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.storage import Warehouse

_TIMERS = {"event_time_timers": "event time", "processing_time_timers": "processing time"}
_PLACE = ("namespace", "side", "window_start", "window_end")


class Timer(NamedTuple):
    """A timer of a key and window; `at` in int64 epoch milliseconds."""

    row: dict[str, Any]
    domain: str
    at: int


@dataclass(frozen=True)
class Change:
    """A window that is in both snapshots.

    Args:
        before: its row in the first.
        after: its row in the second.
        columns: whose values differ; the bounds among them where a session grew.
    """

    before: dict[str, Any]
    after: dict[str, Any]
    columns: tuple[str, ...]


@dataclass
class Difference:
    """From one snapshot to another; rows as `state` has them."""

    came: list[dict[str, Any]] = field(default_factory=list)
    went: list[dict[str, Any]] = field(default_factory=list)
    changed: list[Change] = field(default_factory=list)
    timers_came: list[Timer] = field(default_factory=list)
    timers_went: list[Timer] = field(default_factory=list)


def compare(warehouse: Warehouse, one: Snapshot, other: Snapshot) -> Difference:
    """What the second snapshot has that the first has not, and the other way round."""
    key = tuple(other.manifest.schemas.key)
    before, after = (_by_place(state_rows(warehouse, snapshot), key) for snapshot in (one, other))
    found = Difference()
    for place in before.keys() & after.keys():
        _note_change(found, before[place], after[place])
    went, came = (
        {place: rows[place] for place in rows.keys() - others} for rows, others in ((before, after), (after, before))
    )
    _match_grown(found, went, came, len(key))
    found.went, found.came = list(went.values()), list(came.values())
    for rows, timers in ((went, found.timers_went), (came, found.timers_came)):
        for row in rows.values():
            timers += _timers(row)
    for part in (found.came, found.went):
        part.sort(key=lambda row: (row["window_end"] is None, row["window_end"], str([row[name] for name in key])))
    return found


def _by_place(rows: pa.Table, key: tuple[str, ...]) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[name] for name in (*key, *_PLACE)): row for row in rows.to_pylist()}


def _note_change(found: Difference, before: dict[str, Any], after: dict[str, Any]) -> None:
    columns = tuple(name for name in after if name not in _TIMERS and before.get(name) != after[name])
    if columns:
        found.changed.append(Change(before, after, columns))
    old, new = set(_timers_of(before)), set(_timers_of(after))
    found.timers_went += [Timer(before, *timer) for timer in sorted(old - new)]
    found.timers_came += [Timer(after, *timer) for timer in sorted(new - old)]


def _match_grown(
    found: Difference, went: dict[tuple[Any, ...], Any], came: dict[tuple[Any, ...], Any], key_columns: int
) -> None:
    """A window that lies within a larger one of its key has grown: windows of a fixed size can't."""
    by_key: defaultdict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for place in came:
        by_key[place[: key_columns + 2]].append(place)
    for place in sorted(went, key=lambda place: str(place[-2])):
        start, end = place[-2:]
        grown = [
            candidate
            for candidate in by_key[place[: key_columns + 2]]
            if candidate in came and start is not None and candidate[-2] is not None
            if candidate[-2] <= start and end <= candidate[-1]
        ]
        if grown:
            _note_change(found, went.pop(place), came.pop(grown[0]))


def _timers_of(row: dict[str, Any]) -> list[tuple[str, int]]:
    return [(domain, at) for name, domain in _TIMERS.items() for at in row.get(name) or ()]


def _timers(row: dict[str, Any]) -> list[Timer]:
    return [Timer(row, *timer) for timer in _timers_of(row)]
