"""Event time on the driver: a watermark for each source partition, aligned, moved at source commits.

The built-in generators depend on the largest timestamp alone, so one aggregate over a commit stands
for all its events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipelines.snapshots.manifest import PartitionWatermark
from windowing.time import MIN_TIMESTAMP, Millis
from windowing.watermarks import WatermarkGenerator, WatermarkStrategy

ONLY_PARTITION = ""
"""Name of the one partition of a source without `watermark_by`."""


@dataclass
class _Partition:
    """One source partition; it is the output of its own generator."""

    generator: WatermarkGenerator
    watermark: Millis = MIN_TIMESTAMP
    idle: bool = False
    pending: Millis | None = None
    last_commit: Millis | None = None

    def emit_watermark(self, timestamp: Millis) -> None:
        self.idle = False
        self.watermark = max(self.watermark, timestamp)

    def mark_idle(self) -> None:
        self.idle = True

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
            partition.pending, partition.last_commit = known.pending, known.last_commit
        return event_time

    def observe(self, partition: str, largest: Millis) -> None:
        """Rows of a commit, complete or not, were read; they count once the commit is complete."""
        known = self._partition(partition)
        known.pending = largest if known.pending is None else max(known.pending, largest)

    def end_commit(self, clock: Millis) -> Millis:
        """A source commit is complete: what its rows say about event time; the aligned watermark.

        Args:
            clock: commit time, never before that of an earlier commit.
        """
        self.clock = max(self.clock, clock)
        for partition in self._partitions.values():
            if partition.pending is not None:
                partition.generator.on_event(None, partition.pending, partition)
                partition.pending, partition.last_commit = None, self.clock
            partition.generator.on_periodic_emit(partition)
        active = [partition.watermark for partition in self._partitions.values() if not partition.idle]
        if active:
            self.watermark = max(self.watermark, min(active))
        return self.watermark

    def snapshot(self) -> dict[str, PartitionWatermark]:
        """Every partition, for the manifest."""
        return {
            name: PartitionWatermark(
                generator=partition.generator.snapshot(),
                watermark=partition.watermark,
                idle=partition.idle,
                pending=partition.pending,
                last_commit=partition.last_commit,
            )
            for name, partition in self._partitions.items()
        }

    def _partition(self, name: str) -> _Partition:
        known = self._partitions.get(name)
        if known is None:
            known = self._partitions[name] = _Partition(self.strategy.create_generator(lambda: self.clock))
        return known
