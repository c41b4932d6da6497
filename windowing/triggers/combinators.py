"""Terms of composite triggers: conditions, and their combinations.

The conditions are the end of the window, a number of elements and a delay. They are combined by any, all, each in
order, repeatedly, or finally.

>>> from tidegate.windowing.triggers import AfterAny, AfterCount, AfterProcessingTime, Repeatedly
>>> Repeatedly(AfterAny.of(AfterCount(100), AfterProcessingTime(1000))) == Repeatedly(
...     AfterAny.of(AfterCount(100), AfterProcessingTime(1000))
... )
True
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self, TypeAlias

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import Millis, positive_millis
from tidegate.windowing.triggers.base import BuiltIn
from tidegate.windowing.triggers.terms import COUNT, DUE, FINISHED, ON_TIME, Place, Term, Wakeup, check_terms


@dataclass(frozen=True, slots=True)
class AfterCount(BuiltIn, Term):
    """Term that fires once, when the window has `count` elements.

    A merge adds up the counts of its windows. It does not fire the term, but the next element may.

    Args:
        count: number of elements, 1 or more.

    Raises:
        IllegalArgument: the count is below 1.
    """

    count: int

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise IllegalArgument("count", self.count, "give a whole number of elements, 1 or more")

    def element(self, at: Place) -> bool:
        came = (at.get(COUNT) or 0) + 1
        at.put(COUNT, came)
        return came >= self.count and at.finish()

    def own_states(self) -> Sequence[str]:
        return COUNT, FINISHED

    def shows_all(self, *, event_time: bool) -> bool:
        return self.count == 1


@dataclass(frozen=True, slots=True)
class AfterProcessingTime(BuiltIn, Term):
    """Term that fires once, when processing time reaches the time of the first element plus `delay`.

    Args:
        delay: a timedelta, or an int of milliseconds.

    Raises:
        IllegalArgument: the delay is not greater than zero.
    """

    delay: Millis

    def __post_init__(self) -> None:
        object.__setattr__(self, "delay", positive_millis(self.delay, "delay"))

    def element(self, at: Place) -> bool:
        if at.get(DUE) is None:
            at.put(DUE, at.ctx.current_processing_time + self.delay)
        return False

    def processing_time(self, time: Millis, at: Place) -> bool:
        due = at.get(DUE)
        return due is not None and due <= time and at.finish()

    def wakeups(self, at: Place) -> Iterator[Wakeup]:
        due = at.get(DUE)
        if due is not None and not at.finished:
            yield Wakeup(False, due)

    def own_states(self) -> Sequence[str]:
        return DUE, FINISHED


EACH_LATE_ELEMENT = AfterCount(1)


@dataclass(frozen=True, slots=True)
class AfterWatermark(BuiltIn, Term):
    """Term that fires when the watermark reaches the end of the window, and before or after that with other terms.

    Without arguments, it fires as `EventTimeTrigger` does. If a merge moves the end of the window ahead of the
    watermark, the term restarts.

    Args:
        early: term that fires the window before its end, and restarts after each firing. With None, nothing fires
            early.
        late: term that fires the window after its end, and restarts after each firing. By default, each late element
            fires. With None, the term is finished at the end, and no pane shows late elements.

    Raises:
        IllegalArgument: `early` or `late` is not a term.
    """

    early: Term | None = None
    late: Term | None = EACH_LATE_ELEMENT

    def __post_init__(self) -> None:
        for field in ("early", "late"):
            if getattr(self, field) is not None:
                check_terms(field, getattr(self, field))

    def element(self, at: Place) -> bool:
        if at.passed:
            if at.get(ON_TIME) is None:
                return self._end(at)
            late, place = self._late(at)
            return late is not None and late.element(place) and _start_again(late, place)
        early, place = self._early(at)
        return early is not None and early.element(place) and _start_again(early, place)

    def event_time(self, time: Millis, at: Place) -> bool:
        if time == at.window.max_timestamp and at.get(ON_TIME) is None:
            return self._end(at)
        part, place = self._now(at)
        return part is not None and part.event_time(time, place) and _start_again(part, place)

    def processing_time(self, time: Millis, at: Place) -> bool:
        part, place = self._now(at)
        return part is not None and part.processing_time(time, place) and _start_again(part, place)

    def wakeups(self, at: Place) -> Iterator[Wakeup]:
        if at.finished:
            return
        if at.get(ON_TIME) is None and not at.passed:
            yield Wakeup(True, at.window.max_timestamp)
        part, place = self._now(at)
        if part is not None:
            yield from part.wakeups(place)

    def own_states(self) -> Sequence[str]:
        return ON_TIME, FINISHED

    def finishes(self) -> bool:
        return self.late is None

    def shows_all(self, *, event_time: bool) -> bool:
        return event_time and (self.late is None or self.late.shows_all(event_time=event_time))

    def may_lose_data(self, *, event_time: bool, lateness: Millis) -> bool:
        # Without lateness, the window accepts no element after its end, so `late` does not matter.
        return not event_time if lateness == 0 else Term.may_lose_data(self, event_time=event_time, lateness=lateness)

    def parts(self) -> Sequence[Term]:
        return tuple(part for part in (self.early, self.late) if part is not None)

    def merged(self, at: Place) -> None:
        if not at.passed:
            at.clear(ON_TIME)
            at.clear(FINISHED)
            late, place = self._late(at)
            if late is not None:
                late.reset(place)
        Term.merged(self, at)

    def _end(self, at: Place) -> bool:
        at.put(ON_TIME, 1)
        early, place = self._early(at)
        if early is not None:
            early.reset(place)
        return at.finish() if self.late is None else True

    def _now(self, at: Place) -> tuple[Term | None, Place]:
        return self._early(at) if at.get(ON_TIME) is None else self._late(at)

    def _early(self, at: Place) -> tuple[Term | None, Place]:
        return self.early, at.part(0)

    def _late(self, at: Place) -> tuple[Term | None, Place]:
        return self.late, at.part(0 if self.early is None else 1)


def _start_again(part: Term, place: Place) -> bool:
    """Restart a term that has fired, if it is finished. Return True, because it fired."""
    if place.finished:
        part.reset(place)
    return True


Hook: TypeAlias = Callable[[Term, Place], bool]
"""Call of one of the three hooks of a term, with the arguments of the hook."""


def _checked(terms: Sequence[Term]) -> tuple[Term, ...]:
    if isinstance(terms, Term) or not terms:
        raise IllegalArgument("terms", terms, "give one or more terms: AfterAny.of(AfterCount(10), AfterWatermark())")
    check_terms("terms", *terms)
    return tuple(terms)


def _unfinished(term: Term, at: Place) -> Iterator[tuple[Term, Place]]:
    for index, part in enumerate(term.parts()):
        place = at.part(index)
        if not place.finished:
            yield part, place


def _merged(term: Term, at: Place, ended: Callable[[Iterable[bool]], bool]) -> None:
    """Merge the parts. Then the term is finished if and only if `ended` holds for their finished flags."""
    Term.merged(term, at)
    if ended([at.part(index).finished for index in range(len(term.parts()))]):
        at.finish()
    else:
        at.clear(FINISHED)


@dataclass(frozen=True, slots=True)
class _Composed(BuiltIn, Term):
    """A term made of other terms. `_step` decides which of them get a hook, and when the whole term fires."""

    def element(self, at: Place) -> bool:
        return self._step(lambda term, place: term.element(place), at)

    def event_time(self, time: Millis, at: Place) -> bool:
        return self._step(lambda term, place: term.event_time(time, place), at)

    def processing_time(self, time: Millis, at: Place) -> bool:
        return self._step(lambda term, place: term.processing_time(time, place), at)

    def wakeups(self, at: Place) -> Iterator[Wakeup]:
        if not at.finished:
            for part, place in _unfinished(self, at):
                yield from part.wakeups(place)

    def own_states(self) -> Sequence[str]:
        return (FINISHED,)

    @abstractmethod
    def _step(self, hook: Hook, at: Place) -> bool:
        """Call a hook of unfinished terms. Return True if the whole term fires."""


@dataclass(frozen=True, slots=True)
class _Several(_Composed):
    """Several terms as one."""

    terms: tuple[Term, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", _checked(self.terms))

    @classmethod
    def of(cls, *terms: Term) -> Self:
        """Create a term from several terms: `AfterAny.of(a, b)`, `AfterAll.of(a, b)`, `AfterEach.of(a, b)`."""
        return cls(terms)

    def parts(self) -> Sequence[Term]:
        return self.terms

    def merged(self, at: Place) -> None:
        _merged(self, at, all)

    def shows_all(self, *, event_time: bool) -> bool:
        return all(term.shows_all(event_time=event_time) for term in self.terms)


@dataclass(frozen=True, slots=True)
class AfterAny(_Several):
    """Term that fires once, when the first of its terms fires.

    Raises:
        IllegalArgument: there are no terms, or a value is not a term.
    """

    def _step(self, hook: Hook, at: Place) -> bool:
        fired = False
        for part, place in list(_unfinished(self, at)):
            if hook(part, place):
                fired = place.finish()
        return fired and at.finish()

    def merged(self, at: Place) -> None:
        _merged(self, at, any)

    def shows_all(self, *, event_time: bool) -> bool:
        return any(term.shows_all(event_time=event_time) for term in self.terms)


@dataclass(frozen=True, slots=True)
class AfterAll(_Several):
    """Term that fires once, when each of its terms has fired.

    Raises:
        IllegalArgument: there are no terms, or a value is not a term.
    """

    def _step(self, hook: Hook, at: Place) -> bool:
        for part, place in list(_unfinished(self, at)):
            if hook(part, place):
                place.finish()
        return not any(_unfinished(self, at)) and at.finish()


@dataclass(frozen=True, slots=True)
class AfterEach(_Several):
    """Term that fires with its first term until that is finished, then with the second, and so on.

    Raises:
        IllegalArgument: there are no terms, or a value is not a term.
    """

    def _step(self, hook: Hook, at: Place) -> bool:
        part, place = next(_unfinished(self, at))
        fired = hook(part, place)
        if not any(_unfinished(self, at)):
            at.finish()
        return fired

    def wakeups(self, at: Place) -> Iterator[Wakeup]:
        for part, place in islice(_unfinished(self, at), 1):
            yield from part.wakeups(place)

    def finishes(self) -> bool:
        return all(term.finishes() for term in self.terms)


@dataclass(frozen=True, slots=True)
class Repeatedly(_Composed):
    """Term that fires with another term, and restarts it each time it is finished. It never finishes by itself.

    Raises:
        IllegalArgument: `term` is not a term.
    """

    term: Term

    def __post_init__(self) -> None:
        check_terms("term", self.term)

    def wakeups(self, at: Place) -> Iterator[Wakeup]:
        return self.term.wakeups(at.part(0))

    def parts(self) -> Sequence[Term]:
        return (self.term,)

    def _step(self, hook: Hook, at: Place) -> bool:
        place = at.part(0)
        fired = hook(self.term, place)
        if place.finished:
            self.term.reset(place)
        return fired

    def finishes(self) -> bool:
        return False

    def shows_all(self, *, event_time: bool) -> bool:
        return self.term.shows_all(event_time=event_time)


@dataclass(frozen=True, slots=True)
class OrFinally(_Composed):
    """Term that fires with `term` until `until` fires. Then it fires once more, and is finished.

    Raises:
        IllegalArgument: `term` or `until` is not a term.
    """

    term: Term
    until: Term

    def __post_init__(self) -> None:
        check_terms("term", self.term)
        check_terms("until", self.until)

    def parts(self) -> Sequence[Term]:
        return self.term, self.until

    def _step(self, hook: Hook, at: Place) -> bool:
        fired = hook(self.term, at.part(0))
        ended = hook(self.until, at.part(1))
        if ended:
            at.part(1).finish()
        if ended or at.part(0).finished:
            at.finish()
        return fired or ended

    def merged(self, at: Place) -> None:
        _merged(self, at, any)

    def shows_all(self, *, event_time: bool) -> bool:
        return self.term.shows_all(event_time=event_time) or self.until.shows_all(event_time=event_time)
