"""The window join on arrays: it groups the elements of both inputs by window, and pairs them at the window's end.

Its state rows are those of the row operator, and so are its records, except that windows with the same end may come in
any order. See `WindowJoinOperator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.assigners.arrays import Assigned
from tidegate.windowing.columnar.hashing import key_groups
from tidegate.windowing.columnar.key_codes import KeyCodes, encode_keys
from tidegate.windowing.columnar.order import begins, numbers_of
from tidegate.windowing.columnar.plan import choose_operator
from tidegate.windowing.columnar.state import Int32s
from tidegate.windowing.compute import JoinKind, WindowJoin
from tidegate.windowing.epochs.elements import Elements
from tidegate.windowing.epochs.outcome import LATE_COLUMNS, EpochOutcome, nothing, result_table
from tidegate.windowing.epochs.row_operator import ResultColumns, order_of
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.errors import UnsupportedOperation
from tidegate.windowing.lateness import are_late
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.operators.window import LATE
from tidegate.windowing.sides import SIDES
from tidegate.windowing.state.rows import WINDOW, StateSchema
from tidegate.windowing.timestamps import epoch_millis, in_schema, timestamps_of

_NONE = -1
"""Index that stands for a missing partner."""


class ColumnarWindowJoin:
    """A window join that pairs whole elements, an epoch at a time; an `EpochOperator`.

    The schema of the state rows holds the types of both inputs and the key columns.

    Raises:
        UnsupportedOperation: `choose_operator` chooses the row operator for this join, or the type of an input is
            missing.
    """

    def __init__(self, join: WindowJoin, state: StateSchema, max_parallelism: int, results: pa.StructType) -> None:
        choice, assign = choose_operator(join), join.assigner.array_assignment
        if not choice.columnar or assign is None:
            raise UnsupportedOperation(f"arrays can't compute this join: {choice.reason}")
        types = [kind.value_type for _, kind in state.contents if kind is not None]
        if len(types) < len(SIDES):
            raise UnsupportedOperation("arrays can't compute a join without the types of both inputs")
        self._kind = join.kind
        self._assign = assign
        self._types = types
        self._state = state
        self._max_parallelism = max_parallelism
        self._results = ResultColumns.of(join, results).fields

    def run(self, elements: Elements, state: pa.Table, timeline: Timeline) -> EpochOutcome:
        rows = order_of(elements, self._state.key)
        ordered = elements.take(rows)
        names = self._state.key.names
        keys = encode_keys(
            self._state.key, ({name: state[name] for name in names}, len(state)), (ordered.keys, len(ordered))
        )
        seen = timeline.seen_by(ordered.timestamps, ordered.commits)
        assigned = self._assign(ordered.timestamps)
        is_open = ~are_late(assigned.ends - 1, 0, seen[assigned.rows])
        kept = np.flatnonzero(is_open)
        windows = self._windows(
            keys, state, ordered, assigned.take(kept[np.argsort(assigned.rows[kept], kind="stable")])
        )
        counters = Counters(elements=len(elements))
        late = self._late(rows, ordered, assigned, is_open, seen, counters)
        fired = timeline.reaches(windows.ends - 1)
        counters.timers_registered = int(np.count_nonzero(~windows.were_open))
        counters.timers_fired = int(np.count_nonzero(fired))
        counters.open_windows = int(np.count_nonzero(~fired))
        remaining = windows.ends[~fired]
        return EpochOutcome(
            panes=nothing(),
            outputs=self._outputs(windows, fired, keys),
            late=late,
            state=self._rows(windows, ~fired, keys),
            counters=counters,
            next_timer=int(remaining.min()) - 1 if len(remaining) else None,
        )

    def _windows(self, keys: KeyCodes, state: pa.Table, elements: Elements, assigned: Assigned) -> _Windows:
        """Return the windows, with both the elements of the state rows and the new ones."""
        of_state, of_elements = keys.codes
        starts, ends = (epoch_millis(state[f"window_{bound}"]).to_numpy() for bound in ("start", "end"))
        values, parts = [], []
        for place, (side, kind) in enumerate(zip(SIDES, self._types, strict=True)):
            rows = np.flatnonzero(pc.equal(state["side"], side).to_numpy())
            lists = state[side].take(pa.array(rows)).combine_chunks()
            before = np.repeat(rows, pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64))
            if elements.sides is None:
                new = np.zeros(0, np.int64)
            else:
                is_here = pc.equal(elements.sides, side).to_numpy(zero_copy_only=False)
                new = np.flatnonzero(is_here[assigned.rows])
            columns = [
                elements.columns[name].take(pa.array(assigned.rows[new])).cast(field.type)
                for (name, _), field in zip(elements.names.get(side, ()), kind, strict=True)
            ]
            taken = pa.StructArray.from_arrays(columns, fields=list(kind))
            values.append(pa.concat_arrays([lists.flatten().cast(kind), taken]))
            size = len(before) + len(new)
            parts.append(
                (
                    np.concatenate([of_state[before], of_elements[assigned.rows[new]]]),
                    np.concatenate([starts[before], assigned.starts[new]]),
                    np.concatenate([ends[before], assigned.ends[new]]),
                    np.full(size, place),
                    np.arange(size),
                    np.arange(size) < len(before),
                )
            )
        return _Windows.of(values, *(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _late(
        self, rows: Int64s, elements: Elements, assigned: Assigned, is_open: Bools, seen: Int64s, counters: Counters
    ) -> pa.Table:
        """Return the late elements. Count them, and the elements without a window."""
        taken = np.zeros(len(elements), np.bool_)
        taken[assigned.rows[is_open]] = True
        skipped = np.flatnonzero(~taken)
        late = skipped[are_late(elements.timestamps[skipped], 0, seen[skipped])]
        counters.late, counters.no_window = len(late), len(skipped) - len(late)
        # A late element is recorded with the first of its windows.
        firsts = np.full(len(elements), _NONE)
        firsts[assigned.rows[::-1]] = np.arange(len(assigned.rows))[::-1]
        places = pa.array(firsts[late], mask=firsts[late] == _NONE)
        columns = {
            "row": pa.array(rows[late]),
            "reason": pa.array([LATE] * len(late), pa.string()),
            "watermark": pa.array(seen[late]),
            "window_start": pa.array(assigned.starts).take(places),
            "window_end": pa.array(assigned.ends).take(places),
        }
        return pa.table(columns, schema=LATE_COLUMNS)

    def _outputs(self, windows: _Windows, fired: Bools, keys: KeyCodes) -> pa.Table:
        owners, left, right = windows.pairs(self._kind, fired)
        bounds = {"window_start": windows.starts, "window_end": windows.ends}
        results = {}
        for field in self._results:
            if field.name in bounds:
                column = timestamps_of(pa.array(bounds[field.name][owners]))
            else:
                place = SIDES.index(field.name)
                chosen = (left, right)[place]
                column = windows.values[place].take(pa.array(chosen, mask=chosen == _NONE))
            results[field.name] = column.cast(field.type)
        return result_table(
            self._state.key,
            keys.take(windows.codes[owners]),
            results,
            timestamp=pa.array(windows.ends[owners] - 1),
            output=pa.nulls(len(owners), pa.string()),
        )

    def _rows(self, windows: _Windows, kept: Bools, keys: KeyCodes) -> pa.Table:
        """Return the state rows of windows: a row for each side that has elements."""
        groups = key_groups(keys.hashes, self._max_parallelism)
        parts = [self._rows_of_side(place, windows, kept, keys, groups) for place in range(len(SIDES))]
        return pa.concat_tables(parts).sort_by("key_group")

    def _rows_of_side(self, place: int, windows: _Windows, kept: Bools, keys: KeyCodes, groups: Int32s) -> pa.Table:
        counts = windows.counts[place]
        owners = np.flatnonzero(kept & (counts > 0))
        counts = counts[owners]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        entries, _ = numbers_of(windows.begins(place)[owners], counts)
        elements = windows.values[place].take(pa.array(windows.places[entries]))
        codes, ends = windows.codes[owners], windows.ends[owners]
        one_each = pa.array(np.arange(len(owners) + 1), pa.int32())
        columns = {
            "key_group": pa.array(groups[codes]),
            **dict(zip(self._state.key.names, keys.take(codes), strict=True)),
            "namespace": pa.repeat(WINDOW, len(owners)),
            "side": pa.repeat(SIDES[place], len(owners)),
            "window_start": pa.array(windows.starts[owners]),
            "window_end": pa.array(ends),
            "in_flight": pa.repeat(False, len(owners)),
            "event_time_timers": pa.ListArray.from_arrays(one_each, pa.array(ends - 1)),
            "filled": pa.repeat(True, len(owners)),
            SIDES[place]: pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements),
            "pane": pa.repeat(0, len(owners)),
        }
        return in_schema(pa.table(columns), self._state.columns)


@dataclass(frozen=True)
class _Windows:
    """Windows with elements, sorted by end, key and start. A window's right elements directly follow its left ones.

    `values` are the elements of each side, and `counts` their numbers in each window. `places` has the index of each
    element among its side's values: for each window first those of the left elements, then those of the right ones.
    `firsts` is where each window begins in `places`. `were_open` is true for each window that has elements from before
    the epoch.
    """

    values: Sequence[pa.StructArray]
    codes: Int64s
    starts: Int64s
    ends: Int64s
    were_open: Bools
    counts: tuple[Int64s, Int64s]
    firsts: Int64s
    places: Int64s

    @classmethod
    def of(
        cls,
        values: Sequence[pa.StructArray],
        codes: Int64s,
        starts: Int64s,
        ends: Int64s,
        sides: Int64s,
        places: Int64s,
        are_old: Bools,
    ) -> _Windows:
        """Group elements by window, in their order.

        The arguments give, for each pair of element and window, the key's code, the bounds, the side (0 for left, 1 for
        right), the element's index among the values, and whether the element is from before the epoch.
        """
        order = np.lexsort((places, sides, starts, codes, ends))
        codes, starts, ends, sides = codes[order], starts[order], ends[order], sides[order]
        first = begins(codes, starts, ends)
        firsts, owners = np.flatnonzero(first), np.cumsum(first) - 1
        right = np.bincount(owners, sides, len(firsts)).astype(np.int64)
        return cls(
            values=values,
            codes=codes[firsts],
            starts=starts[firsts],
            ends=ends[firsts],
            were_open=np.bincount(owners, are_old[order], len(firsts)) > 0,
            counts=(np.bincount(owners, minlength=len(firsts)) - right, right),
            firsts=firsts,
            places=places[order],
        )

    def begins(self, side: int) -> Int64s:
        """Return where each window's first element of a side is in `places`."""
        return self.firsts + self.counts[0] if side else self.firsts

    def pairs(self, kind: JoinKind, chosen: Bools) -> tuple[Int64s, Int64s, Int64s]:
        """Return the pairs of the chosen windows: the window, and the index of each side's element or -1."""
        left, right = self.counts
        if kind in ("semi", "anti"):
            lefts, rights = np.where((right > 0) == (kind == "semi"), left, 0), np.ones(len(right), np.int64)
        else:
            lefts = np.maximum(left, 1) if kind in ("right", "full") else left
            rights = np.maximum(right, 1) if kind in ("left", "full") else right
        sizes = np.where(chosen, lefts * rights, 0)
        numbers, owners = numbers_of(np.zeros_like(sizes), sizes)
        of_left, of_right = np.divmod(numbers, rights[owners])
        return owners, self._elements(0, owners, of_left), self._elements(1, owners, of_right)

    def _elements(self, side: int, owners: Int64s, numbers: Int64s) -> Int64s:
        """Return the indices of numbered elements of windows, or -1 where a window has no element of the side."""
        found = np.full(len(owners), _NONE)
        has_any = self.counts[side][owners] > 0
        found[has_any] = self.places[self.begins(side)[owners[has_any]] + numbers[has_any]]
        return found
