"""The records that operators emit."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from tidegate.windowing.panes import Timing
from tidegate.windowing.time import Millis
from tidegate.windowing.windows import TimeWindow, Window

LATE = "late"
MERGED_WINDOW_LATE = "merged_window_late"
WINDOWS_PASSED = "windows_passed"
"""Reasons of late elements."""


class WindowResult(NamedTuple):
    """One result of a window's firing, or (op `-`) its retraction.

    `timestamp` is the window's last millisecond. `timer` is the time of the timer that fired the window, None if an
    element fired it. `identity` is the window at its first firing: it does not change while a session grows, and with
    the key it identifies the window. `watermark` is the operator's watermark at the firing.
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


class WindowPair(NamedTuple):
    """Result of a window join without a function: the window, and an element of each side or None."""

    window: TimeWindow
    left: Any
    right: Any


class ElementResult(NamedTuple):
    """One result of a process function or join; `timestamp` is that of the element or event-time timer, or None."""

    value: Any
    timestamp: Millis | None
    key: Any = None


class LateElement(NamedTuple):
    """A late element, which no window, function or join accepted.

    `window` is the first of its windows, None if it has none. `reason` says why it is late: `LATE`,
    `MERGED_WINDOW_LATE` if a merge would have ended a window in the past, or `WINDOWS_PASSED` if all its windows
    have passed though the element itself is not late.
    """

    key: Any
    value: Any
    timestamp: Millis | None
    reason: str
    window: Window | None
    watermark: Millis
    side: str | None = None


class SideOutput(NamedTuple):
    """A value that a user function sent to the side output `tag`."""

    tag: str
    value: Any
    timestamp: Millis | None
    key: Any = None


class WatermarkRecord(NamedTuple):
    """A watermark, which follows the records that it caused."""

    timestamp: Millis


class IdleRecord(NamedTuple):
    """The status of the output: idle, or active again."""

    idle: bool


Record: TypeAlias = WindowResult | ElementResult | LateElement | SideOutput | WatermarkRecord | IdleRecord
