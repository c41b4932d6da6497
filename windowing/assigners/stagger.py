"""Spread the windows of different pipelines over time, so that not all fire at once.

Source: Flink's `WindowStagger`. An offset is drawn once, when the first element comes, and is part
of the snapshot: windows stay where they are after a restore, a rescale and in a backfill.
"""

from __future__ import annotations

import random
from enum import Enum

from tidegate.windowing.time import Millis, window_start


class WindowStagger(Enum):
    """The way in which the offset of windows is chosen."""

    ALIGNED = "aligned"
    """All windows align to the epoch (and the declared offset)."""

    RANDOM = "random"
    """A random part of the window's size."""

    NATURAL = "natural"
    """The distance of the clock from the start of its window when the first element comes."""

    def draw(self, clock: Millis, size: Millis, seed: int | None = None) -> Millis:
        """The offset, 0 to `size - 1` milliseconds.

        Args:
            clock: processing time, int64 epoch milliseconds.
            size: of the windows, milliseconds.
            seed: makes the random offset repeatable; None draws a new one.
        """
        if self is WindowStagger.ALIGNED:
            return 0
        if self is WindowStagger.RANDOM:
            return int(random.Random(seed).random() * size)
        return clock - window_start(clock, 0, size)
