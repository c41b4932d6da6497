"""A fingerprint of what a pipeline computes: the same for the same code, another after a change.

Values are described by type and fields, functions by name and bytecode, so a changed lambda changes
it and a moved file does not.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Mapping
from types import CodeType
from typing import Any

import pyarrow as pa


def fingerprint(*values: Any) -> str:
    """16 hexadecimal digits over the description of values."""
    return hashlib.sha256(repr([describe(value) for value in values]).encode()).hexdigest()[:16]


def describe(value: Any) -> Any:
    """A value as nested tuples of plain ones, in an order that does not depend on the run."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, enum.Enum):
        return (type(value).__qualname__, value.name)
    if isinstance(value, pa.DataType | pa.Schema | pa.Field):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = tuple((field.name, describe(getattr(value, field.name))) for field in dataclasses.fields(value))
        return (type(value).__qualname__, fields)
    if isinstance(value, Mapping):
        return tuple((describe(key), describe(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(describe(item) for item in value)
    if isinstance(value, set | frozenset):
        return tuple(sorted(repr(describe(item)) for item in value))
    if code := getattr(value, "__code__", None):
        bound = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        return (value.__qualname__, _code(code), describe(value.__defaults__), describe(bound))
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return (getattr(value, "__module__", ""), value.__qualname__)
    fields = tuple(sorted((name, repr(describe(item))) for name, item in getattr(value, "__dict__", {}).items()))
    methods = tuple(
        sorted((name, repr(describe(item))) for name, item in vars(type(value)).items() if hasattr(item, "__code__"))
    )
    return (type(value).__qualname__, fields, methods)


def _code(code: CodeType) -> Any:
    return (code.co_code, code.co_names, tuple(_constant(constant) for constant in code.co_consts))


def _constant(constant: Any) -> Any:
    if isinstance(constant, CodeType):
        return _code(constant)
    return tuple(sorted(map(repr, constant))) if isinstance(constant, frozenset) else repr(constant)
