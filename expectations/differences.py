"""Rows of table `results` that differ between two points in time, as numbers, and the partitions that contain them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.expectations.pinned import Pinned
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.window_shape import WindowShape
from tidegate.pipelines.ledger.tables.checksum import hashes_of_rows
from tidegate.pipelines.ledger.tables.keys import digests
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis, to_millis
from tidegate.windowing.timestamps import epoch_millis

UNITS: Final = {"hour": "h", "day": "D", "month": "M"}
_YEARS: Final = (np.datetime64("0001-01-01", "ms"), np.datetime64("9999-12-31T23:59:59.999", "ms"))
_NO_PARTITION: Final = np.iinfo(np.int64).min
_SALT: Final = secrets.token_bytes(16)
"""A secret of this process, so that nobody can craft keys with equal numbers, as is possible with plain hashes."""

_SEEN: Final = frozenset({"window_start", "window_end", "event_time", "output"})
"""Leading columns that matter to readers; the others describe how a result was computed."""

_ROWS: Final = pa.schema(
    {
        "partition": pa.int64(),
        "window": pa.uint64(),
        "pane": pa.int64(),
        "content": pa.uint64(),
        "plus": pa.bool_(),
        "stale": pa.bool_(),
        "came": pa.bool_(),
        "was_final": pa.bool_(),
        "is_final": pa.bool_(),
    }
)
"""Rows that differ between the mark and now.

`window` is a number for key and window (0 for rows that are not panes), `content` one for what readers see, and `plus`
is false for a retraction. `came` is true for an added row, false for a removed one. `was_final` and `is_final` say
whether its window was final at the mark, and whether it is now.
"""

Ints = npt.NDArray[Any]


class Until(NamedTuple):
    """The results that readers know: those of epochs up to this one that are final at this watermark."""

    epoch: int
    watermark: Millis


def read_differences(pinned: Pinned, unit: str, since: Until | None, before: list[dict[str, Any]] | None) -> pa.Table:
    """Return the rows that differ as columns of `_ROWS`.

    `before` lists the files that the table had at the mark; None if no row was removed since.
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
                _came(batch, unit, since, manifest.final_through, is_new) for batch in _batches(pinned, file["path"])
            ]
    for path in listed - present:
        assert since is not None
        parts += [_went(batch, unit, since) for batch in _batches(pinned, path)]
    return pa.concat_tables([_ROWS.empty_table(), *parts])


def differing(rows: pa.Table, shape: WindowShape | None) -> tuple[Ints, bool]:
    """Return the partitions in which the final windows differ, and whether any differ, even without a partition."""
    every_pane = shape is None or shape.every_pane_counts
    sides = [_seen(rows.filter(chosen), every_pane) for chosen in (rows["came"], pc.invert(rows["came"]))]
    pairs = pa.concat_tables(sides).group_by(["partition", "content", "is_retraction"])
    counted = pairs.aggregate([("came", "sum"), ("went", "sum"), ("stale", "sum")])
    left = pc.max_element_wise(pc.subtract(counted["went_sum"], counted["stale_sum"]), 0)
    # A retraction that was removed together with its pane changes nothing.
    differs = pc.if_else(
        counted["is_retraction"], pc.greater(counted["came_sum"], left), pc.not_equal(counted["came_sum"], left)
    )
    partitions: Ints = np.unique(counted.filter(differs)["partition"].to_numpy())
    return partitions[partitions != _NO_PARTITION], len(partitions) > 0


def _seen(rows: pa.Table, every_pane: bool) -> pa.Table:
    """Return partition and content of the results that readers see on one side, and of the retractions they miss.

    Readers see every pane that was not retracted, or only the newest one of each window.
    """
    window, pane, plus, came, stale, is_final, was_final = (
        rows[name].to_numpy() for name in ("window", "pane", "plus", "came", "stale", "is_final", "was_final")
    )
    _, place = np.unique(window, return_inverse=True)
    newest, retracted = (np.full(len(window), -1, np.int64) for _ in range(2))
    np.maximum.at(newest, place, pane)
    np.maximum.at(retracted, place[~plus], pane[~plus])
    stands = plus & (pane > retracted[place])
    if not every_pane:
        stands &= pane == newest[place]
    # Rows that were stale at the mark count as already removed, so they are announced when they reappear.
    shown = stands & np.where(came, np.where(stale, was_final, is_final), was_final & ~stale)
    chosen = shown | (~plus & was_final & ~np.isin(window, window[stands]))
    return pa.table(
        {
            "partition": rows["partition"].to_numpy()[chosen],
            "content": rows["content"].to_numpy()[chosen],
            "is_retraction": ~plus[chosen],
            "came": (came & ~stale)[chosen].astype(np.int64),
            "went": (~came)[chosen].astype(np.int64),
            "stale": (came & stale)[chosen].astype(np.int64),
        }
    )


def _came(batch: pa.RecordBatch, unit: str, since: Until | None, watermark: Millis, is_new: bool) -> pa.Table:
    """Return the rows of a current file that were added since the mark; all of them if the file is new."""
    rows = _numbers(batch, unit)
    is_final = _final(rows, watermark)
    if since is None:
        return _with(rows, came=True, was_final=False, is_final=is_final)
    was_there = pc.less_equal(batch["epoch"], since.epoch)
    # A retraction removes what was final at the time, whichever epoch wrote it.
    was_final = pc.and_(_final(rows, since.watermark), pc.or_(was_there, pc.invert(rows["plus"])))
    if is_new:
        return _with(rows, came=True, was_final=was_final, is_final=is_final)
    # After a restore that set the watermark back, a window that was final is open again.
    opened = pc.and_(was_there, pc.and_not(was_final, is_final))
    chosen = pc.or_(pc.invert(was_there), pc.xor(was_final, is_final))
    return _with(rows, came=pc.invert(opened), was_final=was_final, is_final=is_final).filter(chosen)


def _went(batch: pa.RecordBatch, unit: str, since: Until) -> pa.Table:
    """Return the rows of a removed file that readers knew."""
    rows = _numbers(batch, unit)
    gone = _with(rows, came=False, was_final=_final(rows, since.watermark), is_final=False)
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


def _numbers(batch: pa.RecordBatch, unit: str) -> pa.Table:
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
            "pane": batch["pane"].cast(pa.int64()),
            "content": np.where(plus, content, ~window),
            "plus": plus,
            # The global window becomes final only at the end of input.
            "final_at": epoch_millis(batch["final_at"]).fill_null(MAX_TIMESTAMP),
        }
    return pa.table(columns)


def _numbers_of_keys(batch: pa.RecordBatch, key: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Number the rows by key: different keys get different numbers, even if they were chosen maliciously."""
    texts = digests(pa.Table.from_batches([batch]), key, _SALT).dictionary_encode()
    numbers = np.array([int(text[:16], 16) for text in texts.dictionary.to_pylist()], np.uint64)
    return np.asarray(numbers[texts.indices.to_numpy()], np.uint64)


def _partitions(batch: pa.RecordBatch, unit: str) -> Ints:
    """Return the partition of each row; `_NO_PARTITION` for a row without a time, or one outside Python's years."""
    times = epoch_millis(batch[results.time_column(batch.schema)])
    moments = times.fill_null(_NO_PARTITION).to_numpy().astype("datetime64[ms]")
    first, last = _YEARS
    is_named = (moments >= first) & (moments <= last)
    partitions: Ints = moments.astype(f"datetime64[{UNITS[unit]}]").astype(np.int64)
    return np.where(is_named, partitions, _NO_PARTITION)
