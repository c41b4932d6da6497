"""Sessions by hand in Spark's `transformWithStateInPandas`, as a Python user would write them today.

Spark makes one call for each key and batch. The open sessions of the key are a list in the state, and each has an
event-time timer at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        ListState,
        StatefulProcessorHandle,
        TimerValues,
    )

OUTPUT = "key string, window_start long, window_end long, events long, total long"

Session = tuple[int, int, int, int]
"""Start, end, number of events, sum of their values."""


class SessionProcessor(StatefulProcessor):
    """Session windows with a count and a sum.

    Args:
        gap: the session gap, milliseconds.
    """

    def __init__(self, gap: int) -> None:
        self.gap = gap
        self.handle: StatefulProcessorHandle
        self.open: ListState

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.open = handle.getListState("open", "start long, end long, events long, total long")

    def handleInputRows(  # noqa: N802
        self,
        key: tuple[str],
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        before: list[Session] = [tuple(row) for row in self.open.get()] if self.open.exists() else []
        arrived = [
            (moment, moment + self.gap, 1, value)
            for frame in rows
            for moment, value in zip(frame["at"].astype("datetime64[ms]").astype("int64"), frame["value"], strict=True)
        ]
        after = merge([*before, *arrived])
        self.open.put(after)
        ends = {session[1] for session in before}
        for end in {session[1] for session in after} - ends:
            self.handle.registerTimer(end)
        for end in ends - {session[1] for session in after}:
            self.handle.deleteTimer(end)
        yield from ()

    def handleExpiredTimer(  # noqa: N802
        self,
        key: tuple[str],
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        now = expiredTimerInfo.getExpiryTimeInMs()
        sessions: list[Session] = [tuple(row) for row in self.open.get()]
        due = [session for session in sessions if session[1] <= now]
        left = [session for session in sessions if session[1] > now]
        if left:
            self.open.put(left)
        else:
            # A list state can't be empty.
            self.open.clear()
        if due:
            yield pd.DataFrame([(key[0], *session) for session in due], columns=_NAMES)

    def close(self) -> None:
        """Do nothing: the processor holds no resources."""


_NAMES = [part.split()[0] for part in OUTPUT.split(", ")]


def merge(sessions: list[Session]) -> list[Session]:
    """Merge the sessions that overlap or touch."""
    merged: list[Any] = []
    for session in sorted(sessions):
        if merged and session[0] <= merged[-1][1]:
            start, end, events, total = merged[-1]
            merged[-1] = (start, max(end, session[1]), events + session[2], total + session[3])
        else:
            merged.append(session)
    return merged
