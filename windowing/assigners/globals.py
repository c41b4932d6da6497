"""The assigner of the global window, for triggers that don't depend on the end of a window, or for the end of input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.windowing.assigners.base import AssignerContext, WindowAssigner
from tidegate.windowing.time import Millis
from tidegate.windowing.triggers import EndOfStreamTrigger, NeverTrigger, Trigger
from tidegate.windowing.windows import GLOBAL_WINDOW, GlobalWindow

_GLOBAL_WINDOW_ONLY = (GLOBAL_WINDOW,)


@dataclass(frozen=True, slots=True)
class GlobalWindows(WindowAssigner):
    """Assigner that puts every element of a key into the global window. Source: Flink's `GlobalWindows`.

    Args:
        end_of_stream: True makes the default trigger fire at the end of input. False makes it never fire.
    """

    end_of_stream: bool = False

    @classmethod
    def create(cls) -> GlobalWindows:
        """Create the assigner whose default trigger never fires, named as in Flink."""
        return cls()

    @classmethod
    def create_with_end_of_stream_trigger(cls) -> GlobalWindows:
        """Create the assigner whose default trigger fires at the end of input, named as in Flink."""
        return cls(end_of_stream=True)

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[GlobalWindow]:
        return _GLOBAL_WINDOW_ONLY

    def get_default_trigger(self) -> Trigger:
        return EndOfStreamTrigger() if self.end_of_stream else NeverTrigger()

    @property
    def reads_elements(self) -> bool:
        return False

    @property
    def is_event_time(self) -> bool:
        return False

    @property
    def is_global(self) -> bool:
        return True
