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
    """A function from the elements of two inputs, and timers, to results. Methods yield results or return a list.

    Results get timestamps as in `KeyedProcessFunction`.
    """

    result_type: Any = None
    """Arrow struct type of a result; needed if results go to a table."""

    side_outputs: Mapping[str, Any] = {}
    """Arrow struct type of the values of each side output; needed if results go to a table."""

    @abstractmethod
    def process_element1(self, value: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """Return the results of an element, if any. Called for each element of the left input."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """Return the results of an element, if any. Called for each element of the right input."""

    def on_timer(self, timestamp: Millis, ctx: OnTimerContext) -> Iterable[Any] | None:
        """Return the results of a timer, if any. Called when a timer fires that an element of either input set.

        Args:
            timestamp: the time of the timer, int64 epoch milliseconds.
            ctx: the context for the timer's key.
        """
        return None

    def states(self) -> Sequence[StateDescriptor]:
        """Return descriptors of the state that this function keeps for a key, for the snapshot's columns."""
        return ()
