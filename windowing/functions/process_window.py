"""The process window function: it gets all contents of a window, and a context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from tidegate.windowing.state.descriptors import StateDescriptor
from tidegate.windowing.time import Millis
from tidegate.windowing.windows import Window


class KeyedStateStore(Protocol):
    """Access to the declared states of one cell."""

    def get_state(self, descriptor: StateDescriptor) -> Any:
        """Return a handle on the state that `descriptor` declares."""


class ProcessWindowContext(Protocol):
    """Context of a process window function: window, clocks, state and side outputs."""

    @property
    def window(self) -> Window:
        """Window that fired."""

    @property
    def current_watermark(self) -> Millis:
        """Watermark, int64 epoch milliseconds."""

    @property
    def current_processing_time(self) -> Millis:
        """Processing time, int64 epoch milliseconds."""

    @property
    def window_state(self) -> KeyedStateStore:
        """State of this key and window; `clear` must remove it. Windows that merge can't use it."""

    @property
    def global_state(self) -> KeyedStateStore:
        """State of this key over all windows."""

    def output(self, tag: str, value: Any) -> None:
        """Send a value to a side output, with the window's last millisecond as timestamp."""


class ProcessWindowFunction(ABC):
    """A function from the contents of a fired window to results. Source: Flink's `ProcessWindowFunction`."""

    result_type: Any = None
    """Arrow struct type of a result; needed if results go to a table."""

    @abstractmethod
    def process(self, key: Any, ctx: ProcessWindowContext, elements: Sequence[Any]) -> Iterable[Any]:
        """Return the results of a firing. Called each time the window fires.

        Args:
            key: the window's key.
            ctx: window, clocks, state and side outputs.
            elements: all elements in arrival order, or the one aggregated or reduced value.
        """

    def clear(self, ctx: ProcessWindowContext) -> None:  # noqa: B027 - most functions keep nothing
        """Remove the state in `ctx.window_state`. Called when the window is removed."""

    def states(self) -> Sequence[StateDescriptor]:
        """Return descriptors of the state that this function keeps for a window, for the snapshot's columns."""
        return ()

    def global_states(self) -> Sequence[StateDescriptor]:
        """Return descriptors of the state that this function keeps for a key over all its windows."""
        return ()
