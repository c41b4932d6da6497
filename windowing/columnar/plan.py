"""Choice of a computation's operator: the columnar operator if it is exact, otherwise the row operator."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.windowing.aggregates.bound import AggregateColumns
from tidegate.windowing.columnar.slices import Slicing, slicing_of
from tidegate.windowing.compute import Compute, WindowJoin, Windows
from tidegate.windowing.panes import Accumulation
from tidegate.windowing.time import Millis, show_duration, show_length

_LONGEST = 2**60


@dataclass(frozen=True, slots=True)
class OperatorChoice:
    """The operator for a computation, and the reason for the choice.

    `slicing` has the slices of overlapping windows, or the reason why they don't share slices. It is None for other
    computations and for the row operator.
    """

    columnar: bool
    reason: str
    slicing: Slicing | str | None = None

    @property
    def name(self) -> str:
        """`columnar` or `row`."""
        return "columnar" if self.columnar else "row"


def choose_operator(windows: Compute) -> OperatorChoice:
    """Return the operator that runs a computation; process functions and interval joins always run in row operators."""
    if isinstance(windows, WindowJoin):
        kind = type(windows.assigner).__name__
        if windows.join is not None:
            return OperatorChoice(False, "the function of the join takes elements pair by pair")
        if windows.assigner.array_assignment is None:
            return OperatorChoice(False, f"{kind} assigns windows one element at a time")
        return OperatorChoice(True, f"{kind} has an array form, and the join pairs whole elements")
    if not isinstance(windows, Windows):
        return OperatorChoice(False, f"{type(windows).__name__} sees elements one by one, with state and timers")
    reason = _needs_rows(windows)
    if reason is not None:
        return OperatorChoice(False, reason)
    kind = type(windows.assigner).__name__
    if windows.assigner.forms_sessions:
        return OperatorChoice(
            True,
            f"{kind} and every aggregate have array forms; sessions that a late element may join are computed row by "
            "row",
        )
    early = ""
    if early_interval(windows) is not None:
        early = "; a backfill in event order is computed row by row, since its watermark moves between any two elements"
    slicing = slicing_of(windows)
    slices = ""
    if isinstance(slicing, Slicing):
        slices = (
            f"; an element is kept once, in a slice of {show_duration(slicing.width)}, and a window that fires merges "
            f"its {slicing.slices_of_a_window} slices"
        )
    elif slicing is not None:
        slices = f"; windows overlap without sharing slices, so an element is kept in each of its windows: {slicing}"
    return OperatorChoice(True, f"{kind}, the trigger and every aggregate have array forms{early}{slices}", slicing)


def early_interval(windows: Windows) -> Millis | None:
    """Return the milliseconds between early firings on arrays, or None if windows don't fire early there."""
    firing = windows.effective_trigger.array_firing
    return None if firing is None else firing.interval


def _needs_rows(windows: Windows) -> str | None:
    """Return the reason why arrays can't compute the windows, or None if they can."""
    assigner, trigger = windows.assigner, windows.effective_trigger
    if not assigner.is_event_time:
        return f"windows of {type(assigner).__name__} do not end by event time"
    if assigner.needs_rows is not None:
        return assigner.needs_rows
    has_gaps = assigner.gap_of_every_element is not None or assigner.column_of_gaps is not None
    if assigner.array_assignment is None and not (assigner.forms_sessions and has_gaps):
        return f"{type(assigner).__name__} assigns windows one element at a time"
    if trigger.array_firing is None:
        return f"trigger {trigger!r} has no array form"
    if windows.may_lose_data:
        return f"trigger {trigger!r} may lose elements, and only the row operator counts those"
    discards = windows.accumulation is Accumulation.DISCARDING
    if trigger.array_firing.interval is not None and (assigner.merges or discards):
        return f"trigger {trigger!r} has an array form only for windows that neither merge nor discard"
    if windows.evictor is not None:
        return f"evictor {windows.evictor!r} needs every element"
    if windows.process is not None:
        return f"process function {type(windows.process).__name__} takes elements one window at a time"
    if windows.reduce is not None:
        return "a reduce function takes elements two at a time: an aggregate has an array form"
    if windows.lateness > _LONGEST:
        return f"allowed lateness of {show_length(windows.lateness)} reaches the end of time"
    return _not_vectorised(windows)


def _not_vectorised(windows: Windows) -> str | None:
    bound = windows.bound_aggregate
    if bound.has_array_form:
        return None
    if not isinstance(bound, AggregateColumns):
        return f"aggregate function {type(bound).__name__} is not a VectorisedAggregate"
    rows = (name for name, function in zip(bound.names, bound.functions, strict=True) if not function.has_array_form)
    return f"aggregate {next(rows)!r} is not a VectorisedAggregate"
