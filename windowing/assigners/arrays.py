"""Windows of many elements at once: what an assigner gives the columnar operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.epochs.arrays import ParallelArrays
from tidegate.windowing.time import Millis


@dataclass(frozen=True, kw_only=True)
class Assigned(ParallelArrays):
    """Elements and their windows, an element once for each window; of one element the first window first.

    Args:
        rows: the element.
        starts: of the window, int64 epoch milliseconds.
        ends: of the window, not included.
    """

    rows: Int64s
    starts: Int64s
    ends: Int64s


Assignment: TypeAlias = Callable[[Int64s], Assigned]
"""From timestamps to windows."""


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """The windows `[n * slide + offset, n * slide + offset + size)`, in milliseconds; all windows of an assigner.

    Args:
        size: of a window.
        slide: distance of their starts.
        offset: shifts all of them.
    """

    size: Millis
    slide: Millis
    offset: Millis

    @property
    def windows_of_an_element(self) -> int:
        """The number of windows that an element belongs to at most."""
        return -(-self.size // self.slide)

    def assign(self, timestamps: Int64s) -> Assigned:
        """The windows of elements."""
        last = timestamps - (timestamps - self.offset) % self.slide
        if self.size == self.slide:
            return Assigned(rows=np.arange(len(timestamps)), starts=last, ends=last + self.size)
        starts = last[:, None] - np.arange(self.windows_of_an_element) * self.slide
        rows, places = np.nonzero(starts > (timestamps - self.size)[:, None])
        chosen = starts[rows, places]
        return Assigned(rows=rows, starts=chosen, ends=chosen + self.size)
