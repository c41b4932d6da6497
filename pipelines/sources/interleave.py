"""Order in which a pipeline reads the commits of two sources: by commit time, then by input number.

Within a source, the order is that of the versions. If a commit time goes back, the newest earlier time counts instead.
So the order depends on the two logs alone, not on their cut into epochs.

    left     1 @ 10:00            2 @ 10:02   3 @ 10:01
    right             1 @ 10:01   2 @ 10:02
    taken    left 1, right 1, left 2, left 3, right 2
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from tidegate.windowing.time import Millis


class Timed(Protocol):
    """A value with a commit time."""

    @property
    def time(self) -> Millis:
        """Commit time in the log, int64 epoch milliseconds."""


Commit = TypeVar("Commit", bound=Timed)


def interleaved(logs: Sequence[Iterable[Commit]]) -> list[tuple[int, Commit]]:
    """Return commits with the numbers of their inputs, in the order in which the pipeline reads them.

    Args:
        logs: the commits of each input, ordered by version.
    """
    return list(in_order(logs))


def in_order(logs: Sequence[Iterable[Commit]]) -> Iterator[tuple[int, Commit]]:
    """Yield what `interleaved` returns; of each input, at most one commit is taken ahead."""
    streams = [_placed(number, commits) for number, commits in enumerate(logs)]
    for _, number, commit in heapq.merge(*streams, key=lambda placed: placed[:2]):
        yield number, commit


def _placed(number: int, commits: Iterable[Commit]) -> Iterator[tuple[Millis, int, Commit]]:
    newest = 0
    for commit in commits:
        newest = max(newest, commit.time)
        yield newest, number, commit
