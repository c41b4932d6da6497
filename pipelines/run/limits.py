"""How much one epoch of a stream reads. Importing this module loads no table libraries."""

from __future__ import annotations

from dataclasses import dataclass, fields

DEFAULT_FILES = 1000
"""Limit on files if no limit on bytes is given."""
DEFAULT_ROWS = 20_000_000
"""Limit on rows if none is given: a small file may have very many rows, because equal values take no space in it."""


@dataclass(frozen=True, slots=True)
class EpochLimits:
    """Limits on what one epoch of a stream reads. None is the default, which is no limit for bytes and commits.

    An epoch that can't stay within a limit reads one file, or one commit if it may not split commits.

    Args:
        files: number of source files; 1,000 if neither files nor bytes are limited.
        bytes: bytes of source files.
        commits: number of source commits, where a part of a commit counts as one.
        rows: number of rows in the files, as far as the source records it; 20,000,000 if they are not limited.

    Raises:
        IllegalArgument: a limit is not a whole number above zero.
    """

    files: int | None = None
    bytes: int | None = None
    commits: int | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        for limit in fields(self):
            value: object = getattr(self, limit.name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                from tidegate.windowing.errors import IllegalArgument

                raise IllegalArgument(
                    f"limits.{limit.name}", value, "give a whole number above zero, or None for the default"
                )
        if self.files is None and self.bytes is None:
            object.__setattr__(self, "files", DEFAULT_FILES)
        if self.rows is None:
            object.__setattr__(self, "rows", DEFAULT_ROWS)
