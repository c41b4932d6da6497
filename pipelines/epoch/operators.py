"""The row operator of what a pipeline computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from windowing.compute import Compute, CoProcess, KeyedProcess, Windows
from windowing.keys import KeyGroupRange
from windowing.operators.co_process import KeyedCoProcessOperator
from windowing.operators.interval_join import IntervalJoinOperator
from windowing.operators.keyed_process import KeyedProcessOperator
from windowing.operators.protocol import KeyedOperator
from windowing.operators.window import WindowOperator
from windowing.panes import PanePolicy


def make_operator(
    compute: Compute,
    panes: PanePolicy,
    key_groups: KeyGroupRange,
    key_group_of: Callable[[Any], int],
    elements: tuple[pa.StructType, ...],
) -> KeyedOperator:
    """A new operator.

    Args:
        compute: what it computes.
        panes: of windows.
        key_groups: the range that it owns.
        key_group_of: the key group of a key.
        elements: type of the elements of each input.
    """
    owned: dict[str, Any] = {"key_groups": key_groups, "key_group_of": key_group_of}
    if isinstance(compute, Windows):
        return WindowOperator(compute, panes=panes, account_for_all=True, **owned)
    if isinstance(compute, KeyedProcess):
        return KeyedProcessOperator(compute, value_type=elements[0], **owned)
    if isinstance(compute, CoProcess):
        left, right = elements
        return KeyedCoProcessOperator(compute, left_type=left, right_type=right, **owned)
    return IntervalJoinOperator(compute, **owned)
