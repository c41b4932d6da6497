"""The process window function: all of a window's contents at once, with context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from tidegate.windowing.state.descriptors import StateDescriptor
from tidegate.windowing.time import Millis
from tidegate.windowing.windows import Window


class KeyedStateStore(Protocol):
    """Declared state of one cell."""

    def get_state(self, descriptor: StateDescriptor) -> Any:
        """A handle on the state that `descriptor` declares."""


class ProcessWindowContext(Protocol):
    """What a process window function may read, keep and send."""

    @property
    def window(self) -> Window:
        """The window that fired."""

    @property
    def current_watermark(self) -> Millis:
        """The watermark, int64 epoch milliseconds."""

    @property
    def current_processing_time(self) -> Millis:
        """The clock, int64 epoch milliseconds."""

    @property
    def window_state(self) -> KeyedStateStore:
        """State of this key and window; clear it in `clear`. Not for windows that merge."""

    @property
    def global_state(self) -> KeyedStateStore:
        """State of this key over all windows."""

    def output(self, tag: str, value: Any) -> None:
        """Send a value to a side output, with the window's last millisecond as timestamp."""


class ProcessWindowFunction(ABC):
    """Turns the contents of a fired window into results. Source: Flink's `ProcessWindowFunction`."""

    result_type: Any = None
    """Arrow struct type of a result, where results go to a table."""

    @abstractmethod
    def process(self, key: Any, ctx: ProcessWindowContext, elements: Sequence[Any]) -> Iterable[Any]:
        """The results of one firing.

        Args:
            key: the window's key.
            ctx: window, clocks, state and side outputs.
            elements: in arrival order; the one reduced or aggregated value where there is one.
        """

    def clear(self, ctx: ProcessWindowContext) -> None:  # noqa: B027 - most functions keep nothing
        """The window goes away: drop what `ctx.window_state` holds."""

    def states(self) -> Sequence[StateDescriptor]:
        """The per-window state this function declares, for the snapshot's schema."""
        return ()

    def global_states(self) -> Sequence[StateDescriptor]:
        """The state over all windows of a key that this function declares."""
        return ()
