"""Harnesses for tests of operators, without Spark."""

from __future__ import annotations

import pyarrow as pa

from tidegate.windowing.compute import CoProcess, IntervalJoin, KeyedProcess, WindowJoin, Windows
from tidegate.windowing.functions import KeyedCoProcessFunction, KeyedProcessFunction
from tidegate.windowing.keys import DEFAULT_MAX_PARALLELISM, KeySchema
from tidegate.windowing.operators.joins import IntervalJoinOperator, WindowJoinOperator, join_schema
from tidegate.windowing.operators.process import KeyedCoProcessOperator, KeyedProcessOperator, process_schema
from tidegate.windowing.operators.window import WindowOperator
from tidegate.windowing.operators.window.snapshot import state_schema
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.testing.harness import ManualClock, OperatorHarness, OperatorSnapshot, RecordingOutput

__all__ = [
    "ManualClock",
    "OperatorHarness",
    "OperatorSnapshot",
    "RecordingOutput",
    "co_process_harness",
    "interval_join_harness",
    "keyed_process_harness",
    "window_harness",
    "window_join_harness",
]


def window_harness(
    windows: Windows,
    *,
    key: KeySchema | None = None,
    value_type: pa.DataType | None = None,
    panes: PanePolicy | None = None,
    late_output: bool = True,
    account_for_all: bool = False,
    max_parallelism: int = DEFAULT_MAX_PARALLELISM,
) -> OperatorHarness:
    """Return a harness around the window operator.

    Args:
        windows: the windows to compute.
        key: the key columns; None infers them from the first key.
        value_type: Arrow type of the elements, if windows keep them; None infers it.
        panes: options of the panes, as in `WindowOperator`; None takes the accumulation of `windows`.
        late_output: as in `WindowOperator`.
        account_for_all: as in `WindowOperator`.
        max_parallelism: number of key groups.
    """
    policy = panes or PanePolicy(accumulation=windows.accumulation)
    return OperatorHarness(
        lambda: WindowOperator(
            windows,
            panes=policy,
            late_output=late_output,
            account_for_all=account_for_all,
        ),
        lambda schema: state_schema(windows, schema, value_type, policy),
        key,
        max_parallelism,
    )


def keyed_process_harness(
    function: KeyedProcessFunction,
    *,
    time_sorted: bool = False,
    key: KeySchema | None = None,
    keyed: bool = True,
    max_parallelism: int = DEFAULT_MAX_PARALLELISM,
) -> OperatorHarness:
    """Return a harness around the operator of a keyed process function.

    Args:
        function: the function.
        time_sorted: True delays elements until the watermark reaches them. False passes them to the function
            immediately, as Flink does.
        key: the key columns; None infers them from the first key.
        keyed: as in `KeyedProcessOperator`.
        max_parallelism: number of key groups.
    """
    process = KeyedProcess(function, time_sorted)
    return OperatorHarness(
        lambda: KeyedProcessOperator(process, keyed=keyed),
        lambda schema: process_schema(process, schema),
        key,
        max_parallelism,
    )


def co_process_harness(
    function: KeyedCoProcessFunction,
    *,
    time_sorted: bool = False,
    key: KeySchema | None = None,
    keyed: bool = True,
    max_parallelism: int = DEFAULT_MAX_PARALLELISM,
) -> OperatorHarness:
    """Return a harness around the operator of a keyed co-process function, with inputs `left` and `right`.

    The arguments are those of `keyed_process_harness`.
    """
    process = CoProcess(function, time_sorted)
    return OperatorHarness(
        lambda: KeyedCoProcessOperator(process, keyed=keyed),
        lambda schema: process_schema(process, schema),
        key,
        max_parallelism,
    )


def interval_join_harness(
    join: IntervalJoin,
    *,
    key: KeySchema | None = None,
    left_type: pa.DataType | None = None,
    right_type: pa.DataType | None = None,
    late_output: bool = True,
    max_parallelism: int = DEFAULT_MAX_PARALLELISM,
) -> OperatorHarness:
    """Return a harness around the interval join, with inputs `left` and `right`.

    Args:
        join: the join.
        key: the key columns; None infers them from the first key.
        left_type: Arrow type of the left elements; None infers it.
        right_type: Arrow type of the right elements; None infers it.
        late_output: as in `IntervalJoinOperator`.
        max_parallelism: number of key groups.
    """
    return OperatorHarness(
        lambda: IntervalJoinOperator(join, late_output=late_output),
        lambda schema: join_schema(join, schema, left_type, right_type),
        key,
        max_parallelism,
    )


def window_join_harness(
    join: WindowJoin,
    *,
    key: KeySchema | None = None,
    left_type: pa.DataType | None = None,
    right_type: pa.DataType | None = None,
    late_output: bool = True,
    max_parallelism: int = DEFAULT_MAX_PARALLELISM,
) -> OperatorHarness:
    """Return a harness around the window join, with the arguments of `interval_join_harness`."""
    return OperatorHarness(
        lambda: WindowJoinOperator(join, late_output=late_output),
        lambda schema: join_schema(join, schema, left_type, right_type),
        key,
        max_parallelism,
    )
