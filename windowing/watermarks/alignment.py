"""Watermark alignment: pause sources that are too far ahead of the other sources of their group.

Without alignment, a fast source keeps reading, and the state of its windows grows while they wait for a slow source. A
source has to pause if its watermark is more than the drift ahead of the smallest watermark of its group. Source:
Flink's watermark alignment (`WatermarkAlignmentParams`, `SourceCoordinator`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import (
    MAX_TIMESTAMP,
    Duration,
    Millis,
    non_negative_millis,
    positive_millis,
    saturating_add,
)
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot, millis_in, part_of


@dataclass(frozen=True, slots=True)
class WatermarkAlignmentParams:
    """Settings of watermark alignment.

    Args:
        group: name of the group of sources that are aligned with each other.
        max_drift: how far a source may be ahead of the smallest watermark of its group.
        update_interval: processing time from one announcement of the limit to the next.

    Raises:
        IllegalArgument: the group is empty, the drift is negative, or the interval is not greater than zero.
    """

    group: str
    max_drift: Millis
    update_interval: Millis = 1000

    def __post_init__(self) -> None:
        if not isinstance(self.group, str) or not self.group:
            raise IllegalArgument("group", self.group, "give the group of sources a name")
        object.__setattr__(self, "max_drift", non_negative_millis(self.max_drift, "max_drift"))
        object.__setattr__(self, "update_interval", positive_millis(self.update_interval, "update_interval"))


class WatermarkAlignment:
    """Watermarks of the sources of a group, which decide which sources may read.

    A source that has not reported yet, or is idle, does not hold back others. Before the first announcement, every
    source may read.

    Args:
        max_drift: how far a source may be ahead of the smallest watermark: a timedelta, or an int of milliseconds.

    Raises:
        IllegalArgument: the drift is negative.
    """

    def __init__(self, max_drift: Duration) -> None:
        self._max_drift = non_negative_millis(max_drift, "max_drift")
        self._watermarks: dict[str, Millis] = {}
        self._idle: set[str] = set()
        self._limit: Millis = MAX_TIMESTAMP

    def report(self, source: str, watermark: Millis) -> None:
        """Set the watermark of a source, int64 epoch milliseconds, and make the source active."""
        self._watermarks[source] = max(watermark, self._watermarks.get(source, watermark))
        self._idle.discard(source)

    def mark_idle(self, source: str) -> None:
        """Mark a source as idle, until its next report."""
        self._idle.add(source)

    def remove(self, source: str) -> None:
        """Remove a source that is finished."""
        self._watermarks.pop(source, None)
        self._idle.discard(source)

    def announce(self) -> Millis:
        """Set the limit to the smallest reported watermark plus the drift.

        Returns:
            The largest watermark with which a source may continue to read; `MAX_TIMESTAMP` if no active source has
            reported.
        """
        reported = [mark for source, mark in self._watermarks.items() if source not in self._idle]
        self._limit = saturating_add(min(reported, default=MAX_TIMESTAMP), self._max_drift)
        return self._limit

    def may_read(self, source: str) -> bool:
        """Return True if the watermark of a source is not beyond the announced limit, or if it has not reported."""
        return source not in self._watermarks or self._watermarks[source] <= self._limit

    def paused(self) -> list[str]:
        """Return the names of the sources that have to pause, sorted."""
        return sorted(source for source in self._watermarks if not self.may_read(source))

    def snapshot(self) -> WatermarkSnapshot:
        """Return watermarks and status by source, and the limit."""
        return {"watermarks": dict(self._watermarks), "idle": sorted(self._idle), "limit": self._limit}

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Restore a result of `snapshot`.

        Raises:
            IncompatibleSnapshot: the snapshot has other fields.
        """
        watermarks = part_of(snapshot, "watermarks")
        self._limit = millis_in(snapshot, "limit")
        self._watermarks = {source: millis_in(watermarks, source) for source in watermarks}
        self._idle = set(snapshot.get("idle", ()))
