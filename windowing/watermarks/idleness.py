"""When a stream is idle, so that nobody waits for its watermark.

Idle means: strictly more than the timeout has gone by since the first check that saw no new event.
Source: Flink's `WatermarksWithIdleness` and its `IdlenessTimer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tidegate.windowing.time import Duration, Millis, positive_millis
from tidegate.windowing.watermarks.generator import WatermarkGenerator, WatermarkOutput
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot, flag_in, optional_millis_in, part_of

Clock: TypeAlias = Callable[[], Millis]
"""Gives processing time, int64 epoch milliseconds."""


class IdlenessTimer:
    """Tells whether a stream has been quiet for too long.

    Args:
        timeout: a timedelta, or int milliseconds; None: it is never idle.
        clock: processing time.

    Raises:
        IllegalArgument: the timeout is not greater than zero.
    """

    def __init__(self, timeout: Duration | None, clock: Clock) -> None:
        self._timeout = None if timeout is None else positive_millis(timeout, "idle_timeout")
        self._clock = clock
        self._active = False
        self._quiet_since: Millis | None = None

    def activity(self) -> None:
        """An event came."""
        self._active = True

    def activity_at(self, time: Millis) -> None:
        """An event came at `time`, as a log says: the stream has been quiet since then, with or without a check."""
        self._active, self._quiet_since = False, time

    @property
    def quiet_since(self) -> Millis | None:
        """Since when the stream has been quiet, int64 epoch milliseconds; None while that is not being counted."""
        return self._quiet_since

    def check_if_idle(self) -> bool:
        """Whether the stream is idle; the first check without an event since the last starts the time."""
        if self._active:
            self._active, self._quiet_since = False, None
            return False
        if self._quiet_since is None:
            self._quiet_since = self._clock()
            return False
        return self._timeout is not None and self._clock() - self._quiet_since > self._timeout

    def snapshot(self) -> WatermarkSnapshot:
        """For how long it has been quiet: a span, since time in which nothing ran is no idleness."""
        quiet_for = None if self._quiet_since is None else self._clock() - self._quiet_since
        return {"active": self._active, "quiet_for": quiet_for}

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Take in what `snapshot` gave, and go on at the present clock."""
        quiet_for = optional_millis_in(snapshot, "quiet_for")
        self._active = flag_in(snapshot, "active")
        self._quiet_since = None if quiet_for is None else self._clock() - quiet_for


class WatermarksWithIdleness(WatermarkGenerator):
    """Marks the output idle while a stream is quiet; else leaves everything to another generator.

    Args:
        generator: makes the watermarks; not asked while the stream is idle.
        timeout: a timedelta, or int milliseconds.
        clock: processing time.

    Raises:
        IllegalArgument: the timeout is not greater than zero.
    """

    def __init__(self, generator: WatermarkGenerator, timeout: Duration, clock: Clock) -> None:
        self._generator = generator
        self._idleness = IdlenessTimer(timeout, clock)

    def on_event(self, event: Any, timestamp: Millis, output: WatermarkOutput) -> None:
        self._generator.on_event(event, timestamp, output)
        self._idleness.activity()

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        if self._idleness.check_if_idle():
            output.mark_idle()
        else:
            self._generator.on_periodic_emit(output)

    def snapshot(self) -> WatermarkSnapshot:
        return {"generator": self._generator.snapshot(), "idleness": self._idleness.snapshot()}

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        self._generator.restore(part_of(snapshot, "generator"))
        self._idleness.restore(part_of(snapshot, "idleness"))
