"""Computations of a pipeline: windows, process functions and joins, as values that are checked on creation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa

from tidegate.windowing.aggregates.bound import Aggregate, AggregateColumns
from tidegate.windowing.assigners import GlobalWindows, WindowAssigner
from tidegate.windowing.errors import IllegalArgument, UnboundedStateWarning, UnsupportedOperation
from tidegate.windowing.evictors import CountEvictor, Evictor
from tidegate.windowing.facts import check_together
from tidegate.windowing.functions import (
    AggregateFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessWindowFunction,
)
from tidegate.windowing.functions.process import ProcessFunction
from tidegate.windowing.panes import Accumulation
from tidegate.windowing.time import Duration, Millis, millis, non_negative_millis
from tidegate.windowing.triggers import CountTrigger, PurgingTrigger, Trigger
from tidegate.windowing.windows import TimeWindow


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over keyed elements, and the function of their contents.

    Args:
        assigner: assigns elements to windows.
        trigger: decides when a window fires. None for the assigner's default trigger.
        evictor: selects the elements that the function gets. The state then keeps all elements of a window, and
            aggregate and reduce run at each firing.
        allowed_lateness: how long after its end, in event time, a window still accepts elements.
        accumulation: relation between the panes of a window.
        aggregate: result columns by name, `{"flights": Count()}`, or one AggregateFunction.
        reduce: function `(a, b) -> c` of elements.
        process: a ProcessWindowFunction of all elements, or of the aggregated or reduced value.

    Raises:
        IllegalArgument: a value or a combination of values is not valid.
        UnsupportedOperation: the windows merge, and the trigger does not support that.
    """

    assigner: WindowAssigner
    trigger: Trigger | None = None
    evictor: Evictor | None = None
    allowed_lateness: Duration = 0
    accumulation: Accumulation = Accumulation.ACCUMULATING
    aggregate: Mapping[str, Aggregate] | AggregateFunction | None = None
    reduce: Callable[[Any, Any], Any] | None = None
    process: ProcessWindowFunction | None = None

    def __post_init__(self) -> None:
        for name, kind, example in (
            ("assigner", WindowAssigner, "TumblingEventTimeWindows.of(timedelta(hours=1))"),
            ("trigger", Trigger, "CountTrigger.of(100)"),
            ("evictor", Evictor, "CountEvictor.of(100)"),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind) and (name == "assigner" or value is not None):
                raise IllegalArgument(name, value, f"give a {kind.__name__}, such as {example}")
        if not isinstance(self.accumulation, Accumulation):
            modes = ", ".join(f"Accumulation.{mode.name}" for mode in Accumulation)  # type: ignore[unreachable]
            raise IllegalArgument("accumulation", self.accumulation, f"give one of {modes}")
        object.__setattr__(self, "allowed_lateness", non_negative_millis(self.allowed_lateness, "allowed_lateness"))
        if self.assigner.merges and self.trigger and not self.trigger.can_merge():
            raise UnsupportedOperation(
                f"trigger = {self.trigger!r}: windows of {type(self.assigner).__name__} merge, and this trigger does "
                "not support merging: use one whose can_merge() is true, such as EventTimeTrigger or CountTrigger"
            )
        self._check_code()
        if self.aggregate is not None and self.reduce is not None:
            raise IllegalArgument("reduce", self.reduce, "give aggregate or reduce, not both")
        if self.aggregate is None and self.reduce is None and self.process is None:
            raise IllegalArgument("aggregate", None, "give aggregate=, reduce= or process=")
        self._check_states()
        self._warn_if_never_cleaned()

    def _check_states(self) -> None:
        """Refuse two states with the same name, because a snapshot has a column for each name."""
        function = self.process
        of_function = () if function is None else (*function.states(), *function.global_states())
        of_trigger = self.effective_trigger.states()
        for field, states in (("trigger", of_trigger), ("process", of_function)):
            names = [state.name for state in states]
            if len(set(names)) < len(names):
                raise IllegalArgument(f"states of {field}", names, "give each state a name of its own")

    def _check_code(self) -> None:
        """Refuse an aggregate, reduce or process of a wrong type, or one whose state a snapshot can't fully keep."""
        check_together(self.assigner, WindowAssigner, "staggered", "with_stagger", "stagger_offset")
        if self.process is not None and not isinstance(self.process, ProcessWindowFunction):
            raise IllegalArgument("process", self.process, "give an instance of a ProcessWindowFunction")
        if self.reduce is not None and not callable(self.reduce):
            raise IllegalArgument("reduce", self.reduce, "give a function of two values, such as lambda a, b: a + b")
        if isinstance(self.aggregate, AggregateFunction):
            check_together(self.aggregate, AggregateFunction, "stored", "restored")
        if self.aggregate is None or isinstance(self.aggregate, AggregateFunction):
            return
        if not isinstance(self.aggregate, Mapping) or not self.aggregate:
            raise IllegalArgument(
                "aggregate",
                self.aggregate,
                'name the result columns: {"events": Count()}, or give one AggregateFunction',
            )
        for name, aggregate in self.aggregate.items():
            if not isinstance(name, str) or not name:
                raise IllegalArgument(
                    "aggregate", name, 'give the result column a string as its name: {"events": Count()}'
                )
            if isinstance(aggregate, AggregateFunction):
                raise IllegalArgument(
                    f"aggregate[{name!r}]",
                    aggregate,
                    "an AggregateFunction returns the whole result: give it alone, as aggregate=..., with a struct as "
                    "its result_type, or wrap it in a subclass of Aggregate whose bind() returns it, which gives one "
                    "column",
                )
            if not isinstance(aggregate, Aggregate):
                raise IllegalArgument(
                    f"aggregate[{name!r}]",
                    aggregate,
                    'give an instance of an Aggregate, such as Count() or Sum("value")',
                )

    def _warn_if_never_cleaned(self) -> None:
        """Warn about contents that no time, trigger, evictor or accumulation mode ever removes."""
        if not self.assigner.is_global:
            return
        trigger = self.effective_trigger
        evicted = self.evictor is not None and self.evictor.bounds_state
        if evicted or trigger.bounds_state or self.accumulation is Accumulation.DISCARDING:
            return
        warnings.warn(
            f"nothing ever cleans these windows: the global window never ends, and {trigger!r} does not purge. The "
            "state of every key stays forever: use PurgingTrigger.of(...), Accumulation.DISCARDING, an evictor, or "
            "windows that end",
            UnboundedStateWarning,
            stacklevel=4,
        )

    @property
    def may_lose_data(self) -> bool:
        """True if a window may accept an element and be removed before a pane shows it. False for the global window."""
        if self.assigner.is_global:
            return False
        return self.effective_trigger.may_lose_data(event_time=self.assigner.is_event_time, lateness=self.lateness)

    @property
    def effective_trigger(self) -> Trigger:
        """The trigger that fires the windows: the given one, or the assigner's default."""
        return self.trigger or self.assigner.get_default_trigger()

    @property
    def reads_whole_elements(self) -> bool:
        """True if the computation may read any column of its elements; False if only aggregates read columns."""
        return (
            self.process is not None
            or self.evictor is not None
            or not isinstance(self.aggregate, Mapping | AggregateColumns)
            or self.assigner.reads_elements
            or self.effective_trigger.reads_elements
        )

    @property
    def order_shown_by(self) -> str | None:
        """Description of the part that makes results depend on the order of arrival; None if there is none."""
        trigger, evictor = self.effective_trigger, self.evictor
        if not self.assigner.is_event_time:
            return "windows that do not end by event time"
        if trigger.sees_order:
            return f"trigger {type(trigger).__name__}"
        if evictor is not None and evictor.sees_order:
            return f"evictor {type(evictor).__name__}"
        if self.process is not None or self.reduce is not None:
            return "your own function"
        if self.assigner.sees_order:
            return f"assigner {type(self.assigner).__name__}, whose windows may depend on more than the event time"
        if function := next((part for part in self._functions if part.sees_order), None):
            return f"aggregate function {type(function).__name__}, which does not declare sees_order = False"
        return None

    @property
    def may_split_commits(self) -> bool:
        """True if an epoch may end inside a source commit, because the order of a commit's rows does not matter.

        The order matters for sessions: a late element may join a session that an earlier element of the same commit
        extended.
        """
        assigner = self.assigner
        return (
            assigner.is_event_time
            and not assigner.merges
            and not assigner.sees_order
            and self.effective_trigger.allows_split_commits
            and self.evictor is None
            and isinstance(self.aggregate, Mapping | AggregateColumns)
            and not any(function.sees_order for function in self._functions)
        )

    @property
    def _functions(self) -> tuple[AggregateFunction, ...]:
        bound = self.bound_aggregate
        return bound.functions if isinstance(bound, AggregateColumns) else (bound,)

    @property
    def ends_by_clock(self) -> bool:
        """True if processing time ends the windows; False for event time, and for the global window."""
        return not self.assigner.is_event_time and not self.assigner.is_global

    @property
    def lateness(self) -> Millis:
        """Allowed lateness in milliseconds; 0 in processing time, because nothing is ever late there."""
        return millis(self.allowed_lateness, "allowed_lateness") if self.assigner.is_event_time else 0

    @property
    def result_type(self) -> pa.DataType | None:
        """Type of a result; None if it is not declared."""
        if self.process is not None:
            return self.process.result_type
        return self.bound_aggregate.result_type if self.aggregate is not None else None

    @property
    def bound_aggregate(self) -> AggregateFunction:
        """Aggregate as one function, for elements of any type."""
        if isinstance(self.aggregate, AggregateFunction):
            return self.aggregate
        if self.aggregate is None:
            raise IllegalArgument("aggregate", None, "these windows have no aggregate")
        return AggregateColumns.of(self.aggregate)


@dataclass(frozen=True, slots=True)
class KeyedProcess:
    """A process function over keyed elements.

    Args:
        function: the function.
        time_sorted: True gives the function its elements in event-time order, with due timers between them, when the
            watermark reaches them; elements behind the watermark are late. False gives it elements as they arrive, as
            Flink does: results may depend on the order of arrival, and no element is late.

    Raises:
        IllegalArgument: `function` has a wrong type, or declares two states with the same name.
    """

    function: KeyedProcessFunction
    time_sorted: bool = True

    def __post_init__(self) -> None:
        _check_function(self.function, KeyedProcessFunction)
        _check_time_sorted(self.time_sorted)

    @property
    def result_type(self) -> pa.DataType | None:
        """Type of a result; None if it is not declared."""
        return self.function.result_type


@dataclass(frozen=True, slots=True)
class CoProcess:
    """A process function over two keyed inputs, `left` and `right`.

    Args:
        function: the function.
        time_sorted: as in `KeyedProcess`, for the elements of both inputs; at equal times, left elements come first.

    Raises:
        IllegalArgument: `function` has a wrong type, or declares two states with the same name.
    """

    function: KeyedCoProcessFunction
    time_sorted: bool = True

    def __post_init__(self) -> None:
        _check_function(self.function, KeyedCoProcessFunction)
        _check_time_sorted(self.time_sorted)

    @property
    def result_type(self) -> pa.DataType | None:
        """Type of a result; None if it is not declared."""
        return self.function.result_type


@dataclass(frozen=True, slots=True)
class IntervalJoin:
    """Join of elements of two keyed inputs with `left.ts + lower <= right.ts <= left.ts + upper`.

    Args:
        lower: smallest distance from the left to the right element; negative if the right one may be earlier.
        upper: largest such distance.
        lower_inclusive: True joins a right element at exactly the lower bound.
        upper_inclusive: True joins a right element at exactly the upper bound.
        join: function `(left, right) -> result`; None for the pair.
        result_type: Arrow struct type of a result; needed if results go to a table.

    Raises:
        IllegalArgument: lower > upper, or a bound is not a duration.

    Source: Flink's `KeyedStream.IntervalJoin`.
    """

    lower: Duration
    upper: Duration
    lower_inclusive: bool = True
    upper_inclusive: bool = True
    join: Callable[[Any, Any], Any] | None = None
    result_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        lower, upper = millis(self.lower, "lower"), millis(self.upper, "upper")
        if lower > upper:
            raise IllegalArgument(
                "lower", self.lower, f"give a lower bound of at most the upper one ({self.upper!r}): are they swapped?"
            )
        if self.join is not None and not callable(self.join):
            raise IllegalArgument(
                "join", self.join, "give a function of two elements, such as lambda left, right: {...}"
            )
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @classmethod
    def between(cls, lower: Duration, upper: Duration) -> IntervalJoin:
        """Create a join with both bounds inclusive, named as in Flink."""
        return cls(lower, upper)

    @property
    def bounds(self) -> tuple[Millis, Millis]:
        """Smallest and largest `right.ts - left.ts` that join, both inclusive. If min > max, nothing joins."""
        return (
            millis(self.lower, "lower") + (not self.lower_inclusive),
            millis(self.upper, "upper") - (not self.upper_inclusive),
        )


JoinKind: TypeAlias = Literal["inner", "left", "right", "full", "semi", "anti"]
JOIN_KINDS = get_args(JoinKind)


@dataclass(frozen=True, slots=True)
class WindowJoin:
    """Join of the elements of two keyed inputs that are in the same window, at the end of the window.

    Both inputs are assigned to the same windows. `kind` is that of SQL: `inner`, `left`, `right` and `full` return
    pairs, where None stands for a missing element; `semi` returns each left element that has a right one in its window,
    and `anti` each left element that has none.

    Args:
        assigner: aligned windows of event time: tumbling, sliding, cumulative or calendar windows.
        kind: kind of the join.
        join: function `(left, right, window) -> result`, where window is a `TimeWindow`. None gives the columns
            `window_start`, `window_end`, `left` and `right`, without `right` for `semi` and `anti`.
        result_type: Arrow struct type of a result; needed with `join` if results go to a table.

    Raises:
        IllegalArgument: `kind` is unknown, `join` is not a function, or the windows are not aligned event-time windows.

    Source: the window join of Flink SQL.
    """

    assigner: WindowAssigner
    kind: JoinKind = "inner"
    join: Callable[[Any, Any, TimeWindow], Any] | None = None
    result_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        assigner = self.assigner
        if (
            not isinstance(assigner, WindowAssigner)
            or not assigner.is_event_time
            or assigner.merges
            or assigner.is_global
            or assigner.staggered(0) != assigner
        ):
            raise IllegalArgument(
                "assigner",
                assigner,
                "both inputs must have the same windows: give aligned windows of event time without a stagger, such as "
                "TumblingEventTimeWindows.of(timedelta(hours=1))",
            )
        if self.kind not in JOIN_KINDS:
            raise IllegalArgument("kind", self.kind, f"give one of {', '.join(JOIN_KINDS)}")
        if self.join is not None and not callable(self.join):
            raise IllegalArgument(
                "join",
                self.join,
                "give a function of two elements and a window, such as lambda left, right, window: {...}",
            )

    @property
    def sides(self) -> tuple[str, ...]:
        """The inputs whose elements are in the results."""
        return ("left",) if self.kind in ("semi", "anti") else ("left", "right")


Join: TypeAlias = IntervalJoin | WindowJoin
"""Type of every join."""

Compute: TypeAlias = Windows | KeyedProcess | CoProcess | Join
"""Type of every computation of a pipeline."""

TWO_INPUTS = (CoProcess, IntervalJoin, WindowJoin)
"""Computations with two inputs."""


def _check_time_sorted(time_sorted: object) -> None:
    if not isinstance(time_sorted, bool):
        raise IllegalArgument(
            "time_sorted", time_sorted, "give True (in order of event time) or False (in order of arrival)"
        )


def _check_function(function: ProcessFunction, kind: type) -> None:
    if not isinstance(function, kind):
        raise IllegalArgument("function", function, f"give an instance of a {kind.__name__}")
    names = [state.name for state in function.states()]
    if len(set(names)) < len(names):
        raise IllegalArgument("states", names, "give each state of the function a name of its own")


def count_windows(
    size: int,
    slide: int | None = None,
    *,
    aggregate: Mapping[str, Aggregate] | AggregateFunction | None = None,
    reduce: Callable[[Any, Any], Any] | None = None,
    process: ProcessWindowFunction | None = None,
) -> Windows:
    """Return windows of `size` elements of a key: disjoint, or sliding by `slide` elements.

    Args:
        size: number of elements in a window.
        slide: number of elements from one firing to the next. The first firings have fewer than `size` elements. An
            evictor selects the last elements, so the state keeps all elements of a window. With None, each element is
            in a single window.
        aggregate: as in `Windows`.
        reduce: as in `Windows`.
        process: as in `Windows`.

    Raises:
        IllegalArgument: size or slide is below 1, or `Windows` refuses the combination.
    """
    for field, value in (("size", size), ("slide", slide)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise IllegalArgument(field, value, "give a whole number of elements, 1 or more")
    trigger = PurgingTrigger.of(CountTrigger.of(size)) if slide is None else CountTrigger.of(slide)
    evictor = None if slide is None else CountEvictor.of(size)
    return Windows(GlobalWindows.create(), trigger, evictor, aggregate=aggregate, reduce=reduce, process=process)
