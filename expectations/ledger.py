"""The ledger: the counters of each epoch compared with row counts in the tables, for each range of key groups.

A row that was lost or written twice, in any table, shows up here. Rows that `tidegate forget` and `tidegate late prune`
removed are not lost: each of these commands has its own epoch, which records them. Rows that were removed from tables
late and rejects because the source deleted them are counted by the epoch that noticed the deletion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.counters import FIRED, RETRACTED, ROWS_OUT
from tidegate.pipelines.definition.epochs import DELETED
from tidegate.pipelines.definition.window_shape import WindowShape
from tidegate.pipelines.ledger.manifest import Line, Manifest
from tidegate.windowing.columnar.slices import open_windows, windows_of_rows
from tidegate.windowing.state.rows import SLICE, WINDOW

_PRUNED = ("late", "rejected")
"""Counters of rows that pruning may remove; it always removes all rows of an epoch."""

ELEMENTS = "elements in windows"

Ints = npt.NDArray[Any]


class Entry(NamedTuple):
    """A counter (`counted`), and the number of rows (`found`) to compare it with. No range means all key groups."""

    epoch: int
    what: str
    first_key_group: int | None
    last_key_group: int | None
    counted: int
    found: int


class RowCounts:
    """Row counts of the tables, by epoch and range of key groups, added up while the tables are read.

    Rows of other epochs are not counted.
    """

    def __init__(self, epochs: pa.Table, max_parallelism: int) -> None:
        self._epochs = epochs.to_pylist()
        self._every = (0, max_parallelism - 1)
        self._starts = {row["epoch"]: np.array([first for first, _ in self._ranges(row)]) for row in self._epochs}
        self._by_group: dict[str, bool] = {}
        self._row_counts: dict[tuple[str, int], Ints] = {}
        self._deleted = _deleted_of(epochs)

    def take(self, what: str, epochs: Ints, groups: Ints | None) -> None:
        """Count rows by their epoch, and by their key groups if these are given."""
        self._by_group[what] = groups is not None
        for epoch in np.unique(epochs).tolist():
            if epoch not in self._starts:
                continue
            starts = self._starts[epoch] if groups is not None else np.zeros(1, np.int64)
            members = epochs == epoch
            groups_of_rows = np.zeros(int(members.sum()), np.int64) if groups is None else groups[members]
            counts = np.bincount(np.searchsorted(starts, groups_of_rows, side="right") - 1, minlength=len(starts))
            earlier = self._row_counts.get((what, epoch))
            self._row_counts[what, epoch] = counts if earlier is None else earlier + counts

    def entries(self) -> Iterator[Entry]:
        """Yield each counter of an epoch with the row count of the tables."""
        for row in self._epochs:
            for what, by_group in self._by_group.items():
                ranges = self._ranges(row) if by_group else [self._every]
                row_counts = self._row_counts.get((what, row["epoch"]), np.zeros(len(ranges), np.int64))
                has_shards = by_group and row.get("shards")
                counters = [shard[what] for shard in row["shards"]] if has_shards else [row[what]]
                if deleted := self._deleted.get((what, row["epoch"]), 0):
                    # The counters of removed rows cover all key groups together.
                    ranges, row_counts = [self._every], row_counts.sum(keepdims=True)
                    counters = [sum(count or 0 for count in counters) - deleted]
                for (first, last), counted, rows in zip(ranges, counters, row_counts.tolist(), strict=True):
                    yield Entry(row["epoch"], what, first, last, counted or 0, rows)

    def _ranges(self, row: dict[str, Any]) -> list[tuple[int, int]]:
        return [(shard["first"], shard["last"]) for shard in row.get("shards") or ()] or [self._every]


def _deleted_of(epochs: pa.Table) -> dict[tuple[str, int], int]:
    """Return how many counted rows were later removed from tables late and rejects, by counter and counting epoch."""
    deleted: dict[tuple[str, int], int] = {}
    for counts in epochs[DELETED].to_pylist():
        for each in counts or ():
            for what in ("late", "reopened", "rejected"):
                deleted[what, each["epoch"]] = deleted.get((what, each["epoch"]), 0) + each[what]
    return deleted


class ErasedRows(NamedTuple):
    """The newest epochs, if any, of `tidegate forget` and `tidegate late prune`, which remove rows on purpose."""

    forgotten: int | None
    pruned: int | None

    @classmethod
    def of(cls, epochs: pa.Table) -> ErasedRows:
        """Return the newest erasure and the newest prune among rows of table `epochs`."""
        kinds = {
            kind: pc.max(epochs.filter(pc.equal(epochs["kind"], kind))["epoch"]).as_py() for kind in ("forget", "prune")
        }
        return cls(kinds["forget"], kinds["prune"])

    def explains(self, entry: Entry) -> bool:
        """Return True if rows of an entry that are missing may have been removed on purpose. Surplus rows never are."""
        if entry.found >= entry.counted:
            return False
        if self.forgotten is not None and entry.epoch < self.forgotten:
            return True
        # Prune removes late rows by the epoch that classified them, even if a later epoch reopened them.
        is_whole = entry.what == "reopened" or (entry.what in _PRUNED and entry.found == 0)
        return is_whole and self.pruned is not None and entry.epoch < self.pruned


@dataclass
class TableContents:
    """The numbers of open windows and of elements in windows, by key group.

    `counts_all` is False if some windows don't count their elements, because they are older than the count.
    """

    groups: int
    open_windows: Ints = field(init=False)
    elements: Ints = field(init=False)
    counts_all: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        self.open_windows, self.elements = (np.zeros(self.groups, np.int64) for _ in range(2))

    def take_windows(self, rows: pa.Table, key: tuple[str, ...]) -> None:
        """Add the open windows of state rows, which include all window slices of their keys."""
        self.open_windows += np.bincount(open_windows(rows, key)["key_group"].to_numpy(), minlength=self.groups)

    def take_elements(self, rows: pa.Table, count: str) -> None:
        """Add the elements in open windows of state rows; result column `count` counts a window's elements."""
        rows = rows.filter(pc.and_(pc.is_in(rows["namespace"], pa.array([WINDOW, SLICE])), rows["in_flight"]))
        # The elements of a slice are in each of its windows.
        name = f"acc_{count}"
        self.counts_all &= name not in pc.list_flatten(rows["missing"]).unique().to_pylist()
        self.elements += self._sums(rows["key_group"].to_numpy(), rows[name].to_numpy() * windows_of_rows(rows))

    def take_final(self, groups: Ints, counts: pa.ChunkedArray, sign: int = 1) -> None:
        """Add final windows with their element counts; subtract them if the sign is -1."""
        self.counts_all &= not counts.null_count
        self.elements += sign * self._sums(groups, counts.to_numpy())

    def _sums(self, groups: Ints, counts: Ints) -> Ints:
        counts = np.nan_to_num(counts.astype(np.float64))
        # Floats are exact below 2 ** 53, and a table has fewer rows.
        return np.bincount(groups, weights=counts, minlength=self.groups).astype(np.int64)


class Taken(NamedTuple):
    """Element counts up to an epoch.

    `taken` counts the elements that windows accepted. `final` counts, once per window, the elements in final windows
    and those that no pane ever showed.
    """

    taken: int
    final: int


def snapshot_entries(
    manifest: Manifest, epochs: pa.Table, shape: WindowShape | None, contents: TableContents, before: Taken | None
) -> Iterator[Entry]:
    """Yield the entries of the snapshot as a whole: its open windows, and all elements since the beginning.

    If the windows have no shape, elements are not compared. `before` has the numbers of an earlier check; `epochs` are
    those since that check, and `contents` omits windows that were already final.
    """
    ranges = _ranges(manifest)
    for first, last, counters in ranges:
        is_open = int(contents.open_windows[first : last + 1].sum())
        yield Entry(manifest.epoch, "open_windows", first, last, counters["open_windows"], is_open)
    if not contents.counts_all or not counts_elements(manifest, shape) or shape is None or shape.multiplicity is None:
        return
    if before is None and not is_whole(epochs, manifest.line):
        # Only the rows of old epochs say how many elements those epochs accepted, and these rows are removed
        # eventually.
        return
    by_range = _by_range(epochs, ("on_time", "reopened")) if before is None else None
    unseen, given_back = (_by_range(epochs, (name,)) for name in ("never_emitted", "deleted_in_windows"))
    for first, last, _ in ranges if by_range is not None else [(0, manifest.max_parallelism - 1, {})]:
        elements = int(contents.elements[first : last + 1].sum()) + (0 if before is None else before.final)
        if by_range is None or unseen is None or given_back is None:
            elements += never_emitted(epochs)
            inside = taken_in_all(epochs, before)
        else:
            elements += int(unseen[first : last + 1].sum())
            inside = int(by_range[first : last + 1].sum()) - int(given_back[first : last + 1].sum())
        yield Entry(manifest.epoch, ELEMENTS, first, last, inside * shape.multiplicity, elements)


def counts_elements(manifest: Manifest, shape: WindowShape | None) -> bool:
    """Return True if every element is counted in all its windows.

    An element behind the watermark may miss some of its windows.
    """
    is_exact = shape is not None and (shape.multiplicity == 1 or manifest.order == "event")
    return is_exact and shape is not None and shape.count is not None and shape.multiplicity is not None


def is_whole(epochs: pa.Table, line: Line) -> bool:
    """Return True if table `epochs` has a row for every epoch of a lineage."""
    return len(epochs) == sum(last - first + 1 for first, last in line)


def taken_in_all(epochs: pa.Table, before: Taken | None = None) -> int:
    """Count the elements that windows accepted (on time, or late and reopened) and that are still in the source."""
    on_time, reopened, given_back = (
        int(pc.sum(epochs[name]).as_py() or 0) for name in ("on_time", "reopened", "deleted_in_windows")
    )
    return on_time + reopened - given_back + (0 if before is None else before.taken)


def never_emitted(epochs: pa.Table) -> int:
    """Count the elements in windows that were removed before a pane showed them; each counts once per window."""
    return int(pc.sum(epochs["never_emitted"]).as_py() or 0)


def frame_of(entries: list[Entry]) -> pd.DataFrame:
    """Return entries as a data frame."""
    return pd.DataFrame(entries, columns=list(Entry._fields)).convert_dtypes(dtype_backend="numpy_nullable")


def count_results(counts: RowCounts, rows: pa.RecordBatch, groups: Ints) -> None:
    """Count the panes of table `results` by timing, and its retractions; without panes, count all of its rows."""
    epochs = rows["epoch"].to_numpy()
    if not results.has_panes(rows.schema):
        counts.take(ROWS_OUT, epochs, None)
        return
    timing = rows["timing"].to_numpy(zero_copy_only=False)
    is_result = pc.equal(rows["op"], "+").to_numpy(zero_copy_only=False)
    for name in FIRED:
        chosen = is_result & (timing == name.removeprefix("fired_"))
        counts.take(name, epochs[chosen], groups[chosen])
    counts.take(RETRACTED, epochs[~is_result], groups[~is_result])


def _ranges(manifest: Manifest) -> list[tuple[int, int, dict[str, Any]]]:
    """Return the ranges of key groups with their counters."""
    return [(shard.first, shard.last, shard.counters) for shard in manifest.shards]


def _by_range(epochs: pa.Table, names: Sequence[str]) -> Ints | None:
    """Sum counters over epochs, at the first key group of each range; return None if the ranges ever changed."""
    rows = epochs["shards"].to_pylist()
    if len({tuple((shard["first"], shard["last"]) for shard in shards) for shards in rows}) != 1:
        return None
    counted = np.zeros(max(shard["last"] for shard in rows[0]) + 1, dtype=np.int64)
    for shards in rows:
        for shard in shards:
            counted[shard["first"]] += sum(shard.get(name) or 0 for name in names)
    return counted
