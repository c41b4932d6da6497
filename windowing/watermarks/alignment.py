"""Hold back sources that run ahead of the others of their group.

Without this, the state of a slow source's windows piles up while a fast one reads on. A source whose
watermark is more than the drift ahead of the smallest of its group has to pause. Source: Flink's
watermark alignment (`WatermarkAlignmentParams`, `SourceCoordinator`).
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
    """Which sources are aligned, and how closely.

    Args:
        group: sources of one group are held against each other.
        max_drift: how far a source may be ahead of the smallest watermark of its group.
        update_interval: how often the limit is announced anew, in processing time.

    Raises:
        IllegalArgument: no group, a negative drift, or an interval that is not greater than zero.
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
    """Knows the watermark of each source of a group, and says which of them may read.

    A source that has not reported yet, or is idle, holds nobody back. Until the first announcement
    everybody may read.

    Args:
        max_drift: a timedelta, or int milliseconds.

    Raises:
        IllegalArgument: the drift is negative.
    """

    def __init__(self, max_drift: Duration) -> None:
        self._max_drift = non_negative_millis(max_drift, "max_drift")
        self._watermarks: dict[str, Millis] = {}
        self._idle: set[str] = set()
        self._limit: Millis = MAX_TIMESTAMP

    def report(self, source: str, watermark: Millis) -> None:
        """The watermark of a source, int64 epoch milliseconds; it makes the source active."""
        self._watermarks[source] = max(watermark, self._watermarks.get(source, watermark))
        self._idle.discard(source)

    def mark_idle(self, source: str) -> None:
        """Nothing comes from a source for now."""
        self._idle.add(source)

    def remove(self, source: str) -> None:
        """A source is finished, or gone."""
        self._watermarks.pop(source, None)
        self._idle.discard(source)

    def announce(self) -> Millis:
        """Set the limit by what was reported: the smallest watermark and the drift.

        Returns:
            The largest watermark with which a source may read on; the end of time if none holds back.
        """
        reported = [mark for source, mark in self._watermarks.items() if source not in self._idle]
        self._limit = saturating_add(min(reported, default=MAX_TIMESTAMP), self._max_drift)
        return self._limit

    def may_read(self, source: str) -> bool:
        """Whether a source is not too far ahead of what was announced last."""
        return source not in self._watermarks or self._watermarks[source] <= self._limit

    def paused(self) -> list[str]:
        """The sources that have to wait, by name."""
        return sorted(source for source in self._watermarks if not self.may_read(source))

    def snapshot(self) -> WatermarkSnapshot:
        """Watermarks and status by source, and the limit."""
        return {"watermarks": dict(self._watermarks), "idle": sorted(self._idle), "limit": self._limit}

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Take in what `snapshot` gave.

        Raises:
            IncompatibleSnapshot: it is of something else.
        """
        watermarks = part_of(snapshot, "watermarks")
        self._limit = millis_in(snapshot, "limit")
        self._watermarks = {source: millis_in(watermarks, source) for source in watermarks}
        self._idle = set(snapshot.get("idle", ()))
