"""One watermark of the channels that feed a task: the smallest of those that count.

A channel counts while it is *aligned*: active, and not behind the watermark that went out. An idle
one is left out; when it resumes it counts once it has caught up. When the last active channel goes
idle, the largest watermark of any goes out, so that it does not matter which went first. Source:
Flink's `StatusWatermarkValve`.

    channel A    10    .    idle   .
    channel B     .   20     .    idle
    out           .   10    20    idle      and if B goes idle first: 10, nothing, then 20 and idle
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.windowing.errors import IllegalArgument, IncompatibleSnapshot
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks.generator import WatermarkOutput
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot, flag_in, millis_in


class ChannelStatus(NamedTuple):
    """What the valve knows of a channel. `watermark`: int64 epoch milliseconds."""

    watermark: Millis = MIN_TIMESTAMP
    idle: bool = False
    aligned: bool = True


class StatusWatermarkValve:
    """Combines watermarks and status of a fixed number of channels.

    Args:
        channels: how many, 1 or more; they start active.
        output: takes what goes out.

    Raises:
        IllegalArgument: no channel.
    """

    def __init__(self, channels: int, output: WatermarkOutput) -> None:
        if isinstance(channels, bool) or not isinstance(channels, int) or channels < 1:
            raise IllegalArgument("channels", channels, "give a number of channels, 1 or more")
        self._channels = [ChannelStatus()] * channels
        self._output = output
        self._watermark: Millis = MIN_TIMESTAMP
        self._idle = False

    @property
    def watermark(self) -> Millis:
        """The watermark that went out last; the minimum before any."""
        return self._watermark

    @property
    def idle(self) -> bool:
        """Whether all channels are idle."""
        return self._idle

    def channel(self, channel: int) -> ChannelStatus:
        """The status of one channel, from 0.

        Raises:
            IllegalArgument: there is no such channel.
        """
        if not 0 <= channel < len(self._channels):
            raise IllegalArgument("channel", channel, f"give 0 to {len(self._channels) - 1}")
        return self._channels[channel]

    def input_watermark(self, watermark: Millis, channel: int) -> None:
        """A watermark came in; one on an idle channel, or that does not advance its channel, is ignored."""
        status = self.channel(channel)
        if self._idle or status.idle or watermark <= status.watermark:
            return
        aligned = status.aligned or watermark >= self._watermark
        self._channels[channel] = ChannelStatus(watermark, False, aligned)
        self._emit_smallest_aligned()

    def input_idle(self, channel: int) -> None:
        """A channel went idle."""
        status = self.channel(channel)
        if status.idle:
            return
        self._channels[channel] = ChannelStatus(status.watermark, True, False)
        held_back = status.watermark == self._watermark
        if all(other.idle for other in self._channels):
            if held_back:
                self._emit(max(other.watermark for other in self._channels))
            self._idle = True
            self._output.mark_idle()
        elif held_back:
            self._emit_smallest_aligned()

    def input_active(self, channel: int) -> None:
        """A channel resumed."""
        status = self.channel(channel)
        if not status.idle:
            return
        self._channels[channel] = ChannelStatus(status.watermark, False, status.watermark >= self._watermark)
        if self._idle:
            self._idle = False
            self._output.mark_active()

    def snapshot(self) -> WatermarkSnapshot:
        """Everything, by channel."""
        return {"watermark": self._watermark, "idle": self._idle, "channels": [list(c) for c in self._channels]}

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Take in what `snapshot` gave; emits nothing.

        Raises:
            IncompatibleSnapshot: the number of channels differs.
        """
        channels = snapshot.get("channels")
        if not isinstance(channels, list) or len(channels) != len(self._channels):
            raise IncompatibleSnapshot(
                "channels",
                len(channels) if isinstance(channels, list) else channels,
                len(self._channels),
                "Restore into a valve with as many channels",
            )
        self._watermark, self._idle = millis_in(snapshot, "watermark"), flag_in(snapshot, "idle")
        self._channels = [ChannelStatus(*channel) for channel in channels]

    def _emit_smallest_aligned(self) -> None:
        self._emit(min((status.watermark for status in self._channels if status.aligned), default=MIN_TIMESTAMP))

    def _emit(self, watermark: Millis) -> None:
        if watermark > self._watermark:
            self._watermark = watermark
            self._output.emit_watermark(watermark)
