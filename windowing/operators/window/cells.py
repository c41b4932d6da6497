"""What the window operator remembers of one window of one key."""

from __future__ import annotations

from typing import Any

from tidegate.windowing.panes import EmittedPane
from tidegate.windowing.windows import Window


class WindowCell:
    """Contents, trigger and function state, and panes of one (key, window).

    `identity` is what the window was when it first fired, None before; it stays while a session grows.

    `late_firing` is the firing that waits for the end of the source commit: None, or whether it
    purges. `discarded` are contents that went out in discarding mode and come back if their panes
    are withdrawn. `missing` names aggregates that are younger than the window: their results are null.
    `unseen` counts elements since the last firing, where windows may lose some.
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
