"""Errors that user code raises in a shard: which call raised one, for which row of the source.

The operators that compute over arrays see many rows at a time, so the shard is computed again element by element until
the call raises the error. That costs nothing as long as no code fails.

With `on_error="reject"` the rows for which user code raises are found in the same way, and the shard is computed
without them. Keys don't influence each other, so a key is computed alone, again after each of its rows that raises:

    rows of a key      1  2  3  4  5     raise for 2 and 5
    first attempt      1  2!             2 is left out
    second attempt     1     3  4  5!    5 is left out
    third attempt      1     3  4        no error: the outcome without 2 and 5
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition.event_columns import COMMIT, FILE, KEY_PREFIX, LAST_TIME, PLACE, TIME, VALUE_PREFIX
from tidegate.pipelines.epoch.job import ShardJob, elements_of, timeline_of
from tidegate.pipelines.errors import TidegateError, UserCodeFailed
from tidegate.pipelines.failures import is_of_user, with_line
from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.columnar.key_codes import encode_keys
from tidegate.windowing.epochs.row_operator import FailedCall, RowOperator
from tidegate.windowing.time import show_millis

OF_THE_MACHINE = (OSError, MemoryError)
"""Errors that a retry may cure, also if user code raises them."""

MOST_PER_KEY = 1_000
"""Largest number of rows of a key that an epoch rejects. The key is computed again after each of them."""

LONGEST_TEXT = 500
"""Largest number of characters of an error in table rejects."""

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


def rows_that_raise(job: ShardJob, events: pa.Table, rows: pa.Table, result: pa.StructType) -> dict[int, str]:
    """Return the events for which user code raises an error: type and message of the error, by index of the event.

    Raises:
        UserCodeFailed: a timer or a window that fires raised one, or too many rows of a key did.
        TidegateError: the error is one that a retry may cure.
    """
    raised: dict[int, str] = {}
    of_events, of_state = _codes(job, events, rows)
    counts = Counter[int]()
    keys = np.unique(of_events)
    # Each entry has keys, and the indices of their events and state rows.
    pending = [(keys, np.arange(len(events)), np.flatnonzero(np.isin(of_state, keys)))]
    while pending:
        keys, numbers, held = pending.pop()
        some = events.take(pa.array(numbers))
        if (call := failed_call(job, some, rows.take(pa.array(held)), result)) is None:
            continue
        if call.row is None or not _is_of_row(call):
            raise error_of(job, some, call) from call.error
        row = int(numbers[call.row])
        key, numbers = int(of_events[row]), np.delete(numbers, call.row)
        raised[row] = _text(call.error)
        counts[key] += 1
        if counts[key] > MOST_PER_KEY:
            why = f". In this epoch it did so for more than {MOST_PER_KEY:,} rows of the key, so they are not rejected"
            raise error_of(job, some, call, why) from call.error
        # The other keys are computed apart, in two halves, so that few of them are computed often.
        others = keys[keys != key]
        half = len(others) // 2
        pending += [
            (part, numbers[np.isin(of_events[numbers], part)], held[np.isin(of_state[held], part)])
            for part in (others[:half], others[half:], np.array([key]))
            if len(part)
        ]
    return raised


def _codes(job: ShardJob, events: pa.Table, rows: pa.Table) -> tuple[Int64s, Int64s]:
    """Return the number of the key of each event and of each state row."""
    if not job.key.names:
        return np.zeros(len(events), np.int64), np.zeros(len(rows), np.int64)
    given = {name: events[f"{KEY_PREFIX}{name}"] for name in job.key.names}
    held = {name: rows[name] for name in job.key.names}
    of_events, of_state = encode_keys(job.key, (given, len(events)), (held, len(rows))).codes
    return of_events, of_state


def _is_of_row(call: FailedCall) -> bool:
    """Return True if an error belongs to one element, so that leaving out this element gives the exact outcome."""
    # The library's own errors, such as an overflow, may depend on how elements were added up.
    return call.row is not None and is_of_user(call.error) and not isinstance(call.error, OF_THE_MACHINE)


def _text(error: Exception) -> str:
    # A message may have half a surrogate pair, which no table can hold.
    text = f"{type(error).__name__}: {error}".encode(errors="replace").decode()
    return _shortened(text, LONGEST_TEXT).rstrip(": ")


def error_of(job: ShardJob, events: pa.Table, call: FailedCall, why: str = "") -> TidegateError:
    """Return the error of a command for a call that failed; it names the line of code, the key and the source row.

    `why` is the reason why a row is not rejected, as a sentence.
    """
    key = dict(zip(job.key.names, job.key.columns_of(call.key), strict=True))
    of_key = "the key " + ", ".join(f"{name} = {value!r}" for name, value in key.items()) if key else "all rows"
    if call.row is not None:
        time = show_millis(int(events[TIME][call.row].as_py()))
        origin = origin_of(job, events, call.row)
        what = f"a row of {of_key} with event time {time}{'' if origin is None else f': {origin}'}"
    else:
        window = "" if call.window is None else f" of window {_span(call)}"
        timer = "" if call.timer is None else f"the timer of {show_millis(call.timer)}{window} of "
        what = f"{timer or window.removeprefix(' of ') + ' of ' if timer or window else ''}{of_key}"
    name = f"{type(call.error).__name__}: {_shortened(str(call.error))}".rstrip(": ")
    kind = TidegateError if isinstance(call.error, OF_THE_MACHINE) else UserCodeFailed
    again = "" if kind is TidegateError else ". A retry would fail in the same way: correct the code or the row"
    if job.on_error == "reject" and kind is UserCodeFailed and not why:
        why = (
            ". No single row is at fault, so on_error = 'reject' has none to reject"
            if call.row is None
            else ". It is an error of the library, not of your code, so on_error = 'reject' does not reject the row"
        )
    return kind(
        f"pipeline {job.pipeline}: its code raised {with_line(name, call.error)} for {what}. Nothing of epoch "
        f"{job.epoch} was committed{why}{again}"
    )


def _span(call: FailedCall) -> str:
    assert call.window is not None
    return f"[{show_millis(call.window.start)}, {show_millis(call.window.end)})"


def _shortened(text: str, longest: int = _LONGEST) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[:longest]}..."


def origin_of(job: ShardJob, events: pa.Table, row: int) -> str | None:
    """Return the source version, file and position of a row as a phrase, or None if it is unknown."""
    files = job.files
    if files is None:
        return None
    if FILE in events.column_names:
        number, place = int(events[FILE][row].as_py()), int(events[PLACE][row].as_py())
    elif (found := _found(job, events, row)) is not None:
        number, place = found
    else:
        return None
    part = files.parts[number]
    return (
        f"row {place} (the first is 0) of file {part.path} in version {part.version} of source "
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
