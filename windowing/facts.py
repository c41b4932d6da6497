"""Facts about a value that other modules query. Each has a default answer that is safe for unknown code.

A base class declares a fact with `@fact`. Its body is the safe answer, such as: the class has no array form, it depends
on the order of arrival, or it may lose elements. A class with a better answer overrides the fact. If a user's subclass
overrides behaviour of a class of this library, the library's answers may be wrong for it. So each fact that the
subclass does not declare itself falls back to the safe answer:

    class EventTimeTrigger(Trigger)         sees_order is False
    class Relabelled(EventTimeTrigger)      overrides nothing: sees_order is False
    class Early(EventTimeTrigger)           overrides on_element: sees_order is True, unless it says otherwise

The same holds for a subclass of a user's complete class that has an answer from the library:

    class Longest(VectorisedAggregate)      has_array_form is True
    class LongestWord(Longest)              overrides add, but not the form on arrays: has_array_form is False
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any, TypeVar

from tidegate.windowing.errors import UnsupportedOperation

_Member = TypeVar("_Member")

_LIBRARY = __name__.rpartition(".")[0]


def fact(member: _Member) -> _Member:
    """Declare a method or property as a fact. Its body gives the safe answer."""
    _function_of(member).is_fact = True
    return member


def is_fact(member: object) -> bool:
    """Return True for a member that `@fact` declares, which gives the safe answer, and False for an override."""
    function = _function_of(member)
    return isinstance(function, FunctionType) and getattr(function, "is_fact", False)


class HasFacts:
    """Base class that gives the safe answers to a user's subclass that overrides behaviour."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if is_ours(cls) or not any(map(_is_finished, cls.__mro__[1:])):
            return
        safe_answers = _safe_answers(cls)
        if not _overridden(cls) - safe_answers.keys():
            return
        for name, safe in safe_answers.items():
            answering = next(base for base in cls.__mro__ if name in vars(base))
            if is_ours(answering):
                setattr(cls, name, safe)


def check_together(value: object, base: type, *names: str) -> None:
    """Refuse a value whose class overrides only some of the methods of a base that belong together.

    Methods that write and read the same part of a snapshot belong together: if one of them came from the base class, a
    restored run would silently give different results.

    Raises:
        UnsupportedOperation: the message names the members that are missing.
    """
    missing = [name for name in names if getattr(type(value), name, None) is getattr(base, name)]
    if not missing or len(missing) == len(names):
        return
    overridden = ", ".join(name for name in names if name not in missing)
    raise UnsupportedOperation(
        f"class {type(value).__name__} overrides {overridden} of {base.__name__}, but not {', '.join(missing)}: a "
        "snapshot needs all of them, so override all or none"
    )


def _safe_answers(cls: type) -> dict[str, Any]:
    """Return the members with the safe answers, by the name of the fact."""
    return {name: member for base in cls.__mro__ for name, member in vars(base).items() if is_fact(member)}


def is_ours(cls: type) -> bool:
    """Return True for a class of the library."""
    return cls.__module__ == _LIBRARY or cls.__module__.startswith(f"{_LIBRARY}.")


def _is_finished(cls: type) -> bool:
    """Return True for a concrete class with facts: the library's answers describe only its code."""
    return issubclass(cls, HasFacts) and cls is not HasFacts and not inspect.isabstract(cls)


def _overridden(cls: type) -> set[str]:
    """Return the members of concrete bases that a user's class or mixin overrides. Dunder names don't count."""
    names: set[str] = set()
    for place, base in enumerate(cls.__mro__):
        if not is_ours(base):
            finished = filter(_is_finished, cls.__mro__[place + 1 :])
            inherited = {name: member for later in finished for name, member in _members(later).items()}
            names |= {
                name
                for name, member in vars(base).items()
                if name in inherited and (_is_behaviour(name, member) or _is_behaviour(name, inherited[name]))
            }
    return names


def _members(cls: type) -> dict[str, object]:
    """Return all members of a class by name, including inherited ones."""
    return {name: member for base in reversed(cls.__mro__) for name, member in vars(base).items()}


def _is_behaviour(name: str, member: object) -> bool:
    return not name.startswith("__") and isinstance(member, FunctionType | property | staticmethod)


def _function_of(member: Any) -> Any:
    """Return the getter of a property, and any other member unchanged."""
    return member.fget if isinstance(member, property) else member
