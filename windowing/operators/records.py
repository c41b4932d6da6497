"""What operators put out, in the order in which it happened."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from tidegate.windowing.panes import Timing
from tidegate.windowing.time import Millis
from tidegate.windowing.windows import Window


class WindowResult(NamedTuple):
    """One result of a window's firing, or (op `-`) its withdrawal.

    `timestamp` is the window's last millisecond; `timer` the time of the timer that fired it, None
    where an element did. `identity` is what the window was when it first fired: it stays while a
    session grows, and with the key it identifies the window. `watermark` is the operator's at the firing.
    """

    key: Any
    window: Window
    value: Any
    timestamp: Millis
    timer: Millis | None
    identity: Window
    pane: int
    timing: Timing
    op: str
    watermark: Millis


class ElementResult(NamedTuple):
    """One result of a process function: `timestamp` is the element's or event-time timer's, else None."""

    value: Any
    timestamp: Millis | None
    key: Any = None


class LateElement(NamedTuple):
    """An element that no window could take any more.

    `window` is the one it would have gone to first, None if it has none; `reason` says why it is
    late: `late`, or `merged_window_late` where merging would have made a passed window.
    """

    key: Any
    value: Any
    timestamp: Millis | None
    reason: str
    window: Window | None
    watermark: Millis
    side: str | None = None


class SideOutput(NamedTuple):
    """A value that a user function sent to a tag."""

    tag: str
    value: Any
    timestamp: Millis | None
    key: Any = None


class WatermarkRecord(NamedTuple):
    """The watermark, forwarded after everything it caused."""

    timestamp: Millis


class IdleRecord(NamedTuple):
    """The status of the output: idle, or active again."""

    idle: bool


Record: TypeAlias = WindowResult | ElementResult | LateElement | SideOutput | WatermarkRecord | IdleRecord
