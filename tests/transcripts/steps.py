"""The walk over the steps of a case, and the comparison of lists of outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tests.transcripts.case import Mismatch, check_fields, only_field, run_expecting
from tidegate.windowing.time import Millis

T = TypeVar("T")


@dataclass(slots=True)
class Clocks:
    """The two clocks, as the contexts of assigners and evictors show them."""

    current_watermark: Millis = 0
    current_processing_time: Millis = 0


def built(case: dict[str, Any], build: Callable[[], T]) -> T | None:
    """Return the value of `build`, or None if it raised the error that the case expects."""
    made: list[T] = []
    if run_expecting(case.get("expect_error"), "build", lambda: made.append(build())):
        return None
    return made[0]


def walk(case: dict[str, Any], steps: Iterable[T], act: Callable[[int, T], None]) -> None:
    """Act on each step, up to the error that the case expects at one of them.

    Raises:
        Mismatch: an unexpected error was raised, or the expected one was not.
    """
    error = case.get("expect_error")
    for index, step in enumerate(steps):
        if run_expecting(error, index, partial(act, index, step)):
            return
    if error is not None:
        raise Mismatch(str(case["id"]), f"error {error['error']} at {error['at']}", "no error")


def walk_steps(
    case: dict[str, Any], fields: Mapping[str, Iterable[str]], act: Callable[[str, str, dict[str, Any]], None]
) -> None:
    """Iterate over the steps of a case, each with the field that says what it does; `fields` are the other allowed
    fields.
    """

    def checked(index: int, step: dict[str, Any]) -> None:
        where = f"step {index}"
        kind = only_field(where, step, fields)
        check_fields(where, step, {kind, *fields[kind]})
        act(where, kind, step)

    walk(case, case["steps"], checked)


def by_step(case: dict[str, Any], field: str) -> dict[int, list[dict[str, Any]]]:
    """Return the entries of a case under `field`, by the step after which they hold.

    Raises:
        Mismatch: there is no such step, so the entry would be ignored.
    """
    entries: dict[int, list[dict[str, Any]]] = {}
    for entry in case.get(field, ()):
        if not 0 <= entry["after_step"] < len(case["steps"]):
            raise Mismatch(field, f"a step from 0 to {len(case['steps']) - 1}", entry["after_step"])
        rest = {name: value for name, value in entry.items() if name != "after_step"}
        entries.setdefault(entry["after_step"], []).append(rest)
    return entries


def expect_same(where: str, expected: Sequence[Any], came: Sequence[Any]) -> None:
    """Raise Mismatch unless both contain the same items, in any order."""
    if Counter(map(_frozen, expected)) != Counter(map(_frozen, came)):
        raise Mismatch(where, list(expected), list(came))


def expect_subsequence(where: str, expected: Sequence[Any], came: Sequence[Any]) -> None:
    """Raise Mismatch unless `came` is `expected` with some items left out, in the same order."""
    rest = iter(expected)
    if not all(any(item == wanted for wanted in rest) for item in came):
        raise Mismatch(f"order {where}", list(expected), list(came))


def _frozen(item: Any) -> str:
    return repr(sorted(item.items())) if isinstance(item, dict) else repr(item)
