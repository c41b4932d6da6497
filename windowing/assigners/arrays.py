"""Assignment of many elements to windows at once, for the columnar operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import TypeAlias

import numpy as np

from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.epochs.arrays import ParallelArrays
from tidegate.windowing.time import Millis


@dataclass(frozen=True, kw_only=True)
class Assigned(ParallelArrays):
    """Pairs of an element and a window. The windows of an element are in the assigner's order.

    Args:
        rows: index of the element.
        starts: start of the window, int64 epoch milliseconds.
        ends: end of the window, exclusive, int64 epoch milliseconds.
    """

    rows: Int64s
    starts: Int64s
    ends: Int64s


Assignment: TypeAlias = Callable[[Int64s], Assigned]
"""A function that assigns timestamps (int64 epoch milliseconds) to windows. No two windows have the same end."""


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """Grid of all windows of an assigner: `[n * slide + offset, n * slide + offset + size)`, in milliseconds.

    Args:
        size: size of a window; of the longest one if windows grow.
        slide: distance between the starts of two windows.
        offset: shift of all windows.
        step: None if all windows have the same size. Otherwise windows with the same start end one `step` apart;
            `slide` is `size`, and `step` divides it.
    """

    size: Millis
    slide: Millis
    offset: Millis
    step: Millis | None = None

    @property
    def windows_of_an_element(self) -> int:
        """Largest number of windows that an element can be in."""
        return -(-self.size // (self.step or self.slide))

    @property
    def slot(self) -> Millis:
        """Length of time slots, shifted by `offset`: all times in a slot are in the same windows."""
        return self.step or gcd(self.size, self.slide)

    def assign(self, timestamps: Int64s) -> Assigned:
        """Return the windows of the elements with these timestamps, int64 epoch milliseconds."""
        last = timestamps - (timestamps - self.offset) % self.slide
        if self.step is not None:
            ends = (last + self.size)[:, None] - np.arange(self.windows_of_an_element) * self.step
            rows, places = np.nonzero(ends > timestamps[:, None])
            return Assigned(rows=rows, starts=last[rows], ends=ends[rows, places])
        if self.size == self.slide:
            return Assigned(rows=np.arange(len(timestamps)), starts=last, ends=last + self.size)
        starts = last[:, None] - np.arange(self.windows_of_an_element) * self.slide
        rows, places = np.nonzero(starts > (timestamps - self.size)[:, None])
        chosen = starts[rows, places]
        return Assigned(rows=rows, starts=chosen, ends=chosen + self.size)
