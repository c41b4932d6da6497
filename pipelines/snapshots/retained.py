"""Snapshots that stay: the newest by number, and of the older ones one an hour until they reach an age.

Only streams make so many that they are thinned out: epochs of a backfill, restores and the like stay each, since an
interval that is run again starts from the snapshot before it. The results of a line that was left come back whole only
with every epoch since the fork, so these stay as long as one of the newest snapshots needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipelines.errors import UsageError
from pipelines.snapshots.head import SnapshotEntry
from pipelines.snapshots.manifest import Line, is_on
from windowing.time import Duration, Millis, non_negative_millis

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

    def oldest_snapshot(self, now: Millis) -> Millis:
        """Snapshots that were committed before this moment go, unless they are among the newest."""
        return now - non_negative_millis(self.age, "age")

    def oldest_read(self, now: Millis) -> Millis:
        """Versions of published tables that were replaced before this moment go."""
        return now - non_negative_millis(self.age if self.readers is None else self.readers, "readers")


def retained(entries: Sequence[SnapshotEntry], line: Line, retention: Retention, now: Millis) -> set[int]:
    """Versions of the snapshots that stay.

    Args:
        entries: all snapshots in the log, the newest first.
        line: of the head.
        retention: which stay.
        now: int64 epoch milliseconds.
    """
    by_epoch = {entry.epoch: entry for entry in reversed(entries)}
    kept = {entry.version for entry in _by_age(entries, retention.oldest_snapshot(now))}
    for entry in entries[: retention.snapshots]:
        chain = set(_since_fork(entry, line, by_epoch))
        kept |= {entry.version} | (
            {version for version in chain if version is not None} if None not in chain else set()
        )
    return kept


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


def _since_fork(entry: SnapshotEntry, line: Line, by_epoch: Mapping[int, SnapshotEntry]) -> Iterator[int | None]:
    """Versions of the epochs that led to a snapshot since it left the head's line; None for one that is gone."""
    epoch: int | None = entry.epoch
    while epoch is not None and not is_on(line, epoch):
        found = by_epoch.get(epoch)
        yield None if found is None else found.version
        epoch = None if found is None else found.manifest["parent"]
