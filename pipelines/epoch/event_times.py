"""Event time of a pipeline: read from a manifest, moved by source commits, written to the next manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidegate.pipelines.definition.event_columns import ONLY_PARTITION
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.epoch.steps import CommitStep
from tidegate.pipelines.manifest import Manifest, PartitionWatermark
from tidegate.windowing import watermarks
from tidegate.windowing.operators.two_inputs import SIDES
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks import InputTime, SeenEvent, WatermarkSnapshot


def sides_of(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the names of a pipeline's inputs in manifests: "" for a single input."""
    return ("",) if pipeline.right is None else SIDES


def replaced_partitions(pipeline: Pipeline, manifest: Manifest) -> set[str]:
    """Return the source partitions of a manifest that come from another column than the code's `watermark_by`.

    The names are those of the manifest.
    """
    replaced = set()
    for part, side in zip(pipeline.inputs, sides_of(pipeline), strict=True):
        if not manifest.are_partitioned_by(side, part.watermark_by):
            names = manifest.partitions_of(side)
            replaced |= {(f"{side}:{name}" if name else side) if side else name for name in names}
    return replaced


class EventTimes:
    """The event time of a pipeline's inputs, in the steps that its shards see.

    Args:
        times: event times of the inputs, in order.
    """

    def __init__(self, times: watermarks.EventTimes) -> None:
        self._times = times

    @classmethod
    def restored(
        cls,
        pipeline: Pipeline,
        watermark: Millis,
        clock: Millis,
        partitions: Mapping[str, PartitionWatermark],
        inputs: Mapping[str, Millis],
    ) -> EventTimes:
        """Return event time with the values of a manifest.

        Args:
            pipeline: the pipeline; its strategies make the watermark generators.
            watermark: watermark of the pipeline.
            clock: processing time, int64 epoch milliseconds.
            partitions: partitions of all inputs by name. With two inputs, a name is the side, or starts with the side
                and a colon.
            inputs: watermark of each of two inputs by side. A missing side has the watermark of the pipeline.
        """
        restored = []
        for each, side in zip(pipeline.inputs, sides_of(pipeline), strict=True):
            assert each.watermark is not None
            before = inputs.get(side, watermark)
            parts = {
                name.removeprefix(side).removeprefix(":") if side else name: _snapshot(partition, before)
                for name, partition in partitions.items()
                if not side or name == side or name.startswith(f"{side}:")
            }
            awaited = ONLY_PARTITION if each.watermark_by is None else None
            restored.append(InputTime(each.watermark, before, parts, awaited))
        return cls(watermarks.EventTimes(restored, watermark, clock))

    @classmethod
    def of(cls, pipeline: Pipeline, manifest: Manifest | None) -> EventTimes:
        """Return the event time of a snapshot; without a snapshot, the minimum.

        If the code names another `watermark_by` than the snapshot, the partitions of that input start from scratch at
        the input's watermark, as at a hand-over. Partitions of the old column would get no more rows, and would hold
        event time back for ever.
        """
        if manifest is None:
            return cls.restored(pipeline, MIN_TIMESTAMP, 0, {}, {})
        others = replaced_partitions(pipeline, manifest)
        kept = {name: partition for name, partition in manifest.partitions.items() if name not in others}
        return cls.restored(pipeline, manifest.watermark, manifest.processing_time, kept, manifest.inputs)

    @property
    def watermark(self) -> Millis:
        """Watermark of the pipeline; it never moves backwards."""
        return self._times.watermark

    @property
    def move_by_clock(self) -> bool:
        """True if event time may advance between two commits, only because the clock advances."""
        return self._times.move_by_clock

    def until(self, committed: Millis) -> CommitStep:
        """Advance clock and event time to a commit, before its rows are read; return the step."""
        clock = max(committed, self._times.clock)
        return CommitStep(clock, self.advance(clock))

    def step(
        self,
        number: int,
        largest: Mapping[str, Millis],
        committed: Millis,
        complete: bool = True,
        events: Iterable[SeenEvent] = (),
    ) -> CommitStep:
        """Read a source commit, and return its step. A part of a commit moves neither watermark nor late panes.

        Args:
            number: number of the input.
            largest: event time of the latest usable row of each source partition in the commit.
            committed: commit time, int64 epoch milliseconds.
            complete: True if no rows of the commit are left to read.
            events: events of the commit, ordered by time, for a strategy that reads them; such a commit is read whole.
        """
        watermark = self._times.read(number, largest, committed, complete, events)
        return CommitStep(self._times.inputs[number].clock, watermark, complete)

    def end_together(
        self, largest: Sequence[Mapping[str, Millis]], clock: Millis, events: Sequence[Iterable[SeenEvent]]
    ) -> CommitStep:
        """Move all inputs together, as at a hand-over, and return this one step."""
        return CommitStep(clock, self._times.read_together(largest, clock, events))

    def advance(self, clock: Millis) -> Millis:
        """Advance the clock without data, and return the combined watermark."""
        return self._times.advance(clock)

    @property
    def partitions(self) -> dict[str, PartitionWatermark]:
        """All source partitions, for the manifest."""
        sides = ("",) if len(self._times.inputs) == 1 else SIDES
        return {
            (f"{side}:{name}" if name else side) if side else name: PartitionWatermark(**snapshot)
            for side, each in zip(sides, self._times.inputs, strict=True)
            for name, snapshot in each.snapshot().items()
        }

    @property
    def watermarks(self) -> dict[str, Millis]:
        """Watermark of each of two inputs, for the manifest; empty for a single input."""
        if len(self._times.inputs) == 1:
            return {}
        return {side: each.watermark for side, each in zip(SIDES, self._times.inputs, strict=True)}


def _snapshot(partition: PartitionWatermark, watermark: Millis) -> WatermarkSnapshot:
    """Return a partition of a manifest in the form that event time restores, at the watermark of its input."""
    return {**partition.model_dump(), "aligned": partition.is_aligned(watermark)}
