"""Errors that user code raises in a shard: which call raised one, for which row of the source.

The operators that compute over arrays see many rows at a time, so the shard is computed again element by element until
the call raises the error. That costs nothing as long as no code fails.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition.event_columns import COMMIT, FILE, KEY_PREFIX, LAST_TIME, PLACE, TIME, VALUE_PREFIX
from tidegate.pipelines.epoch.job import ShardJob, elements_of, timeline_of
from tidegate.pipelines.errors import TidegateError, UserCodeFailed
from tidegate.pipelines.failures import with_line
from tidegate.windowing.epochs.row_operator import FailedCall, RowOperator
from tidegate.windowing.time import show_millis

OF_THE_MACHINE = (OSError, MemoryError)
"""Errors that a retry may cure, also if user code raises them."""

_LONGEST = 200


def failed_call(job: ShardJob, events: pa.Table, rows: pa.Table, result: pa.StructType) -> FailedCall | None:
    """Return the call of user code that fails in a shard, or None if none does."""
    operator = RowOperator(job.compute, job.state, job.panes, job.max_parallelism, result)
    try:
        operator.run(elements_of(job, events), rows, timeline_of(job))
    except Exception:
        if operator.failed is None:
            raise
    return operator.failed


def error_of(job: ShardJob, events: pa.Table, call: FailedCall) -> TidegateError:
    """Return the error of a command for a call that failed; it names the line of code, the key and the source row."""
    key = dict(zip(job.key.names, job.key.columns_of(call.key), strict=True))
    of_key = "the key " + ", ".join(f"{name} = {value!r}" for name, value in key.items()) if key else "all rows"
    if call.row is not None:
        time = show_millis(int(events[TIME][call.row].as_py()))
        what = f"a row of {of_key} with event time {time}{_origin(job, events, call.row)}"
    else:
        window = "" if call.window is None else f" of window {_span(call)}"
        timer = "" if call.timer is None else f"the timer of {show_millis(call.timer)}{window} of "
        what = f"{timer or window.removeprefix(' of ') + ' of ' if timer or window else ''}{of_key}"
    name = f"{type(call.error).__name__}: {_shortened(str(call.error))}".rstrip(": ")
    kind = TidegateError if isinstance(call.error, OF_THE_MACHINE) else UserCodeFailed
    again = "" if kind is TidegateError else ". A retry would fail in the same way: correct the code or the row"
    return kind(
        f"pipeline {job.pipeline}: its code raised {with_line(name, call.error)} for {what}. Nothing of epoch "
        f"{job.epoch} was committed{again}"
    )


def _span(call: FailedCall) -> str:
    assert call.window is not None
    return f"[{show_millis(call.window.start)}, {show_millis(call.window.end)})"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _origin(job: ShardJob, events: pa.Table, row: int) -> str:
    """Return the source version, file and position of a row as a phrase; empty if it is unknown."""
    files = job.files
    if files is None:
        return ""
    if FILE in events.column_names:
        number, place = int(events[FILE][row].as_py()), int(events[PLACE][row].as_py())
    elif (found := _found(job, events, row)) is not None:
        number, place = found
    else:
        return ""
    part = files.parts[number]
    return (
        f": row {place} (the first is 0) of file {part.path} in version {part.version} of source "
        f"{files.table_of(number).name}"
    )


def _found(job: ShardJob, events: pa.Table, row: int) -> tuple[int, int] | None:
    """Return the part and position of a row, found by reading the slice again; None if Spark has to read it."""
    files = job.files
    if files is None or files.needs_spark:
        return None
    wanted = events.slice(row, 1)
    names = [name for name in events.column_names if name == TIME or name.startswith((KEY_PREFIX, VALUE_PREFIX))]
    asked = [_plain(wanted[name]) for name in names]
    commit = wanted[COMMIT][0].as_py()
    every = files.of(files.parts, {part.commit: LAST_TIME for part in files.parts})
    for number, part in enumerate(files.parts):
        for found in every.events([number]) if part.commit == commit else ():
            at_time = np.flatnonzero(found[TIME].to_numpy() == wanted[TIME][0].as_py())
            for place in at_time.tolist():
                if [_plain(found[name].slice(place, 1)) for name in names] == asked:
                    return number, int(found[PLACE][place].as_py())
    return None


def _plain(column: pa.ChunkedArray) -> str:
    return repr(column.to_pylist())
