"""Fingerprint of a pipeline's computation: equal for equal code, different after a change.

It describes library values by type and fields, and user code by its instructions and by the code that it calls. So
changing a lambda or helper changes the fingerprint, and moving a file does not. A pipeline without user code has the
same fingerprint as in earlier versions of tidegate (docs/decisions/user-code.md).
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from tidegate.pipelines.definition.user_code import (
    bytecode,
    code_of,
    fields_of,
    globals_of,
    is_opaque,
    is_own,
    members_of,
    module_of,
    package_of,
    plain_text,
)

LEFT_OUT_AT_DEFAULT = "left_out_at_default"
"""Key in the metadata of a dataclass field. A field with this key is left out of the description while it has its
default, so adding the field changes no fingerprint.
"""

_PLAINEST = frozenset({type(None), bool, int, float, str, bytes})

_LONGEST = 4096
"""Largest number of characters of a nested description. A longer one is replaced by its hash."""

_DEEPEST = 100
"""Largest depth of nested values, such as a linked list. Python's recursion can't go much deeper."""


def fingerprint(*values: Any) -> str:
    """Return 16 hexadecimal digits of a hash over the description of values."""
    describer = _Describer()
    return hashlib.sha256(repr([describer.describe(value) for value in values]).encode()).hexdigest()[:16]


def describe(value: Any) -> Any:
    """Return a value as nested tuples of plain values, in an order that does not depend on the run."""
    return _Describer().describe(value)


class _Describer:
    """Describes values. User functions, classes and objects are described only once, because they may form cycles."""

    def __init__(self) -> None:
        self._at_work: set[int] = set()
        self._reached: dict[int, tuple[Any, int]] = {}
        """By id, each object that was described before, and its number."""
        self._from: str | None = None
        """Package of the code whose names are followed; None for values that the pipeline itself holds."""

    def describe(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return value
        if isinstance(value, enum.Enum):
            return (type(value).__qualname__, value.name)
        if isinstance(value, pa.DataType | pa.Schema | pa.Field):
            return str(value)
        if (text := plain_text(value)) is not None:
            return (type(value).__qualname__, text)
        if len(self._at_work) == _DEEPEST:
            return ("deep", type(value).__qualname__)
        if self._is_followed(type(value)) and not self._is_first(value):
            return ("again", self._reached[id(value)][1])
        if id(value) in self._at_work:
            return ("again", getattr(value, "__qualname__", type(value).__qualname__))
        self._at_work.add(id(value))
        try:
            return self._described(value)
        finally:
            self._at_work.discard(id(value))

    def _described(self, value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = tuple(
                (field.name, self.describe(getattr(value, field.name)))
                for field in dataclasses.fields(value)
                if not (field.metadata.get(LEFT_OUT_AT_DEFAULT) and getattr(value, field.name) == field.default)
            )
            return (type(value).__qualname__, fields, *self._classes(type(value)))
        if isinstance(value, Mapping):
            pairs = zip(self._each(value.keys()), self._each(value.values()), strict=True)
            return tuple(pairs)
        if isinstance(value, list | tuple | deque):
            return tuple(self._each(value))
        if isinstance(value, set | frozenset):
            return tuple(sorted(map(self._apart, value)))
        if code_of(value) is not None:
            return self._function(value)
        if isinstance(value, type):
            return (module_of(value), value.__qualname__, *self._classes(value))
        if callable(value) and hasattr(value, "__qualname__"):
            wrapped = getattr(value, "__wrapped__", None)
            beneath = [] if wrapped is None else [self._reach(wrapped)]
            return (module_of(value), value.__qualname__, *beneath)
        if is_opaque(type(value)) or (self._from is not None and not self._is_followed(type(value))):
            return (type(value).__qualname__,)
        fields = tuple((name, _text(self.describe(item))) for name, item in _by_name(fields_of(value).items()))
        classes = self._classes(type(value))
        methods = [(name, item) for name, item in vars(type(value)).items() if code_of(item) is not None]
        described = () if classes else tuple((name, _text(self.describe(item))) for name, item in _by_name(methods))
        return (type(value).__qualname__, fields, described, *classes)

    def _each(self, items: Iterable[Any]) -> Iterator[Any]:
        """Describe many values. A module may hold a million plain values, too many to make a call for each."""
        return (item if type(item) in _PLAINEST else self.describe(item) for item in items)

    def _function(self, function: Any) -> Any:
        """Describe a function by its code, its defaults, its closure, and the globals that it names."""
        bound = [_content(cell) for cell in getattr(function, "__closure__", None) or ()]
        parts = [function.__qualname__, bytecode(function.__code__), self.describe(function.__defaults__)]
        parts.append(self.describe(bound))
        if keywords := getattr(function, "__kwdefaults__", None):
            parts.append(self.describe(keywords))
        if self._is_followed(function):
            with self._following(function):
                if (owner := getattr(function, "__self__", None)) is not None:
                    parts.append(self.describe(owner))
                if named := tuple((name, self._reach(value)) for name, value in globals_of(function)):
                    parts.append(named)
        return tuple(parts)

    def _classes(self, kind: type) -> tuple[Any, ...]:
        """Describe the members of a class and of its bases that are user code, or nothing if there are none."""
        followed = [base for base in kind.__mro__ if self._is_followed(base)]
        return (tuple(self._class(base) for base in followed),) if followed else ()

    def _class(self, kind: type) -> Any:
        if not self._is_first(kind):
            return ("again", kind.__qualname__)
        with self._following(kind):
            return (kind.__qualname__, tuple((name, self._reach(member)) for name, member in members_of(kind)))

    def _reach(self, value: Any) -> Any:
        """Describe a value that code refers to: user functions and classes in full the first time, the rest by name."""
        if isinstance(value, type):
            return self._classes(value) if self._is_followed(value) else (module_of(value), value.__qualname__)
        if code_of(value) is None:
            return self.describe(value)
        if not self._is_followed(value):
            return (module_of(value), value.__qualname__)
        return self.describe(value) if self._is_first(value) else ("again", value.__qualname__)

    def _is_first(self, value: Any) -> bool:
        if id(value) in self._reached:
            return False
        # Keep the value itself, so that no other value gets its id in the meantime.
        self._reached[id(value)] = value, len(self._reached)
        return True

    def _apart(self, value: Any) -> str:
        """Describe a member of a set independently of the others, because their order differs between processes."""
        before = self._reached
        self._reached = dict(before)
        try:
            return _text(self.describe(value))
        finally:
            self._reached = before

    def _is_followed(self, value: Any) -> bool:
        return is_own(value.__module__ or "", self._from)

    @contextmanager
    def _following(self, code: Any) -> Iterator[None]:
        """Within this context, resolve names as in the package of a function or class."""
        before, self._from = self._from, package_of(code.__module__)
        try:
            yield
        finally:
            self._from = before


def _by_name(items: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return sorted(items, key=lambda item: item[0])


def _text(described: Any) -> str:
    """Return a description as text for nesting in another one. Nesting doubles quotes, so long text is hashed."""
    text = repr(described)
    return text if len(text) < _LONGEST else hashlib.sha256(text.encode()).hexdigest()


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return ("empty",)
