"""The order in which a pipeline takes the commits of two sources: by commit time, then by input number.

Within a source the order is that of the versions; a commit time that goes back counts as the newest
before it. So the order is a function of the two logs alone, however they are cut into epochs.

    left     1 @ 10:00            2 @ 10:02   3 @ 10:01
    right             1 @ 10:01   2 @ 10:02
    taken    left 1, right 1, left 2, left 3, right 2
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from tidegate.windowing.time import Millis


class Timed(Protocol):
    """What has a commit time, int64 epoch milliseconds."""

    @property
    def time(self) -> Millis:
        """As the log has it."""


Commit = TypeVar("Commit", bound=Timed)


def interleaved(logs: Sequence[Sequence[Commit]]) -> list[tuple[int, Commit]]:
    """Commits with the number of their input, in the order in which they are taken.

    Args:
        logs: the commits of each input by version.
    """
    streams = [_placed(number, commits) for number, commits in enumerate(logs)]
    return [(number, commit) for _, number, commit in heapq.merge(*streams, key=lambda placed: placed[:2])]


def _placed(number: int, commits: Sequence[Commit]) -> Iterator[tuple[Millis, int, Commit]]:
    newest = 0
    for commit in commits:
        newest = max(newest, commit.time)
        yield newest, number, commit
