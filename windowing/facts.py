"""Facts that others ask of a value, each with an answer that is safe for code that nobody knows.

A base class declares a fact with `@fact` and answers it safely: arrays can't do it, it sees the order of arrival, it
may lose elements. A class that knows better overrides the fact. A user's subclass that overrides what a class of this
library does is code that nobody knows again, so each fact that it does not declare itself has the safe answer:

    class EventTimeTrigger(Trigger)         sees_order is False
    class Relabelled(EventTimeTrigger)      overrides nothing: sees_order is False
    class Early(EventTimeTrigger)           overrides on_element: sees_order is True, unless it says otherwise
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any, TypeVar

_Member = TypeVar("_Member")

_LIBRARY = __name__.rpartition(".")[0]


def fact(member: _Member) -> _Member:
    """Declare a method or property to be a fact; the body is the safe answer."""
    _function_of(member).is_fact = True
    return member


def is_fact(member: object) -> bool:
    """Return whether a member of a class is a fact as the base class declares it, with the safe answer."""
    function = _function_of(member)
    return isinstance(function, FunctionType) and getattr(function, "is_fact", False)


def facts_of(base: type) -> frozenset[str]:
    """The names of all facts of a class, those of its bases included."""
    return frozenset(_safe_answers(base))


class HasFacts:
    """A base whose subclasses answer safely for behaviour that they override."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if _is_ours(cls) or not any(map(_is_finished, cls.__mro__[1:])):
            return
        safe_answers = _safe_answers(cls)
        if not _overridden(cls) - safe_answers.keys():
            return
        for name, safe in safe_answers.items():
            speaker = next(base for base in cls.__mro__ if name in vars(base))
            if _is_ours(speaker):
                setattr(cls, name, safe)


def _safe_answers(cls: type) -> dict[str, Any]:
    """Each fact by name, as the class that declares it answers."""
    return {name: member for base in cls.__mro__ for name, member in vars(base).items() if is_fact(member)}


def _is_ours(cls: type) -> bool:
    return cls.__module__ == _LIBRARY or cls.__module__.startswith(f"{_LIBRARY}.")


def _is_finished(cls: type) -> bool:
    """Return whether a class is one of the library's that leaves nothing open: its facts speak for its code alone."""
    return _is_ours(cls) and issubclass(cls, HasFacts) and cls is not HasFacts and not inspect.isabstract(cls)


def _overridden(cls: type) -> set[str]:
    """The members of the library that a user's class overrides, itself or by a base of the user's; no constructors."""
    names: set[str] = set()
    for place, base in enumerate(cls.__mro__):
        if not _is_ours(base):
            ours = {name for later in cls.__mro__[place + 1 :] if _is_ours(later) for name in vars(later)}
            names |= {name for name, member in vars(base).items() if name in ours and _is_behaviour(name, member)}
    return names


def _is_behaviour(name: str, member: object) -> bool:
    return not name.startswith("__") and isinstance(member, FunctionType | property | staticmethod)


def _function_of(member: Any) -> Any:
    """The function beneath a property; anything else as it is."""
    return member.fget if isinstance(member, property) else member
