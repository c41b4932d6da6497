"""Shape of a pipeline's windows, known from the pipeline's value alone: size, alignment, gap. It needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.windowing import Count
from tidegate.windowing.assigners import (
    EventTimeSessionWindows,
    MergingWindowAssigner,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from tidegate.windowing.compute import Windows
from tidegate.windowing.panes import Accumulation
from tidegate.windowing.time import Millis
from tidegate.windowing.triggers import CountTrigger, EventTimeTrigger


@dataclass(frozen=True, slots=True)
class WindowShape:
    """Facts about a pipeline's windows. Durations are in milliseconds.

    Args:
        size: size of tumbling and sliding windows; None for others.
        slide: distance between window starts; the size for tumbling windows, None for other than sliding ones.
        offset: shift of the window starts, including the drawn stagger.
        gap: gap of sessions; None for other windows and for gaps that depend on the element.
        is_merging: True if windows can grow and merge.
        is_event_time: True if the watermark ends the windows.
        lateness: time after its end for which a window still accepts elements.
        count: name of a result column that counts the elements of a window, if each element is in that count or is
            counted as never emitted; else None.
        may_lose_data: True if a window may drop elements before a pane shows them.
    """

    size: Millis | None
    slide: Millis | None
    offset: Millis
    gap: Millis | None
    is_merging: bool
    is_event_time: bool
    lateness: Millis
    count: str | None
    may_lose_data: bool = False

    @property
    def multiplicity(self) -> int | None:
        """Number of windows of each element; None if it is not the same for all elements."""
        if self.size is None or self.slide is None:
            return 1 if self.is_merging else None
        return self.size // self.slide if self.size % self.slide == 0 else None


def window_shape(pipeline: Pipeline, stagger_offset: Millis | None = None) -> WindowShape | None:
    """Return the shape of a pipeline's windows; None if the pipeline has no windows.

    Args:
        pipeline: the pipeline's value.
        stagger_offset: the drawn stagger in the snapshot's manifest, milliseconds.
    """
    windows: object = pipeline.compute
    if not isinstance(windows, Windows):
        return None
    assigner = windows.assigner
    size = slide = gap = None
    offset = 0
    if isinstance(assigner, TumblingEventTimeWindows | TumblingProcessingTimeWindows):
        size = slide = assigner.size
        offset = assigner.offset + (stagger_offset or 0)
    elif isinstance(assigner, SlidingEventTimeWindows | SlidingProcessingTimeWindows):
        size, slide, offset = assigner.size, assigner.slide, assigner.offset
    elif isinstance(assigner, EventTimeSessionWindows | ProcessingTimeSessionWindows):
        gap = assigner.gap
    return WindowShape(
        size,
        slide,
        offset,
        gap,
        isinstance(assigner, MergingWindowAssigner),
        assigner.is_event_time,
        windows.lateness,
        _count_of_all_elements(windows),
        windows.may_lose_data,
    )


def _count_of_all_elements(windows: Windows) -> str | None:
    """Return the name of a result column that counts every element of a window; None if there is none.

    There is none if elements may be purged or evicted before the window ends.
    """
    is_plain = windows.trigger is None or isinstance(windows.trigger, EventTimeTrigger)
    # A session that grew retracts the pane that showed its elements, so no count of the shown elements is left.
    is_plain |= type(windows.trigger) is CountTrigger and not isinstance(windows.assigner, MergingWindowAssigner)
    accumulates = windows.accumulation is not Accumulation.DISCARDING
    if not (is_plain and accumulates and windows.evictor is None and isinstance(windows.aggregate, Mapping)):
        return None
    counts = (name for name, aggregate in windows.aggregate.items() if aggregate == Count())
    return None if windows.process is not None else next(counts, None)
