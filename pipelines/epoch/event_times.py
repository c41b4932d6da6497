"""Event time of a pipeline, from the manifest and back to it."""

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
    """How manifests name the inputs of a pipeline."""
    return ("",) if pipeline.right is None else SIDES


def replaced_partitions(pipeline: Pipeline, manifest: Manifest) -> set[str]:
    """The source partitions of a manifest, by their names in it, that are of another column than the code's."""
    found = set()
    for one, side in zip(pipeline.inputs, sides_of(pipeline), strict=True):
        if not manifest.are_partitioned_by(side, one.watermark_by):
            found |= {(f"{side}:{name}" if name else side) if side else name for name in manifest.partitions_of(side)}
    return found


class EventTimes:
    """The event time of a pipeline's inputs, in the steps that its shards see.

    Args:
        times: of the inputs, in order.
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
        """Event time as a manifest has it.

        Args:
            pipeline: whose strategies make the generators.
            watermark: of the pipeline.
            clock: processing time.
            partitions: of all inputs; where there are two, a name is its side, or begins with it and a colon.
            inputs: watermark of each of two inputs; of one that is not there it is the pipeline's.
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
        """Event time of a snapshot; before everything where there is none.

        The partitions of an input that has another `watermark_by` since start anew at its watermark, as they do at a
        hand-over: nothing would come of those of the old column any more, and they would hold event time for ever.
        """
        if manifest is None:
            return cls.restored(pipeline, MIN_TIMESTAMP, 0, {}, {})
        others = replaced_partitions(pipeline, manifest)
        kept = {name: partition for name, partition in manifest.partitions.items() if name not in others}
        return cls.restored(pipeline, manifest.watermark, manifest.processing_time, kept, manifest.inputs)

    @property
    def watermark(self) -> Millis:
        """The watermark of the pipeline; it never goes back."""
        return self._times.watermark

    @property
    def move_by_clock(self) -> bool:
        """Whether event time may go on between two commits, by the clock alone."""
        return self._times.move_by_clock

    def until(self, committed: Millis) -> CommitStep:
        """Time passes up to a commit, before its rows."""
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
        """Clock and watermark of a source commit; a part of one moves neither watermark nor late panes.

        Args:
            number: of the input.
            largest: event time of the latest usable row of each source partition in it.
            committed: commit time.
            complete: whether nothing of it is left to read.
            events: of the commit by time, for a strategy that reads them; it is read whole then.
        """
        watermark = self._times.read(number, largest, committed, complete, events)
        return CommitStep(self._times.inputs[number].clock, watermark, complete)

    def end_together(
        self, largest: Sequence[Mapping[str, Millis]], clock: Millis, events: Sequence[Iterable[SeenEvent]]
    ) -> CommitStep:
        """One step in which every input moves at once, as at a hand-over."""
        return CommitStep(clock, self._times.read_together(largest, clock, events))

    def advance(self, clock: Millis) -> Millis:
        """The clock goes on without data; the combined watermark."""
        return self._times.advance(clock)

    @property
    def partitions(self) -> dict[str, PartitionWatermark]:
        """Every source partition, for the manifest."""
        sides = ("",) if len(self._times.inputs) == 1 else SIDES
        return {
            (f"{side}:{name}" if name else side) if side else name: PartitionWatermark(**snapshot)
            for side, each in zip(sides, self._times.inputs, strict=True)
            for name, snapshot in each.snapshot().items()
        }

    @property
    def watermarks(self) -> dict[str, Millis]:
        """The watermark of each of two inputs, for the manifest; nothing where there is one."""
        if len(self._times.inputs) == 1:
            return {}
        return {side: each.watermark for side, each in zip(SIDES, self._times.inputs, strict=True)}


def _snapshot(partition: PartitionWatermark, watermark: Millis) -> WatermarkSnapshot:
    """Return a partition of a manifest as event time takes it, at the watermark of its input."""
    return {**partition.model_dump(), "aligned": partition.is_aligned(watermark)}
