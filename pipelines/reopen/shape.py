"""Windows of another size than today's: published or open from before the assigner changed.

A window that is computed again takes all elements of its span. Where some of them are in a window of other bounds that
was published, or is still open, they would count twice. Sessions need no such check: all that touch are taken back.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.reopen.stretches import END, START, islands
from tidegate.windowing.aggregates.vectorised import Bools
from tidegate.windowing.compute import Windows
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.time import from_millis, show_millis


def check_shape(pipeline: str, windows: Windows, key: KeySchema, wanted: pa.Table, standing: pa.Table) -> None:
    """Refuse windows that would take elements which others of another shape hold.

    Args:
        pipeline: its name.
        windows: with today's assigner, which assigns by event time alone.
        key: the key columns.
        wanted: windows to compute again, as spans.
        standing: windows that are published or open, as spans.

    Raises:
        Refused: such windows overlap; the message says from when on late rows can be reopened.
    """
    foreign = standing.filter(pa.array(~_fit(windows, standing)))
    overlapping = foreign.filter(pa.array(_overlap(key, foreign, wanted)))
    if not len(overlapping):
        return
    (first,) = overlapping.sort_by([(START, "ascending")]).slice(0, 1).to_pylist()
    told = ", ".join(repr(first[name]) for name in key.names)
    grid = windows.assigner.window_grid
    # Of overlapping windows a late row names the newest; its others begin up to a size before.
    since = pc.max(foreign[END]).as_py() + (grid.size if grid is not None and grid.windows_of_an_element > 1 else 0)
    moment = from_millis(since).isoformat().removesuffix("+00:00")
    raise Refused(
        f"late rows of pipeline {pipeline!r} belong to windows of today's size, and the window of {told or 'all'} from "
        f"{show_millis(first[START])} to {show_millis(first[END])} is from before compute.assigner changed: its "
        f"elements would count twice. Reopen the rows after it, `tidegate late reopen {pipeline} --start {moment}`, or "
        "take the change back, or backfill a pipeline of another name"
    )


def _fit(windows: Windows, spans: pa.Table) -> Bools:
    """Which spans are windows of today's assigner."""
    assign = windows.assigner.array_assignment
    assert assign is not None
    starts, ends = (np.asarray(spans[name].to_numpy(), np.int64) for name in (START, END))
    assigned = assign(starts)
    same = (assigned.starts == starts[assigned.rows]) & (assigned.ends == ends[assigned.rows])
    fit = np.zeros(len(starts), np.bool_)
    fit[assigned.rows[same]] = True
    return fit


def _overlap(key: KeySchema, spans: pa.Table, others: pa.Table) -> Bools:
    """Which spans are connected with others of their key by elements that both may hold."""
    parts = [
        part.set_column(part.schema.get_field_index(END), END, pc.subtract(part[END], 1)) for part in (spans, others)
    ]
    found = islands(key, *parts)
    return np.isin(found.of_span[: len(spans)], found.of_span[len(spans) :])
