"""Windows by key and id, and the numbers of the next panes of those that have no state after a correction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from tidegate.pipelines.epoch.job import ShardJob
from tidegate.pipelines.epoch.next_panes import window_id
from tidegate.pipelines.tables.keys import digests
from tidegate.windowing.state.rows import StateRow

Window: TypeAlias = tuple[Any, int]
"""A key as in memory, and the id of a window of it. The windows of other keys may have the same id."""

NO_WINDOWS = pa.table({"pane": pa.chunked_array([], pa.int64())})


def windows_of(job: ShardJob, rows: pa.Table) -> Iterator[Window]:
    """Yield the windows of rows."""
    names = [*job.key.names, "window_id"]
    columns = [rows[name].to_pylist() for name in names] if len(rows) else []
    return ((job.key.key_of(values[:-1]), values[-1]) for values in zip(*columns, strict=True))


def next_panes(
    job: ShardJob, kept: Iterable[StateRow], out: Sequence[dict[str, Any]], newest: Mapping[Window, int], rows: pa.Table
) -> list[tuple[str, int, int]]:
    """Return digest of the key, id and number of the next pane of windows without state after the correction."""
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
