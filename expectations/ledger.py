"""The ledger: what each epoch counted, beside what the tables really hold, for each range of key groups.

A row that was lost or came twice stands out here, whichever table it was in. What `tidegate forget` and
`tidegate late prune` took away is no loss: they leave an epoch of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.snapshots.manifest import Manifest
from pipelines.tables import results
from pipelines.tables.key_groups import key_groups
from pipelines.tables.pinned import PinnedTables
from pipelines.window_shape import WindowShape

_PRUNED = ("late", "rejected")
"""What is counted of rows that `tidegate late prune` may take away, all of an epoch at once."""


class Entry(NamedTuple):
    """One count and what it should be equal to. Without a range it is about all key groups."""

    epoch: int
    what: str
    first_key_group: int | None
    last_key_group: int | None
    counted: int
    found: int


@dataclass(frozen=True)
class _Found:
    """Rows of a table that counters are held against: their number by epoch and key group, if that can be known."""

    by_epoch: dict[int, np.ndarray]
    by_group: bool

    @classmethod
    def of(cls, epochs: np.ndarray, groups: np.ndarray | None) -> _Found:
        """Count rows by their epoch and key group."""
        size = 1 if groups is None or not len(groups) else int(groups.max()) + 1
        placed = np.zeros(len(epochs), dtype=np.int64) if groups is None else groups
        numbers, rank = np.unique(epochs, return_inverse=True)
        counts = np.bincount(rank * size + placed, minlength=len(numbers) * size).reshape(len(numbers), size)
        return cls(dict(zip(numbers.tolist(), counts, strict=True)), groups is not None)

    def count(self, epoch: int, first: int, last: int) -> int:
        """Rows of an epoch in a range of key groups."""
        counts = self.by_epoch.get(epoch)
        return 0 if counts is None else int(counts[first : last + 1].sum())


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


def ledger(tables: PinnedTables, shape: WindowShape | None, final: pa.Table) -> pd.DataFrame:
    """One row a count; `counted` and `found` must be equal.

    Args:
        tables: as of an epoch.
        shape: of the windows.
        final: the final windows.
    """
    manifest = tables.manifest
    found = _found_rows(tables)
    erased = Erased.of(tables.epochs)
    entries: list[Entry] = []
    every_group = (0, manifest.max_parallelism - 1)
    for row in tables.epochs.to_pylist():
        for what, rows in found.items():
            shards = row.get("shards") if rows.by_group else None
            ranges = [(shard["first"], shard["last"], shard[what]) for shard in shards or ()]
            for first, last, counted in ranges or [(*every_group, row[what])]:
                entry = Entry(row["epoch"], what, first, last, counted or 0, rows.count(row["epoch"], first, last))
                if not erased.explains(entry):
                    entries.append(entry)
    entries.extend(_snapshot_entries(tables, shape if erased.forgotten is None else None, final))
    return pd.DataFrame(entries, columns=list(Entry._fields)).convert_dtypes(dtype_backend="numpy_nullable")


def _found_rows(tables: PinnedTables) -> dict[str, _Found]:
    key, max_parallelism = tables.key, tables.manifest.max_parallelism
    found = {"rejected": _Found.of(tables.rejects["epoch"].to_numpy(), None)}
    rows = tables.late
    # A derived key column is not among the input's.
    has_key = set(key) <= set(rows.column_names)
    groups = key_groups(rows, key, max_parallelism).to_numpy() if has_key else None
    found["late"] = _Found.of(rows["epoch"].to_numpy(), groups)
    if "reopened" in rows.column_names and "reopened" in tables.epochs.column_names:
        marks = pc.fill_null(rows["reopened"], 0).to_numpy()
        found["reopened"] = _Found.of(marks, groups)
    panes = tables.results
    if not results.has_panes(panes.schema):
        return found
    groups = key_groups(panes, key, max_parallelism).to_numpy()
    numbers, timing = panes["epoch"].to_numpy(), panes["timing"].to_numpy(zero_copy_only=False)
    is_result = pc.equal(panes["op"], "+").to_numpy()
    for name in ("early", "on_time", "late"):
        chosen = is_result & (timing == name)
        found[f"fired_{name}"] = _Found.of(numbers[chosen], groups[chosen])
    found["withdrawn"] = _Found.of(numbers[~is_result], groups[~is_result])
    return found


def _snapshot_entries(tables: PinnedTables, shape: WindowShape | None, final: pa.Table) -> Iterator[Entry]:
    """Counts that hold of the snapshot as a whole: its open windows, and every element since the beginning."""
    manifest, made, state = tables.manifest, tables.epochs, tables.state
    groups = state["key_group"].to_numpy()
    in_flight = pc.and_(pc.equal(state["namespace"], "window"), state["in_flight"]).to_numpy(zero_copy_only=False)
    ranges = _ranges(manifest)
    for first, last, counters in ranges:
        inside = in_flight & (groups >= first) & (groups <= last)
        yield Entry(manifest.epoch, "open_windows", first, last, counters["open_windows"], int(inside.sum()))
    if not _is_exact(manifest, shape) or shape is None or shape.count is None or shape.multiplicity is None:
        return
    final_groups = key_groups(final, tables.key, manifest.max_parallelism).to_numpy()
    taken = _taken(made)
    for first, last, _ in ranges if taken is not None else [(0, manifest.max_parallelism - 1, {})]:
        elements = _sum(final[shape.count], (final_groups >= first) & (final_groups <= last))
        elements += _sum(state[f"acc_{shape.count}"], in_flight & (groups >= first) & (groups <= last))
        inside = _taken_in_all(made) if taken is None else taken[first : last + 1].sum()
        yield Entry(manifest.epoch, "elements in windows", first, last, int(inside) * shape.multiplicity, int(elements))


def _ranges(manifest: Manifest) -> list[tuple[int, int, dict[str, Any]]]:
    """Ranges of key groups with their counters; all in one where the manifest is older than they are."""
    if all(shard.counters for shard in manifest.shards):
        return [(shard.first, shard.last, shard.counters) for shard in manifest.shards]
    return [(0, manifest.max_parallelism - 1, manifest.counters)]


def _is_exact(manifest: Manifest, shape: WindowShape | None) -> bool:
    """Whether every element is in all its windows: one behind the watermark may miss some of several."""
    return shape is not None and (shape.multiplicity == 1 or manifest.order == "event")


def _taken(made: pa.Table) -> np.ndarray | None:
    """Elements that windows took since the beginning, spread over key groups; None unless ranges never changed."""
    if "shards" not in made.column_names or made["shards"].null_count:
        return None
    rows = made["shards"].to_pylist()
    if len({tuple((shard["first"], shard["last"]) for shard in shards) for shards in rows}) != 1:
        return None
    taken = np.zeros(max(shard["last"] for shard in rows[0]) + 1, dtype=np.int64)
    for shards in rows:
        for shard in shards:
            taken[shard["first"]] += (shard["on_time"] or 0) + (shard.get("reopened") or 0)
    return taken


def _taken_in_all(made: pa.Table) -> int:
    """Elements that windows took since the beginning: on time, or reopened when they had been late."""
    reopened = pc.sum(made["reopened"]).as_py() if "reopened" in made.column_names else 0
    return int(pc.sum(made["on_time"]).as_py()) + int(reopened or 0)


def _sum(column: pa.ChunkedArray, chosen: np.ndarray) -> int:
    return int(pc.sum(column.filter(pa.array(chosen))).as_py() or 0)
