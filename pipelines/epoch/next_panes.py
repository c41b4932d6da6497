"""Pane numbers of sessions that come again after a correction took all their elements.

Readers take the newest pane of a window id. A session that vanished leaves the state, and while late elements are
allowed a session with the same bounds may begin anew, with pane 0. So the manifest keeps the number of its next pane,
and the epoch in which it first fires adds that number to its panes, in the tables and in the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.epoch.job import ShardJob
from tidegate.pipelines.manifest import NextPane
from tidegate.pipelines.tables.key_groups import key_hashes
from tidegate.windowing.keys import window_identity
from tidegate.windowing.state.rows import WINDOW, StateRow
from tidegate.windowing.time import Millis
from tidegate.windowing.windows import TimeWindow


def numbers_of_new(job: ShardJob, rows: pa.Table) -> dict[int, int]:
    """Return the number of the first pane, by window id, of windows that come again if they fire in an epoch.

    Args:
        job: job of the epoch's tasks.
        rows: the shard's state rows before the epoch.
    """
    if not job.next_panes:
        return {}
    in_flight = rows.filter(pc.and_(pc.equal(rows["namespace"], WINDOW), rows["in_flight"]))
    keys = pa.array([item.key for item in job.next_panes], pa.int64())
    in_flight = in_flight.filter(pc.is_in(key_hashes(in_flight, job.key.names), value_set=keys))
    fired = {window_id(job, row) for row in job.state.from_table(in_flight) if row.pane}
    return {item.window_id: item.pane for item in job.next_panes if item.window_id not in fired}


def still_needed(items: Iterable[NextPane], watermark: Millis) -> tuple[NextPane, ...]:
    """Return the numbers of windows that an element may still bring back at a watermark."""
    return tuple(item for item in items if item.until > watermark)


def window_id(job: ShardJob, row: StateRow) -> int | None:
    """Return the id of the time window of a state row; None for other state."""
    if not isinstance(row.state_window, TimeWindow):
        return None
    return window_identity(job.key.hash_of(row.key), *row.state_window)


def renumbered(panes: pa.Table, numbers: Mapping[int, int]) -> pa.Table:
    """Return rows of table results, with the numbers of windows that come again added to those of their panes."""
    added = [numbers.get(identity, 0) for identity in panes["window_id"].to_pylist()]
    place, field = panes.schema.get_field_index("pane"), panes.schema.field("pane")
    return panes.set_column(place, field, pc.add(panes["pane"], pa.array(added, field.type)))


def renumbered_state(job: ShardJob, rows: pa.Table, numbers: Mapping[int, int]) -> pa.Table:
    """Return state rows after an epoch, with the same numbers added to those of windows that have fired."""
    return job.state.to_table(
        (_renumbered(job, row, numbers) for row in job.state.from_table(rows)), job.max_parallelism
    )


def _renumbered(job: ShardJob, row: StateRow, numbers: Mapping[int, int]) -> StateRow:
    hashed = job.key.hash_of(row.key)

    def added(window: Any) -> int:
        return numbers.get(window_identity(hashed, *window), 0) if isinstance(window, TimeWindow) else 0

    emitted = row.emitted and [pane._replace(pane=pane.pane + added(pane.identity)) for pane in row.emitted]
    return replace(row, pane=row.pane + (added(row.state_window) if row.pane else 0), emitted=emitted)
