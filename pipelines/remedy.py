"""What a user can do about an error, or to learn more about an answer: a value, which `rendering` puts into words.

The ledger, the epochs and the runs name what can be done; only `rendering` knows how a command or a method spells it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto


class Act(StrEnum):
    """The kinds of remedies. `rendering.CALLS` has the words, the command and the method of each."""

    FIRST_BACKFILL = auto()
    STREAM = auto()
    READ_ON = auto()
    CATCH_UP = auto()
    END_INPUT = auto()
    STREAM_FROM_SCRATCH = auto()
    BACKFILL = auto()
    END_BACKFILL = auto()
    RERUN_STALE = auto()
    RERUN_FROM = auto()
    RERUN_ALL = auto()
    STOP = auto()
    UNLOCK = auto()
    RESTORE = auto()
    RESTORE_BACKFILL = auto()
    RESTORE_AND_BACKFILL = auto()
    RESTORE_TABLES = auto()
    RESTORE_FROM = auto()
    RESTART = auto()
    LIST_SNAPSHOTS = auto()
    LIST_SAVEPOINTS = auto()
    DELETE_SAVEPOINT = auto()
    COPY_AGAIN = auto()
    RESET_SOURCE = auto()
    BUILD_WINDOWS = auto()
    REOPEN = auto()
    REOPEN_FROM = auto()
    PRUNE_LATE = auto()
    SHOW_LATE = auto()
    FORGET = auto()
    OPTIMIZE = auto()
    VACUUM = auto()
    EXPLAIN = auto()
    WHY = auto()
    TRACE = auto()
    TRACE_WINDOW = auto()
    VERIFY = auto()
    CHECK = auto()
    CHECK_ALL = auto()
    REPORT = auto()
    LATENESS_PAGE = auto()
    LINEAGE = auto()
    SET_UP = auto()
    NEW_NAME = auto()
    MOVE_AWAY = auto()
    KEEP_STREAM = auto()
    RETAIN_MORE = auto()


@dataclass(frozen=True, slots=True)
class Remedy:
    """One thing that a user can do.

    Args:
        act: its kind.
        pipeline: name of the pipeline; a placeholder where it is not known.
        at: what the kind is about: an epoch, a snapshot as `restore` takes it, a savepoint, a table or a pipeline.
        key: texts of the values of the key columns; None for a placeholder.
        start: beginning of an interval or window, int64 epoch milliseconds.
        end: end of an interval, int64 epoch milliseconds.
    """

    act: Act
    pipeline: str = "PIPELINE"
    at: str | int | None = None
    key: tuple[str, ...] | None = ()
    start: int | None = None
    end: int | None = None
