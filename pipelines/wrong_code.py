"""An error of a project's own code while it is imported, told in one line with its place and the way out.

It stays until somebody changes the code, so nobody should try again: unlike storage or a network that fails.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import traceback
from difflib import get_close_matches
from pathlib import Path

WRONG_CODE = (TypeError, NameError, SyntaxError, AttributeError)
"""Errors that only other code mends."""

_UNKNOWN_KEYWORD = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")
_OWN_NAMES = ("pipelines.pipeline", "windowing", "windowing.compute", "windowing.state")


def told(error: Exception, root: Path) -> str:
    """The error with the file and line of the project in which it arose.

    Args:
        error: one of `WRONG_CODE`, or a subclass.
        root: the project's folder.
    """
    return f"{_place(error, root)}{_in_words(error)}"


def _place(error: Exception, root: Path) -> str:
    if isinstance(error, SyntaxError):
        return "" if error.filename is None else f"{Path(error.filename).name}, line {error.lineno}: "
    # The last line of the project's own: below it the error is only how a library says it.
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(root)]
    return f"{Path(lines[-1].filename).name}, line {lines[-1].lineno}: " if lines else ""


def _in_words(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    unknown = _UNKNOWN_KEYWORD.search(str(error))
    fields = _fields_of(unknown[1]) if unknown else []
    if unknown is None or not fields:
        return f"{type(error).__name__}: {error}"
    close = get_close_matches(unknown[2], fields, 1)
    hint = f"did you mean {close[0]!r}? It" if close else "it"
    return f"{unknown[1]} has no field {unknown[2]!r}: {hint} has {', '.join(fields)}"


def _fields_of(name: str) -> list[str]:
    """The fields of a value of ours; none of a class that is not."""
    for module in _OWN_NAMES:
        # What the code could misspell it has imported.
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return [field.name for field in dataclasses.fields(kind) if field.init]
    return []
