"""Windows that an element missed although it was not late: a later window accepted it.

This happens only with overlapping windows. No table records it for a row, but it can be derived from the watermark that
decided the lateness of the row's source version. If that version is unknown (the log was cleaned up, or files were
compacted), the newest watermark is used, which only means that more windows are compared. So a source whose log was
cleaned up needs no special treatment, as long as the version that was read can be opened.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.correct.spans import END, START, windows_at
from tidegate.pipelines.definition import epochs
from tidegate.pipelines.definition.event_columns import COMMIT, KEY_PREFIX, TIME, plain
from tidegate.pipelines.definition.row_sets import with_largest
from tidegate.pipelines.epoch.event_times import times_of
from tidegate.pipelines.epoch.file_slices import of_version
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.ledger.manifest import Interval
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.sources.commits import SourceFile
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.source_table import EvaluatedRows
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing.columnar.kernel import cleanup_times
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, to_millis

_SLOT, _JUDGED_AT = "\0slot", "\0judged_at"


class JudgedAt:
    """The watermark that decided whether the rows of each source version were late, derived from table epochs.

    The watermark is exact for the first version that an epoch read, and an upper bound for its other versions. If event
    time also advances by the clock, it does so before the lateness of a commit's rows is decided. No table records
    that, so the watermark is an upper bound for the first version too.

    Args:
        history: rows of table epochs that are not stale; the oldest may have been removed.
        newest: watermark of the snapshot.
        by_clock: True if event time may advance between two commits.
    """

    def __init__(self, history: pa.Table, newest: Millis, by_clock: bool = False) -> None:
        self._newest = newest
        self._versions: list[int] = []
        self._first: list[tuple[int, Millis, Millis]] = []
        read, watermark = -1, MIN_TIMESTAMP
        for number, row in enumerate(history.sort_by("epoch").to_pylist()):
            after = newest if row["watermark"] is None else to_millis(row["watermark"])
            if row["source_version"] is not None and row["source_version"] > read:
                if row["interval_start"] is not None and (number or row["parent"] is None):
                    # In event order, every row of a run is judged by the watermark at the start of the run.
                    first = rest = watermark
                else:
                    rest = after
                    first = rest if by_clock or (number == 0 and row["parent"] is not None) else watermark
                self._versions.append(row["source_version"])
                self._first.append((read + 1, first, rest))
                read = row["source_version"]
            watermark = max(watermark, after)

    @property
    def alike_until(self) -> int:
        """The version up to which one watermark decided the lateness of all rows, or -1 if there is none."""
        if not self._versions or self._first[0][1] != self._first[0][2]:
            return -1
        return self._versions[0]

    def __call__(self, version: int | None) -> Millis:
        """Return the watermark for a source version (None: unknown), int64 epoch milliseconds.

        For a version that was read before the first watermark, it is the smallest time.
        """
        place = len(self._versions) if version is None else bisect_left(self._versions, version)
        if place == len(self._versions):
            return self._newest
        first, exact, rest = self._first[place]
        return exact if version == first else rest


def judged_at(tables: PipelineTables, newest: Millis, by_clock: bool = False) -> JudgedAt:
    """Return the watermarks by which the versions of a pipeline's source were judged."""
    handle = tables.newest(epochs.NAME)
    columns = ["epoch", "parent", "source_version", "interval_start", "watermark"]
    # Epochs that removed rows read no source, and may belong to an abandoned lineage.
    counts = ~pc.field("stale") & ~pc.field("kind").isin(sorted(epochs.ERASING))
    return JudgedAt(read_table(tables.warehouse, handle, columns, counts), newest, by_clock)


def marks_of(
    source: OpenInput, files: Sequence[SourceFile], version: int, judged_at: JudgedAt, within: Interval
) -> dict[str, Millis]:
    """Return, for the path of each file of a version, the watermark by which its rows were judged.

    The log is read only for files that may have rows in the interval, and only as far back as watermarks differ.
    """
    meant = [
        file
        for file in files
        if not source.has_instants
        or ((file.newest is None or file.newest >= within.start) and (file.oldest is None or file.oldest < within.end))
    ]
    versions = source.log.versions_of(meant, version, judged_at.alike_until) if meant else {}
    return {file.path: judged_at(versions.get(file.path)) for file in files}


def missed_windows(
    source: OpenInput, head: Snapshot, tables: PipelineTables, windows: Windows, within: Interval
) -> pa.Table:
    """Return each window that elements with times in an interval missed, with the key columns.

    The elements are among the rows that the snapshot has read.
    """
    key, lateness = source.bound.key, windows.lateness
    grid = windows.assigner.window_grid
    assert grid is not None, windows.assigner
    slot, offset = grid.slot, grid.offset
    kinds = pa.schema([*zip(key.names, key.types, strict=True), (_SLOT, pa.int64()), (_JUDGED_AT, pa.int64())])
    files, watermarks = _files_read(source, head, tables, within)

    def behind(judged: Iterator[EvaluatedRows]) -> Iterator[pa.RecordBatch]:
        for events in map(files.events_of, judged):
            marks = np.array(watermarks)[np.asarray(events[COMMIT])] if len(events) else np.zeros(0, np.int64)
            times = np.asarray(events[TIME].to_numpy(), np.int64)
            late = cleanup_times(times, lateness) <= marks
            # All times in a slot belong to the same windows, because windows begin and end only at the bounds of slots.
            slots = pa.array(np.floor_divide(times - offset, slot)[late])
            keys = [plain(events[f"{KEY_PREFIX}{name}"]).filter(pa.array(late)) for name in key.names]
            columns = [column.cast(kind) for column, kind in zip(keys, key.types, strict=True)]
            slots_behind = pa.table([*columns, slots, pa.array(marks[late])], schema=kinds)
            yield from _newest(slots_behind, key.names).to_batches()

    slots = kinds.empty_table()
    if files.parts:
        slots = _newest(source.engine.over(files, behind, kinds).cast(kinds), key.names)
    times = np.asarray(slots[_SLOT].to_numpy(), np.int64) * slot + offset
    missed = windows_at(windows, key, slots, times, also=(_JUDGED_AT,))
    ends, marks_seen = (np.asarray(missed[name].to_numpy(), np.int64) for name in (END, _JUDGED_AT))
    passed = pa.array(cleanup_times(ends - 1, lateness) <= marks_seen)
    columns = pa.schema([*zip(key.names, key.types, strict=True), (START, pa.int64()), (END, pa.int64())])
    return missed.filter(passed).select(columns.names).cast(columns)


def _files_read(
    source: OpenInput, head: Snapshot, tables: PipelineTables, within: Interval
) -> tuple[FileSlice, list[Millis]]:
    """Return the rows in an interval from completely read versions, and the watermark of each commit of the slice.

    Rows whose lateness was decided by the same watermark are one commit.
    """
    position = source.settled(source.whole(source.position_of(head.manifest)))
    if position.version < 0:
        # Only a part of the source's first commit was read.
        return source.files.of([]), []
    by_clock = times_of(source.bound.pipeline, head.manifest).move_by_clock
    judged = judged_at(tables, head.manifest.watermark, by_clock)
    until = within.end if position.frontier is None else min(within.end, position.frontier)
    files = of_version(source, position.version, None, within.start, until)
    active = source.log.active(source.bound.pipeline.source.timestamp, position.version)
    marks = marks_of(source, active, position.version, judged, within)
    watermarks = sorted(set(marks.values()))
    numbered = (replace(part, commit=watermarks.index(marks[part.path])) for part in files.parts)
    return files.of(numbered), watermarks


def _newest(slots: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return each key and slot once, with the newest watermark."""
    return with_largest(slots.select([*key, _SLOT, _JUDGED_AT]), _JUDGED_AT)
