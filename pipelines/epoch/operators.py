"""The row operator of what a pipeline computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tidegate.pipelines.epoch.element_rows import check_names
from tidegate.windowing.compute import Compute, CoProcess, KeyedProcess, Windows
from tidegate.windowing.declared import declared_values
from tidegate.windowing.keys import KeyGroupRange
from tidegate.windowing.operators.co_process import KeyedCoProcessOperator
from tidegate.windowing.operators.interval_join import IntervalJoinOperator
from tidegate.windowing.operators.keyed_process import KeyedProcessOperator
from tidegate.windowing.operators.protocol import KeyedOperator
from tidegate.windowing.operators.window import WindowOperator
from tidegate.windowing.panes import PanePolicy


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
        if compute.reduce is not None:
            compute = replace(compute, reduce=_Reducing(compute.reduce, elements[0]))
        return WindowOperator(compute, panes=panes, account_for_all=True, **owned)
    if isinstance(compute, KeyedProcess):
        return KeyedProcessOperator(compute, value_type=elements[0], **owned)
    if isinstance(compute, CoProcess):
        left, right = elements
        return KeyedCoProcessOperator(compute, left_type=left, right_type=right, **owned)
    return IntervalJoinOperator(compute, **owned)


@dataclass(frozen=True, slots=True)
class _Reducing:
    """A user's reduce whose values are of the elements' type, before a window keeps them.

    Args:
        reduce: the user's.
        kind: of an element.
    """

    reduce: Callable[[Any, Any], Any]
    kind: pa.StructType

    def __call__(self, left: Any, right: Any) -> Any:
        value = self.reduce(left, right)
        check_names("reduce", value, self.kind.names)
        (fitting,) = declared_values("reduce", [value], self.kind)
        return fitting
