"""Event time of a source: a watermark for each source partition, which advances at source commits.

The built-in generators depend only on the largest timestamp, so the largest timestamp of a commit stands for all its
events. A user's generator gets each event, in the order of event time. Idleness follows from the source's log: a
partition is idle if no commit had rows of it for longer than the timeout, measured by commit times. So a backlog does
not make a partition idle, and a replay gives the same watermarks as the stream.

The generator of each partition writes to a channel of a `StatusWatermarkValve`. The `IdlenessTimer` of each partition
counts from its last commit.

A `WatermarkOutputMultiplexer` combines the inputs of a pipeline. Source: Flink's two-input operators
(`CombinedWatermarkStatus`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from tidegate.windowing.operators.records import IdleRecord, WatermarkRecord
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks.combined import ChannelStatus, WatermarkOutputMultiplexer
from tidegate.windowing.watermarks.generator import WatermarkGenerator, WatermarkOutput
from tidegate.windowing.watermarks.idleness import IdlenessTimer
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot, flag_in, millis_in, optional_millis_in, part_of
from tidegate.windowing.watermarks.strategy import WatermarkStrategy
from tidegate.windowing.watermarks.valve import StatusWatermarkValve


class SeenEvent(NamedTuple):
    """An event for a user's generator. `time` is int64 epoch milliseconds."""

    commit: int
    partition: str
    time: Millis
    value: Mapping[str, Any]


@dataclass(slots=True)
class _Partition:
    """A source partition.

    Args:
        generator: generator of its watermarks.
        idleness: timer that counts from its last commit. It does not run before the first commit.
        channel: its channel in the valve.
        pending: largest timestamp of a commit that is not complete yet; None if there is none.
    """

    generator: WatermarkGenerator
    idleness: IdlenessTimer
    channel: ChannelStatus
    pending: Millis | None = None


class EventTime:
    """The watermarks of all partitions of a source, and the combined watermark of the source.

    Args:
        strategy: watermark strategy of the source; it creates the generators.
        watermark: watermark of the source so far, int64 epoch milliseconds. It never goes back.
        clock: processing time, int64 epoch milliseconds.
        partitions: partitions of the source so far, a result of `snapshot`.
        output: output for the watermark and the status of the source.

    Raises:
        IncompatibleSnapshot: the snapshot of a partition comes from another strategy.
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
        for channel, (name, part) in zip(channels, partitions.items(), strict=True):
            partition = self._add(name, channel)
            partition.generator.restore(part_of(part, "generator"))
            partition.pending = optional_millis_in(part, "pending")
            last_commit = optional_millis_in(part, "last_commit")
            if last_commit is not None:
                partition.idleness.activity_at(last_commit)

    @property
    def watermark(self) -> Millis:
        """Smallest watermark of the aligned partitions, int64 epoch milliseconds. It never goes back."""
        return self._valve.watermark

    @property
    def idle(self) -> bool:
        """True if the source has partitions, and all of them are idle."""
        return self._valve.idle

    def observe(self, partition: str, largest: Millis) -> None:
        """Record the largest timestamp of a commit's rows. It takes effect when the commit is complete."""
        source_partition = self._partition(partition)
        pending = source_partition.pending
        source_partition.pending = largest if pending is None else max(pending, largest)

    def wait_for(self, partition: str) -> None:
        """Let the watermark wait for a partition that has no rows yet, until it has been idle for the timeout."""
        if partition not in self._partitions:
            self._partition(partition).idleness.activity_at(self.clock)

    def read(
        self,
        largest: Mapping[str, Millis],
        committed: Millis,
        complete: bool = True,
        events: Iterable[SeenEvent] = (),
    ) -> Millis:
        """Read a source commit, or part of one, which only advances the clock. Return the watermark.

        Args:
            largest: largest event time of the usable rows of each source partition in the commit.
            committed: commit time, int64 epoch milliseconds.
            complete: True if no part of the commit is left to read.
            events: events of the whole commit by event time, for a strategy that reads events.
        """
        for partition, time in sorted(largest.items()):
            self.observe(partition, time)
        # A snapshot records the clock after a part, so the periodic calls until then must be made now.
        self._pass_time(committed)
        return self.end_commit(self.clock, events) if complete else self.watermark

    def end_commit(self, clock: Millis, events: Iterable[SeenEvent] = ()) -> Millis:
        """Advance event time by the rows of a complete source commit. Return the watermark.

        Args:
            clock: commit time, int64 epoch milliseconds. If an earlier commit has a later time, that time counts.
            events: events of the commit by event time, for a strategy that reads events.
        """
        self._pass_time(clock)
        for event in events:
            self.observe(event.partition, event.time)
            partition = self._partition(event.partition)
            partition.generator.on_event(event.value, event.time, partition.channel)
        for partition in self._partitions.values():
            if partition.pending is not None:
                if not self.strategy.reads_events:
                    partition.generator.on_event(None, partition.pending, partition.channel)
                partition.pending = None
                partition.idleness.activity_at(self.clock)
                partition.channel.mark_active()
                partition.generator.on_periodic_emit(partition.channel)
        return self._combine()

    def advance(self, clock: Millis) -> Millis:
        """Advance the clock without data, when all commits are read. Return the watermark."""
        self._pass_time(clock)
        return self._combine()

    def next_idle(self, after: Millis) -> Millis | None:
        """Return the first time after `after` at which a partition becomes idle that may hold back the watermark.

        None if there is none. Times are int64 epoch milliseconds.
        """
        if (timeout := self.strategy.idle_timeout) is None:
            return None
        # A timeout has passed one millisecond after its end.
        times = (
            part.idleness.silent_since + timeout + 1
            for part in self._partitions.values()
            if part.idleness.silent_since is not None
            and not part.channel.idle
            and part.channel.watermark <= self.watermark
        )
        return min((time for time in times if time > after), default=None)

    def _pass_time(self, clock: Millis) -> None:
        """Advance the clock, and make the periodic calls that became due. They don't depend on where epochs end."""
        before, self.clock = self.clock, max(self.clock, clock)
        interval, timeout = self.strategy.interval, self.strategy.idle_timeout
        if not interval:
            return
        for partition in self._partitions.values():
            silent_since = partition.idleness.silent_since
            # A partition without a commit has no event time, and the clock may begin at 0.
            if silent_since is None or partition.channel.idle:
                continue
            # A generator that depends on events alone was called after the last commit. Restored under code with
            # another bound, it emits after the partition's next rows: a run without rows doesn't decide who is late.
            if not partition.generator.moves_by_clock:
                continue
            # An idle partition gets no calls, no matter when it is found to be idle.
            until = self.clock if timeout is None else min(self.clock, silent_since + timeout)
            # Calls are due at whole intervals after the last commit, whose end was itself a call.
            made = max((before - silent_since) // interval, 1)
            due = (until - silent_since) // interval
            partition.generator.on_periodic_emits(max(due - made, 0), partition.channel)

    def _combine(self) -> Millis:
        for partition in self._partitions.values():
            # A check would start a timer that is not running yet.
            if partition.idleness.silent_since is not None and partition.idleness.check_if_idle():
                partition.channel.mark_idle()
        self._valve.combine()
        return self.watermark

    def snapshot(self) -> dict[str, WatermarkSnapshot]:
        """Return the state of every partition by name, as plain JSON values."""
        return {name: self._snapshot_of(partition) for name, partition in self._partitions.items()}

    def _snapshot_of(self, partition: _Partition) -> WatermarkSnapshot:
        channel = partition.channel
        return {
            "generator": partition.generator.snapshot(),
            "watermark": channel.watermark,
            "idle": channel.idle,
            "aligned": channel.aligned,
            "pending": partition.pending,
            "last_commit": partition.idleness.silent_since,
        }

    def _partition(self, name: str) -> _Partition:
        partition = self._partitions.get(name)
        return self._add(name, self._valve.add_channel()) if partition is None else partition

    def _add(self, name: str, channel: ChannelStatus) -> _Partition:
        # The log shows whether a partition is idle, so its generator does not need an idle timeout.
        generator = replace(self.strategy, idle_timeout=None).create_generator(lambda: self.clock)
        idleness = IdlenessTimer(self.strategy.idle_timeout, lambda: self.clock)
        self._partitions[name] = partition = _Partition(generator, idleness, channel)
        return partition


class WatermarkToDataOutput:
    """A `WatermarkOutput` for a stream. Source: Flink's `WatermarkToDataOutput`.

    A watermark that does not advance is not emitted, but makes an idle stream active, because events arrived.
    """

    def __init__(self, emit: Callable[[WatermarkRecord | IdleRecord], None] | None = None) -> None:
        self._emit = emit or _unread
        self.watermark: Millis = MIN_TIMESTAMP
        self.idle = False

    def emit_watermark(self, timestamp: Millis) -> None:
        self.mark_active()
        if timestamp > self.watermark:
            self.watermark = timestamp
            self._emit(WatermarkRecord(timestamp))

    def mark_idle(self) -> None:
        if not self.idle:
            self.idle = True
            self._emit(IdleRecord(True))

    def mark_active(self) -> None:
        if self.idle:
            self.idle = False
            self._emit(IdleRecord(False))

    def snapshot(self) -> WatermarkSnapshot:
        """Return the last watermark and the status."""
        return {"watermark": self.watermark, "idle": self.idle}

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Restore a result of `snapshot`, without emitting a record."""
        self.watermark = millis_in(snapshot, "watermark")
        self.idle = flag_in(snapshot, "idle")


def _unread(record: WatermarkRecord | IdleRecord) -> None:
    """Discard a record."""


@dataclass(frozen=True, slots=True)
class InputTime:
    """Event time of an input at the start of an epoch.

    Args:
        strategy: watermark strategy of the input; it creates the generators.
        watermark: watermark of the input, int64 epoch milliseconds.
        partitions: source partitions by name, a result of `EventTime.snapshot`.
        awaited: name of a partition that other inputs wait for even before its first row; None if they don't wait.
    """

    strategy: WatermarkStrategy
    watermark: Millis
    partitions: Mapping[str, WatermarkSnapshot]
    awaited: str | None = None


class EventTimes:
    """The event time of each input, and the watermark of the pipeline. The inputs share a clock.

    Args:
        inputs: event time of each input, in order.
        watermark: watermark of the pipeline so far, int64 epoch milliseconds. It never goes back.
        clock: processing time, int64 epoch milliseconds.
    """

    def __init__(self, inputs: Sequence[InputTime], watermark: Millis, clock: Millis) -> None:
        self._output = WatermarkToDataOutput()
        self._output.restore({"watermark": watermark, "idle": False})
        self._awaited = [each.awaited for each in inputs]
        self._multiplexer = _multiplexer(inputs, self._output, watermark) if len(inputs) > 1 else None
        self.inputs: list[EventTime] = []
        for number, each in enumerate(inputs):
            output: WatermarkOutput = self._output
            if self._multiplexer is not None:
                output = self._multiplexer.get_deferred_output(str(number))
            self.inputs.append(EventTime(each.strategy, each.watermark, clock, each.partitions, output))
            if self.inputs[-1].idle:
                output.mark_idle()

    @property
    def watermark(self) -> Millis:
        """The watermark of the pipeline, int64 epoch milliseconds."""
        return self._output.watermark

    @property
    def clock(self) -> Millis:
        """Largest processing time of the inputs, int64 epoch milliseconds."""
        return max(each.clock for each in self.inputs)

    @property
    def move_by_clock(self) -> bool:
        """True if event time may advance between two commits, by the clock alone."""
        return any(each.strategy.moves_by_clock for each in self.inputs)

    def read(
        self,
        number: int,
        largest: Mapping[str, Millis],
        committed: Millis,
        complete: bool = True,
        events: Iterable[SeenEvent] = (),
    ) -> Millis:
        """Read a commit of input `number`, as `EventTime.read` does. Return the combined watermark."""
        self.inputs[number].read(largest, committed, complete, events)
        return self.advance(self.inputs[number].clock) if complete else self.watermark

    def read_together(
        self, largest: Sequence[Mapping[str, Millis]], clock: Millis, events: Sequence[Iterable[SeenEvent]]
    ) -> Millis:
        """Read a commit of every input in one step, as at a handover. Return the combined watermark."""
        for each, times, seen in zip(self.inputs, largest, events, strict=True):
            each.read(times, clock, True, seen)
        return self.advance(clock)

    def advance_until(self, clock: Millis) -> list[tuple[Millis, Millis]]:
        """Advance the clock without data, as `advance` does, from one time at which an input becomes idle to the next.

        Return each of these times before `clock` at which the watermark advanced, and the watermark then, both int64
        epoch milliseconds.
        """
        passed = []
        while idle := [time for each in self.inputs if (time := each.next_idle(self.clock)) is not None]:
            moment, before = min(idle), self.watermark
            if moment >= clock:
                break
            if self.advance(moment) > before:
                passed.append((moment, self.watermark))
        self.advance(clock)
        return passed

    def advance(self, clock: Millis) -> Millis:
        """Advance the clock without data. Return the combined watermark."""
        for each in self.inputs:
            each.advance(clock)
        if self._multiplexer is not None:
            for each, awaited in zip(self.inputs, self._awaited, strict=True):
                if awaited is not None:
                    each.wait_for(awaited)
            self._multiplexer.on_periodic_emit()
        return self.watermark


def _multiplexer(inputs: Sequence[InputTime], output: WatermarkOutput, watermark: Millis) -> WatermarkOutputMultiplexer:
    """Return the multiplexer of the inputs, with the number of an input as the id of its output."""
    parts = [[str(number), each.watermark, False] for number, each in enumerate(inputs)]
    multiplexer = WatermarkOutputMultiplexer(output)
    multiplexer.restore({"watermark": watermark, "idle": False, "inputs": parts})
    return multiplexer
