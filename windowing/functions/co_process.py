"""The keyed co-process function: two inputs that share the state and timers of a key.

Source: Flink's `KeyedCoProcessFunction`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidegate.windowing.functions.keyed_process import OnTimerContext, ProcessContext
from tidegate.windowing.state.descriptors import StateDescriptor
from tidegate.windowing.time import Millis


class KeyedCoProcessFunction(ABC):
    """Turns elements of two inputs, and timers, into results. Hooks yield them, or return them in a list.

    Timestamps of results are those of `KeyedProcessFunction`.
    """

    result_type: Any = None
    """Arrow struct type of a result, where results go to a table."""

    side_outputs: Mapping[str, Any] = {}
    """Arrow struct type of what each side output takes, where results go to a table."""

    @abstractmethod
    def process_element1(self, value: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """An element of the left input came: its results, if any."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """An element of the right input came: its results, if any."""

    def on_timer(self, timestamp: Millis, ctx: OnTimerContext) -> Iterable[Any] | None:
        """A timer of the key fired, set by either input: its results, if any.

        Args:
            timestamp: the time it was set for, int64 epoch milliseconds.
            ctx: for the timer's key.
        """
        return None

    def states(self) -> Sequence[StateDescriptor]:
        """The state of a key this function declares, for the snapshot's schema."""
        return ()
