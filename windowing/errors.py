"""The errors of `windowing`: few types, each message with the field, the value and the way out."""

from __future__ import annotations


class WindowingError(Exception):
    """Base of every error this library raises on purpose."""


class IllegalArgument(WindowingError, ValueError):
    """A value that can't be used, found when the object that holds it is made."""

    def __init__(self, field: str, value: object, way_out: str) -> None:
        super().__init__(f"{field} = {value!r}: {way_out}")
        self.field = field
        self.value = value
        self.way_out = way_out

    def __reduce__(self) -> tuple[type, tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.way_out)


class UnsupportedOperation(WindowingError, RuntimeError):
    """A call that this combination of parts does not support."""


class IllegalState(WindowingError, RuntimeError):
    """An object used before it is ready, or restored from what does not belong to it."""


class MissingTimestamp(WindowingError, ValueError):
    """An element without a timestamp reached an operator that works in event time."""

    def __init__(self) -> None:
        super().__init__(
            "the element has no timestamp. Is the time characteristic set to processing time, "
            "or was no timestamp assigner given? Use WatermarkStrategy.with_timestamp_assigner(...), "
            "or an assigner in processing time"
        )


class IncompatibleSnapshot(IllegalState):
    """A snapshot that the present configuration can't restore; names the field that differs."""

    def __init__(self, field: str, found: object, expected: object, way_out: str) -> None:
        super().__init__(f"{field}: the snapshot has {found}, this configuration has {expected}. {way_out}")
        self.field = field
        self.found = found
        self.expected = expected
        self.way_out = way_out

    def __reduce__(self) -> tuple[type, tuple[str, object, object, str]]:
        return type(self), (self.field, self.found, self.expected, self.way_out)


class LostElementsWarning(UserWarning):
    """Windows that may take elements and go away before a pane shows them."""


class UnboundedStateWarning(UserWarning):
    """Windows that nothing will ever clean: the state of each key stays for good."""
