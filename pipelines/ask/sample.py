"""A sample of a source: its newest commits, and what their rows say of keys and windows. Starts no JVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import pyarrow as pa

from tidegate.pipelines.ask.arrivals import Arrivals, Arrived, Int64s
from tidegate.pipelines.ask.row_windows import Ordered, aligned, sessions
from tidegate.pipelines.definition.pipeline import operator_of
from tidegate.pipelines.ledger.tables.keys import text_of_value
from tidegate.windowing.assigners import TumblingEventTimeWindows, WindowAssigner
from tidegate.windowing.columnar.key_codes import encode_keys
from tidegate.windowing.columnar.slices import Slicing
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import Millis

HOT = 0.01
"""Smallest share of the rows of a hot key."""
_MOST_HOT = 10
_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key with many of the rows.

    Args:
        key: text of each key column.
        share: share of the sample's rows.
    """

    key: tuple[str, ...]
    share: float


@dataclass(frozen=True, slots=True)
class Sampled:
    """The newest commits of a source, and their rows.

    Args:
        commits: number of commits of the sample.
        rows_per_commit: median number of their rows, as far as the source records it.
        files_per_commit: median number of their files.
        commits_per_hour: how often one is made; None for fewer than two commits.
        rows: number of rows that were read.
        share: share of the commits' rows that were read.
        span: event time that the rows cover, milliseconds.
        life: time for which a window stays open, milliseconds; None if it is unknown.
        keys: number of keys in the rows; None if they are not known.
        hot: keys with at least 1 % of the rows, the hottest first.
        open: estimated largest number of open windows, or slices; None if only a run can tell.
        windows_per_row: estimated number of windows that fire for each row; None if only a run can tell.
        unknown: why only a run can tell; empty otherwise.
    """

    commits: int
    rows_per_commit: int
    files_per_commit: int
    commits_per_hour: float | None
    rows: int
    share: float
    span: Millis
    life: Millis | None
    keys: int | None
    hot: tuple[HotKey, ...]
    open: int | None
    windows_per_row: float | None
    unknown: str = ""


def sample_of(arrivals: Arrivals) -> Sampled:
    """Read the rows of some commits, and estimate keys and windows from them.

    If the rows cover less event time than a window stays open, or only some files of a commit were read, the number of
    windows grows with the number of keys that more rows would have.
    """
    arrived, reads = arrivals.rows(), arrivals.reads
    recorded = [sum(file.rows or 0 for file in read.commit.files) for read in reads]
    share = sum(file.rows or 0 for read in reads for file in read.files) / (sum(recorded) or 1) or 1.0
    span = int(np.ptp(arrived.times)) if len(arrived) else 0
    has_keys = len(arrivals.source.inputs) == 1 and bool(arrivals.source.bound.key.names)
    hashes, counts = np.unique(arrived.keys, return_counts=True)
    assigner, unknown = _assigner_of(arrivals)
    life, open_, per_row = None, None, None
    if assigner is not None and len(arrived):
        windows = _windows_of(arrived, assigner, arrivals)
        life, unit = windows.life, windows.unit
        # Until a window is as long as the unit, further rows open windows only for further keys.
        times = max(1.0, unit / max(1, span)) / share
        growth = distinct_in(counts, times) / len(counts)
        open_ = round(windows.open * growth * max(1.0, life / max(1, span, unit)))
        per_row = windows.fired * growth / (len(arrived) * times)
    elif has_keys and len(arrived):
        open_ = round(distinct_in(counts, 1 / share))
    return Sampled(
        commits=len(reads),
        rows_per_commit=_median(recorded),
        files_per_commit=_median([len(read.commit.files) for read in reads]),
        commits_per_hour=_hourly([read.commit.time for read in reads]),
        rows=len(arrived),
        share=share,
        span=span,
        life=life,
        keys=len(hashes) if has_keys else None,
        hot=_hot(arrivals, hashes, counts) if has_keys else (),
        open=open_,
        windows_per_row=per_row,
        unknown=unknown,
    )


def _median(numbers: Sequence[int]) -> int:
    return round(median(numbers)) if numbers else 0


def _hourly(times: Sequence[Millis]) -> float | None:
    """Return the number of commits in an hour, given their times; None if they have only one."""
    took = max(times) - min(times) if times else 0
    return (len(times) - 1) * _HOUR / took if took else None


def distinct_in(counts: Int64s, times: float) -> float:
    """Return the expected number of distinct values in a sample that is `times` as large.

    `counts` has the number of rows of each value in the sample. Source: Chao et al., "Rarefaction and extrapolation
    with Hill numbers" (2014), for species richness.

    >>> round(distinct_in(np.array([1, 1, 1, 1, 2, 2, 5]), 2.0), 1)
    9.5
    """
    seen, rows = len(counts), int(counts.sum())
    once, twice = int(np.count_nonzero(counts == 1)), int(np.count_nonzero(counts == 2))
    if times <= 1 or not once:
        return float(seen)
    unseen = once * once / (2 * twice) if twice else once * (once - 1) / 2
    if not unseen:
        return float(seen)
    return float(seen + unseen * (1 - (1 - once / (rows * unseen + once)) ** (rows * (times - 1))))


@dataclass(frozen=True, slots=True)
class _OfRows:
    """The windows of some rows.

    Args:
        fired: number of windows that fire.
        open: largest number of windows, or slices, that are open after a commit.
        unit: length of a window, of a slice, or of the gap of sessions, milliseconds.
        life: time for which a window or slice is in the state, milliseconds.
    """

    fired: int
    open: int
    unit: Millis
    life: Millis


def _assigner_of(arrivals: Arrivals) -> tuple[WindowAssigner | None, str]:
    """Return the assigner whose windows rows alone decide, or None and the reason."""
    bound = arrivals.source.bound
    compute = bound.compute
    if len(bound.inputs) > 1:
        return None, "the elements that a join keeps are known after a run"
    if not isinstance(compute, Windows):
        return None, "only the function knows what it keeps of each key"
    assigner = compute.assigner
    if assigner.is_global or not assigner.is_event_time:
        return None, "event time alone does not end its windows; one for each key is counted"
    known = assigner.needs_rows is None if assigner.forms_sessions else assigner.array_assignment is not None
    return (assigner, "") if known else (None, "its windows are assigned row by row; one for each key is counted")


def _windows_of(arrived: Arrived, assigner: WindowAssigner, arrivals: Arrivals) -> _OfRows:
    codes = np.unique(arrived.keys, return_inverse=True)[1].astype(np.int64)
    watermarks, lateness = arrivals.watermarks(), arrivals.source.bound.lateness or 0
    delay = max(0, int(arrived.times.max()) - int(watermarks.after[-1]))
    slicing = operator_of(arrivals.pipeline).slicing
    unit = life = assigner.longest_window or int(np.mean(arrived.gaps))
    if isinstance(slicing, Slicing):
        # The state has a row for each slice, which stays until the last of its windows has ended.
        grid, width = slicing.grid, slicing.width
        unit = width
        slices = aligned(arrived, codes, TumblingEventTimeWindows(width, grid.offset % width))
        grouped = replace(slices, ends=slices.ends + grid.size - width)
        fired = _fired_of_slices(codes, slicing.slices_at(arrived.times), slicing)
    elif assigner.forms_sessions:
        grouped = sessions(Ordered.of(arrived, codes), assigner.gap_of_every_element)
        fired = len(grouped.ends)
    else:
        grouped = aligned(arrived, codes, assigner)
        fired = len(grouped.ends)
    open_ = np.cumsum(grouped.opened_and_closed(lateness, watermarks)).max(initial=0)
    return _OfRows(fired, int(open_), unit, life + lateness + delay)


def _fired_of_slices(codes: Int64s, slices: Int64s, slicing: Slicing) -> int:
    """Return the number of windows that have any of the rows. Windows without rows don't fire."""
    slide = slicing.grid.slide // slicing.width
    keys, numbers = np.unique(np.stack([codes, slices]), axis=1)
    each, further = slicing.grid.size // slicing.grid.slide, np.diff(numbers // slide)
    return each + int(np.where(np.diff(keys) == 0, np.minimum(further, each), each).sum())


def _hot(arrivals: Arrivals, hashes: Int64s, counts: Int64s) -> tuple[HotKey, ...]:
    """Return the hot keys; their values are read again, since the sample has only hashes."""
    total = int(counts.sum())
    order = np.argsort(-counts, kind="stable")[:_MOST_HOT]
    shares = {int(hashes[place]): counts[place] / total for place in order if counts[place] >= HOT * total}
    found: dict[int, tuple[str, ...]] = {}
    key, columns = arrivals.source.bound.key, arrivals.files.tables[0].columns
    for judged in arrivals.files.evaluated(names=[[columns.timestamp, *columns.key]]) if shares else ():
        table: pa.Table = judged.table
        keys = encode_keys(key, ({name: table[name] for name in key.names}, len(table)))
        of_codes = keys.hashes.view(np.int64)
        codes = np.flatnonzero(np.isin(of_codes, list(shares)))
        values = [column.to_pylist() for column in keys.take(codes)]
        texts: Sequence[tuple[str, ...]] = [tuple(map(text_of_value, row)) for row in zip(*values, strict=True)]
        found |= dict(zip(of_codes[codes].tolist(), texts, strict=True))
        if len(found) == len(shares):
            break
    return tuple(HotKey(found[each], float(share)) for each, share in shares.items() if each in found)
