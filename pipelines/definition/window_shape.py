"""Shape of a pipeline's windows, derived from the pipeline's value alone: size, alignment, gap. It needs no Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.definition.recorded import Shape
from tidegate.windowing import Count
from tidegate.windowing.compute import Windows
from tidegate.windowing.panes import Accumulation
from tidegate.windowing.time import Millis

_QUOTED_OR_SPACE = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`)|\s+""", re.DOTALL)
_IDENTIFIER = re.compile(r"`([^`]+)`|([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class WindowShape:
    """Facts about a pipeline's windows. Durations are in milliseconds.

    Args:
        size: size of tumbling and sliding windows; None for other windows.
        slide: distance between window starts; the size for tumbling windows, None for windows that are neither tumbling
            nor sliding.
        offset: shift of the window starts, including the chosen stagger.
        gap: gap of sessions; None for other windows and for gaps that depend on the element.
        is_merging: True if windows can grow and merge.
        is_event_time: True if the watermark ends the windows.
        lateness: how long after its end a window still accepts elements.
        count: name of a result column that counts the elements of a window, if each element is in that count or is
            counted as never emitted; otherwise None.
        may_lose_data: True if a window may drop elements before a pane shows them.
        every_pane_counts: True if each pane of a window holds only a part of its contents; otherwise the newest pane
            holds everything.
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
    every_pane_counts: bool = False

    @property
    def multiplicity(self) -> int | None:
        """Number of windows that each element is in; None if it is not the same for all elements."""
        if self.size is None or self.slide is None:
            return 1 if self.is_merging else None
        return self.size // self.slide if self.size % self.slide == 0 else None

    @property
    def kept(self) -> Shape:
        """Return the part of the shape that an epoch's manifest stores."""
        return Shape(size=self.size, slide=self.slide, offset=self.offset, gap=self.gap, lateness=self.lateness)

    def by(self, kept: Shape | None) -> WindowShape:
        """Return the shape with the values from an epoch's manifest, or this shape (the current code's) for None."""
        return self if kept is None else replace(self, **kept.model_dump())


def window_shape(pipeline: Pipeline, stagger_offset: Millis | None = None) -> WindowShape | None:
    """Return the shape of a pipeline's windows; None if the pipeline has no windows.

    Args:
        pipeline: the pipeline's value.
        stagger_offset: the chosen stagger in the snapshot's manifest, milliseconds.
    """
    windows: object = pipeline.compute
    if not isinstance(windows, Windows):
        return None
    assigner = windows.assigner if stagger_offset is None else windows.assigner.with_stagger(stagger_offset)
    grid = assigner.window_grid
    if grid is not None and grid.step is not None:
        # Windows that grow have no fixed size, so an element has no fixed number of windows.
        grid = None
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
        every_pane_counts=windows.accumulation is Accumulation.DISCARDING,
    )


def kept_shape(pipeline: Pipeline, stagger_offset: Millis | None) -> Shape | None:
    """Return what the manifest of an epoch stores about the shape of its windows; None if there are no windows."""
    shape = window_shape(pipeline, stagger_offset)
    return None if shape is None else shape.kept


def kept_facts(pipeline: Pipeline) -> dict[str, Any]:
    """Return the fields of an epoch's manifest that can't change under a snapshot; none without windows."""
    windows = pipeline.compute
    if not isinstance(windows, Windows):
        return {}
    facts = {"accumulation": windows.accumulation.value, "merges": windows.assigner.merges}
    return {**facts, "placed_by": _placed_by(pipeline)} if windows.assigner.is_event_time else facts


def _placed_by(pipeline: Pipeline) -> dict[str, str]:
    """Return what gives a row its event time and key, by field of the pipeline.

    The two determine the windows of the row. Windows are computed again from the rows of the source, so a row must have
    the same event time and key as when it was counted; otherwise two windows would count it.
    """
    source, columns = pipeline.source, pipeline.columns
    given = {"source.unit": source.unit, "source.zone": source.zone}
    return {
        "source.timestamp": _expression(source.timestamp, columns),
        **{field: value for field, value in given.items() if value is not None},
        **{f"key column {name!r}": _expression(name, columns) for name in pipeline.key},
    }


def _expression(name: str, columns: Mapping[str, str]) -> str:
    """Return the text from which a column of events is computed, and that of the derived columns which it may name."""
    if name not in columns:
        return name
    earlier = dict(list(columns.items())[: list(columns).index(name)])
    text = _QUOTED_OR_SPACE.sub(lambda found: found[1] or " ", columns[name]).strip()
    if (only := _IDENTIFIER.fullmatch(text)) is not None:
        return _expression(only[1] or only[2], earlier)
    named = [other for other in earlier if re.search(rf"(?<!\w){re.escape(other)}(?!\w)", text, re.IGNORECASE)]
    return "; ".join([text, *(f"{other} = {_expression(other, earlier)}" for other in named)])


def _count_of_all_elements(windows: Windows) -> str | None:
    """Return the name of a result column that counts every element of a window, or None.

    There is none if elements may be purged or evicted before the window ends.
    """
    assigner = windows.assigner
    counts_all = windows.effective_trigger.counts_all(event_time=assigner.is_event_time, merging=assigner.merges)
    accumulates = windows.accumulation is not Accumulation.DISCARDING
    if not (counts_all and accumulates and windows.evictor is None and isinstance(windows.aggregate, Mapping)):
        return None
    counts = (name for name, aggregate in windows.aggregate.items() if aggregate == Count())
    return None if windows.process is not None else next(counts, None)
