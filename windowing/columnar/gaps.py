"""The gap of each element of a session, as an array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Int64s, valid_of
from tidegate.windowing.assigners import (
    DynamicEventTimeSessionWindows,
    EventTimeSessionWindows,
    GapColumn,
    WindowAssigner,
)
from tidegate.windowing.epochs.elements import Elements
from tidegate.windowing.errors import IllegalArgument


@dataclass(frozen=True)
class Gaps:
    """How long a session stays open after each element.

    Args:
        of: the gap of each element, milliseconds.
        vary: whether elements may bring different ones.
    """

    of: Callable[[Elements], Int64s]
    vary: bool


def gaps_of(assigner: WindowAssigner) -> Gaps | None:
    """How an assigner of sessions gives gaps, None where it can't be done on arrays."""
    if type(assigner) is EventTimeSessionWindows:
        gap = assigner.gap
        return Gaps(lambda elements: np.full(len(elements), gap), vary=False)
    if type(assigner) is DynamicEventTimeSessionWindows and isinstance(assigner.gap_of, GapColumn):
        column = assigner.gap_of.column
        return Gaps(lambda elements: _of_column(elements, column), vary=True)
    return None


def _of_column(elements: Elements, column: str) -> Int64s:
    values = elements.columns[column]
    gaps = np.asarray(values.fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False))
    wrong = np.flatnonzero(~valid_of(values) | (gaps <= 0))
    if len(wrong):
        found = values[int(wrong[0])].as_py()
        raise IllegalArgument("gap", found, f"column {column!r} must hold milliseconds above zero")
    return gaps
