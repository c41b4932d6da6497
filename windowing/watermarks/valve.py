"""Combined watermark of the channels of a task: the smallest watermark of the aligned channels.

A channel is *aligned* if it is active and not behind the emitted watermark. A channel that becomes idle is not aligned.
When it resumes, it is aligned again as soon as it has caught up. When the last active channel becomes idle, the valve
emits the largest watermark of all channels, so that the order in which channels become idle does not matter. Source:
Flink's `StatusWatermarkValve`.

The partitions of a source advance together at a commit. So the source changes their channels, and calls `combine` once.

    channel A    10    .    idle   .
    channel B     .   20     .    idle
    out           .   10    20    idle      and if B becomes idle first: 10, nothing, then 20 and idle
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple

from tidegate.windowing.errors import IllegalArgument, IncompatibleSnapshot
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks.combined import ChannelStatus
from tidegate.windowing.watermarks.generator import WatermarkOutput
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot, flag_in, millis_in


class StatusWatermarkValve:
    """Valve that combines the watermarks and the status of its channels.

    Args:
        channels: number of channels, 1 or more. They start active.
        output: output for the combined watermark and status.

    Raises:
        IllegalArgument: the number of channels is below 1.
    """

    def __init__(self, channels: int, output: WatermarkOutput) -> None:
        if isinstance(channels, bool) or not isinstance(channels, int) or channels < 1:
            raise IllegalArgument("channels", channels, "give a number of channels, 1 or more")
        self._channels = [ChannelStatus() for _ in range(channels)]
        self._output = output
        self._watermark: Millis = MIN_TIMESTAMP
        self._idle = False

    @classmethod
    def growing(
        cls, output: WatermarkOutput, watermark: Millis = MIN_TIMESTAMP, channels: Iterable[ChannelStatus] = ()
    ) -> StatusWatermarkValve:
        """Return a valve for channels that are added later, such as the partitions of a source. It emits nothing.

        Args:
            output: output for the combined watermark and status.
            watermark: watermark that was emitted last.
            channels: status of the first channels.
        """
        valve = cls(1, output)
        valve._watermark, valve._channels = watermark, list(channels)
        valve._idle = valve._all_are_idle()
        return valve

    def add_channel(self) -> ChannelStatus:
        """Add an active channel at `MIN_TIMESTAMP`, which holds back the watermark, and return it."""
        self._channels.append(ChannelStatus())
        self._tell_status()
        return self._channels[-1]

    @property
    def watermark(self) -> Millis:
        """Watermark that was emitted last; `MIN_TIMESTAMP` before the first."""
        return self._watermark

    @property
    def idle(self) -> bool:
        """True if all channels are idle."""
        return self._idle

    def channel(self, channel: int) -> ChannelStatus:
        """Return a channel, whose changes take effect at the next `combine`. Channels are numbered from 0.

        Raises:
            IllegalArgument: no channel has this number.
        """
        if not 0 <= channel < len(self._channels):
            raise IllegalArgument("channel", channel, f"give 0 to {len(self._channels) - 1}")
        return self._channels[channel]

    def input_watermark(self, watermark: Millis, channel: int) -> None:
        """Accept a watermark of a channel. Ignore it if the channel is idle or does not advance."""
        status = self.channel(channel)
        if status.idle or watermark <= status.watermark:
            return
        status.emit_watermark(watermark)
        self.combine()

    def input_idle(self, channel: int) -> None:
        """Mark a channel as idle. The watermark advances only if this channel held it back, as in Flink."""
        status = self.channel(channel)
        if status.idle:
            return
        status.mark_idle()
        if status.watermark == self._watermark:
            self.combine()
        else:
            self._tell_status()

    def input_active(self, channel: int) -> None:
        """Mark a channel as active. This alone does not advance the combined watermark, as in Flink."""
        status = self.channel(channel)
        if not status.idle:
            return
        status.mark_active()
        self._align()
        self._tell_status()

    def combine(self) -> None:
        """Combine the channels. The order of their changes since the last call does not matter.

        A channel that has caught up is aligned again. If all channels are idle, the valve emits the largest watermark.
        """
        was_idle = self._tell_active()
        self._align()
        moved = self._emit(self._largest_allowed())
        if self._idle and (moved or not was_idle):
            self._output.mark_idle()

    def snapshot(self) -> WatermarkSnapshot:
        """Return the combined watermark and status, and the status of each channel."""
        return {"watermark": self._watermark, "idle": self._idle, "channels": list(map(astuple, self._channels))}

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Restore a result of `snapshot`, without emitting a watermark.

        Raises:
            IncompatibleSnapshot: the number of channels differs.
        """
        channels = snapshot.get("channels")
        if not isinstance(channels, list) or len(channels) != len(self._channels):
            raise IncompatibleSnapshot(
                "channels",
                len(channels) if isinstance(channels, list) else channels,
                len(self._channels),
                "Restore into a valve with the same number of channels",
            )
        self._watermark, self._idle = millis_in(snapshot, "watermark"), flag_in(snapshot, "idle")
        self._channels = [ChannelStatus(*channel) for channel in channels]

    def _largest_allowed(self) -> Millis:
        if self._idle:
            return max(status.watermark for status in self._channels)
        return min((status.watermark for status in self._channels if status.aligned), default=MIN_TIMESTAMP)

    def _align(self) -> None:
        for status in self._channels:
            status.aligned |= not status.idle and status.watermark >= self._watermark

    def _tell_status(self) -> None:
        if not self._tell_active() and self._idle:
            self._output.mark_idle()

    def _tell_active(self) -> bool:
        """Update the combined status, and mark the output active if a channel resumed. Return the previous status."""
        was_idle = self._idle
        self._idle = self._all_are_idle()
        if was_idle and not self._idle:
            self._output.mark_active()
        return was_idle

    def _all_are_idle(self) -> bool:
        return bool(self._channels) and all(status.idle for status in self._channels)

    def _emit(self, watermark: Millis) -> bool:
        if watermark <= self._watermark:
            return False
        self._watermark = watermark
        self._output.emit_watermark(watermark)
        return True
