"""The state of one window of one key."""

from __future__ import annotations

from typing import Any

from tidegate.windowing.panes import EmittedPane
from tidegate.windowing.windows import Window


class WindowCell:
    """Contents, trigger and function state, and panes of one (key, window).

    `identity` is the window at its first firing, None before; it does not change while a session grows.

    `late_firing` is the firing that waits for the end of the source commit: None if none waits, True if it purges.
    `discarded` holds contents that were emitted in discarding mode; they are restored if their panes are retracted.
    `missing` names the aggregates that were added after the window opened: their results are null. `unseen` counts
    elements since the last firing, but only if the windows may lose elements.
    """

    __slots__ = (
        "contents",
        "discarded",
        "emitted",
        "function_state",
        "identity",
        "late_firing",
        "missing",
        "pane",
        "trigger_state",
        "unseen",
    )

    def __init__(self) -> None:
        self.contents: Any = None
        self.trigger_state: dict[str, Any] | None = None
        self.function_state: dict[str, Any] | None = None
        self.identity: Window | None = None
        self.pane = 0
        self.emitted: list[EmittedPane] | None = None
        self.discarded: Any = None
        self.late_firing: bool | None = None
        self.missing: frozenset[str] | None = None
        self.unseen = 0
