"""Event time of a pipeline: that of its only input, or the smaller of two, idle inputs left out.

Source: Flink's two-input operators (`CombinedWatermarkStatus`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.pipelines.definition.event_columns import ONLY_PARTITION
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.epoch.event_time import EventTime, SeenEvent
from tidegate.pipelines.epoch.steps import CommitStep
from tidegate.pipelines.manifest import Manifest, PartitionWatermark
from tidegate.windowing.operators.two_inputs import SIDES
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks.combined import CombinedWatermark


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


@dataclass
class EventTimes:
    """The event time of each input, and what they combine to.

    Args:
        inputs: in order; they share one clock.
        watermark: of the pipeline; never goes back.
        whole: whether an input has no source partitions, so that it is waited for before anything of it came.
    """

    inputs: Sequence[EventTime]
    watermark: Millis
    whole: Sequence[bool] = ()

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
        found = []
        for one, side in zip(pipeline.inputs, SIDES, strict=False):
            assert one.watermark is not None
            if pipeline.right is None:
                found.append(EventTime.restored(one.watermark, watermark, clock, partitions))
                continue
            own = {
                name.removeprefix(side).removeprefix(":"): known
                for name, known in partitions.items()
                if name == side or name.startswith(f"{side}:")
            }
            found.append(EventTime.restored(one.watermark, inputs.get(side, watermark), clock, own))
        return cls(found, watermark, [one.watermark_by is None for one in pipeline.inputs])

    @classmethod
    def of(cls, pipeline: Pipeline, manifest: Manifest | None) -> EventTimes:
        """Event time of a snapshot; before everything where there is none.

        The partitions of an input that has another `watermark_by` since start anew at its watermark, as they do at a
        hand-over: nothing would come of those of the old column any more, and they would hold event time for ever.
        """
        if manifest is None:
            return cls.restored(pipeline, MIN_TIMESTAMP, 0, {}, {})
        others = replaced_partitions(pipeline, manifest)
        kept = {name: known for name, known in manifest.partitions.items() if name not in others}
        return cls.restored(pipeline, manifest.watermark, manifest.processing_time, kept, manifest.inputs)

    @property
    def move_by_clock(self) -> bool:
        """Whether event time may go on between two commits, by the clock alone."""
        return any(one.strategy.moves_by_clock for one in self.inputs)

    def until(self, committed: Millis) -> CommitStep:
        """Time passes up to a commit, before its rows."""
        clock = max(committed, *(one.clock for one in self.inputs))
        return CommitStep(clock, self.advance(clock))

    def step(
        self,
        number: int,
        largest: Mapping[str, Millis],
        committed: Millis,
        complete: bool = True,
        events: Iterable[SeenEvent] = (),
    ) -> CommitStep:
        """Clock and watermark of a source commit of input `number`; see `EventTime.step`."""
        step = self.inputs[number].step(largest, committed, complete, events)
        if complete:
            self.advance(step.clock)
        return replace(step, watermark=self.watermark)

    def end_together(
        self, largest: Sequence[Mapping[str, Millis]], clock: Millis, events: Sequence[Iterable[SeenEvent]]
    ) -> CommitStep:
        """One step in which every input moves at once, as at a hand-over."""
        for one, times, seen in zip(self.inputs, largest, events, strict=True):
            one.step(times, clock, True, seen)
        return CommitStep(clock, self.advance(clock))

    def advance(self, clock: Millis) -> Millis:
        """The clock goes on without data; the combined watermark."""
        found = [one.advance(clock) for one in self.inputs]
        if len(found) == 1:
            self.watermark = found[0]
            return self.watermark
        for one, is_whole in zip(self.inputs, self.whole, strict=True):
            if is_whole:
                one.wait_for(ONLY_PARTITION)
        combined = CombinedWatermark(range(len(found)))
        combined.watermark = self.watermark
        for number, one in enumerate(self.inputs):
            combined[number].watermark, combined[number].idle = one.watermark, one.idle
        combined.update()
        self.watermark = combined.watermark
        return self.watermark

    @property
    def partitions(self) -> dict[str, PartitionWatermark]:
        """Every source partition, for the manifest."""
        if len(self.inputs) == 1:
            return self.inputs[0].snapshot()
        return {
            f"{side}:{name}" if name else side: known
            for side, one in zip(SIDES, self.inputs, strict=True)
            for name, known in one.snapshot().items()
        }

    @property
    def watermarks(self) -> dict[str, Millis]:
        """The watermark of each of two inputs, for the manifest; nothing where there is one."""
        if len(self.inputs) == 1:
            return {}
        return {side: one.watermark for side, one in zip(SIDES, self.inputs, strict=True)}
