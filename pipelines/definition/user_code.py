"""User code: the functions and classes that a fingerprint follows, and the names that they use.

A fingerprint follows code that was written for the pipeline: functions and classes that don't belong to Python,
Tidegate or an installed package, unless the pipeline itself is in that package. It describes other code by name.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from tidegate.windowing.facts import is_fact

_LIBRARIES = frozenset({"tidegate", "pyarrow", "numpy", "pandas", "pyspark", "airflow"})
_INSTALLED = ("site-packages", "dist-packages")
_STANDARD_LIBRARY = PurePath(os.__file__).parts[:-1]
_PLAIN = (date, datetime, time, timedelta, tzinfo, Decimal, Fraction, UUID, PurePath, complex, range, pa.Scalar)
_MADE_BY_DATACLASS = frozenset(
    {"__init__", "__repr__", "__eq__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__", "__setattr__", "__delattr__"}
)
_NO_BEHAVIOUR = frozenset(
    {
        "__module__",
        "__qualname__",
        "__doc__",
        "__dict__",
        "__weakref__",
        "__annotations__",
        "__abstractmethods__",
        "__parameters__",
        "__orig_bases__",
        "__firstlineno__",
        "__static_attributes__",
        "__dataclass_params__",
        "__dataclass_fields__",
        "__match_args__",
        "__slots__",
        "__getstate__",
        "__setstate__",
        # Pickling the first instance of a class stores this on the class.
        "__slotnames__",
        "_abc_impl",
    }
)


def package_of(module: str) -> str:
    """Return the first part of a module's name."""
    return module.partition(".")[0]


def module_of(value: Any) -> str:
    """Return the module of a class or function, or only the package for tidegate's own, because its files may move."""
    module = getattr(value, "__module__", "") or ""
    return "tidegate" if package_of(module) == "tidegate" else module


@functools.cache
def is_own(module: str, named_in: str | None = None) -> bool:
    """Return True if a module holds user code.

    Args:
        module: name of the module.
        named_in: package of the code that names it; None if the pipeline itself holds it.
    """
    package = package_of(module)
    if not package or package in _LIBRARIES or _is_pythons(package):
        return False
    return named_in in (None, package) or not any(part in _INSTALLED for part in _parts(package))


def _is_pythons(package: str) -> bool:
    """Return True if a package is part of Python. A project's module may have the same name, so its file decides."""
    place = _parts(package)[: len(_STANDARD_LIBRARY)]
    return package in sys.stdlib_module_names and place in ((), _STANDARD_LIBRARY)


def _parts(package: str) -> tuple[str, ...]:
    """Return the parts of the path of an imported package's file; empty if it has none."""
    file = getattr(sys.modules.get(package), "__file__", None)
    return () if file is None else PurePath(file).parts


def plain_text(value: Any) -> str | None:
    """Return a text that fully describes a value of Python, NumPy, Arrow or pandas; None for other types."""
    if isinstance(value, re.Pattern):
        return f"{value.pattern!r} {value.flags}"
    if isinstance(value, np.ndarray | np.generic):
        held = value.tobytes() if value.dtype != object else repr(value.tolist()).encode()
        return f"{value.dtype} {value.shape} {_digest(held)}"
    if isinstance(value, pa.Table | pa.RecordBatch | pa.Array | pa.ChunkedArray):
        return f"{value.schema if hasattr(value, 'schema') else value.type} {_digest(repr(value.to_pylist()).encode())}"
    # Pandas values exist only after pandas was imported.
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series | pandas.Index):
        return _of_frame(value)
    if isinstance(value, PurePath):
        return str(value)
    return repr(value) if isinstance(value, _PLAIN) else None


def _of_frame(value: Any) -> str:
    """Return a text for a frame, series or index of pandas: its values with their types and labels."""
    parts = [("index", value)] if not hasattr(value, "index") else [("index", value.index)]
    parts += value.items() if hasattr(value, "columns") else [(value.name, value)]
    return " ".join(f"{name!r}: {part.dtype} {_digest(repr(part.tolist()).encode())}" for name, part in parts)


def _digest(held: bytes) -> str:
    return hashlib.sha256(held).hexdigest()


def code_of(value: Any) -> CodeType | None:
    """Return the code of a function or method, or None for other values, even objects that accept every attribute."""
    try:
        code = getattr(value, "__code__", None)
    except Exception:
        # The object's `__getattr__` fails, so it is not a function.
        return None
    return code if isinstance(code, CodeType) else None


def is_opaque(kind: type) -> bool:
    """Return True if a class's name suffices to describe its objects, as for Python's loggers and locks."""
    return _is_pythons(package_of(kind.__module__)) and kind not in (functools.partial, SimpleNamespace)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the attributes and slots of an object with their values."""
    if isinstance(value, functools.partial):
        return {"func": value.func, "args": value.args, "keywords": value.keywords}
    slots = [
        name
        for base in type(value).__mro__
        for name in _names(vars(base).get("__slots__", ()))
        if name not in ("__dict__", "__weakref__") and hasattr(value, name)
    ]
    return {**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods, properties and constants of a class by name, without those that Python adds."""
    for name, member in sorted(vars(kind).items()):
        # This is a fact that the class does not define itself, so it is the base class's safe default.
        if name in _NO_BEHAVIOUR or is_fact(member):
            continue
        if name in _MADE_BY_DATACLASS and dataclasses.is_dataclass(kind) and _is_generated(member):
            continue
        if isinstance(member, staticmethod | classmethod):
            yield name, member.__func__
        elif isinstance(member, property):
            yield name, [part for part in (member.fget, member.fset, member.fdel) if part is not None]
        elif isinstance(member, functools.cached_property):
            yield name, member.func
        elif type(member).__name__ not in ("member_descriptor", "getset_descriptor"):
            yield name, member


def _is_generated(member: Any) -> bool:
    code = getattr(member, "__code__", None)
    return code is None or code.co_filename == "<string>" or code.co_filename == dataclasses.__file__


def bytecode(code: CodeType) -> Any:
    """Return the instructions, names and constants of a code object, without its file and line numbers."""
    return (code.co_code, code.co_names, tuple(_constant(constant) for constant in code.co_consts))


def _constant(constant: Any) -> Any:
    if isinstance(constant, CodeType):
        return bytecode(constant)
    if isinstance(constant, frozenset):
        return tuple(sorted(map(repr, constant)))
    if isinstance(constant, tuple) and any(isinstance(part, frozenset | CodeType) for part in constant):
        return tuple(map(_constant, constant))
    return repr(constant)


def globals_of(function: Any) -> list[tuple[str, Any]]:
    """Return, by name, the globals that a function and its nested functions use, and what they import."""
    values: dict[str, Any] = {}
    for code in _nested(function.__code__):
        values.update(_named(code, function.__globals__))
    return sorted(values.items())


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _named(code: CodeType, scope: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a code object loads; for a module, the attributes that it uses from the module."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for place, step in enumerate(steps):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in scope:
            yield _reached(step.argval, scope[step.argval], steps[place + 1 :])
        elif step.opname == "IMPORT_NAME":
            yield from _imported(step.argval, steps[:place], steps[place + 1 :], scope)


def _reached(name: str, value: Any, following: list[dis.Instruction]) -> tuple[str, Any]:
    for step in following:
        if not isinstance(value, ModuleType) or step.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            break
        if not hasattr(value, step.argval):
            break
        name, value = f"{name}.{step.argval}", getattr(value, step.argval)
    return name, ("module", value.__name__) if isinstance(value, ModuleType) else value


def _imported(
    name: str, before: list[dis.Instruction], following: list[dis.Instruction], scope: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the values that an import within a function takes from a module of user code."""
    constants = [step.argval for step in before if step.opname == "LOAD_CONST"]
    level = constants[-2] if len(constants) > 1 and isinstance(constants[-2], int) else 0
    if level:
        name = importlib.util.resolve_name("." * level + name, scope.get("__package__") or "")
    if not is_own(name, package_of(scope.get("__name__") or "")):
        return
    try:
        module = importlib.import_module(name)
    except ImportError:
        yield name, ("absent",)
        return
    for step in following:
        if step.opname != "IMPORT_FROM":
            if step.opname not in ("STORE_FAST", "STORE_DEREF", "STORE_GLOBAL", "STORE_NAME"):
                break
            continue
        if hasattr(module, step.argval):
            yield _reached(f"{name}.{step.argval}", getattr(module, step.argval), [])
