"""Check for windows of another size than today's, which were published or opened before the assigner changed.

A window that is computed again takes all elements of its span. If a published or open window with other bounds holds
some of these elements, they would count twice. Sessions need no check, because all sessions that touch are retracted.
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


def check_shape(
    pipeline: str, windows: Windows, key: KeySchema, wanted: pa.Table, existing: pa.Table, is_change: bool = False
) -> None:
    """Refuse to compute windows whose elements windows of another shape hold already.

    Args:
        pipeline: name of the pipeline.
        windows: the windows with today's assigner, which assigns by event time alone.
        key: the key columns.
        wanted: windows to compute again, as spans.
        existing: published and open windows, as spans.
        is_change: True if rows of the source changed; False if late rows are reopened.

    Raises:
        Refused: such windows overlap; the message names the time from which on late rows can be reopened.
    """
    foreign = existing.filter(pa.array(~_fit(windows, existing)))
    overlapping = foreign.filter(pa.array(_overlap(key, foreign, wanted)))
    if not len(overlapping):
        return
    (first,) = overlapping.sort_by([(START, "ascending")]).slice(0, 1).to_pylist()
    owner = ", ".join(repr(first[name]) for name in key.names) or "all"
    grid = windows.assigner.window_grid
    # If windows overlap, table late names the newest window of a row; its other windows begin up to a size earlier.
    since = pc.max(foreign[END]).as_py() + (grid.size if grid is not None and grid.windows_of_an_element > 1 else 0)
    moment = from_millis(since).isoformat().removesuffix("+00:00")
    earlier = (
        f"the window of {owner} from {show_millis(first[START])} to {show_millis(first[END])} was made before "
        "compute.assigner changed"
    )
    if is_change:
        raise Refused(
            f"rows of pipeline {pipeline!r} changed in its source, and their windows can't be corrected: {earlier}. "
            "Undo the change of the code until the pipeline has read on, pass over the version with changes='ignore' "
            "in its DeltaSource, or backfill a pipeline of another name"
        )
    raise Refused(
        f"late rows of pipeline {pipeline!r} belong to windows of the size of today, but {earlier}: its elements would "
        f"count twice. Reopen the rows after it, `tidegate late reopen {pipeline} --start {moment}`, or "
        "undo the change, or backfill a pipeline of another name"
    )


def _fit(windows: Windows, spans: pa.Table) -> Bools:
    """Return True for each span that is a window of today's assigner."""
    assign = windows.assigner.array_assignment
    assert assign is not None
    starts, ends = (np.asarray(spans[name].to_numpy(), np.int64) for name in (START, END))
    assigned = assign(starts)
    same = (assigned.starts == starts[assigned.rows]) & (assigned.ends == ends[assigned.rows])
    fit = np.zeros(len(starts), np.bool_)
    fit[assigned.rows[same]] = True
    return fit


def _overlap(key: KeySchema, spans: pa.Table, others: pa.Table) -> Bools:
    """Return True for each span that may share elements with another span of its key, directly or through others."""
    parts = [
        part.set_column(part.schema.get_field_index(END), END, pc.subtract(part[END], 1)) for part in (spans, others)
    ]
    connected = islands(key, *parts)
    return np.isin(connected.of_span[: len(spans)], connected.of_span[len(spans) :])
