"""The plan of an epoch, its first step: the rows to read, the snapshot to continue from, and how time moves.

A plan changes no table. Its rows are counted, mostly from the files' statistics, and the tasks' reports are later
checked against these counts. `plan_interval` plans backfills, `plan_commits` streams, with or without data,
and `plan_recompute` corrections. All but the last start from a `Basis`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.epoch.closed import closed_by
from tidegate.pipelines.epoch.event_times import CommitStep, EventOrder, partitions_of, watermarks_of
from tidegate.pipelines.epoch.file_measure import SliceCounts
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Interval, Kind, Manifest, PartitionWatermark, Shard, StaleInterval
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.windowing.assigners.base import draw_stagger
from tidegate.windowing.compute import Compute, Windows
from tidegate.windowing.keys import key_group_range
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks import EventTimes


@dataclass(frozen=True)
class SliceRows:
    """The rows of a slice: files with usable rows, and files with rows for table rejects. None means no rows."""

    events: FileSlice | None = None
    unusable: FileSlice | None = None

    @classmethod
    def of(
        cls,
        files: FileSlice,
        events: Iterable[FilePart] = (),
        late: Mapping[int, Millis] | None = None,
        unusable: Iterable[FilePart] = (),
    ) -> SliceRows:
        """Return the rows of parts of files. `late` is, by commit, the time up to which its rows may be late."""
        usable, rejected = files.of(events, late), files.of(unusable)
        return cls(usable if usable.parts else None, rejected if rejected.parts else None)


_NO_ROWS, _NO_COUNTS = SliceRows(), SliceCounts()

MOST_PARTITIONS = 10_000
"""Largest number of source partitions of a pipeline: each epoch writes about 150 bytes for each of them."""


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """Everything that the later steps of an epoch need; they don't change these decisions.

    `parent` is the snapshot to continue from, and `head` is the snapshot that the commit follows. They differ if an
    interval is run again. `skipped` is the number of source versions that are skipped.
    """

    tables: PipelineTables
    bound: BoundPipeline
    parent: Snapshot | None
    head: Snapshot | None
    kind: Kind
    order: EventOrder | None = None
    interval: Interval | None = None
    positions: dict[str, Position]
    rows: SliceRows = field(default_factory=SliceRows)
    counts: SliceCounts
    steps: tuple[CommitStep, ...]
    partitions: dict[str, PartitionWatermark]
    input_watermarks: dict[str, Millis] = field(default_factory=dict)
    watermark_before: Millis
    shards: tuple[Shard, ...]
    replaced_epochs: tuple[int, ...] = ()
    stale: tuple[StaleInterval, ...] = ()
    skipped: int = 0
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    started_at: Millis

    def __post_init__(self) -> None:
        if len(self.partitions) > MOST_PARTITIONS:
            columns = sorted(
                {part.watermark_by for part in self.bound.pipeline.inputs if part.watermark_by is not None}
            )
            raise Refused(
                f"watermark_by={', '.join(map(repr, columns))} of {self.bound.pipeline.name} makes "
                f"{len(self.partitions)} source partitions, but a pipeline may have at most {MOST_PARTITIONS}: every "
                "snapshot holds the watermark of each. Name a column with fewer values, such as the gateway or the "
                "region that a row came from, or remove watermark_by; event time then continues from the pipeline's "
                "watermark"
            )

    def replacing(self, head: Snapshot) -> EpochPlan:
        """Return the same plan as the start of a new timeline, which replaces everything that was published before."""
        return replace(self, head=head, replaced_epochs=tuple(range(1, head.manifest.epoch + 1)))

    @property
    def epoch(self) -> int:
        """Number of the epoch; it always increases, even across restores."""
        return 1 if self.head is None else self.head.manifest.epoch + 1

    @property
    def timeline(self) -> int:
        """Timeline of the epoch: a new one if the epoch does not continue from the head."""
        if self.head is None:
            return 1
        return self.head.manifest.timeline + (0 if self.parent is self.head else 1)

    @property
    def clock_before(self) -> Millis:
        """Processing time of the snapshot that the epoch continues from."""
        return clock_of(self.parent)

    @property
    def watermark(self) -> Millis:
        """Watermark after the epoch."""
        complete = [step.watermark for step in self.steps if step.complete]
        return complete[-1] if complete else self.watermark_before

    @property
    def clock(self) -> Millis:
        """Processing time of the epoch."""
        return self.steps[-1].clock

    @cached_property
    def compute(self) -> Compute:
        """The computation. A stagger of its windows is chosen once per pipeline and recorded in the manifest."""
        windows = self.bound.compute
        if not isinstance(windows, Windows):
            return windows
        assigner, drawn = windows.assigner, None if self.parent is None else self.parent.manifest.stagger_offset
        assigner = draw_stagger(assigner, self.steps[0].clock) if drawn is None else assigner.with_stagger(drawn)
        return windows if assigner is windows.assigner else replace(windows, assigner=assigner)

    @cached_property
    def closed_through(self) -> Millis:
        """End of the windows that the parent snapshot closed, int64 epoch milliseconds. They can't open again."""
        return MIN_TIMESTAMP if self.parent is None else closed_by(self.bound, self.parent.manifest)

    @property
    def stagger_offset(self) -> Millis | None:
        """Offset of staggered windows, milliseconds; None for aligned windows."""
        return self.compute.assigner.stagger_offset if isinstance(self.compute, Windows) else None


@dataclass(frozen=True)
class Basis:
    """What a plan starts from. `shards` returns the number of shards to divide the key groups into."""

    source: OpenInput
    tables: PipelineTables
    head: Snapshot | None
    now: Millis
    shards: Callable[[], int]

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline."""
        return self.source.bound.pipeline

    @property
    def manifest(self) -> Manifest | None:
        """Manifest of the snapshot."""
        return None if self.head is None else self.head.manifest

    @property
    def of_head(self) -> Manifest:
        """Manifest of the snapshot, which must exist."""
        assert self.head is not None
        return self.head.manifest

    def plan(
        self,
        kind: Kind,
        positions: Mapping[str, Position],
        steps: tuple[CommitStep, ...],
        times: EventTimes | None = None,
        rows: SliceRows = _NO_ROWS,
        counts: SliceCounts = _NO_COUNTS,
    ) -> EpochPlan:
        """Return the plan of an epoch that continues from the snapshot.

        In event order, which needs no partitions, `times` is None.
        """
        manifest, bound = self.manifest, self.source.bound
        parallelism = bound.pipeline.max_parallelism
        return EpochPlan(
            tables=self.tables,
            bound=bound,
            parent=self.head,
            head=self.head,
            kind=kind,
            positions=dict(positions),
            rows=rows,
            counts=counts,
            steps=steps,
            partitions={} if times is None else partitions_of(times),
            input_watermarks={} if times is None else watermarks_of(times),
            watermark_before=MIN_TIMESTAMP if manifest is None else manifest.watermark,
            shards=cut_shards(self.shards(), parallelism, counts.usable, self.head, counts.size),
            stale=() if manifest is None else manifest.stale,
            # A first interval reads the table as it is.
            skipped=0 if manifest is None and kind == "backfill" else self.source.skipped(manifest, positions),
            started_at=self.now,
        )


def clock_of(snapshot: Snapshot | None) -> Millis:
    """Return the processing time of a snapshot, or 0 without a snapshot."""
    return 0 if snapshot is None else snapshot.manifest.processing_time


ROWS_PER_SHARD = 2_500_000
"""Number of events and state rows in one task, which take about 600 MB at the peak (docs/decisions/reading-rows.md)."""
BYTES_PER_SHARD = 3 * 2**28
"""Number of bytes in memory for one task: rows with long strings take more than rows of numbers."""
_COMPRESSED = 3
"""Approximate bytes in memory per byte of a state file."""


def files_of(files: Iterable[dict[str, Any]], shard: Shard) -> tuple[str, ...]:
    """Return the paths of the state files that may have rows of a shard."""
    return tuple(
        file["path"] for file in files if file["min.key_group"] <= shard.last and file["max.key_group"] >= shard.first
    )


def cut_shards(
    shards: int, max_parallelism: int, events: int = 0, parent: Snapshot | None = None, size: int = 0
) -> tuple[Shard, ...]:
    """Return the shards: contiguous ranges of key groups, more than `shards` if these would need too much memory.

    The number is doubled until no shard is too large, or until each shard has one key group. So each range of a large
    epoch lies within a range of a small epoch, and each epoch can read the state files of the other. `size` is the size
    of the events in bytes, or 0 if it is unknown.
    """
    files = () if parent is None else parent.files
    rows = events + sum(file["num_records"] for file in files)
    size += sum(file["size_bytes"] for file in files) * _COMPRESSED
    while (rows > shards * ROWS_PER_SHARD or size > shards * BYTES_PER_SHARD) and shards < max_parallelism:
        shards = min(2 * shards, max_parallelism)
    ranges = [key_group_range(shard, shards, max_parallelism) for shard in range(shards)]
    return tuple(Shard(first=groups[0], last=groups[-1]) for groups in ranges)
