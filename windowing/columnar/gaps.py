"""The gap of each element of a session, as an array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Int64s, valid_of
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.epochs.elements import Elements
from tidegate.windowing.errors import IllegalArgument


@dataclass(frozen=True)
class Gaps:
    """The gap after each element, in milliseconds, for which a session stays open; elements may have different ones."""

    of: Callable[[Elements], Int64s]
    vary: bool


def gaps_of(assigner: WindowAssigner) -> Gaps | None:
    """Return the gaps of an assigner of sessions, or None if arrays can't compute them."""
    if not assigner.forms_sessions or assigner.needs_rows is not None:
        return None
    gap, column = assigner.gap_of_every_element, assigner.column_of_gaps
    if gap is not None:
        return Gaps(lambda elements: np.full(len(elements), gap), vary=False)
    return None if column is None else Gaps(lambda elements: _of_column(elements, column), vary=True)


def _of_column(elements: Elements, column: str) -> Int64s:
    values = elements.columns[column]
    gaps = np.asarray(values.fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False))
    wrong = np.flatnonzero(~valid_of(values) | (gaps <= 0))
    if len(wrong):
        gap = values[int(wrong[0])].as_py()
        raise IllegalArgument("gap", gap, f"column {column!r} must hold milliseconds above zero")
    return gaps
