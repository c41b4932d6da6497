"""Event time of one source: a watermark for each source partition, aligned, moved at source commits.

The built-in generators depend on the largest timestamp alone, so one aggregate over a commit stands
for all its events; a generator of one's own sees each of them, in the order of their times. Idleness
is read off the source's log: a partition is idle when no commit carried it for longer than the
timeout, by commit times, so a backlog makes nobody idle and a replay agrees with the stream.

Each partition's generator writes to a channel of a `StatusWatermarkValve`, and an `IdlenessTimer` for
each partition counts from its last commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks.generator import WatermarkGenerator, WatermarkOutput
from tidegate.windowing.watermarks.idleness import IdlenessTimer
from tidegate.windowing.watermarks.output import WatermarkToDataOutput
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot, flag_in, millis_in, optional_millis_in, part_of
from tidegate.windowing.watermarks.strategy import WatermarkStrategy
from tidegate.windowing.watermarks.valve import ChannelStatus, StatusWatermarkValve


class SeenEvent(NamedTuple):
    """An event as a generator of one's own sees it; `time` in int64 epoch milliseconds."""

    commit: int
    partition: str
    time: Millis
    value: Mapping[str, Any]


@dataclass(slots=True)
class _Partition:
    """One source partition.

    Args:
        generator: makes its watermarks.
        idleness: counts from its last commit; from nothing before the first.
        channel: its number in the valve.
        output: of that channel, deferred.
        pending: the largest timestamp of a commit that is not complete yet.
    """

    generator: WatermarkGenerator
    idleness: IdlenessTimer
    channel: int
    output: WatermarkOutput
    pending: Millis | None = None


class EventTime:
    """The watermarks of all partitions of a source, and what they combine to.

    Args:
        strategy: makes the generators.
        watermark: of the source so far; it never goes back.
        clock: processing time, int64 epoch milliseconds.
        partitions: what `snapshot` gave of them.
        output: takes the watermark of the source, and whether all its partitions are idle.

    Raises:
        IncompatibleSnapshot: a partition was written with another strategy.
    """

    def __init__(
        self,
        strategy: WatermarkStrategy,
        watermark: Millis = MIN_TIMESTAMP,
        clock: Millis = 0,
        partitions: Mapping[str, WatermarkSnapshot] = MappingProxyType({}),
        output: WatermarkOutput | None = None,
    ) -> None:
        self.strategy = strategy
        self.clock = clock
        channels = [
            ChannelStatus(millis_in(part, "watermark"), flag_in(part, "idle"), flag_in(part, "aligned"))
            for part in partitions.values()
        ]
        self._valve = StatusWatermarkValve.growing(output or WatermarkToDataOutput(), watermark, channels)
        self._partitions: dict[str, _Partition] = {}
        for channel, (name, part) in enumerate(partitions.items()):
            partition = self._add(name, channel)
            partition.generator.restore(part_of(part, "generator"))
            partition.pending = optional_millis_in(part, "pending")
            last_commit = optional_millis_in(part, "last_commit")
            if last_commit is not None:
                partition.idleness.activity_at(last_commit)

    @property
    def watermark(self) -> Millis:
        """The smallest watermark of the partitions that count, int64 epoch milliseconds; it never goes back."""
        return self._valve.watermark

    @property
    def idle(self) -> bool:
        """Whether there are partitions and all of them are idle."""
        return self._valve.idle

    def observe(self, partition: str, largest: Millis) -> None:
        """Rows of a commit, complete or not, were read; they count once the commit is complete."""
        known = self._partition(partition)
        known.pending = largest if known.pending is None else max(known.pending, largest)

    def wait_for(self, partition: str) -> None:
        """Count on a partition of which nothing came yet: it is idle once that was so for longer than the timeout."""
        if partition not in self._partitions:
            self._partition(partition).idleness.activity_at(self.clock)

    def read(
        self,
        largest: Mapping[str, Millis],
        committed: Millis,
        complete: bool = True,
        events: Iterable[SeenEvent] = (),
    ) -> Millis:
        """Read a source commit; a part of one moves the clock alone. Return the watermark.

        Args:
            largest: event time of the latest usable row of each source partition in it.
            committed: commit time.
            complete: whether nothing of it is left to read.
            events: of the commit by time, for a strategy that reads them; it is read whole then.
        """
        for partition, time in sorted(largest.items()):
            self.observe(partition, time)
        # The clock of a part is recorded, so what time does by then must be too.
        self._pass_time(committed)
        return self.end_commit(self.clock, events) if complete else self.watermark

    def end_commit(self, clock: Millis, events: Iterable[SeenEvent] = ()) -> Millis:
        """A source commit is complete: what its rows say about event time. Return the watermark.

        Args:
            clock: commit time; one before that of an earlier commit counts as that.
            events: of the commit by time, for a strategy that reads them.
        """
        self._pass_time(clock)
        for event in events:
            self.observe(event.partition, event.time)
            partition = self._partition(event.partition)
            partition.generator.on_event(event.value, event.time, partition.output)
        for partition in self._partitions.values():
            if partition.pending is not None:
                if not self.strategy.reads_events:
                    partition.generator.on_event(None, partition.pending, partition.output)
                partition.pending = None
                partition.idleness.activity_at(self.clock)
                partition.output.mark_active()
                partition.generator.on_periodic_emit(partition.output)
        return self._combine()

    def advance(self, clock: Millis) -> Millis:
        """All commits are read and the clock goes on without data. Return the watermark."""
        self._pass_time(clock)
        return self._combine()

    def _pass_time(self, clock: Millis) -> None:
        """Make the periodic calls that fall between two clocks, wherever epochs begin and end."""
        before, self.clock = self.clock, max(self.clock, clock)
        interval = self.strategy.interval
        calls = self.clock // interval - before // interval if interval else 0
        for partition in self._partitions.values():
            # Before its first commit a partition has no time of its own, and the clock may begin at 0.
            if partition.idleness.quiet_since is not None and not self._valve.channel(partition.channel).idle:
                partition.generator.on_periodic_emits(calls, partition.output)

    def _combine(self) -> Millis:
        for partition in self._partitions.values():
            # A check of a timer that counts from nothing would start it.
            if partition.idleness.quiet_since is not None and partition.idleness.check_if_idle():
                partition.output.mark_idle()
        self._valve.combine()
        return self.watermark

    def snapshot(self) -> dict[str, WatermarkSnapshot]:
        """Every partition by name, as plain JSON values."""
        return {name: self._snapshot_of(partition) for name, partition in self._partitions.items()}

    def _snapshot_of(self, partition: _Partition) -> WatermarkSnapshot:
        channel = self._valve.channel(partition.channel)
        return {
            "generator": partition.generator.snapshot(),
            "watermark": channel.watermark,
            "idle": channel.idle,
            "aligned": channel.aligned,
            "pending": partition.pending,
            "last_commit": partition.idleness.quiet_since,
        }

    def _partition(self, name: str) -> _Partition:
        partition = self._partitions.get(name)
        return self._add(name, self._valve.add_channel()) if partition is None else partition

    def _add(self, name: str, channel: int) -> _Partition:
        # The log says whether a partition is idle, so its generator need not watch a clock.
        generator = replace(self.strategy, idle_timeout=None).create_generator(lambda: self.clock)
        idleness = IdlenessTimer(self.strategy.idle_timeout, lambda: self.clock)
        self._partitions[name] = partition = _Partition(generator, idleness, channel, self._valve.deferred(channel))
        return partition
