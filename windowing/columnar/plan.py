"""Which operator runs a computation: the columnar one where it is exact, else the row operator."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.windowing.aggregates.bound import AggregateColumns
from tidegate.windowing.aggregates.vectorised import VectorisedAggregate
from tidegate.windowing.assigners import DynamicEventTimeSessionWindows
from tidegate.windowing.columnar.assignment import assignment_of
from tidegate.windowing.columnar.gaps import gaps_of
from tidegate.windowing.compute import Compute, Windows
from tidegate.windowing.panes import Accumulation
from tidegate.windowing.triggers import ContinuousEventTimeTrigger, EventTimeTrigger, PurgingTrigger, Trigger

_LONGEST = 2**60


@dataclass(frozen=True, slots=True)
class OperatorChoice:
    """An operator and why it was taken, in words."""

    columnar: bool
    reason: str

    @property
    def name(self) -> str:
        """`columnar` or `row`."""
        return "columnar" if self.columnar else "row"


def choose_operator(windows: Compute) -> OperatorChoice:
    """The operator that runs windows; process functions and joins go through row operators of their own."""
    if not isinstance(windows, Windows):
        return OperatorChoice(False, f"{type(windows).__name__} sees elements one by one, with state and timers")
    reason = _needs_rows(windows)
    if reason is not None:
        return OperatorChoice(False, reason)
    kind = type(windows.assigner).__name__
    if assignment_of(windows.assigner) is None:
        return OperatorChoice(
            True, f"{kind} and every aggregate have array forms; sessions that a late element may meet go row by row"
        )
    early = (
        "; a backfill in event order goes row by row, since its watermark moves between any two elements"
        if type(windows.trigger) is ContinuousEventTimeTrigger
        else ""
    )
    return OperatorChoice(True, f"{kind}, the trigger and every aggregate have array forms{early}")


def is_purging(windows: Windows) -> bool:
    """Whether the trigger empties a window when it fires."""
    return isinstance(windows.trigger, PurgingTrigger)


def _needs_rows(windows: Windows) -> str | None:
    """Why arrays can't do it, None if they can."""
    assigner = windows.assigner
    name = type(assigner).__name__
    if not assigner.is_event_time:
        return f"windows of {name} do not end by event time"
    if type(assigner) is DynamicEventTimeSessionWindows and gaps_of(assigner) is None:
        return f"gap function {assigner.gap_of!r} takes elements one by one: a GapColumn has an array form"
    if gaps_of(assigner) is None and assignment_of(assigner) is None:
        return f"{name} has no array form" + (
            "" if getattr(assigner, "stagger", None) is None else " until its stagger is drawn"
        )
    if windows.trigger is not None and not _fires_at_end(windows.trigger):
        if type(windows.trigger) is not ContinuousEventTimeTrigger:
            return f"trigger {windows.trigger!r} has no array form"
        if gaps_of(assigner) is not None or windows.accumulation is Accumulation.DISCARDING:
            return f"trigger {windows.trigger!r} has an array form only for windows that neither merge nor discard"
    if windows.evictor is not None:
        return f"evictor {windows.evictor!r} needs every element"
    if windows.process is not None:
        return f"process function {type(windows.process).__name__} takes elements one window at a time"
    if windows.reduce is not None:
        return "a reduce function takes elements two at a time: an aggregate has an array form"
    if windows.lateness > _LONGEST:
        return f"allowed lateness of {windows.lateness} ms reaches the end of time"
    return _not_vectorised(windows)


def _fires_at_end(trigger: Trigger) -> bool:
    if type(trigger) is PurgingTrigger:
        return type(trigger.nested) is EventTimeTrigger
    return type(trigger) is EventTimeTrigger


def _not_vectorised(windows: Windows) -> str | None:
    bound = windows.bound_aggregate
    if not isinstance(bound, AggregateColumns):
        if isinstance(bound, VectorisedAggregate):
            return None
        return f"aggregate function {type(bound).__name__} is not a VectorisedAggregate"
    for name, function in zip(bound.names, bound.functions, strict=True):
        if not isinstance(function, VectorisedAggregate):
            return f"aggregate {name!r} is not a VectorisedAggregate"
    return None
