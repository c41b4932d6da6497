"""What makes watermarks: the generator's contract, and the output it writes to.

A generator sees every event with its timestamp, and is asked at intervals. Either may emit a
watermark; what it emits may regress, the output does not. Source: Flink's `WatermarkGenerator` and
`WatermarkOutput`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from windowing.time import Millis
from windowing.watermarks.snapshot import WatermarkSnapshot


class WatermarkOutput(Protocol):
    """Where watermarks and the status of a stream go."""

    def emit_watermark(self, timestamp: Millis) -> None:
        """No event at or before `timestamp` (int64 epoch milliseconds) will follow. Makes the output active."""

    def mark_idle(self) -> None:
        """Nothing comes for now: whoever combines watermarks shall not wait for this one."""

    def mark_active(self) -> None:
        """Events come again."""


class WatermarkGenerator(ABC):
    """Makes watermarks of the events of one stream or source partition."""

    @abstractmethod
    def on_event(self, event: Any, timestamp: Millis, output: WatermarkOutput) -> None:
        """An event came.

        Args:
            event: the event, for generators that read markers in it.
            timestamp: its time, int64 epoch milliseconds.
            output: takes a watermark that shall go out at once.
        """

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """The interval of the strategy is over: emit what is known by now, or nothing."""

    def snapshot(self) -> WatermarkSnapshot:
        """What the generator remembers, as plain JSON values; nothing by default."""
        return {}

    def restore(self, snapshot: WatermarkSnapshot) -> None:  # noqa: B027 - most own generators keep nothing
        """Take in what `snapshot` gave; the generator must be new.

        Raises:
            IncompatibleSnapshot: it was taken of another kind of generator.
        """
