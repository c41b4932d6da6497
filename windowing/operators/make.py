"""The choice of the keyed operator for a computation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidegate.windowing.compute import Compute, CoProcess, IntervalJoin, KeyedProcess, Windows
from tidegate.windowing.declared import row_checker
from tidegate.windowing.operators.co_process import KeyedCoProcessOperator
from tidegate.windowing.operators.interval_join import IntervalJoinOperator
from tidegate.windowing.operators.keyed_process import KeyedProcessOperator
from tidegate.windowing.operators.protocol import KeyedOperator
from tidegate.windowing.operators.window import WindowOperator
from tidegate.windowing.operators.window_join import WindowJoinOperator
from tidegate.windowing.panes import PanePolicy


def make_operator(compute: Compute, panes: PanePolicy, inputs: tuple[pa.StructType, ...]) -> KeyedOperator:
    """Return a new operator with the settings of a pipeline.

    Args:
        compute: the computation.
        panes: pane policies of windows; other computations ignore them.
        inputs: type of the elements of each input.
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
    """Return a user's reduce function with checked values; it may modify its arguments.

    Args:
        reduce: the user's function.
        kind: type of an element.
    """
    copy, fit = row_checker(kind, reduce, "element"), row_checker(kind, reduce, "reduced value")
    # The elements may also be in other windows, and the reduced value in a pane.
    return lambda left, right: fit(reduce(copy(left), copy(right)))
