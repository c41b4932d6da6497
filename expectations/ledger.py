"""The ledger: what each epoch counted, beside what the tables really hold, for each range of key groups.

A row that was lost or came twice stands out here, whichever table it was in. What `tidegate forget` and
`tidegate late prune` took away is no loss: they leave an epoch of their own.
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

from tidegate.pipelines.definition.window_shape import WindowShape
from tidegate.pipelines.manifest import Line, Manifest
from tidegate.pipelines.tables import results
from tidegate.pipelines.tables.counters import FIRED, RETRACTED

_PRUNED = ("late", "rejected")
"""What is counted of rows that `tidegate late prune` may take away, all of an epoch at once."""

ELEMENTS = "elements in windows"

Ints = npt.NDArray[Any]


class Entry(NamedTuple):
    """One count and what it should be equal to. Without a range it is about all key groups."""

    epoch: int
    what: str
    first_key_group: int | None
    last_key_group: int | None
    counted: int
    found: int


class RowCounts:
    """Rows of the tables by epoch and range of key groups, as they are read.

    Args:
        epochs: rows of table epochs; of other epochs nothing is counted.
        max_parallelism: number of key groups.
    """

    def __init__(self, epochs: pa.Table, max_parallelism: int) -> None:
        self._epochs = epochs.to_pylist()
        self._every = (0, max_parallelism - 1)
        self._starts = {row["epoch"]: np.array([first for first, _ in self._ranges(row)]) for row in self._epochs}
        self._by_group: dict[str, bool] = {}
        self._found: dict[tuple[str, int], Ints] = {}

    def take(self, what: str, epochs: Ints, groups: Ints | None) -> None:
        """Count rows by their epoch, and by their key groups where these are known."""
        self._by_group[what] = groups is not None
        for epoch in np.unique(epochs).tolist():
            if epoch not in self._starts:
                continue
            starts = self._starts[epoch] if groups is not None else np.zeros(1, np.int64)
            own = np.zeros(int((epochs == epoch).sum()), np.int64) if groups is None else groups[epochs == epoch]
            counts = np.bincount(np.searchsorted(starts, own, side="right") - 1, minlength=len(starts))
            known = self._found.get((what, epoch))
            self._found[what, epoch] = counts if known is None else known + counts

    def entries(self) -> Iterator[Entry]:
        """Each count of an epoch beside the rows that were found."""
        for row in self._epochs:
            for what, by_group in self._by_group.items():
                ranges = self._ranges(row) if by_group else [self._every]
                found = self._found.get((what, row["epoch"]), np.zeros(len(ranges), np.int64))
                told = [row[what]] if not by_group or not row.get("shards") else [one[what] for one in row["shards"]]
                for (first, last), counted, rows in zip(ranges, told, found.tolist(), strict=True):
                    yield Entry(row["epoch"], what, first, last, counted or 0, rows)

    def _ranges(self, row: dict[str, Any]) -> list[tuple[int, int]]:
        return [(shard["first"], shard["last"]) for shard in row.get("shards") or ()] or [self._every]


class Erased(NamedTuple):
    """The newest epochs in which somebody took rows away on purpose; None where nobody ever did."""

    forgotten: int | None
    pruned: int | None

    @classmethod
    def of(cls, made: pa.Table) -> Erased:
        """What the rows of table epochs tell."""
        kinds = {
            kind: pc.max(made.filter(pc.equal(made["kind"], kind))["epoch"]).as_py() for kind in ("forget", "prune")
        }
        return cls(kinds["forget"], kinds["prune"])

    def explains(self, entry: Entry) -> bool:
        """Whether the rows that an entry misses may be gone on purpose; nothing explains too many."""
        if entry.found >= entry.counted:
            return False
        if self.forgotten is not None and entry.epoch < self.forgotten:
            return True
        # Late rows go by the epoch that found them, whenever they were reopened.
        is_whole = entry.what == "reopened" or (entry.what in _PRUNED and entry.found == 0)
        return is_whole and self.pruned is not None and entry.epoch < self.pruned


@dataclass
class Contents:
    """What the snapshot and the final windows hold, by key group.

    Args:
        groups: number of key groups.
    """

    groups: int
    open_windows: Ints = field(init=False)
    elements: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.open_windows, self.elements = (np.zeros(self.groups, np.int64) for _ in range(2))

    def take_state(self, rows: pa.Table | pa.RecordBatch, count: str | None) -> None:
        """Rows of the snapshot; `count` names the result that counts the elements of a window."""
        is_open = pc.and_(pc.equal(rows["namespace"], "window"), rows["in_flight"]).to_numpy(zero_copy_only=False)
        groups = rows["key_group"].to_numpy(zero_copy_only=False)[is_open]
        self.open_windows += np.bincount(groups, minlength=self.groups)
        if count is not None:
            self.elements += self._sums(groups, rows[f"acc_{count}"].to_numpy(zero_copy_only=False)[is_open])

    def take_final(self, groups: Ints, counts: pa.ChunkedArray, sign: int = 1) -> None:
        """Final windows with their number of elements; taken off again where the sign is -1."""
        self.elements += sign * self._sums(groups, counts.to_numpy())

    def _sums(self, groups: Ints, counts: Ints) -> Ints:
        counts = np.nan_to_num(counts.astype(np.float64))
        # Exact: below 2 ** 53, and a table has fewer rows.
        return np.bincount(groups, weights=counts, minlength=self.groups).astype(np.int64)


class Taken(NamedTuple):
    """Elements that windows took up to an epoch, and those of them that final windows show or that no pane ever showed.

    What is final counts once for each window of an element.
    """

    taken: int
    final: int


def snapshot_entries(
    manifest: Manifest, made: pa.Table, shape: WindowShape | None, contents: Contents, before: Taken | None
) -> Iterator[Entry]:
    """Counts that hold of the snapshot as a whole: its open windows, and every element since the beginning.

    Args:
        manifest: of the snapshot.
        made: rows of table epochs that are new since `before`, else all.
        shape: of the windows; None leaves the elements out.
        contents: of the snapshot and of the final windows, those that were final before left out.
        before: what an earlier check found; None where all is looked at.
    """
    ranges = _ranges(manifest)
    for first, last, counters in ranges:
        is_open = int(contents.open_windows[first : last + 1].sum())
        yield Entry(manifest.epoch, "open_windows", first, last, counters["open_windows"], is_open)
    if not counts_elements(manifest, shape) or shape is None or shape.multiplicity is None:
        return
    if before is None and not is_whole(made, manifest.line):
        # Rows of old epochs don't stay for ever, and nothing else tells how many elements they took.
        return
    by_range = _by_range(made, ("on_time", "reopened")) if before is None else None
    unseen = _by_range(made, ("never_emitted",))
    for first, last, _ in ranges if by_range is not None else [(0, manifest.max_parallelism - 1, {})]:
        elements = int(contents.elements[first : last + 1].sum()) + (0 if before is None else before.final)
        if by_range is None or unseen is None:
            elements += never_emitted(made)
            inside = taken_in_all(made, before)
        else:
            elements += int(unseen[first : last + 1].sum())
            inside = int(by_range[first : last + 1].sum())
        yield Entry(manifest.epoch, ELEMENTS, first, last, inside * shape.multiplicity, elements)


def counts_elements(manifest: Manifest, shape: WindowShape | None) -> bool:
    """Whether every element is counted in all its windows: one behind the watermark may miss some of several."""
    is_exact = shape is not None and (shape.multiplicity == 1 or manifest.order == "event")
    return is_exact and shape is not None and shape.count is not None and shape.multiplicity is not None


def is_whole(made: pa.Table, line: Line) -> bool:
    """Whether table epochs has a row of every epoch on a line."""
    return len(made) == sum(last - first + 1 for first, last in line)


def taken_in_all(made: pa.Table, before: Taken | None = None) -> int:
    """Elements that windows took: on time, or reopened when they had been late."""
    reopened = pc.sum(made["reopened"]).as_py() if "reopened" in made.column_names else 0
    new = int(pc.sum(made["on_time"]).as_py() or 0) + int(reopened or 0)
    return new + (0 if before is None else before.taken)


def never_emitted(made: pa.Table) -> int:
    """Elements in windows that went away before a pane showed them, once for each window."""
    return int(pc.sum(made["never_emitted"]).as_py() or 0) if "never_emitted" in made.column_names else 0


def frame_of(entries: list[Entry]) -> pd.DataFrame:
    """Entries as a table."""
    return pd.DataFrame(entries, columns=list(Entry._fields)).convert_dtypes(dtype_backend="numpy_nullable")


def count_panes(counts: RowCounts, panes: pa.RecordBatch, groups: Ints) -> None:
    """Count rows of table results by what was counted of them."""
    if not results.has_panes(panes.schema):
        return
    epochs, timing = panes["epoch"].to_numpy(), panes["timing"].to_numpy(zero_copy_only=False)
    is_result = pc.equal(panes["op"], "+").to_numpy(zero_copy_only=False)
    for name in FIRED:
        chosen = is_result & (timing == name.removeprefix("fired_"))
        counts.take(name, epochs[chosen], groups[chosen])
    counts.take(RETRACTED, epochs[~is_result], groups[~is_result])


def _ranges(manifest: Manifest) -> list[tuple[int, int, dict[str, Any]]]:
    """Ranges of key groups with their counters; all in one where the manifest is older than they are."""
    if all(shard.counters for shard in manifest.shards):
        return [(shard.first, shard.last, shard.counters) for shard in manifest.shards]
    return [(0, manifest.max_parallelism - 1, manifest.counters)]


def _by_range(made: pa.Table, names: Sequence[str]) -> Ints | None:
    """The sum of counters since the beginning, spread over key groups; None unless ranges never changed."""
    if "shards" not in made.column_names or made["shards"].null_count:
        return None
    rows = made["shards"].to_pylist()
    if len({tuple((shard["first"], shard["last"]) for shard in shards) for shards in rows}) != 1:
        return None
    counted = np.zeros(max(shard["last"] for shard in rows[0]) + 1, dtype=np.int64)
    for shards in rows:
        for shard in shards:
            counted[shard["first"]] += sum(shard.get(name) or 0 for name in names)
    return counted
