"""Combining events into parts of windows where they are read, so that an exchange moves parts and not events.

A hot key thus has a few rows only, one for each window and commit that a task reads. Events that may be late keep their
origin and stay alone, because each late event is a row of table late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition.event_columns import (
    COMMIT,
    COUNT,
    FILE,
    KEY_PREFIX,
    PLACE,
    ROW,
    TIME,
    VALUE_PREFIX,
    key_type,
)
from tidegate.pipelines.epoch.exchange import gathered
from tidegate.pipelines.epoch.job import ShardJob, elements_of
from tidegate.windowing.aggregates.vectorised import Bools
from tidegate.windowing.columnar import Combining
from tidegate.windowing.columnar.key_codes import KeyCodes
from tidegate.windowing.time import LAST_TIME, MIN_TIMESTAMP


def combined(job: ShardJob, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield events as parts of windows, or unchanged if the computation does not allow that."""
    combining = job.combining
    if combining is None:
        yield from tables
    else:
        for table in gathered(tables):
            yield _parts(job, combining, table)


def _parts(job: ShardJob, combining: Combining, events: pa.Table) -> pa.Table:
    elements, keys = elements_of(job, events), job.placing.keys_of(events)
    commits = np.asarray(events[COMMIT].to_numpy())
    (codes,) = keys.codes
    parts = combining.run(codes, elements.timestamps, commits, elements.columns, _are_late(job, combining, events))
    places = pa.array(parts.rows)
    return pa.table(
        {
            TIME: pa.array(parts.timestamps),
            COMMIT: pa.array(commits[parts.rows]),
            COUNT: pa.array(parts.counts),
            **{name: events[name].take(places) for name in (FILE, PLACE, ROW) if name in events.column_names},
            **_keys(job, keys, codes[parts.rows]),
            **{f"{VALUE_PREFIX}{name}": column for name, column in parts.columns.items()},
        }
    )


def _are_late(job: ShardJob, combining: Combining, events: pa.Table) -> Bools | None:
    """Return a flag for each event: whether it may be late. Return None if none may be."""
    late = {} if job.files is None else job.files.late
    if not late:
        return None
    bounds = np.full(len(job.steps), MIN_TIMESTAMP)
    bounds[list(late)] = list(late.values())
    # At the end of input, windows are cleaned up before their lateness ends.
    bounds[bounds >= LAST_TIME - 1 - job.windows.lateness] = LAST_TIME
    return combining.are_late(events[TIME].to_numpy(), bounds[events[COMMIT].to_numpy()])


def _keys(job: ShardJob, keys: KeyCodes, codes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[str, pa.Array]:
    names = [f"{KEY_PREFIX}{name}" for name in job.key.names]
    if len(names) == 1 and key_type(job.key.types[0]) != job.key.types[0] and not keys.columns[0].null_count:
        # The values stay in a dictionary, so that each is hashed once.
        return {names[0]: pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), keys.columns[0])}
    return dict(zip(names, keys.take(codes), strict=True))
