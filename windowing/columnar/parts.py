"""Parts of windows: the elements of a key, a commit and a time slot, combined into one row before the operator runs.

All times in a slot are in the same windows, and the watermark moves between commits only. So all elements of a part are
in time for a window, or all are late for it, and the operator treats a part as it treats an element. A part has the
contents columns of a state row, and the number of its elements. An element that may be late stays alone in its part:
table late has one row for each element.

Combining is exact for windows whose results don't depend on the order of a commit's elements, and for aggregates that
merge exactly. Where the watermark follows the elements, it is smaller than the time of each element that arrives, so a
window is late only if the watermark had passed it before the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.bound import AggregateColumns
from tidegate.windowing.aggregates.exact import SumOutOfRange
from tidegate.windowing.aggregates.vectorised import Bools, Groups, Int64s
from tidegate.windowing.assigners.arrays import WindowGrid
from tidegate.windowing.columnar.contents import ColumnarContents
from tidegate.windowing.columnar.order import is_every_row, one_word, sort_groups
from tidegate.windowing.columnar.plan import choose_operator
from tidegate.windowing.compute import Compute, Windows
from tidegate.windowing.epochs.arrays import ParallelArrays
from tidegate.windowing.facts import is_ours
from tidegate.windowing.operators.window.snapshot import contents_columns


@dataclass(frozen=True, kw_only=True)
class Parts(ParallelArrays):
    """Parts, in any order.

    Args:
        rows: index of an element of each part; of its only element if that may be late.
        timestamps: a time of each part's elements, int64 epoch milliseconds.
        counts: number of elements of each part.
        columns: contents columns by name, as in state rows.
    """

    rows: Int64s
    timestamps: Int64s
    counts: Int64s
    columns: Mapping[str, pa.Array]


def stays_single(compute: Compute) -> str | None:
    """Return the reason why the elements of a computation are not combined, or None if they are; see `Combining.of`."""
    if not isinstance(compute, Windows) or not choose_operator(compute).columnar:
        return "the row operator takes elements one by one"
    if not compute.may_split_commits:
        return "the order of the elements of a commit matters"
    grid = compute.assigner.window_grid
    if grid is not None and grid.slide > grid.size:
        return "an element may be in no window"
    bound = compute.bound_aggregate
    assert isinstance(bound, AggregateColumns)
    for name, function in zip(bound.names, bound.functions, strict=True):
        if not function.merges_exactly:
            return f"aggregate {name!r} might differ in its last digits if parts of a window were merged"
        if not is_ours(type(function)):
            return f"aggregate {name!r} is your own code, whose errors name an element"
    return None


@dataclass(frozen=True)
class Combining:
    """How the elements of windows are combined into parts."""

    windows: Windows
    contents: ColumnarContents
    names: tuple[str, ...]

    @classmethod
    def of(cls, compute: Compute) -> Combining | str:
        """Return how the elements of a computation are combined, or the reason why they are not.

        Args:
            compute: the computation, with aggregates bound to the types of their columns.
        """
        if (reason := stays_single(compute)) is not None:
            return reason
        assert isinstance(compute, Windows)
        contents = ColumnarContents.of(compute)
        if contents is None:
            return "the type of an aggregate is unknown"
        return cls(compute, contents, tuple(name for name, _ in contents_columns(compute, None)))

    def run(
        self, codes: Int64s, timestamps: Int64s, commits: Int64s, columns: Mapping[str, pa.Array], alone: Bools | None
    ) -> Parts:
        """Combine elements, and return the parts.

        Args:
            codes: code of each element's key.
            timestamps: int64 epoch milliseconds.
            commits: number of each element's source commit.
            columns: value columns by name.
            alone: true for each element that gets a part of its own; None if no element does.
        """
        by = [codes, commits, self._slots(timestamps)]
        if alone is not None and alone.any():
            by.append(np.where(alone, np.arange(1, len(alone) + 1), 0))
        if (parts := self._by_hash(by, timestamps, columns)) is not None:
            return parts
        order, firsts = sort_groups(*by)
        groups = Groups.of_firsts(firsts)
        try:
            contents = self.contents.accumulate(columns, timestamps[order], order, groups)
        except SumOutOfRange:
            # The sum of a window may fit although that of a part does not.
            order, groups = np.arange(len(codes)), Groups.of_sizes(np.ones(len(codes), np.int64))
            contents = self.contents.accumulate(columns, timestamps, order, groups)
        return Parts(
            rows=order[groups.starts],
            timestamps=timestamps[order[groups.starts]],
            counts=groups.sizes,
            columns=dict(zip(self.names, self.contents.columns(contents), strict=True)),
        )

    def _by_hash(self, by: Sequence[Int64s], timestamps: Int64s, columns: Mapping[str, pa.Array]) -> Parts | None:
        """Combine elements in Arrow's hash aggregation; return None if it can't compute an aggregate exactly."""
        found = [function.hashed(columns) for function in self.contents.functions]
        hashed = [each for each in found if each is not None]
        if len(hashed) < len(found) or (word := one_word(by)) is None:
            return None
        rows = pa.array(np.arange(len(word)))
        given = {str(place): each.column for place, each in enumerate(hashed) if each.column is not None}
        asked = [([] if each.column is None else str(place), each.function) for place, each in enumerate(hashed)]
        table = pa.table({"word": word, "row": rows, **given}).group_by("word", use_threads=False)
        grouped = table.aggregate([("row", "min"), ([], "count_all"), *asked])
        _, first, counts, *accumulators = (column.combine_chunks() for column in grouped.columns)
        places = np.asarray(first.to_numpy())
        contents = [
            part.cast(kind.array_type) for part, kind in zip(accumulators, self.contents.functions, strict=True)
        ]
        return Parts(
            rows=places,
            timestamps=timestamps[places],
            counts=np.asarray(counts.to_numpy()),
            columns=dict(zip(self.names, self.contents.columns(contents), strict=True)),
        )

    def are_late(self, timestamps: Int64s, bounds: Int64s) -> Bools:
        """Return a flag for each element: whether all of its windows may be late.

        Args:
            timestamps: int64 epoch milliseconds.
            bounds: time up to which elements and last milliseconds of windows may be late, for each element.
        """
        late: Bools = timestamps <= bounds
        rows = np.flatnonzero(late)
        if len(rows):
            late[rows] = self._lasts(timestamps[rows]) <= bounds[rows]
        return late

    def _lasts(self, timestamps: Int64s) -> Int64s:
        """Return the last millisecond of the latest window of each time; the time itself if windows form no grid."""
        grid = self._grid
        if grid is None:
            return timestamps
        return timestamps - (timestamps - grid.offset) % grid.slide + (grid.size - 1)

    @property
    def _grid(self) -> WindowGrid | None:
        """The grid, if the windows are exactly those of a grid."""
        assigner = self.windows.assigner
        grid = assigner.window_grid
        return grid if getattr(assigner.array_assignment, "__self__", None) == grid else None

    def _slots(self, timestamps: Int64s) -> Int64s:
        """Return a number for each time; times with equal numbers are in the same windows."""
        if (grid := self._grid) is not None:
            return (timestamps - grid.offset) // grid.slot
        assign = self.windows.assigner.array_assignment
        assert assign is not None
        assigned = assign(timestamps)
        if is_every_row(assigned.rows, len(timestamps)):
            return assigned.ends
        return np.arange(len(timestamps))
