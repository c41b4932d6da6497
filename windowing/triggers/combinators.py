"""Combinations of conditions: any, all, each in order, repeatedly, or finally.

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
from tidegate.windowing.time import Millis
from tidegate.windowing.triggers.base import BuiltIn
from tidegate.windowing.triggers.terms import FINISHED, Place, Term, Wakeup, check_terms

Hook: TypeAlias = Callable[[Term, Place], bool]
"""Call of one of the three hooks of a term, with the arguments of the hook."""


def _element(term: Term, at: Place) -> bool:
    return term.element(at)


def _checked(terms: Sequence[Term]) -> tuple[Term, ...]:
    if isinstance(terms, Term) or not terms:
        raise IllegalArgument("terms", terms, "give one term or more: AfterAny.of(AfterCount(10), AfterWatermark())")
    check_terms("terms", *terms)
    return tuple(terms)


def _unfinished(term: Term, at: Place) -> Iterator[tuple[Term, Place]]:
    """Yield the unfinished parts of a term with their places."""
    for index, part in enumerate(term.parts()):
        place = at.part(index)
        if not place.finished:
            yield part, place


def _merged(term: Term, at: Place, ended: Callable[[Iterable[bool]], bool]) -> None:
    """Merge the parts. Then the term is finished if and only if `ended` holds for their finished flags."""
    for index, part in enumerate(term.parts()):
        part.merged(at.part(index))
    if ended([at.part(index).finished for index in range(len(term.parts()))]):
        at.finish()
    else:
        at.clear(FINISHED)


@dataclass(frozen=True, slots=True)
class _Composed(BuiltIn, Term):
    """A term made of other terms. `_step` decides which of them get a hook, and when the whole term fires."""

    def element(self, at: Place) -> bool:
        return self._step(_element, at)

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
