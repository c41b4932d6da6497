"""Snapshots that retention keeps: a number of the newest ones, and older ones until they reach an age.

Of the older snapshots of streams, only the newest of each hour stays. Streams alone make enough snapshots for that. All
snapshots of a backfill, a restore and the like stay, because a repeated interval starts from the snapshot before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from tidegate.pipelines.config import PipelineEntry
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.snapshots.head import SnapshotEntry
from tidegate.pipelines.tables.table_log import not_ahead
from tidegate.windowing.time import Duration, Millis, non_negative_millis

THINNED = frozenset({"stream", "clock"})
"""Kinds of epochs of which retention keeps only one snapshot an hour."""

HOUR: Millis = 3_600_000


@dataclass(frozen=True, slots=True)
class Retention:
    """Rule for the snapshots and the versions of published tables that stay.

    Args:
        snapshots: number of newest snapshots that stay, at least 1.
        age: age up to which older snapshots stay too; for a stream, the newest of each hour.
        readers: time for which replaced versions of the published tables stay for readers; None takes the age.
        epochs: time for which rows of table epochs stay; None keeps all.

    Raises:
        UsageError: fewer than one snapshot. IllegalArgument: a negative duration.
    """

    snapshots: int
    age: Duration
    readers: Duration | None = None
    epochs: Duration | None = None

    def __post_init__(self) -> None:
        if self.snapshots < 1:
            raise UsageError(
                f"snapshots to keep: {self.snapshots}; the newest snapshot is never removed, so give 1 or more"
            )
        non_negative_millis(self.age, "age")
        for name, given in (("readers", self.readers), ("epochs", self.epochs)):
            if given is not None:
                non_negative_millis(given, name)

    @classmethod
    def of(cls, entry: PipelineEntry, snapshots: int | None = None, days: int | None = None) -> Self:
        """Read the rule from the entry of a pipeline in tidegate.toml.

        Args:
            entry: entry of the pipeline.
            snapshots: number of newest snapshots that stay; None takes `retain_snapshots`.
            days: age in days up to which older ones stay; None takes `retain_days`.
        """
        age = timedelta(days=entry.retain_days if days is None else days)
        readers = min(age, timedelta(hours=entry.retain_log_hours))
        newest = entry.retain_snapshots if snapshots is None else snapshots
        return cls(newest, age, readers, timedelta(days=entry.retain_epochs_days))

    def oldest_snapshot(self, now: Millis) -> Millis:
        """Return the commit time before which snapshots go, unless they are among the newest."""
        return now - non_negative_millis(self.age, "age")

    def oldest_read(self, now: Millis) -> Millis:
        """Return the time before which replaced versions of published tables go."""
        return now - non_negative_millis(self.age if self.readers is None else self.readers, "readers")


def retained(entries: Sequence[SnapshotEntry], retention: Retention, now: Millis) -> set[int]:
    """Return the versions of the snapshots that stay.

    Args:
        entries: all snapshots in the log, the newest first.
        retention: the rule.
        now: int64 epoch milliseconds.
    """
    newest = entries[: retention.snapshots]
    return {entry.version for entry in (*newest, *_by_age(entries, retention.oldest_snapshot(now), now))}


def _by_age(entries: Sequence[SnapshotEntry], oldest: Millis, now: Millis) -> Iterator[SnapshotEntry]:
    """Yield the snapshots that are young enough; of a stream, only the newest of each timeline and hour."""
    hours = set()
    times = not_ahead([entry.committed_at for entry in reversed(entries)], now)[::-1]
    for entry, committed_at in zip(entries, times, strict=True):
        if committed_at < oldest:
            continue
        hour = (entry.manifest["timeline"], entry.committed_at // HOUR)
        if entry.manifest["kind"] not in THINNED:
            yield entry
        elif hour not in hours:
            hours.add(hour)
            yield entry
