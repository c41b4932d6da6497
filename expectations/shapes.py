"""Shapes of the windows of a pipeline over its epochs: a window is checked against the code that created it.

The code may change gap, size and lateness. Each epoch records the shape that it ran with; a window that was open when
the code changed keeps its bounds, so it has the shape of its epoch or of an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from tidegate.pipelines.definition.epochs import SHAPE
from tidegate.pipelines.definition.recorded import Shape
from tidegate.pipelines.definition.window_shape import WindowShape
from tidegate.windowing.time import Millis


class ShapeSince(NamedTuple):
    """A shape, and the first epoch that ran with it."""

    epoch: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes up to an epoch, oldest first; `newest` is that of the epoch, with facts from the current code."""

    since: tuple[ShapeSince, ...]
    newest: WindowShape

    @property
    def lateness(self) -> Millis:
        """Return the longest lateness that any epoch allowed."""
        return max(each.shape.lateness for each in self.since)

    @property
    def grids(self) -> list[list[int]]:
        """Return epoch, size, slide and offset of each shape with windows of a fixed size."""
        grids = []
        for epoch, shape in self.since:
            if shape.size is not None and shape.slide is not None:
                grids.append([epoch, shape.size, shape.slide, shape.offset])
        return grids

    @property
    def gaps(self) -> list[list[int]]:
        """Return epoch and gap of each shape; 0 where the gap depends on the element."""
        return [[epoch, shape.gap or 0] for epoch, shape in self.since]

    @property
    def one_grid(self) -> bool:
        """Return True if all epochs had windows of the same size, slide and offset."""
        return len({(shape.size, shape.slide, shape.offset) for _, shape in self.since}) == 1

    @property
    def counts_elements(self) -> bool:
        """Return True if every element is in the same number of windows, each of which is either open or final.

        Code with a shorter lateness closes windows before the `final_at` that older code wrote.
        """
        shapes = [self.newest.by(shape) for _, shape in self.since]
        waits = [shape.lateness for shape in shapes]
        return len({shape.multiplicity for shape in shapes}) == 1 and waits == sorted(waits)


def shapes_of(epochs: pa.Table, present: WindowShape | None) -> Shapes | None:
    """Return the shapes up to an epoch; None if the pipeline has no windows.

    Epochs of older versions of tidegate recorded no shape. They are assumed to have run with the shape of the next
    epoch that has one, or of the current code.

    Args:
        epochs: rows of table `epochs` up to the epoch.
        present: shape in the current code.
    """
    if present is None:
        return None
    shapes: list[ShapeSince] = []
    rows = epochs.sort_by("epoch").to_pylist() if SHAPE in epochs.column_names else []
    for row in rows:
        if row[SHAPE] is not None and (not shapes or shapes[-1].shape != Shape(**row[SHAPE])):
            shapes.append(ShapeSince(row["epoch"] if shapes else 0, Shape(**row[SHAPE])))
    if not shapes:
        shapes = [ShapeSince(0, present.kept)]
    return Shapes(tuple(shapes), present.by(shapes[-1].shape))
