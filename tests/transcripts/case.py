"""A running case: strict reading of its fields, expected errors, and the description of differences."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tidegate.windowing.errors import (
    IllegalArgument,
    IllegalState,
    IncompatibleSnapshot,
    MissingTimestamp,
    UnsupportedOperation,
    WindowingError,
)

ERROR_NAMES: dict[str, tuple[type[Exception], ...]] = {
    "illegal_argument": (IllegalArgument,),
    "unsupported_operation": (UnsupportedOperation,),
    "missing_timestamp": (MissingTimestamp,),
    "illegal_state": (IllegalState, IncompatibleSnapshot),
}


class Kept(Protocol):
    """A value whose state a manifest keeps."""

    def snapshot(self) -> dict[str, Any]: ...

    def restore(self, snapshot: dict[str, Any]) -> None: ...


T = TypeVar("T", bound=Kept)

CASE_FIELDS = {"id", "source", "kind", "note", "tags"}


class Mismatch(Exception):
    """A case that fails: what was expected, and the actual value."""

    def __init__(self, where: str, expected: object, came: object) -> None:
        super().__init__(f"{where}: expected {expected}, came {came}")


class Skipped(Exception):
    """A case that an operator doesn't support by design; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Options:
    """Ways to run the cases.

    Args:
        operator: `row` or `columnar`.
        restore_every_step: whether the operator is snapshot and restored after every step.
        rescale: parallelism of those restores; None keeps it.
    """

    operator: str = "row"
    restore_every_step: bool = False
    rescale: int | None = None

    def after_step(self, value: T, make: Callable[[], T]) -> T:
        """Return a value with a snapshot as it is after a step: a new one from `make` if each step is restored."""
        if not self.restore_every_step:
            return value
        made = make()
        # As a snapshot is read back from a manifest.
        made.restore(json.loads(json.dumps(value.snapshot())))
        return made


def check_fields(what: str, given: dict[str, Any], known: Iterable[str]) -> None:
    """Raise Mismatch for an unknown field, which must not be ignored."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise Mismatch(what, f"fields the runner knows ({sorted(known)})", f"unknown fields {unknown}")


def only_field(what: str, step: dict[str, Any], known: Iterable[str]) -> str:
    """Return the one field of a step that says what it does."""
    names = [name for name in step if name in set(known)]
    if len(names) != 1:
        raise Mismatch(what, f"one of {sorted(known)}", sorted(step))
    return names[0]


def expect_equal(where: str, expected: Any, came: Any) -> None:
    """Raise Mismatch unless the two are equal."""
    if expected != came:
        raise Mismatch(where, expected, came)


def run_expecting(error: dict[str, Any] | None, at: object, act: Callable[[], None]) -> bool:
    """Run one step, and return whether it raised the error that the case expects there.

    Raises:
        Mismatch: an unexpected error was raised, or the expected one was not.
    """
    expected = error is not None and error["at"] == at
    try:
        act()
    except WindowingError as raised:
        if error is not None and expected and isinstance(raised, ERROR_NAMES[error["error"]]):
            return True
        wanted = error["error"] if error is not None and expected else "no error"
        raise Mismatch(f"step {at}", wanted, f"{type(raised).__name__}: {raised}") from raised
    if error is not None and expected:
        raise Mismatch(f"step {at}", f"error {error['error']}", "no error")
    return False
