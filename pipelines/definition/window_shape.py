"""Facts of all windows of a pipeline, by its assigner alone: size, alignment, gap. Costs no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.windowing import Count
from tidegate.windowing.compute import Windows
from tidegate.windowing.panes import Accumulation
from tidegate.windowing.time import Millis


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
    assigner = windows.assigner if stagger_offset is None else windows.assigner.with_stagger(stagger_offset)
    grid = assigner.window_grid
    return WindowShape(
        size=None if grid is None else grid.size,
        slide=None if grid is None else grid.slide,
        offset=0 if grid is None else grid.offset,
        gap=assigner.gap_of_every_element,
        is_merging=assigner.merges,
        is_event_time=assigner.is_event_time,
        lateness=windows.lateness,
        count=_count_of_all_elements(windows),
        may_lose_data=windows.may_lose_data,
    )


def _count_of_all_elements(windows: Windows) -> str | None:
    """A column that counts every element: only where nothing is purged or evicted before the end."""
    assigner = windows.assigner
    counts_all = windows.effective_trigger.counts_all(event_time=assigner.is_event_time, merging=assigner.merges)
    accumulates = windows.accumulation is not Accumulation.DISCARDING
    if not (counts_all and accumulates and windows.evictor is None and isinstance(windows.aggregate, Mapping)):
        return None
    counts = (name for name, aggregate in windows.aggregate.items() if aggregate == Count())
    return None if windows.process is not None else next(counts, None)
