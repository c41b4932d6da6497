"""The errors of `pipelines`, each with the exit code of the commands that it ends.

0 done, 2 usage, 3 refused, 4 lease held, 5 quality, 1 anything else. Only 1 and 4 are worth a retry: the others recur
until somebody changes something. `project/cli/__init__.py` ends a command with the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tidegate.pipelines.remedy import Remedy
from tidegate.pipelines.rendering import with_remedies

OTHER, USAGE, REFUSED, LEASE_HELD, QUALITY = 1, 2, 3, 4, 5


class TidegateError(Exception):
    """The base of every error that a command reports as one message, without a traceback.

    Its text has both arguments, with the remedies as this process spells them.

    Args:
        message: what happened, with the field and its value.
        remedies: what the user can do; any one of them helps.
    """

    exit_code: ClassVar[int] = OTHER

    def __init__(self, message: str = "", *remedies: Remedy) -> None:
        super().__init__(message, *remedies)
        self.message = message
        self.remedies = remedies

    def __str__(self) -> str:
        return with_remedies(self.message, self.remedies)


class UsageError(TidegateError):
    """The request is impossible: an unknown pipeline, a bad option, a faulty tidegate.toml."""

    exit_code = USAGE


class Refused(TidegateError):
    """The tables or the source are not in a state that allows this run: a gap, a changed key, a stale handle."""

    exit_code = REFUSED


class UserCodeFailed(Refused):
    """Code of the pipeline raised an error for a row, a timer or a window, so the same run would fail again."""


class FilesMissing(Refused):
    """Files that tasks wrote and that an epoch is about to commit are missing or truncated."""


class NotReopenable(Refused):
    """Late rows can't be added to their windows, whose other rows are unknown; other late rows may be reopened.

    Each subclass is one reason, and `kind` names it.

    Args:
        message: what happened.
        remedies: what the user can do.
        concerns: the spans `[first, end)` of window starts that the reason concerns, int64 epoch milliseconds, if they
            are known. They say where to divide a selection of late rows; windows inside may still be reopenable.
    """

    kind: ClassVar[str]

    def __init__(self, message: str, *remedies: Remedy, concerns: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__(message, *remedies)
        self.concerns = tuple(concerns)


class RowsRewritten(NotReopenable):
    """Files with rows from before the first interval were rewritten, so it is unknown which rows were left out."""

    kind = "rewritten_before_first_interval"


class OtherWindows(NotReopenable):
    """The elements of the window are also in windows that were computed before the assigner changed."""

    kind = "windows_of_other_size"


class KeyNotRecorded(NotReopenable):
    """Table late has no key columns, so that only all late rows together can be selected."""

    kind = "key_not_recorded"


class SourceFileMissing(NotReopenable):
    """A file of a source no longer exists."""

    kind = "source_file_missing"


class NoWindow(NotReopenable):
    """The windows have gaps since the assigner changed, and the row lies in one, so there is no window to add it to."""

    kind = "no_window"


class StoreFailed(TidegateError):
    """A request to an object store failed, even when it was repeated; nothing is wrong with the tables."""


class BucketMissing(StoreFailed):
    """An object store has no bucket of that name, so a retry would not help."""

    exit_code = REFUSED


class LeaseHeld(TidegateError):
    """Another driver is running the pipeline."""

    exit_code = LEASE_HELD


class Stopped(TidegateError):
    """Somebody asked the driver to end before it had finished."""


class QualityFailed(TidegateError):
    """A critical expectation does not hold."""

    exit_code = QUALITY
