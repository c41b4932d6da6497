"""What makes watermarks: the generator's contract, and the output it writes to.

A generator sees every event with its timestamp, and is asked at intervals. Either may emit a
watermark; what it emits may regress, the output does not. Source: Flink's `WatermarkGenerator` and
`WatermarkOutput`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from tidegate.windowing.facts import HasFacts, fact
from tidegate.windowing.time import Millis
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot


class WatermarkOutput(Protocol):
    """Where watermarks and the status of a stream go."""

    def emit_watermark(self, timestamp: Millis) -> None:
        """No event at or before `timestamp` (int64 epoch milliseconds) will follow. Makes the output active."""

    def mark_idle(self) -> None:
        """Nothing comes for now: whoever combines watermarks shall not wait for this one."""

    def mark_active(self) -> None:
        """Events come again."""


class WatermarkGenerator(HasFacts, ABC):
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

    def on_periodic_emits(self, calls: int, output: WatermarkOutput) -> None:
        """So many periodic calls in a row, of which the largest watermark counts, as after a pause.

        One by one, until a call only repeats the one before; a generator that knows where they lead may go there.

        Args:
            calls: how many, 0 or more.
            output: takes the watermarks.
        """
        heard, before = _Heard(output), None
        for _ in range(calls):
            self.on_periodic_emit(heard)
            now = (heard.last, self.snapshot())
            if now == before:
                return
            before = now

    def snapshot(self) -> WatermarkSnapshot:
        """What the generator remembers, as plain JSON values; nothing by default."""
        return {}

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Take in what `snapshot` gave; the generator must be new.

        Raises:
            IncompatibleSnapshot: it was taken of another kind of generator.
        """

    # --- facts (windowing/facts.py) ----------------------------------------------------------

    @property
    @fact
    def reads_events(self) -> bool:
        """True if the generator must see every event; else the largest timestamp of many stands for them."""
        return True

    @property
    @fact
    def moves_by_clock(self) -> bool:
        """True if watermarks may move while no event comes."""
        return True


class _Heard:
    """Passes everything on, and remembers what it was last."""

    __slots__ = ("_output", "last")

    def __init__(self, output: WatermarkOutput) -> None:
        self._output = output
        self.last: Millis | bool | None = None

    def emit_watermark(self, timestamp: Millis) -> None:
        self.last = timestamp
        self._output.emit_watermark(timestamp)

    def mark_idle(self) -> None:
        self.last = False
        self._output.mark_idle()

    def mark_active(self) -> None:
        self.last = True
        self._output.mark_active()
