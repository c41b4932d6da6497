"""Why something waits: a kind with fields, which is put into words once, for the terminal and for notebooks.

JSON has the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto

from tidegate.pipelines.remedy import Remedy
from tidegate.pipelines.rendering import spelled
from tidegate.windowing.time import Millis, show_duration, show_millis


class Cause(StrEnum):
    """The kinds of reasons: first those of a window, a key or an element, then those of the watermark."""

    KEPT = auto()
    FUNCTION = auto()
    LATE_ELEMENTS = auto()
    DUE = auto()
    NO_WATERMARK = auto()
    WATERMARK = auto()
    CLOCK = auto()
    NO_TIMER_OF_FUNCTION = auto()
    NO_TIMER_OF_TRIGGER = auto()
    NEXT_INTERVAL = auto()
    END_OF_BACKFILL = auto()
    NO_ROWS = auto()
    IDLE = auto()
    CATCHING_UP = auto()
    HELD_BACK = auto()


_WORDS: Mapping[Cause, str] = {
    Cause.KEPT: "a {side} element: kept until the watermark is {at}",
    Cause.FUNCTION: "its function gets the next element when the watermark reaches {at}",
    Cause.LATE_ELEMENTS: "it has fired, and accepts late elements until the watermark is {at}",
    Cause.DUE: "it is due: the next epoch fires it",
    Cause.NO_WATERMARK: "no event has moved the watermark yet",
    Cause.WATERMARK: "the watermark must reach {at}",
    Cause.CLOCK: "it fires by the clock, in the first epoch at or after {at}",
    Cause.NO_TIMER_OF_FUNCTION: "its function has not set a timer: only more elements can give a result",
    Cause.NO_TIMER_OF_TRIGGER: "its trigger has not set a timer: only more elements can make it fire",
    Cause.NEXT_INTERVAL: "in a backfill, the run of the next interval does that, from {at} on",
    Cause.END_OF_BACKFILL: "no interval follows, because `end` in tidegate.toml has been reached",
    Cause.NO_ROWS: "{source} has no rows yet, which holds it back",
    Cause.IDLE: "every source partition is idle, so only new events advance it",
    Cause.CATCHING_UP: "{source} was idle and has to catch up first, from {at}",
    Cause.HELD_BACK: "{source} holds it back at {at}",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something waits. Times are int64 epoch milliseconds.

    Args:
        kind: the kind.
        at: the time that the watermark or the clock must reach, or at which the watermark is.
        side: side of the element or of the source of a join.
        partition: the source partition that the watermark waits for.
        quiet: milliseconds for which the partition has had no rows.
        remedy: what the user can do.
        because: what the watermark waits for.
    """

    kind: Cause
    at: Millis | None = None
    side: str | None = None
    partition: str | None = None
    quiet: Millis | None = None
    remedy: Remedy | None = None
    because: Reason | None = None

    @property
    def words(self) -> str:
        """The reason itself, without what the watermark waits for."""
        source = f"source partition {self.partition!r}" if self.partition else "the source"
        source = source if self.side is None else f"the {self.side} source"
        text = _WORDS[self.kind].format(at=show_millis(self.at), side=self.side, source=source)
        text += "" if self.quiet is None else f", without rows for {show_duration(self.quiet)}"
        return text if self.remedy is None else f"{text}: {spelled(self.remedy)}"

    def __str__(self) -> str:
        return self.words if self.because is None else f"{self.words}; {self.because}"
