"""The epoch operator of any computation: it feeds windows, process functions and joins one element at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.compute import Compute, CoProcess, IntervalJoin, KeyedProcess, Windows
from tidegate.windowing.declared import row_checker
from tidegate.windowing.epochs.elements import Elements
from tidegate.windowing.epochs.feed import feed
from tidegate.windowing.epochs.outcome import Outcome, nothing
from tidegate.windowing.epochs.results import ResultColumns, late_of, outputs_of, panes_of, refuse_side_outputs
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.operators.interval_join import IntervalJoinOperator
from tidegate.windowing.operators.process import KeyedCoProcessOperator, KeyedProcessOperator
from tidegate.windowing.operators.protocol import KeyedOperator
from tidegate.windowing.operators.window import WindowOperator
from tidegate.windowing.operators.window.snapshot import without_slices
from tidegate.windowing.operators.window_join import WindowJoinOperator
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.state.rows import SLICE, StateRow, StateSchema

MakeOperator: TypeAlias = Callable[[tuple[pa.StructType, ...]], KeyedOperator]
"""Function that returns a new keyed operator, given the type of the elements of each input."""


class RowOperator:
    """An `EpochOperator` around a keyed operator that is created for each epoch; only state rows outlive it."""

    def __init__(
        self,
        make: MakeOperator,
        compute: Compute,
        state: StateSchema,
        max_parallelism: int,
        results: pa.StructType | None = None,
    ) -> None:
        self._make = make
        self._windows = compute if isinstance(compute, Windows) else None
        self._state = state
        self._max_parallelism = max_parallelism
        self._results = ResultColumns.of(compute, results)

    @classmethod
    def of_windows(
        cls,
        windows: Windows,
        state: StateSchema,
        panes: PanePolicy,
        max_parallelism: int,
        *,
        late_output: bool = True,
        account_for_all: bool = True,
    ) -> RowOperator:
        """Return the row operator for windows; the arguments are those of `ColumnarOperator`."""

        def make(inputs: tuple[pa.StructType, ...]) -> WindowOperator:
            return WindowOperator(windows, panes=panes, late_output=late_output, account_for_all=account_for_all)

        return cls(make, windows, state, max_parallelism)

    def run(self, elements: Elements, state: pa.Table, timeline: Timeline) -> Outcome:
        """Process the elements of an epoch, given the state rows before it; see `EpochOperator`.

        Raises:
            IllegalArgument: a result does not fit the declared columns.
            UnsupportedOperation: a window's function sent something to a side output.
        """
        operator = self._make(elements.types)
        operator.restore_time(timeline.initial, timeline.clock)
        rows: Iterable[StateRow] = self._state.from_table(state)
        if self._windows is not None and pc.any(pc.equal(state["namespace"], SLICE)).as_py():
            rows = without_slices(rows, self._windows)
        operator.restore_state(rows)
        key = self._state.key
        records = feed(operator, elements, timeline, key)
        gives_panes = self._windows is not None
        if gives_panes:
            refuse_side_outputs(records.outputs)
        return Outcome(
            panes=panes_of(records.panes, key, self._results) if gives_panes else nothing(),
            outputs=nothing() if gives_panes else outputs_of(records.outputs, key, self._results),
            late=late_of(records.late, records.late_rows),
            state=self._state.to_table(operator.state_rows(), self._max_parallelism),
            counters=operator.counters,
            next_timer=operator.next_event_time,
            next_processing_time_timer=operator.timers.processing_time.peek(),
            rows_by_row=len(elements),
        )


def make_operator(compute: Compute, panes: PanePolicy, inputs: tuple[pa.StructType, ...]) -> KeyedOperator:
    """Return a new operator with the settings of a pipeline.

    Pane policies are for windows; other computations ignore them.
    """
    if isinstance(compute, Windows):
        if compute.reduce is not None:
            compute = replace(compute, reduce=_reducing(compute.reduce, inputs[0]))
        return WindowOperator(compute, panes=panes, account_for_all=True)
    if isinstance(compute, KeyedProcess):
        return KeyedProcessOperator(compute, value_type=inputs[0])
    if isinstance(compute, CoProcess):
        left, right = inputs
        return KeyedCoProcessOperator(compute, left_type=left, right_type=right)
    return IntervalJoinOperator(compute) if isinstance(compute, IntervalJoin) else WindowJoinOperator(compute)


def _reducing(reduce: Callable[[Any, Any], Any], kind: pa.StructType) -> Callable[[Any, Any], Any]:
    """Return a user's reduce function with checked values; it may modify its arguments."""
    copy, fit = row_checker(kind, reduce, "element"), row_checker(kind, reduce, "reduced value")
    # The elements may also be in other windows, and the reduced value in a pane.
    return lambda left, right: fit(reduce(copy(left), copy(right)))
