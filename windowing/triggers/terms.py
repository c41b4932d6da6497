"""Terms, the parts of composite triggers, and the trigger that a tree of terms forms.

A term fires when its condition holds. Then it is finished until another term restarts it. Terms are values without
state. Each place in the tree of terms has named int64 states for a window. Timers depend on these states alone: after
each hook, the trigger registers the timers that a term waits for, and deletes those that no term waits for any longer.
So two terms can wait for the same time, and neither deletes the other's timer. The idea is from Beam's composite
triggers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from operator import add
from typing import Any, NamedTuple

import pyarrow as pa

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.facts import fact
from tidegate.windowing.state.descriptors import Cell, Clock, StateDescriptor, ValueState
from tidegate.windowing.time import Millis
from tidegate.windowing.triggers.base import (
    CONTINUE,
    FIRE,
    OnMergeContext,
    Trigger,
    TriggerContext,
    TriggerResult,
    delete_timer,
    register_timer,
)
from tidegate.windowing.windows import Window

COUNT, DUE, FINISHED, ON_TIME = "count", "due", "finished", "on_time"

# Functions that merge the states of windows. A term that is finished in one of the windows stays finished.
_MERGES: dict[str, Callable[[int, int], int]] = {COUNT: add, DUE: min, FINISHED: max, ON_TIME: max}


@dataclass(frozen=True, slots=True)
class TermState:
    """An int64 state of a window. A merge copies the state, because a merged window needs it to delete its timers."""

    name: str
    reduce: Callable[[int, int], int]

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.int64()

    def bind(self, cell: Cell, clock: Clock, owner: object = None) -> ValueState:
        return ValueState(cell, self.name, self.arrow_type, None, owner)

    def merge(self, target: Cell, source: Cell) -> None:
        if self.name in source:
            into, merged = target.get(self.name), source[self.name]
            target[self.name] = merged if into is None else self.reduce(into, merged)


@cache
def _descriptor(path: str, state: str) -> TermState:
    return TermState(f"{path}{state}", _MERGES[state])


class Wakeup(NamedTuple):
    """A time that a term waits for, in event time or in processing time."""

    event_time: bool
    time: Millis


class Place:
    """The place of a term in the tree of terms, during a hook of a window: the states of the term, and the clocks."""

    __slots__ = ("ctx", "path", "window")

    def __init__(self, ctx: TriggerContext, window: Window, path: str = "") -> None:
        self.ctx, self.window, self.path = ctx, window, path

    def part(self, index: int) -> Place:
        """Return the place of the part with this index."""
        return Place(self.ctx, self.window, f"{self.path}part{index}_")

    def get(self, state: str) -> int | None:
        """Return a state of the term; None if it is not set."""
        value: int | None = self.ctx.get_partitioned_state(_descriptor(self.path, state)).value()
        return value

    def put(self, state: str, value: int) -> None:
        """Set a state of the term."""
        self.ctx.get_partitioned_state(_descriptor(self.path, state)).update(value)

    def clear(self, state: str) -> None:
        """Clear a state of the term."""
        self.ctx.get_partitioned_state(_descriptor(self.path, state)).clear()

    @property
    def finished(self) -> bool:
        """True if the term is finished."""
        return self.get(FINISHED) is not None

    def finish(self) -> bool:
        """Mark the term as finished. Return True, because it fires."""
        self.put(FINISHED, 1)
        return True

    @property
    def passed(self) -> bool:
        """True if the watermark has reached the end of the window."""
        return self.window.max_timestamp <= self.ctx.current_watermark


class Term(Trigger):
    """A term, which is a part of a composite trigger, and also a trigger by itself. A finished term does not fire.

    Subclasses are frozen dataclasses. The hooks of a term return True if it fires.
    """

    @abstractmethod
    def element(self, at: Place) -> bool:
        """Handle an element of the window."""

    def event_time(self, time: Millis, at: Place) -> bool:
        """Handle a watermark that reached the time of a wakeup, possibly that of another term."""
        return False

    def processing_time(self, time: Millis, at: Place) -> bool:
        """Handle processing time that reached the time of a wakeup, possibly that of another term."""
        return False

    def wakeups(self, at: Place) -> Iterator[Wakeup]:
        """Yield the times that this term and its parts wait for."""
        return iter(())

    @abstractmethod
    def own_states(self) -> Sequence[str]:
        """Return the names of the states of this term, without those of its parts."""

    def parts(self) -> Sequence[Term]:
        """Return the terms that this term combines."""
        return ()

    def merged(self, at: Place) -> None:
        """Adapt the states of this term and its parts, which come from merged windows, to the new window."""
        for index, part in enumerate(self.parts()):
            part.merged(at.part(index))

    def reset(self, at: Place) -> None:
        """Restart: clear the states of this term and its parts."""
        for state in self.own_states():
            at.clear(state)
        for index, part in enumerate(self.parts()):
            part.reset(at.part(index))

    @fact
    def finishes(self) -> bool:
        """Return True if the term may be finished while its window still accepts elements, such as late ones."""
        return True

    @fact
    def shows_all(self, *, event_time: bool) -> bool:
        """Return True if each element is in a pane before the window is removed, unless the term is finished.

        Args:
            event_time: True if the windows end by the watermark; False if they end by the clock.
        """
        return False

    # --- as a trigger ------------------------------------------------------------------------

    def may_lose_data(self, *, event_time: bool, lateness: Millis) -> bool:
        return self.finishes() or not self.shows_all(event_time=event_time)

    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return self._hook(Place(ctx, window), self.element)

    def on_event_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return self._hook(Place(ctx, window), lambda at: self.event_time(time, at))

    def on_processing_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return self._hook(Place(ctx, window), lambda at: self.processing_time(time, at))

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        for path, state in self._states():
            ctx.merge_partitioned_state(_descriptor(path, state))
        at = Place(ctx, window)
        self.merged(at)
        for wakeup in self._waits_for(at):
            register_timer(*wakeup, ctx)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        at = Place(ctx, window)
        for wakeup in self._waits_for(at):
            delete_timer(*wakeup, ctx)
        # The hooks never delete timers at the end of the window, because such a timer may be the cleanup timer.
        ctx.delete_event_time_timer(window.max_timestamp)
        ctx.delete_processing_time_timer(window.max_timestamp)
        self.reset(at)

    def states(self) -> Sequence[StateDescriptor]:
        return tuple(_descriptor(path, state) for path, state in self._states())

    def _hook(self, at: Place, hook: Callable[[Place], bool]) -> TriggerResult:
        if at.finished:
            return CONTINUE
        before = self._waits_for(at)
        fires = hook(at)
        after = self._waits_for(at)
        end = at.window.max_timestamp
        for wakeup in before - after:
            if wakeup.time != end:
                delete_timer(*wakeup, at.ctx)
        for wakeup in after:
            # A term waits for the end from the beginning, so `before` has that wakeup even if no timer is registered
            # yet.
            if wakeup not in before or wakeup.time == end:
                register_timer(*wakeup, at.ctx)
        return FIRE if fires else CONTINUE

    def _waits_for(self, at: Place) -> set[Wakeup]:
        return set() if at.finished else set(self.wakeups(at))

    def _states(self, path: str = "") -> Iterator[tuple[str, str]]:
        for state in self.own_states():
            yield path, state
        for index, part in enumerate(self.parts()):
            yield from part._states(f"{path}part{index}_")


def check_terms(field: str, *terms: object) -> None:
    """Refuse values that are not terms.

    Raises:
        IllegalArgument: a value is not a term. The error names the field and the value.
    """
    for term in terms:
        if not isinstance(term, Term):
            raise IllegalArgument(
                field,
                term,
                "give a term of the algebra (AfterWatermark, AfterCount, AfterProcessingTime, AfterAny, AfterAll, "
                "AfterEach, Repeatedly, OrFinally): other triggers decide by themselves when they fire again",
            )
