"""What holds of every window of a pipeline by its assigner alone: size, alignment, gap. Costs no Spark."""

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
    """Facts about a pipeline's windows; durations in milliseconds.

    Args:
        size: of tumbling and sliding windows.
        slide: distance of their starts; the size for tumbling ones.
        offset: by which their starts are shifted, the drawn stagger included.
        gap: of sessions, where it is the same for all.
        is_merging: whether windows can grow and merge.
        is_event_time: whether they end by the watermark.
        lateness: how long after its end a window still takes elements.
        count: name of a result column that counts the elements of a window, where each of them is in there or is
            counted as never emitted.
        may_lose_data: whether elements of a window may go away before a pane shows them.
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
        """In how many windows each element is; None where it is not the same for all."""
        if self.size is None or self.slide is None:
            return 1 if self.is_merging else None
        return self.size // self.slide if self.size % self.slide == 0 else None


def window_shape(pipeline: Pipeline, stagger_offset: Millis | None = None) -> WindowShape | None:
    """The shape of a pipeline's windows; None where it computes something else.

    Args:
        pipeline: the value.
        stagger_offset: as the snapshot's manifest holds it, milliseconds.
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
    """A column that counts every element: only where nothing is purged or evicted before the end."""
    is_plain = windows.trigger is None or isinstance(windows.trigger, EventTimeTrigger)
    # A session that grew takes back the pane that showed its elements: then nothing tells how many are shown.
    is_plain |= type(windows.trigger) is CountTrigger and not isinstance(windows.assigner, MergingWindowAssigner)
    accumulates = windows.accumulation is not Accumulation.DISCARDING
    if not (is_plain and accumulates and windows.evictor is None and isinstance(windows.aggregate, Mapping)):
        return None
    counts = (name for name, aggregate in windows.aggregate.items() if aggregate == Count())
    return None if windows.process is not None else next(counts, None)
