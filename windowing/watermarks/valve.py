"""One watermark of the channels that feed a task: the smallest of those that count.

A channel counts while it is *aligned*: active, and not behind the watermark that went out. An idle
one is left out; when it resumes it counts once it has caught up. When the last active channel goes
idle, the largest watermark of any goes out, so that it does not matter which went first. Source:
Flink's `StatusWatermarkValve`.

A source whose partitions move together at a commit feeds `deferred` outputs, and combines them once.

    channel A    10    .    idle   .
    channel B     .   20     .    idle
    out           .   10    20    idle      and if B goes idle first: 10, nothing, then 20 and idle
"""

from __future__ import annotations

from collections.abc import Iterable
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

    @classmethod
    def growing(
        cls, output: WatermarkOutput, watermark: Millis = MIN_TIMESTAMP, channels: Iterable[ChannelStatus] = ()
    ) -> StatusWatermarkValve:
        """Return a valve for channels that come one by one, as partitions of a source do; emits nothing.

        Args:
            output: takes what goes out.
            watermark: the one that went out last.
            channels: those that are there already.
        """
        valve = cls(1, output)
        valve._watermark, valve._channels = watermark, list(channels)
        valve._idle = valve._all_are_idle()
        return valve

    def add_channel(self) -> int:
        """Add a channel, active at the minimum: it holds the watermark where it is. Return its number."""
        self._channels.append(ChannelStatus())
        self._tell_status()
        return len(self._channels) - 1

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
        if status.idle or watermark <= status.watermark:
            return
        self.deferred(channel).emit_watermark(watermark)
        self.combine()

    def input_idle(self, channel: int) -> None:
        """A channel went idle. The watermark moves on only if this channel held it back, as in Flink."""
        status = self.channel(channel)
        if status.idle:
            return
        self.deferred(channel).mark_idle()
        if status.watermark == self._watermark:
            self.combine()
        else:
            self._tell_status()

    def input_active(self, channel: int) -> None:
        """A channel resumed. Its next watermark moves the combined one, as in Flink."""
        if not self.channel(channel).idle:
            return
        self.deferred(channel).mark_active()
        self._align()
        self._tell_status()

    def deferred(self, channel: int) -> WatermarkOutput:
        """Return the output of a channel whose watermarks and status count with the next `combine`.

        Raises:
            IllegalArgument: there is no such channel.
        """
        self.channel(channel)
        return _DeferredOutput(self._channels, channel)

    def combine(self) -> None:
        """Combine the channels as they are now, in whatever order they changed.

        A channel that has caught up counts again. While all are idle the largest watermark goes out: nobody has to be
        waited for.
        """
        was_idle = self._tell_active()
        self._align()
        moved = self._emit(self._largest_allowed())
        if self._idle and (moved or not was_idle):
            self._output.mark_idle()

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

    def _largest_allowed(self) -> Millis:
        if self._idle:
            return max(status.watermark for status in self._channels)
        return min((status.watermark for status in self._channels if status.aligned), default=MIN_TIMESTAMP)

    def _align(self) -> None:
        """Count each active channel that is not behind the watermark."""
        for number, status in enumerate(self._channels):
            if not status.idle and not status.aligned and status.watermark >= self._watermark:
                self._channels[number] = status._replace(aligned=True)

    def _tell_status(self) -> None:
        """Tell the output of a change of the status alone."""
        if not self._tell_active() and self._idle:
            self._output.mark_idle()

    def _tell_active(self) -> bool:
        """Take over whether all channels are idle, and tell the output if one resumed; the status before."""
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


class _DeferredOutput:
    """Changes a channel and leaves the combined watermark alone."""

    __slots__ = ("_channel", "_channels")

    def __init__(self, channels: list[ChannelStatus], channel: int) -> None:
        self._channels, self._channel = channels, channel

    def emit_watermark(self, timestamp: Millis) -> None:
        self.mark_active()
        status = self._channels[self._channel]
        if timestamp > status.watermark:
            self._channels[self._channel] = status._replace(watermark=timestamp)

    def mark_idle(self) -> None:
        status = self._channels[self._channel]
        self._channels[self._channel] = ChannelStatus(status.watermark, True, False)

    def mark_active(self) -> None:
        status = self._channels[self._channel]
        self._channels[self._channel] = status._replace(idle=False)
