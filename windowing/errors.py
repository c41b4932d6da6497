"""Errors of `windowing`: each message names the field, the value and the remedy."""

from __future__ import annotations


class WindowingError(Exception):
    """Base class of every error that this library raises on purpose."""


class IllegalArgument(WindowingError, ValueError):
    """An invalid value. The constructor or function that takes the value raises it."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field} = {value!r}: {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy

    def __reduce__(self) -> tuple[type, tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.remedy)


class UnsupportedOperation(WindowingError, RuntimeError):
    """A call, or a combination of parts, that is not supported."""


class IllegalState(WindowingError, RuntimeError):
    """An object that is not ready for a call, or a snapshot that does not belong to it."""


class MissingTimestamp(WindowingError, ValueError):
    """An element without a timestamp in an operator that works in event time."""

    def __init__(self) -> None:
        super().__init__(
            "the element has no timestamp. Is the time characteristic set to processing time, "
            "or was no timestamp assigner given? Use WatermarkStrategy.with_timestamp_assigner(...), "
            "or an assigner in processing time"
        )


class IncompatibleSnapshot(IllegalState):
    """A snapshot that the current configuration can't restore. The error names the field that differs."""

    def __init__(self, field: str, in_snapshot: object, expected: object, remedy: str) -> None:
        super().__init__(f"{field}: the snapshot has {in_snapshot}, this configuration has {expected}. {remedy}")
        self.field = field
        self.found = in_snapshot
        self.expected = expected
        self.remedy = remedy

    def __reduce__(self) -> tuple[type, tuple[str, object, object, str]]:
        return type(self), (self.field, self.found, self.expected, self.remedy)


class LostElementsWarning(UserWarning):
    """Warning about windows that may accept elements and be removed before a pane shows them."""


class UnboundedStateWarning(UserWarning):
    """Warning about windows that are never removed, so that the state of each key stays forever."""
