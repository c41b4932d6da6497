"""Stagger of windows: an offset that spreads the firings of different pipelines over time.

The operator draws the offset once, when the first element comes, and the snapshot keeps it. So windows keep their
bounds after a restore, a rescale and in a backfill. Source: Flink's `WindowStagger`.
"""

from __future__ import annotations

import random
from enum import Enum

from tidegate.windowing.time import Millis, window_start


class WindowStagger(Enum):
    """Rule that chooses the offset of windows."""

    ALIGNED = "aligned"
    """No offset: windows align to 1 January 1970 UTC, plus the declared offset."""

    RANDOM = "random"
    """Random offset, smaller than the size of a window."""

    NATURAL = "natural"
    """Time from the start of the aligned window to the clock when the first element comes."""

    def draw(self, clock: Millis, size: Millis, seed: int | None = None) -> Millis:
        """Draw an offset and return it: 0 to `size - 1` milliseconds.

        Args:
            clock: processing time, int64 epoch milliseconds.
            size: size of the windows, milliseconds.
            seed: seed that makes the random offset repeatable; None draws a new one each time.
        """
        if self is WindowStagger.ALIGNED:
            return 0
        if self is WindowStagger.RANDOM:
            return int(random.Random(seed).random() * size)
        return clock - window_start(clock, 0, size)
