"""Unknown code gets the safe answer to every question about it, unless it gives its own answer. Every public trigger,
assigner, evictor and aggregate is tested by the contracts, and is in the guide.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache, partialmethod
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.property.columnar_cases import AGGREGATES
from tests.windowing.columnar.longest import Longest
from tests.windowing.contracts import test_assigners, test_triggers
from tests.windowing.contracts.scripted import CountThem, Given, GivenMerging, KeepAll, Scripted, named
from tidegate import windowing
from tidegate.windowing import (
    AfterAny,
    AfterCount,
    AfterEach,
    AfterWatermark,
    CalendarEventTimeWindows,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    CumulateEventTimeWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GapColumn,
    GlobalWindows,
    OrFinally,
    ProcessingTimeoutTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Repeatedly,
    SlidingEventTimeWindows,
    Sum,
    TimeEvictor,
    TumblingEventTimeWindows,
)
from tidegate.windowing.aggregates import Aggregate
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.evictors import Evictor
from tidegate.windowing.facts import is_fact
from tidegate.windowing.functions import AggregateFunction
from tidegate.windowing.triggers import EndOfStreamTrigger, NeverTrigger, Term, Trigger
from tidegate.windowing.watermarks import WatermarkGenerator
from tidegate.windowing.watermarks.generator import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWithIdleAdvance,
    NoWatermarks,
)

OF_TRIGGERS = {
    "may_lose_data": True,
    "sees_order": True,
    "reads_elements": True,
    "may_purge_unfired": True,
    "array_firing": None,
    "allows_split_commits": False,
    "bounds_state": False,
    "counts_all": False,
    "waits_for_end_only": False,
}
SAFE: dict[type, dict[str, Any]] = {
    WindowAssigner: {
        "sees_order": True,
        "reads_elements": True,
        "needs_rows": "{name} has no array form",
        "array_assignment": None,
        "window_grid": None,
        "forms_sessions": False,
        "longest_window": None,
        "gap_of_every_element": None,
    },
    Trigger: OF_TRIGGERS,
    Term: {**OF_TRIGGERS, "finishes": True, "shows_all": False},
    Evictor: {"sees_order": True, "bounds_state": False},
    AggregateFunction: {"sees_order": True, "has_array_form": False, "merges_exactly": False},
    WatermarkGenerator: {"reads_events": True, "moves_by_clock": True},
}
"""Each fact of each base class, and the answer that can do no damage."""

CONTRACT: dict[type, set[str]] = {
    WindowAssigner: {"assign_windows", "get_default_trigger", "is_event_time", "merges", "is_global", "column_of_gaps"}
    | {"stagger_offset", "staggered", "with_stagger"},
    Trigger: {"on_element", "on_event_time", "on_processing_time", "can_merge", "on_merge", "clear", "states"},
    Term: {"element", "event_time", "processing_time", "wakeups", "own_states", "parts", "merged", "reset"}
    # Hooks of a trigger and its answer, which follow from those of the term.
    | {"on_element", "on_event_time", "on_processing_time", "can_merge", "on_merge", "clear", "states"}
    | {"may_lose_data"},
    Evictor: {"evict_before", "evict_after"},
    AggregateFunction: {"accumulator_type", "result_type", "rest_type", "takes_time", "stored", "restored"}
    | {"create_accumulator", "add", "add_at", "get_result", "merge"},
    WatermarkGenerator: {"on_event", "on_periodic_emit", "on_periodic_emits", "snapshot", "restore"},
}
"""The members that say what a value does; others ask only about facts."""

ARGUMENTS: dict[str, dict[str, Any]] = {
    "may_lose_data": {"event_time": True, "lateness": 0},
    "counts_all": {"event_time": True, "merging": False},
    "shows_all": {"event_time": True},
    "finishes": {},
}


class OwnGenerator(WatermarkGenerator):
    """Emits nothing."""

    def on_event(self, event: Any, timestamp: int, output: Any) -> None:
        """Nothing to learn."""

    def on_periodic_emit(self, output: Any) -> None:
        """Nothing to say."""


class OwnTerm(Term):
    """Fires with each element."""

    def element(self, at: Any) -> bool:
        return True

    def event_time(self, time: int, at: Any) -> bool:
        return False

    def processing_time(self, time: int, at: Any) -> bool:
        return False

    def wakeups(self, at: Any) -> Iterator[Any]:
        return iter(())

    def own_states(self) -> tuple[str, ...]:
        return ()


OWN: dict[type, list[Any]] = {
    WindowAssigner: [Given(True), GivenMerging(True)],
    Trigger: [Scripted()],
    Term: [OwnTerm()],
    Evictor: [KeepAll()],
    AggregateFunction: [CountThem()],
    WatermarkGenerator: [OwnGenerator()],
}
"""Values of classes that a user writes on a base class alone."""

SUM = Sum("x").bind(pa.schema([("x", pa.int64())]))
BUILT_IN: dict[type, list[tuple[Any, str]]] = {
    WindowAssigner: [
        (TumblingEventTimeWindows.of(10), "assign_windows"),
        (SlidingEventTimeWindows.of(10, 5), "assign_windows"),
        (CumulateEventTimeWindows.of(10, 5), "assign_windows"),
        (EventTimeSessionWindows.with_gap(5), "assign_windows"),
        (EventTimeSessionWindows.with_gap(5), "merge_windows"),
        (EventTimeSessionWindows.with_dynamic_gap(GapColumn("gap")), "assign_windows"),
        (CalendarEventTimeWindows.days("UTC"), "assign_windows"),
        (GlobalWindows(), "assign_windows"),
        (TumblingEventTimeWindows.of(10), "get_default_trigger"),
    ],
    Trigger: [
        (EventTimeTrigger(), "on_element"),
        (EventTimeTrigger(), "on_processing_time"),
        (ProcessingTimeTrigger(), "on_processing_time"),
        (ContinuousEventTimeTrigger.of(5), "on_element"),
        (ContinuousEventTimeTrigger.of(5), "on_processing_time"),
        (ContinuousProcessingTimeTrigger.of(5), "on_element"),
        (CountTrigger.of(1), "on_element"),
        (PurgingTrigger.of(EventTimeTrigger()), "on_event_time"),
        (ProcessingTimeoutTrigger.of(EventTimeTrigger(), 5), "on_element"),
        (NeverTrigger(), "on_element"),
        (EndOfStreamTrigger(), "on_event_time"),
    ],
    Term: [
        (AfterCount(1), "element"),
        (AfterWatermark(), "merged"),
        (AfterAny.of(AfterCount(1)), "parts"),
        (AfterEach.of(Repeatedly(AfterCount(1))), "element"),
        (Repeatedly(AfterCount(1)), "element"),
        (OrFinally(AfterCount(1), AfterWatermark()), "wakeups"),
    ],
    Evictor: [(TimeEvictor.of(5), "evict_before"), (CountEvictor.of(5), "evict_after")],
    AggregateFunction: [(SUM, "add"), (SUM, "accumulate")],
    WatermarkGenerator: [
        (AscendingTimestampsWatermarks(), "on_event"),
        (NoWatermarks(), "on_periodic_emit"),
        (BoundedOutOfOrdernessWithIdleAdvance(1, 1), "on_periodic_emits"),
    ],
}
"""Values of the library's classes, with a method that a user's subclass overrides."""

CHANGED = [(base, value, method) for base, values in BUILT_IN.items() for value, method in values]


def answer(value: Any, fact: str) -> Any:
    asked = getattr(value, fact)
    return asked(**ARGUMENTS[fact]) if fact in ARGUMENTS else asked


def safe(base: type, value: Any) -> dict[str, Any]:
    name = type(value).__name__
    return {fact: given.format(name=name) if isinstance(given, str) else given for fact, given in SAFE[base].items()}


def answers(base: type, value: Any) -> dict[str, Any]:
    return {fact: answer(value, fact) for fact in SAFE[base]}


def subclassed(value: Any, *methods: str, **members: Any) -> Any:
    """Return the value as an instance of a user's subclass that overrides methods and has other members."""
    overridden = {method: getattr(type(value), method) for method in methods}
    body = {
        name: property(lambda self, inner=inner: inner.fget(self))  # type: ignore[misc]
        if isinstance(inner, property)
        else (lambda self, *given, inner=inner, **named: inner(self, *given, **named))
        for name, inner in overridden.items()
    }
    subclass = type("Own", (type(value),), {**body, **members, "__module__": __name__})
    copy = object.__new__(subclass)
    for name in {field.name for field in fields(value)} if is_dataclass(value) else vars(value):
        object.__setattr__(copy, name, getattr(value, name))
    return copy


@pytest.mark.parametrize("base", SAFE)
def test_every_fact_is_listed_here_with_an_answer_that_can_do_no_harm(base: type) -> None:
    facts = {name for parent in base.__mro__ for name, member in vars(parent).items() if is_fact(member)}
    assert facts == SAFE[base].keys()


@pytest.mark.parametrize("base", SAFE)
def test_a_member_of_a_base_is_part_of_its_contract_or_a_fact(base: type) -> None:
    members = {name for name in vars(base) if not name.startswith("_")}
    assert members - SAFE[base].keys() <= CONTRACT[base]
    assert CONTRACT[base] - SAFE[base].keys() <= members


@pytest.mark.parametrize(("base", "value"), [(base, value) for base, values in OWN.items() for value in values])
def test_code_of_one_s_own_gets_every_safe_answer(base: type, value: Any) -> None:
    assert answers(base, value) == safe(base, value)


@pytest.mark.parametrize(("base", "value", "method"), CHANGED, ids=named)
def test_a_subclass_that_overrides_a_method_and_its_own_subclass_get_every_safe_answer(
    base: type, value: Any, method: str
) -> None:
    for changed in (subclassed(value, method), subclassed(subclassed(value, method))):
        assert answers(base, changed) == safe(base, changed)


@pytest.mark.parametrize(("base", "value", "method"), CHANGED, ids=named)
def test_a_subclass_that_overrides_nothing_keeps_the_answers(base: type, value: Any, method: str) -> None:
    changed = subclassed(value, added=lambda self: None)
    # As strings: a bound method equals only one of the same object, and reasons name the class.
    assert repr(answers(base, changed)).replace("Own", type(value).__name__) == repr(answers(base, value))


@pytest.mark.parametrize(("base", "value", "method"), CHANGED, ids=named)
def test_a_subclass_that_answers_itself_is_believed(base: type, value: Any, method: str) -> None:
    for fact in SAFE[base]:
        changed = subclassed(value, method, **{fact: lambda self, **given: "said"})
        assert getattr(changed, fact)() == "said"


class Cached(TumblingEventTimeWindows):
    """Overrides a method with an object that is not a plain function."""

    assign_windows = lru_cache(TumblingEventTimeWindows.assign_windows)


class Partly(TumblingEventTimeWindows):
    """Overrides a method with a partial one."""

    assign_windows = partialmethod(TumblingEventTimeWindows.assign_windows)


@pytest.mark.parametrize("changed", [Cached, Partly])
def test_a_method_counts_whatever_it_is_overridden_with(changed: type[TumblingEventTimeWindows]) -> None:
    value = changed.of(10)
    assert answers(WindowAssigner, value) == safe(WindowAssigner, value)


def test_a_subclass_of_a_complete_class_of_the_user_gets_the_safe_answers_too() -> None:
    class Capped(Longest):
        def add(self, value: Any, accumulator: int) -> int:
            return min(super().add(value, accumulator), 10)

    class Renamed(Longest):
        """Overrides nothing."""

    class Answering(Capped):
        has_array_form = True

    own, of_library = answers(AggregateFunction, Capped("x")), answers(AggregateFunction, Longest("x"))
    assert own == safe(AggregateFunction, Capped("x")) != of_library
    assert answers(AggregateFunction, Renamed("x")) == of_library
    assert Answering("x").has_array_form


@dataclass(frozen=True, slots=True)
class Relabelled(EventTimeTrigger):
    """A dataclass with slots, which Python creates twice, and which overrides a method."""

    label: str = "x"

    def on_event_time(self, time: Any, window: Any, ctx: Any) -> Any:
        return EventTimeTrigger.on_event_time(self, time, window, ctx)


class OnElement:
    """A mixin with a hook of a trigger."""

    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> Any:
        return EventTimeTrigger.on_element(self, element, timestamp, window, ctx)  # type: ignore[arg-type]


class Mixed(OnElement, EventTimeTrigger):
    """A trigger whose hook comes from a mixin."""


class Declared(Mixed):
    """The same, with an answer."""

    sees_order = False  # type: ignore[assignment]


class FromDeclared(Declared):
    """Overrides one more hook of a user's class, whose answer stays valid."""

    def on_processing_time(self, time: Any, window: Any, ctx: Any) -> Any:
        return EventTimeTrigger.on_processing_time(self, time, window, ctx)


def test_a_hook_from_a_mixin_counts_and_an_answer_is_inherited() -> None:
    assert answers(Trigger, Mixed()) == safe(Trigger, Mixed())
    expected = {**safe(Trigger, Declared()), "sees_order": False}
    assert answers(Trigger, Declared()) == answers(Trigger, FromDeclared()) == expected


def test_a_dataclass_with_slots_is_no_exception() -> None:
    assert answers(Trigger, Relabelled()) == safe(Trigger, Relabelled())


GUIDE = Path(__file__).parent.parent.parent.parent / "docs" / "guide"

KINDS: dict[str, tuple[type, Iterable[object]]] = {
    "triggers": (Trigger, test_triggers.ALL),
    "assigners": (WindowAssigner, test_assigners.ALL),
    "evictors": (Evictor, test_assigners.EVICTORS),
    "aggregates": (Aggregate, AGGREGATES.values()),
}
"""The base class of each page's parts, and the values that tests of every part use."""


def public(base: type) -> set[type]:
    parts = (getattr(windowing, name) for name in windowing.__all__)
    return {part for part in parts if inspect.isclass(part) and issubclass(part, base) and part is not base}


@pytest.mark.parametrize("page", KINDS)
def test_every_public_part_is_tested_with_its_kind(page: str) -> None:
    base, values = KINDS[page]
    assert sorted(part.__name__ for part in public(base) - {type(value) for value in values}) == []


@pytest.mark.parametrize("page", KINDS)
def test_every_public_part_is_on_its_page_of_the_guide(page: str) -> None:
    text = (GUIDE / f"{page}.md").read_text()
    assert sorted(part.__name__ for part in public(KINDS[page][0]) if f"`{part.__name__}" not in text) == []
