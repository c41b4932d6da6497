"""Event time on the driver: a watermark for each source partition, aligned, moved at source commits.

The built-in generators depend on the largest timestamp alone, so one aggregate over a commit stands
for all its events; a generator of one's own sees each of them, in the order of their times. Idleness
is read off the source's log: a partition is idle when no commit carried it for longer than the
timeout, by commit times, so a backlog makes nobody idle and a replay agrees with the stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tidegate.pipelines.epoch.steps import CommitStep
from tidegate.pipelines.manifest import PartitionWatermark
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks import WatermarkGenerator, WatermarkStrategy


class SeenEvent(NamedTuple):
    """An event as a generator of one's own sees it; `time` in int64 epoch milliseconds."""

    commit: int
    partition: str
    time: Millis
    value: Mapping[str, Any]


@dataclass
class _Partition:
    """One source partition; it is the output of its own generator."""

    generator: WatermarkGenerator
    watermark: Millis = MIN_TIMESTAMP
    idle: bool = False
    aligned: bool = True
    pending: Millis | None = None
    last_commit: Millis | None = None

    def emit_watermark(self, timestamp: Millis) -> None:
        self.mark_active()
        self.watermark = max(self.watermark, timestamp)

    def mark_idle(self) -> None:
        self.idle, self.aligned = True, False

    def mark_active(self) -> None:
        self.idle = False


@dataclass
class EventTime:
    """The watermarks of all partitions of a source, and what they combine to.

    Args:
        strategy: makes the generators.
        watermark: aligned over the partitions that are not idle; never goes back.
        clock: processing time, int64 epoch milliseconds.
    """

    strategy: WatermarkStrategy
    watermark: Millis = MIN_TIMESTAMP
    clock: Millis = 0
    _partitions: dict[str, _Partition] = field(default_factory=dict)

    @classmethod
    def restored(
        cls,
        strategy: WatermarkStrategy,
        watermark: Millis,
        clock: Millis,
        partitions: Mapping[str, PartitionWatermark],
    ) -> EventTime:
        """Event time as a manifest has it."""
        event_time = cls(strategy, watermark, clock)
        for name, known in partitions.items():
            partition = event_time._partition(name)
            partition.generator.restore(dict(known.generator))
            partition.watermark, partition.idle = known.watermark, known.idle
            partition.aligned = known.is_aligned(watermark)
            partition.pending, partition.last_commit = known.pending, known.last_commit
        return event_time

    def observe(self, partition: str, largest: Millis) -> None:
        """Rows of a commit, complete or not, were read; they count once the commit is complete."""
        known = self._partition(partition)
        known.pending = largest if known.pending is None else max(known.pending, largest)

    def wait_for(self, partition: str) -> None:
        """Count on a partition of which nothing came yet: it is idle once that was so for longer than the timeout."""
        if partition not in self._partitions:
            self._partition(partition).last_commit = self.clock

    def end_commit(self, clock: Millis, events: Iterable[SeenEvent] = ()) -> Millis:
        """A source commit is complete: what its rows say about event time; the aligned watermark.

        Args:
            clock: commit time, never before that of an earlier commit.
            events: of the commit by time, for a strategy that reads them.
        """
        self._pass_time(clock)
        for event in events:
            self.observe(event.partition, event.time)
            seen = self._partition(event.partition)
            seen.generator.on_event(event.value, event.time, seen)
        for partition in self._partitions.values():
            if partition.pending is not None:
                if not self.strategy.reads_events:
                    partition.generator.on_event(None, partition.pending, partition)
                partition.pending, partition.last_commit = None, self.clock
                partition.mark_active()
                partition.generator.on_periodic_emit(partition)
        return self._align()

    def step(
        self,
        largest: Mapping[str, Millis],
        committed: Millis,
        complete: bool = True,
        events: Iterable[SeenEvent] = (),
    ) -> CommitStep:
        """Clock and watermark of a source commit; a part of one moves neither watermark nor late panes.

        Args:
            largest: event time of the latest usable row of each source partition in it.
            committed: commit time.
            complete: whether nothing of it is left to read.
            events: of the commit by time, for a strategy that reads them; it is read whole then.
        """
        for partition, time in sorted(largest.items()):
            self.observe(partition, time)
        clock = max(self.clock, committed)
        # The clock of a part is recorded, so what time does by then must be too.
        self._pass_time(clock)
        return CommitStep(clock, self.end_commit(clock, events) if complete else self.watermark, complete)

    def advance(self, clock: Millis) -> Millis:
        """All commits are read and the clock goes on without data; the aligned watermark."""
        self._pass_time(clock)
        return self._align()

    def _pass_time(self, clock: Millis) -> None:
        """Make the periodic calls that fall between two clocks, wherever epochs begin and end."""
        before, self.clock = self.clock, max(self.clock, clock)
        interval = self.strategy.interval
        calls = self.clock // interval - before // interval if interval else 0
        for partition in self._partitions.values():
            # Before its first commit a partition has no time of its own, and the clock may begin at 0.
            if partition.last_commit is not None and not partition.idle:
                partition.generator.on_periodic_emits(calls, partition)

    def _align(self) -> Millis:
        """The smallest watermark of the partitions that are aligned; it never goes back.

        A partition that comes back from idleness is aligned once it has caught up. A new one is at once, so that
        one behind holds the watermark where it is. Where all are idle nobody has to be waited for, and the largest
        counts. Source: Flink's `StatusWatermarkValve`, and its `CombinedWatermarkStatus` for what is new.
        """
        timeout = self.strategy.idle_timeout
        everyone = self._partitions.values()
        for partition in everyone:
            quiet_since = partition.last_commit
            if timeout is not None and quiet_since is not None and self.clock - quiet_since > timeout:
                partition.mark_idle()
            elif not partition.idle and partition.watermark >= self.watermark:
                partition.aligned = True
        aligned = [partition.watermark for partition in everyone if partition.aligned]
        if aligned:
            self.watermark = max(self.watermark, min(aligned))
        elif everyone and all(partition.idle for partition in everyone):
            self.watermark = max(self.watermark, *(partition.watermark for partition in everyone))
        return self.watermark

    @property
    def idle(self) -> bool:
        """Whether there are partitions and all of them are idle."""
        return bool(self._partitions) and all(partition.idle for partition in self._partitions.values())

    def snapshot(self) -> dict[str, PartitionWatermark]:
        """Every partition, for the manifest."""
        return {
            name: PartitionWatermark(
                generator=partition.generator.snapshot(),
                watermark=partition.watermark,
                idle=partition.idle,
                aligned=partition.aligned,
                pending=partition.pending,
                last_commit=partition.last_commit,
            )
            for name, partition in self._partitions.items()
        }

    def _partition(self, name: str) -> _Partition:
        known = self._partitions.get(name)
        if known is None:
            # Whether a partition is idle is told from the log, so its generator need not watch a clock.
            watching = replace(self.strategy, idle_timeout=None)
            known = self._partitions[name] = _Partition(watching.create_generator(lambda: self.clock))
        return known
