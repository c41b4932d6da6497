"""The errors of `pipelines`, each with the exit code of the commands that it ends.

0 done, 2 usage, 3 refused, 4 lease held, 5 quality, 1 anything else. Only 1 and 4 are worth a retry: the others recur
until somebody changes something. `project/cli/__init__.py` ends a command with the code.
"""

from __future__ import annotations

from typing import ClassVar

OTHER, USAGE, REFUSED, LEASE_HELD, QUALITY = 1, 2, 3, 4, 5


class TidegateError(Exception):
    """The base of every error that a command reports as one message, without a traceback."""

    exit_code: ClassVar[int] = OTHER


class UsageError(TidegateError):
    """The request is impossible: an unknown pipeline, a bad option, a faulty tidegate.toml."""

    exit_code = USAGE


class Refused(TidegateError):
    """The tables or the source are not in a state that allows this run: a gap, a changed key, a stale handle."""

    exit_code = REFUSED


class FilesMissing(Refused):
    """Files that tasks wrote and that an epoch is about to commit are missing or truncated."""


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
