"""What went wrong beneath us, in one line: storage that fails, a task that died, Spark that is no more.

Libraries tell it over many lines, in colours, below a name that says nothing; a task's error comes wrapped twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pipelines import errors
from pipelines.errors import TidegateError

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CAUSE = "↳"
_TRACEBACK = "Traceback (most recent call last):"
_LOST_TASK = re.compile(r"(Python worker exited unexpectedly[^\n]*)")
_LONGEST = 500


def in_words(error: BaseException) -> str:
    """An error in one line: what a task raised, else its first line and the causes that deltalake puts below it."""
    raised = _raised_in_task(str(error))
    return raised[1] if raised else _first_line(str(error)) or type(error).__name__


@contextmanager
def told_as(doing: str, then: str) -> Iterator[None]:
    """Tell storage and Spark failing within it as one clear error; our own errors pass.

    Args:
        doing: what can't be done, such as `epoch 4 of duty can't be committed`.
        then: how things stand and what to do, a sentence.

    Raises:
        TidegateError: of the class that a task raised, where it raised one of ours.
    """
    try:
        yield
    except TidegateError:
        raise
    except Exception as error:
        if not _is_from_beneath(error):
            raise
        raised = _raised_in_task(str(error))
        kind = getattr(errors, raised[0], None) if raised else None
        ours = kind if isinstance(kind, type) and issubclass(kind, TidegateError) else TidegateError
        raise ours(f"{doing}: {in_words(error)}. {then}") from error


def _is_from_beneath(error: Exception) -> bool:
    """Whether the system, deltalake or Spark failed, and not a line of ours or the user's."""
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or package in ("deltalake", "pyspark", "py4j")


def _raised_in_task(text: str) -> tuple[str, str] | None:
    """Class and message of the error that a Python task raised, where the text has its traceback."""
    _, found, trace = text.rpartition(_TRACEBACK)
    if not found:
        return None
    for line in trace.splitlines():
        raised = re.match(r"([A-Za-z_][\w.]*)(?:: (.*))?$", line)
        if raised:
            name = raised[1].rpartition(".")[2]
            message = (raised[2] or "").strip().rstrip(".")[:_LONGEST]
            return name, message if issubclass(
                getattr(errors, name, object), TidegateError
            ) else f"{name}: {message}".rstrip(": ")
    return None


def _first_line(text: str) -> str:
    if task := _LOST_TASK.search(text):
        return f"{task[1].strip().rstrip(':').rstrip()} (killed, or out of memory?)"
    lines = [line.strip() for line in _COLOURS.sub("", text).splitlines() if line.strip()]
    causes = [line.removeprefix(_CAUSE).strip() for line in lines[1:] if line.startswith(_CAUSE)]
    return ": ".join([*lines[:1], *causes]).rstrip(".")[:_LONGEST]
