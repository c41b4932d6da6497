"""Code of one's own: what of it a fingerprint follows, and what that code names.

Followed is what was written for the pipeline: functions and classes that are neither Python's nor Tidegate's nor of an
installed package, unless that package is the one that the pipeline itself is in. Everything else is told by name.
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
        "_abc_impl",
    }
)


def package_of(module: str) -> str:
    """The package at the top of a module's name."""
    return module.partition(".")[0]


def module_of(value: Any) -> str:
    """Return the module of a class or function; of ours only the package, since its files may move."""
    module = getattr(value, "__module__", "") or ""
    return "tidegate" if package_of(module) == "tidegate" else module


@functools.cache
def is_own(module: str, named_in: str | None = None) -> bool:
    """Whether code of a module is code of one's own.

    Args:
        module: its name.
        named_in: package of the code that names it; None where the pipeline itself holds it.
    """
    package = package_of(module)
    if not package or package in _LIBRARIES or _is_pythons(package):
        return False
    return named_in in (None, package) or not any(part in _INSTALLED for part in _parts(package))


def _is_pythons(package: str) -> bool:
    """Whether a package is one of Python's; a module of a project may have such a name."""
    place = _parts(package)[: len(_STANDARD_LIBRARY)]
    return package in sys.stdlib_module_names and place in ((), _STANDARD_LIBRARY)


def _parts(package: str) -> tuple[str, ...]:
    """The file of a package that was imported, part by part; nothing where it has none."""
    file = getattr(sys.modules.get(package), "__file__", None)
    return () if file is None else PurePath(file).parts


def plain_text(value: Any) -> str | None:
    """A value of Python's or Arrow's own that its text tells whole; None of any other."""
    if isinstance(value, re.Pattern):
        return f"{value.pattern!r} {value.flags}"
    if isinstance(value, np.ndarray | np.generic):
        held = value.tobytes() if value.dtype != object else repr(value.tolist()).encode()
        return f"{value.dtype} {value.shape} {_digest(held)}"
    if isinstance(value, pa.Table | pa.RecordBatch | pa.Array | pa.ChunkedArray):
        return f"{value.schema if hasattr(value, 'schema') else value.type} {_digest(repr(value.to_pylist()).encode())}"
    # Who holds a frame has imported pandas.
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series | pandas.Index):
        return _of_frame(value)
    if isinstance(value, PurePath):
        return str(value)
    return repr(value) if isinstance(value, _PLAIN) else None


def _of_frame(value: Any) -> str:
    """A frame, series or index of pandas: its values with their types and labels."""
    parts = [("index", value)] if not hasattr(value, "index") else [("index", value.index)]
    parts += value.items() if hasattr(value, "columns") else [(value.name, value)]
    return " ".join(f"{name!r}: {part.dtype} {_digest(repr(part.tolist()).encode())}" for name, part in parts)


def _digest(held: bytes) -> str:
    return hashlib.sha256(held).hexdigest()


def code_of(value: Any) -> CodeType | None:
    """The code of a function or method; None of anything else, also of an object that answers to every name."""
    try:
        code = getattr(value, "__code__", None)
    except Exception:
        # Its own `__getattr__` fails: a function has none.
        return None
    return code if isinstance(code, CodeType) else None


def is_opaque(kind: type) -> bool:
    """Whether objects of a class are told by its name alone: loggers, locks and others of Python's own."""
    return _is_pythons(package_of(kind.__module__)) and kind not in (functools.partial, SimpleNamespace)


def fields_of(value: Any) -> dict[str, Any]:
    """What an object holds: its attributes, and its slots."""
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
    """What a class says itself, by name: methods, properties and constants, without what Python adds."""
    for name, member in sorted(vars(kind).items()):
        # A fact that the class does not answer itself: a base class put its safe answer there.
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
    """A code object without its place: instructions, names and constants."""
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
    """What a function and the functions within it name beyond themselves, by name: its globals, and what it imports."""
    found: dict[str, Any] = {}
    for code in _nested(function.__code__):
        found.update(_named(code, function.__globals__))
    return sorted(found.items())


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _named(code: CodeType, scope: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The globals that a code object loads; of a module, the attributes that are taken from it."""
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
    """What an import within a function brings in from a module of one's own."""
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
