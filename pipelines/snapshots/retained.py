"""Snapshots that stay: the newest by number, and of the older ones one an hour until they reach an age.

Only streams make so many that they are thinned out: epochs of a backfill, restores and the like stay each, since an
interval that is run again starts from the snapshot before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from tidegate.pipelines.config import PipelineEntry
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.snapshots.head import SnapshotEntry
from tidegate.windowing.time import Duration, Millis, non_negative_millis

THINNED = frozenset({"stream", "clock"})
"""Kinds of epochs of which one an hour stays."""

HOUR: Millis = 3_600_000


@dataclass(frozen=True, slots=True)
class Retention:
    """How long snapshots stay, and versions of the published tables.

    Args:
        snapshots: at least so many of the newest.
        age: and those that are not older; of a stream's, the newest of each hour.
        readers: how long versions of the published tables stay for who reads them; None takes the age.
        epochs: how long rows of table epochs stay; None keeps all.

    Raises:
        UsageError: fewer than one snapshot. IllegalArgument: a negative duration.
    """

    snapshots: int
    age: Duration
    readers: Duration | None = None
    epochs: Duration | None = None

    def __post_init__(self) -> None:
        if self.snapshots < 1:
            raise UsageError(f"snapshots to keep: {self.snapshots}; the newest one always stays, so give 1 or more")
        non_negative_millis(self.age, "age")
        for name, given in (("readers", self.readers), ("epochs", self.epochs)):
            if given is not None:
                non_negative_millis(given, name)

    @classmethod
    def of(cls, entry: PipelineEntry, snapshots: int | None = None, days: int | None = None) -> Self:
        """Read it from the entry of a pipeline in tidegate.toml.

        Args:
            entry: of the pipeline.
            snapshots: how many of the newest; None takes `retain_snapshots`.
            days: and for how long; None takes `retain_days`.
        """
        age = timedelta(days=entry.retain_days if days is None else days)
        readers = min(age, timedelta(hours=entry.retain_log_hours))
        newest = entry.retain_snapshots if snapshots is None else snapshots
        return cls(newest, age, readers, timedelta(days=entry.retain_epochs_days))

    def oldest_snapshot(self, now: Millis) -> Millis:
        """Snapshots that were committed before this moment go, unless they are among the newest."""
        return now - non_negative_millis(self.age, "age")

    def oldest_read(self, now: Millis) -> Millis:
        """Versions of published tables that were replaced before this moment go."""
        return now - non_negative_millis(self.age if self.readers is None else self.readers, "readers")


def retained(entries: Sequence[SnapshotEntry], retention: Retention, now: Millis) -> set[int]:
    """Versions of the snapshots that stay.

    Args:
        entries: all snapshots in the log, the newest first.
        retention: which stay.
        now: int64 epoch milliseconds.
    """
    newest = entries[: retention.snapshots]
    return {entry.version for entry in (*newest, *_by_age(entries, retention.oldest_snapshot(now)))}


def _by_age(entries: Iterable[SnapshotEntry], oldest: Millis) -> Iterator[SnapshotEntry]:
    """Of what is young enough: everything that is not thinned out, and of each timeline the newest of each hour."""
    hours = set()
    for entry in entries:
        if entry.committed_at < oldest:
            continue
        hour = (entry.manifest["timeline"], entry.committed_at // HOUR)
        if entry.manifest["kind"] not in THINNED:
            yield entry
        elif hour not in hours:
            hours.add(hour)
            yield entry
