"""Idleness of streams, so that a combined watermark does not wait for an idle stream.

A stream is idle if more time than the timeout has passed since the first check without a new event. Source: Flink's
`WatermarksWithIdleness` and its `IdlenessTimer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tidegate.windowing.time import Duration, Millis, positive_millis
from tidegate.windowing.watermarks.generator import WatermarkGenerator, WatermarkOutput
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot, flag_in, optional_millis_in, part_of

Clock: TypeAlias = Callable[[], Millis]
"""Function that returns processing time, int64 epoch milliseconds."""


class IdlenessTimer:
    """Timer that detects an idle stream.

    Args:
        timeout: a timedelta, or an int of milliseconds. None: the stream is never idle.
        clock: processing time.

    Raises:
        IllegalArgument: the timeout is not greater than zero.
    """

    def __init__(self, timeout: Duration | None, clock: Clock) -> None:
        self._timeout = None if timeout is None else positive_millis(timeout, "timeout")
        self._clock = clock
        self._active = False
        self._silent_since: Millis | None = None

    def activity(self) -> None:
        """Record that an event arrived."""
        self._active = True

    def activity_at(self, time: Millis) -> None:
        """Record that, according to a log, the last event arrived at `time`, from which the idle time counts."""
        self._active, self._silent_since = False, time

    @property
    def silent_since(self) -> Millis | None:
        """Time from which the idle time counts, int64 epoch milliseconds; None if the timer is not running."""
        return self._silent_since

    def check_if_idle(self) -> bool:
        """Return True if the stream is idle. The first check without an event since the last check starts the timer."""
        if self._active:
            self._active, self._silent_since = False, None
            return False
        if self._silent_since is None:
            self._silent_since = self._clock()
            return False
        return self._timeout is not None and self._clock() - self._silent_since > self._timeout

    def snapshot(self) -> WatermarkSnapshot:
        """Return the state with the length of the idle time, because time between two runs does not count."""
        silence = None if self._silent_since is None else self._clock() - self._silent_since
        return {"active": self._active, "quiet_for": silence}

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Restore a result of `snapshot`, relative to the current clock."""
        silence = optional_millis_in(snapshot, "quiet_for")
        self._active = flag_in(snapshot, "active")
        self._silent_since = None if silence is None else self._clock() - silence


class WatermarksWithIdleness(WatermarkGenerator):
    """Generator that marks an idle stream, and otherwise passes each call to another generator.

    Args:
        generator: generator of the watermarks. It gets no periodic calls while the stream is idle.
        timeout: time without events after which the stream is idle: a timedelta, or an int of milliseconds.
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
