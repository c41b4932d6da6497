"""Windows on a grid of time: tumbling (disjoint), sliding (one every `slide`), and cumulative (growing by `step`).

A stagger is an offset that spreads the firings of different pipelines over time. The operator chooses it once, when the
first element arrives, and the snapshot keeps it. So windows keep their bounds after a restore, a rescale and in a
backfill. Source: Flink's `WindowStagger`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self

from tidegate.windowing.assigners.arrays import Assignment, WindowGrid
from tidegate.windowing.assigners.base import AssignerContext, InTimeDomain
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import (
    EVENT_TIME,
    PROCESSING_TIME,
    Duration,
    Millis,
    millis,
    positive_millis,
    show_length,
    window_start,
)
from tidegate.windowing.windows import TimeWindow, aligned_window


class WindowStagger(Enum):
    """Rule that chooses the offset of windows."""

    ALIGNED = "aligned"
    """No offset: windows align to 1 January 1970 UTC, plus the declared offset."""

    RANDOM = "random"
    """Random offset, smaller than the size of a window."""

    NATURAL = "natural"
    """Offset equal to the time from the start of the aligned window to the clock when the first element arrives."""

    def draw(self, clock: Millis, size: Millis, seed: int | None = None) -> Millis:
        """Choose an offset and return it: 0 to `size - 1` milliseconds.

        Args:
            clock: processing time, int64 epoch milliseconds.
            size: size of the windows, milliseconds.
            seed: seed that makes the random offset repeatable; None chooses a new one each time.
        """
        if self is WindowStagger.ALIGNED:
            return 0
        if self is WindowStagger.RANDOM:
            return int(random.Random(seed).random() * size)
        return clock - window_start(clock, 0, size)


def checked_size_and_offset(size: Duration, offset: Duration, size_name: str = "size") -> tuple[Millis, Millis]:
    """Return size and offset in milliseconds.

    Raises:
        IllegalArgument: size <= 0 or |offset| >= size.
    """
    size_millis, shift = positive_millis(size, size_name), millis(offset, "offset")
    if abs(shift) >= size_millis:
        remedy = f"give an offset of less than the {size_name} ({show_length(size_millis)}), either way"
        raise IllegalArgument("offset", offset, remedy)
    return size_millis, shift


@dataclass(frozen=True, slots=True)
class TumblingWindows(InTimeDomain):
    """Tumbling windows of a time domain: `[n * size + offset, (n + 1) * size + offset)`.

    Args:
        size: size of a window, milliseconds (`of` takes a timedelta).
        offset: shift of all windows, |offset| < size.
        stagger: rule for a further shift, which is chosen when the first element arrives.
        stagger_seed: seed that makes a random stagger repeatable.
        stagger_offset: chosen shift, milliseconds; None before that.

    Raises:
        IllegalArgument: size <= 0 or |offset| >= size.
    """

    size: Millis
    offset: Millis = 0
    stagger: WindowStagger = WindowStagger.ALIGNED
    stagger_seed: int | None = None
    stagger_offset: Millis | None = None

    def __post_init__(self) -> None:
        size, offset = checked_size_and_offset(self.size, self.offset)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "offset", offset)

    @classmethod
    def of(
        cls,
        size: Duration,
        offset: Duration = 0,
        stagger: WindowStagger = WindowStagger.ALIGNED,
        stagger_seed: int | None = None,
    ) -> Self:
        """Create the assigner, named as in Flink."""
        return cls(*checked_size_and_offset(size, offset), stagger, stagger_seed)

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[TimeWindow]:
        time = self.time_of(timestamp, ctx)
        start = time - (time - self.offset - (self.stagger_offset or 0)) % self.size
        return (aligned_window(start, self.size),)

    @property
    def needs_rows(self) -> str | None:
        if self._is_undrawn:
            return f"{type(self).__name__} has no array form until its stagger is chosen"
        return None

    @property
    def array_assignment(self) -> Assignment | None:
        return None if self._is_undrawn or self.domain is not EVENT_TIME else self.window_grid.assign

    @property
    def longest_window(self) -> Millis:
        return self.size

    @property
    def window_grid(self) -> WindowGrid:
        return WindowGrid(self.size, self.size, self.offset + (self.stagger_offset or 0))

    @property
    def _is_undrawn(self) -> bool:
        return self.stagger is not WindowStagger.ALIGNED and self.stagger_offset is None

    def staggered(self, clock: Millis) -> Self:
        if not self._is_undrawn:
            return self
        return self.with_stagger(self.stagger.draw(clock, self.size, self.stagger_seed))

    def with_stagger(self, offset: Millis) -> Self:
        return replace(self, stagger_offset=offset)


class TumblingEventTimeWindows(TumblingWindows):
    """Tumbling windows of event time. Source: Flink's `TumblingEventTimeWindows`."""

    domain = EVENT_TIME


class TumblingProcessingTimeWindows(TumblingWindows):
    """Tumbling windows of processing time. Source: Flink's `TumblingProcessingTimeWindows`."""

    domain = PROCESSING_TIME


# Ingestion time equals processing time here: see the package.
TumblingIngestionTimeWindows = TumblingProcessingTimeWindows


@dataclass(frozen=True, slots=True)
class SlidingWindows(InTimeDomain):
    """Sliding windows of a time domain: `[n * slide + offset, n * slide + offset + size)`.

    Args:
        size: size of a window, milliseconds (`of` takes a timedelta).
        slide: distance between the starts of two windows. If it is larger than `size`, elements that fall between two
            windows belong to none.
        offset: shift of all windows, |offset| < slide.

    Raises:
        IllegalArgument: size <= 0, slide <= 0 or |offset| >= slide.
    """

    size: Millis
    slide: Millis
    offset: Millis = 0

    def __post_init__(self) -> None:
        slide, offset = checked_size_and_offset(self.slide, self.offset, "slide")
        object.__setattr__(self, "size", positive_millis(self.size, "size"))
        object.__setattr__(self, "slide", slide)
        object.__setattr__(self, "offset", offset)

    @classmethod
    def of(cls, size: Duration, slide: Duration, offset: Duration = 0) -> Self:
        """Create the assigner, named as in Flink."""
        return cls(positive_millis(size, "size"), *checked_size_and_offset(slide, offset, "slide"))

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[TimeWindow]:
        # The latest start comes first. A slide larger than the size leaves gaps without a window.
        time = self.time_of(timestamp, ctx)
        size, slide = self.size, self.slide
        last = time - (time - self.offset) % slide
        return [aligned_window(start, size) for start in range(last, time - size, -slide)]

    @property
    def longest_window(self) -> Millis:
        return self.size

    @property
    def window_grid(self) -> WindowGrid:
        return WindowGrid(self.size, self.slide, self.offset)


class SlidingEventTimeWindows(SlidingWindows):
    """Sliding windows of event time. Source: Flink's `SlidingEventTimeWindows`."""

    domain = EVENT_TIME


class SlidingProcessingTimeWindows(SlidingWindows):
    """Sliding windows of processing time. Source: Flink's `SlidingProcessingTimeWindows`."""

    domain = PROCESSING_TIME


# Ingestion time equals processing time here: see the package.
SlidingIngestionTimeWindows = SlidingProcessingTimeWindows


@dataclass(frozen=True, slots=True)
class CumulateWindows(InTimeDomain):
    """Cumulative windows of a time domain: `[n * max_size + offset, n * max_size + offset + k * step)`, k = 1, 2, ...

    The longest window lasts `max_size`. An element is in each window that ends after it. For example, the day so far,
    hour by hour.

    Args:
        max_size: size of the longest window, milliseconds (`of` takes a timedelta).
        step: distance between the ends of two windows; `max_size` is a multiple of it.
        offset: shift of all windows, |offset| < max_size.

    Raises:
        IllegalArgument: max_size <= 0, step <= 0, max_size is not a multiple of step, or |offset| >= max_size.
    """

    max_size: Millis
    step: Millis
    offset: Millis = 0

    def __post_init__(self) -> None:
        max_size, offset = checked_size_and_offset(self.max_size, self.offset, "max_size")
        step = positive_millis(self.step, "step")
        if max_size % step:
            raise IllegalArgument("step", self.step, f"give a step that divides the max_size ({show_length(max_size)})")
        object.__setattr__(self, "max_size", max_size)
        object.__setattr__(self, "step", step)
        object.__setattr__(self, "offset", offset)

    @classmethod
    def of(cls, max_size: Duration, step: Duration, offset: Duration = 0) -> Self:
        """Create the assigner; lengths are timedeltas or milliseconds."""
        max_millis, shift = checked_size_and_offset(max_size, offset, "max_size")
        return cls(max_millis, positive_millis(step, "step"), shift)

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[TimeWindow]:
        # The latest end comes first.
        time = self.time_of(timestamp, ctx)
        start = time - (time - self.offset) % self.max_size
        return [TimeWindow(start, end) for end in range(start + self.max_size, time, -self.step)]

    @property
    def longest_window(self) -> Millis:
        return self.max_size

    @property
    def window_grid(self) -> WindowGrid:
        return WindowGrid(self.max_size, self.max_size, self.offset, self.step)


class CumulateEventTimeWindows(CumulateWindows):
    """Cumulative windows of event time. Source: Flink's windowing table-valued function `CUMULATE`."""

    domain = EVENT_TIME


class CumulateProcessingTimeWindows(CumulateWindows):
    """Cumulative windows of processing time. Source: Flink's windowing table-valued function `CUMULATE`."""

    domain = PROCESSING_TIME


# Ingestion time equals processing time here: see the package.
CumulateIngestionTimeWindows = CumulateProcessingTimeWindows
