"""Explanations of failed imports: file and line in a project's module, or the extra that installs a missing library."""

from __future__ import annotations

import dataclasses
import re
import sys
import traceback
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from tidegate.extras import missing_extra
from tidegate.pipelines.definition.names import listed

_FOLDERS = ("expectations", "pipelines", "windowing")
"""Folders of `tidegate`, which are links in a checkout."""
_UNKNOWN_KEYWORD = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")
_VALUES = (
    "tidegate.pipelines",
    "tidegate.windowing",
    "tidegate.windowing.compute",
    "tidegate.windowing.state",
)
"""Modules of the classes that a project calls with keywords."""


def explain_import(error: BaseException, module: str, root: Path) -> str:
    """Return the reason why a module of the project can't be imported, and where.

    Args:
        error: the error that the import raised.
        module: name of the module, such as `package.module`.
        root: folder of the project.
    """
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and (module == missing or module.startswith(f"{missing}.")):
        return f"{error}{_way_to(module, root)}"
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}, line {error.lineno}: SyntaxError: {error.msg}"
    # Windowing's own errors have complete messages; Python's also need the name of the exception.
    ours = type(error).__module__.partition(".")[0] == "tidegate"
    message = str(error) if ours else _unknown_keyword(error) or f"{type(error).__name__}: {error}"
    if (extra := missing_extra(error, f"the module {module}", module)) is not None:
        message = str(extra)
    line = _line_of_project(error, root)
    return f"{line}: {message}" if line else message


def similar(module: ModuleType, name: str, kind: type = object) -> str:
    """Return a hint with the similarly named values of that kind in a module, or all of them; "" if there are none."""
    names = [key for key, value in vars(module).items() if not key.startswith("_") and isinstance(value, kind)]
    if kind is object:
        names = get_close_matches(name, names, 3)
    return f"; it has {listed(sorted(names))}" if names else ""


def _unknown_keyword(error: BaseException) -> str | None:
    """Return a message that lists a class's fields if an unknown one was passed to it; None for other errors."""
    unknown = _UNKNOWN_KEYWORD.search(str(error)) if isinstance(error, TypeError) else None
    fields = _fields_of(unknown[1]) if unknown else []
    if unknown is None or not fields:
        return None
    close = get_close_matches(unknown[2], fields, 1)
    hint = f"did you mean {close[0]!r}? It" if close else "it"
    return f"{unknown[1]} has no field {unknown[2]!r}: {hint} has {', '.join(fields)}"


def _fields_of(name: str) -> list[str]:
    for module in _VALUES:
        # The code called the class, so its module has been imported.
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return [field.name for field in dataclasses.fields(kind) if field.init]
    return []


def _way_to(module: str, root: Path) -> str:
    package = module.partition(".")[0]
    if PathFinder.find_spec(package, [str(root)]) is not None:
        return f", searched below {root}"
    close = get_close_matches(package, list(_modules_in(root)), 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f": there is no {package}.py in {root}{hint}"


def _modules_in(root: Path) -> Iterator[str]:
    for file in root.glob("*.py"):
        yield file.stem
    for file in root.glob("*/__init__.py"):
        yield file.parent.name


def _line_of_project(error: BaseException, root: Path) -> str | None:
    """Return the file and line of the innermost frame in the project's folder, outside installed packages, or None."""
    others = [Path(sys.prefix).resolve(), *(Path(__file__).resolve().parents[2] / name for name in _FOLDERS)]
    place = None
    for frame in traceback.extract_tb(error.__traceback__):
        file = Path(frame.filename)
        if file.is_relative_to(root) and not any(file.resolve().is_relative_to(other) for other in others):
            place = f"{frame.filename}, line {frame.lineno}"
    return place
