"""The conditions of the algebra: the end of the window, a number of elements, a delay.

>>> from tidegate.windowing.triggers import AfterCount, AfterProcessingTime, AfterWatermark
>>> AfterWatermark(early=AfterProcessingTime(60_000), late=AfterCount(1))
AfterWatermark(early=AfterProcessingTime(delay=60000), late=AfterCount(count=1))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import Millis, positive_millis
from tidegate.windowing.triggers.terms import COUNT, DUE, FINISHED, ON_TIME, Place, Term, Wakeup, check_terms


@dataclass(frozen=True, slots=True)
class AfterCount(Term):
    """Fires once, when `count` elements have come.

    Windows that merge add up; merging never fires by itself, the next element does.

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

    def event_time(self, time: Millis, at: Place) -> bool:
        return False

    def processing_time(self, time: Millis, at: Place) -> bool:
        return False

    def wakeups(self, at: Place) -> Iterator[Wakeup]:
        return iter(())

    def own_states(self) -> Sequence[str]:
        return COUNT, FINISHED

    def shows_all(self, *, event_time: bool) -> bool:
        return self.count == 1


@dataclass(frozen=True, slots=True)
class AfterProcessingTime(Term):
    """Fires once, `delay` of processing time after the first element.

    Args:
        delay: a timedelta, or int milliseconds.

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

    def event_time(self, time: Millis, at: Place) -> bool:
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
class AfterWatermark(Term):
    """Fires at the end of the window; before it as often as `early` does, after it as often as `late`.

    Without arguments it is the event-time trigger. A window that grows past the watermark again by a
    merge begins again.

    Args:
        early: fires before the end, and starts again each time; None: nothing does.
        late: fires after the end, and starts again each time; each late element by default. None:
            nothing does, the term is finished at the end, and late elements stay unseen.

    Raises:
        IllegalArgument: a part that is no term.
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
            late, there = self._late(at)
            return late is not None and late.element(there) and _again(late, there)
        early, there = self._early(at)
        return early is not None and early.element(there) and _again(early, there)

    def event_time(self, time: Millis, at: Place) -> bool:
        if time == at.window.max_timestamp and at.get(ON_TIME) is None:
            return self._end(at)
        part, there = self._now(at)
        return part is not None and part.event_time(time, there) and _again(part, there)

    def processing_time(self, time: Millis, at: Place) -> bool:
        part, there = self._now(at)
        return part is not None and part.processing_time(time, there) and _again(part, there)

    def wakeups(self, at: Place) -> Iterator[Wakeup]:
        if at.finished:
            return
        if at.get(ON_TIME) is None and not at.passed:
            yield Wakeup(True, at.window.max_timestamp)
        part, there = self._now(at)
        if part is not None:
            yield from part.wakeups(there)

    def own_states(self) -> Sequence[str]:
        return ON_TIME, FINISHED

    def finishes(self) -> bool:
        return self.late is None

    def shows_all(self, *, event_time: bool) -> bool:
        return event_time and (self.late is None or self.late.shows_all(event_time=event_time))

    def may_lose_data(self, *, event_time: bool, lateness: Millis) -> bool:
        # Without lateness nothing comes after the end, so what happens then does not matter.
        return not event_time if lateness == 0 else Term.may_lose_data(self, event_time=event_time, lateness=lateness)

    def parts(self) -> Sequence[Term]:
        return tuple(part for part in (self.early, self.late) if part is not None)

    def merged(self, at: Place) -> None:
        if not at.passed:
            at.clear(ON_TIME)
            at.clear(FINISHED)
            late, there = self._late(at)
            if late is not None:
                late.reset(there)
        for index, part in enumerate(self.parts()):
            part.merged(at.part(index))

    def _end(self, at: Place) -> bool:
        at.put(ON_TIME, 1)
        early, there = self._early(at)
        if early is not None:
            early.reset(there)
        return at.finish() if self.late is None else True

    def _now(self, at: Place) -> tuple[Term | None, Place]:
        return self._early(at) if at.get(ON_TIME) is None else self._late(at)

    def _early(self, at: Place) -> tuple[Term | None, Place]:
        return self.early, at.part(0)

    def _late(self, at: Place) -> tuple[Term | None, Place]:
        return self.late, at.part(0 if self.early is None else 1)


def _again(part: Term, there: Place) -> bool:
    if there.finished:
        part.reset(there)
    return True
