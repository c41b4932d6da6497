"""Event time of a pipeline: read from a manifest, advanced in steps by source commits, written to the next manifest.

Watermark generators that read every event get the events of a slice in order. The driver reads the events once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidegate.pipelines.definition.bound_input import BoundInput
from tidegate.pipelines.definition.event_columns import COMMIT, ONLY_PARTITION, PARTITION, TIME, plain
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.engine.base import Batches, Names, Run
from tidegate.pipelines.ledger.manifest import Manifest, PartitionWatermark
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.source_table import EvaluatedRows
from tidegate.windowing.compute import Compute, Windows
from tidegate.windowing.sides import SIDES
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks import EventTimes, InputTime, SeenEvent, WatermarkSnapshot


@dataclass(frozen=True, slots=True)
class CommitStep:
    """Time at one source commit, the same for all shards.

    Args:
        clock: processing time before its elements, int64 epoch milliseconds.
        watermark: event time after its elements.
        complete: True if the epoch reads the commit to its end; otherwise the watermark does not advance and no late
            panes are emitted.
        passed: the times before `clock` at which event time advanced because source partitions became idle, with the
            watermark of each. Therefore what fires, and at which watermark, does not depend on which epoch notices the
            idleness.
    """

    clock: Millis
    watermark: Millis
    complete: bool = True
    passed: tuple[tuple[Millis, Millis], ...] = ()


@dataclass(frozen=True, slots=True)
class EventOrder:
    """In event order, the watermark follows the elements. Before an element at t, all timers up to `t - lag` fire.

    The lag is 1 ms. For windows that merge it is 2 ms, because an element at t may join a session that ends at t.
    """

    lag: Millis

    @classmethod
    def of(cls, compute: Compute) -> EventOrder:
        """Return the event order for a computation."""
        merges = isinstance(compute, Windows) and compute.assigner.merges
        return cls(2 if merges else 1)


def sides_of(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the names of a pipeline's inputs in manifests: "" for a single input."""
    return ("",) if pipeline.right is None else SIDES


def replaced_partitions(pipeline: Pipeline, manifest: Manifest) -> set[str]:
    """Return the source partitions of a manifest that belong to a column other than the code's `watermark_by`.

    The partitions have their names from the manifest.
    """
    replaced = set()
    for part, side in zip(pipeline.inputs, sides_of(pipeline), strict=True):
        if not manifest.are_partitioned_by(side, part.watermark_by):
            names = manifest.partitions_of(side)
            replaced |= {(f"{side}:{name}" if name else side) if side else name for name in names}
    return replaced


def restored_times(
    pipeline: Pipeline,
    watermark: Millis,
    clock: Millis,
    partitions: Mapping[str, PartitionWatermark],
    inputs: Mapping[str, Millis],
) -> EventTimes:
    """Return event time with the values of a manifest.

    With two inputs, the name of a partition is the side, or starts with the side and a colon. A side that `inputs`
    lacks has the watermark of the pipeline.
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
    return EventTimes(restored, watermark, clock)


def times_of(pipeline: Pipeline, manifest: Manifest | None) -> EventTimes:
    """Return the event time of a snapshot, or the minimum if there is no snapshot.

    If the code's `watermark_by` differs from the snapshot's, the partitions of that input start from scratch at the
    input's watermark, as at a handover. Partitions of the old column would get no more rows and hold back event time
    forever.
    """
    if manifest is None:
        return restored_times(pipeline, MIN_TIMESTAMP, 0, {}, {})
    others = replaced_partitions(pipeline, manifest)
    kept = {name: partition for name, partition in manifest.partitions.items() if name not in others}
    return restored_times(pipeline, manifest.watermark, manifest.processing_time, kept, manifest.inputs)


def step_until(times: EventTimes, committed: Millis) -> CommitStep:
    """Advance clock and event time to a commit before its rows are read, or to a time without data. Return the step."""
    clock = max(committed, times.clock)
    passed = times.advance_until(clock)
    return CommitStep(clock, times.watermark, passed=tuple(passed))


def step_of(
    times: EventTimes,
    number: int,
    largest: Mapping[str, Millis],
    committed: Millis,
    complete: bool = True,
    events: Iterable[SeenEvent] = (),
) -> CommitStep:
    """Read a source commit, and return its step. A partial commit advances no watermark and emits no late panes.

    `largest` is the event time of the latest usable row of each source partition in the commit. `events`, ordered by
    time, are for a strategy that reads them; it needs whole commits.
    """
    watermark = times.read(number, largest, committed, complete, events)
    return CommitStep(times.inputs[number].clock, watermark, complete)


def partitions_of(times: EventTimes) -> dict[str, PartitionWatermark]:
    """Return all source partitions, for the manifest."""
    sides = ("",) if len(times.inputs) == 1 else SIDES
    return {
        (f"{side}:{name}" if name else side) if side else name: PartitionWatermark(**snapshot)
        for side, each in zip(sides, times.inputs, strict=True)
        for name, snapshot in each.snapshot().items()
    }


def watermarks_of(times: EventTimes) -> dict[str, Millis]:
    """Return the watermark of each of two inputs, for the manifest; empty for a single input."""
    if len(times.inputs) == 1:
        return {}
    return {side: each.watermark for side, each in zip(SIDES, times.inputs, strict=True)}


def _snapshot(partition: PartitionWatermark, watermark: Millis) -> WatermarkSnapshot:
    """Return a new source partition, as stored in a manifest, with the watermark of its input."""
    return {**partition.model_dump(), "aligned": partition.aligned}


class ReadsInOrder(Protocol):
    """An engine, or anything else that can read a slice in order."""

    def in_order(self, files: FileSlice, run: Run, schema: pa.Schema, names: Names, by: Sequence[str]) -> Batches:
        """Run a function over the checked rows of a slice, and yield its results in order; see `Engine.in_order`."""


class SeenEvents:
    """Usable events, ordered by commit, time and columns. They are streamed, so a slice need not fit in memory.

    A generator gets the columns that `uses` names; by default all columns.
    """

    def __init__(self, engine: ReadsInOrder, files: FileSlice, input_: BoundInput, number: int) -> None:
        read = files.of(part for part in files.parts if part.input == number)
        self._names = input_.derived.names if input_.input.uses is None else list(input_.input.uses)
        self._rows: Iterator[SeenEvent] = self._ordered(engine, read, input_, number) if read.parts else iter(())
        self._next = next(self._rows, None)

    def _ordered(self, engine: ReadsInOrder, files: FileSlice, input_: BoundInput, number: int) -> Iterator[SeenEvent]:
        names, columns = self._names, files.tables[number].columns
        kinds = [input_.derived.field(name).type for name in names]
        schema = pa.schema(
            [
                (COMMIT, pa.int32()),
                (PARTITION, pa.string()),
                (TIME, pa.int64()),
                *((f"c{place}", kind) for place, kind in enumerate(kinds)),
            ]
        )

        read = list(dict.fromkeys([*columns.names, *([columns.partition_by] if columns.partition_by else []), *names]))

        def events(judged: Iterator[EvaluatedRows]) -> Iterator[pa.RecordBatch]:
            for rows in judged:
                part = files.parts[rows.number]
                for table, times in rows.moving(part, columns, read):
                    commits = pa.repeat(pa.scalar(part.commit, pa.int32()), len(table))
                    values = [plain(table[name]) for name in names]
                    seen = pa.table([commits, columns.partitions(table), pa.array(times), *values], schema=schema)
                    yield from seen.to_batches()

        ties = [f"c{place}" for place, kind in enumerate(kinds) if not pa.types.is_nested(kind)]
        columns_read = [read] * len(files.tables)
        for batch in engine.in_order(files, events, schema, columns_read, [COMMIT, TIME, *ties]):
            for row in batch.to_pylist():
                event = {name: row[f"c{place}"] for place, name in enumerate(names)}
                yield SeenEvent(row[COMMIT], row[PARTITION], row[TIME], event)

    def of(self, commit: int) -> Iterator[SeenEvent]:
        """Yield the events of a commit. Call it for the commits in ascending order."""
        while self._next is not None and self._next.commit == commit:
            yield self._next
            self._next = next(self._rows, None)
