"""The composable algebra of triggers: what a term is, and how terms become one trigger.

A term fires when its condition holds, and is then finished until something starts it again. Terms
are values without state; what they remember of a window lives in named int64 states, one set for
each place in the tree of terms. Timers follow from these states alone: after each hook, those that a
term waits for are set and those that no term waits for any more are deleted, so that two terms that
wait for the same time never take each other's timer. Source of the idea: Beam's composite triggers.
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
from tidegate.windowing.triggers.base import CONTINUE, FIRE, OnMergeContext, Trigger, TriggerContext, TriggerResult
from tidegate.windowing.windows import Window

COUNT, DUE, FINISHED, ON_TIME = "count", "due", "finished", "on_time"

# How each state of windows that merge becomes one: what finished in one of them is finished.
_MERGES: dict[str, Callable[[int, int], int]] = {COUNT: add, DUE: min, FINISHED: max, ON_TIME: max}


@dataclass(frozen=True, slots=True)
class TermState:
    """An int64 of a window. A merge copies it: the window that goes must still know which timers it set."""

    name: str
    reduce: Callable[[int, int], int]

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.int64()

    def bind(self, cell: Cell, clock: Clock) -> ValueState:
        return ValueState(cell, self.name, None)

    def merge(self, target: Cell, source: Cell) -> None:
        if self.name in source:
            there, here = target.get(self.name), source[self.name]
            target[self.name] = here if there is None else self.reduce(there, here)


@cache
def _descriptor(path: str, state: str) -> TermState:
    return TermState(f"{path}{state}", _MERGES[state])


class Wakeup(NamedTuple):
    """A time that a term waits for."""

    event_time: bool
    time: Millis


class Place:
    """A term's place in the tree, for one window and one hook: its states, and the clocks."""

    __slots__ = ("ctx", "path", "window")

    def __init__(self, ctx: TriggerContext, window: Window, path: str = "") -> None:
        self.ctx, self.window, self.path = ctx, window, path

    def part(self, index: int) -> Place:
        """The place of the term's part with this index."""
        return Place(self.ctx, self.window, f"{self.path}part{index}_")

    def get(self, state: str) -> int | None:
        """A state of the term here, None if it is not set."""
        value: int | None = self.ctx.get_partitioned_state(_descriptor(self.path, state)).value()
        return value

    def put(self, state: str, value: int) -> None:
        """Set a state of the term here."""
        self.ctx.get_partitioned_state(_descriptor(self.path, state)).update(value)

    def clear(self, state: str) -> None:
        """Forget a state of the term here."""
        self.ctx.get_partitioned_state(_descriptor(self.path, state)).clear()

    @property
    def finished(self) -> bool:
        """Whether the term here is finished."""
        return self.get(FINISHED) is not None

    def finish(self) -> bool:
        """The term here fires and is finished."""
        self.put(FINISHED, 1)
        return True

    @property
    def passed(self) -> bool:
        """Whether the watermark has passed the end of the window."""
        return self.window.max_timestamp <= self.ctx.current_watermark


class Term(Trigger):
    """A part of the algebra, and a whole trigger by itself; one that is finished fires no more.

    Subclasses are frozen dataclasses. Hooks of terms return whether they fire.
    """

    @abstractmethod
    def element(self, at: Place) -> bool:
        """An element came."""

    @abstractmethod
    def event_time(self, time: Millis, at: Place) -> bool:
        """The watermark reached a time that some term waits for."""

    @abstractmethod
    def processing_time(self, time: Millis, at: Place) -> bool:
        """The clock reached a time that some term waits for."""

    @abstractmethod
    def wakeups(self, at: Place) -> Iterator[Wakeup]:
        """The times this term and its parts wait for."""

    @abstractmethod
    def own_states(self) -> Sequence[str]:
        """Names of the states this term keeps, without those of its parts."""

    def parts(self) -> Sequence[Term]:
        """The terms it is made of."""
        return ()

    def merged(self, at: Place) -> None:
        """The states here and below are those of merged windows: make them fit the new one."""
        for index, part in enumerate(self.parts()):
            part.merged(at.part(index))

    def reset(self, at: Place) -> None:
        """Start again: forget the states here and below."""
        for state in self.own_states():
            at.clear(state)
        for index, part in enumerate(self.parts()):
            part.reset(at.part(index))

    @fact
    def finishes(self) -> bool:
        """Whether it may be finished while its window still takes elements; a late one comes after the end."""
        return True

    @fact
    def shows_all(self, *, event_time: bool) -> bool:
        """Whether each element is in a firing before the window goes, as long as the term is not finished."""
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
            _register(wakeup, ctx)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        at = Place(ctx, window)
        for wakeup in self._waits_for(at):
            _delete(wakeup, ctx)
        # Timers at the end were never taken back before, because they may be those that clean the window.
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
                _delete(wakeup, at.ctx)
        for wakeup in after:
            # The end is waited for from the start, before any state says so.
            if wakeup not in before or wakeup.time == end:
                _register(wakeup, at.ctx)
        return FIRE if fires else CONTINUE

    def _waits_for(self, at: Place) -> set[Wakeup]:
        return set() if at.finished else set(self.wakeups(at))

    def _states(self, path: str = "") -> Iterator[tuple[str, str]]:
        for state in self.own_states():
            yield path, state
        for index, part in enumerate(self.parts()):
            yield from part._states(f"{path}part{index}_")


def check_terms(field: str, *terms: object) -> None:
    """Refuse what is no term.

    Raises:
        IllegalArgument: with the field and the value.
    """
    for term in terms:
        if not isinstance(term, Term):
            raise IllegalArgument(
                field,
                term,
                "give a term of the algebra (AfterWatermark, AfterCount, AfterProcessingTime, AfterAny, AfterAll, "
                "AfterEach, Repeatedly, OrFinally): other triggers decide by themselves when they fire again",
            )


def _register(wakeup: Wakeup, ctx: TriggerContext) -> None:
    if wakeup.event_time:
        ctx.register_event_time_timer(wakeup.time)
    else:
        ctx.register_processing_time_timer(wakeup.time)


def _delete(wakeup: Wakeup, ctx: TriggerContext) -> None:
    if wakeup.event_time:
        ctx.delete_event_time_timer(wakeup.time)
    else:
        ctx.delete_processing_time_timer(wakeup.time)
