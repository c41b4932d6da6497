"""The source rows of a recompute: the rows of one version, which tasks read again, and windows that missed one of them.

Rows that the source already had before a backfill's first interval were never read, and are left out.

    first interval [10:00, 11:00) over version 5
    a row at 09:50 of version 3               was never read: no window accepts it, not even one that began at 09:00
    a row at 09:50 that version 7 appended    was read by the next run, and may have been late

A window missed a row if the row was too late for it, and a later window accepted the row. This happens only with
overlapping windows. No table records it for a row, but it can be derived from the watermark that decided the lateness
of the row's source version. If that version is unknown (the log was cleaned up, or files were compacted), the newest
watermark is used, which only means that more windows are compared. So a source whose log was cleaned up needs no
special treatment, as long as the version that was read can be opened.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.correct.request import RecomputePlan, Selection
from tidegate.pipelines.correct.spans import END, START, islands, windows_at
from tidegate.pipelines.definition import epochs, late, results
from tidegate.pipelines.definition.column_names import input_rows
from tidegate.pipelines.definition.event_columns import COMMIT, FIRST_TIME, KEY_PREFIX, TIME, plain
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.definition.row_sets import with_largest
from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.epoch.event_times import times_of
from tidegate.pipelines.epoch.file_slices import of_version, parts_of
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.errors import Refused, RowsRewritten, SourceFileMissing
from tidegate.pipelines.failures import reported_as
from tidegate.pipelines.ledger.manifest import Interval
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.sources.commits import FilePart, SourceFile
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.source_table import EvaluatedRows
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing.columnar.key_codes import encode_keys
from tidegate.windowing.compute import Windows
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.lateness import are_late
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, show_millis, to_millis
from tidegate.windowing.timestamps import epoch_millis

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
            late = are_late(times, lateness, marks)
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
    passed = pa.array(are_late(ends - 1, lateness, marks_seen))
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


@dataclass(frozen=True, slots=True)
class FirstRun:
    """The first run of a backfill.

    Args:
        start: start of its interval, int64 epoch milliseconds. If table `epochs` no longer reaches back to it, it is
            the start of the first published window.
        version: version of the source that the run read, or up to which a reset counted rows as read; None if unknown.
    """

    start: Millis
    version: int | None = None

    @classmethod
    def of(cls, tables: PipelineTables) -> FirstRun | None:
        """Return the first run of a pipeline, or None if it began as a stream or no backfill is recorded."""
        columns = ["epoch", "parent", "kind", "interval_start", "source_version"]
        # Other epochs are not read: the statistics of their files exclude them.
        chosen = pc.field("interval_start").is_valid() | (pc.field("kind") == "reset")
        rows = read_table(tables.warehouse, tables.newest(epochs.NAME), columns, ~pc.field("stale") & chosen)
        runs = rows.filter(rows["interval_start"].is_valid())
        if not len(runs):
            return None
        first = runs.filter(runs["parent"].is_null())
        if not len(first):
            published = read_table(tables.warehouse, tables.newest(results.NAME), ["window_start"], ~pc.field("stale"))
            return cls(_smallest(published["window_start"] if len(published) else runs["interval_start"]))
        resets = rows.filter(pc.equal(rows["kind"], "reset")).sort_by("epoch")
        version = (resets if len(resets) else first)["source_version"][-1].as_py()
        return cls(_smallest(first["interval_start"]), version)

    def without_unread(self, source: OpenInput, parts: Sequence[FilePart], version: int) -> list[FilePart]:
        """Return parts of the files of a version without the rows that the first run did not read.

        In a file that an UPDATE or a compaction wrote, the rows' original commits are unknown; rows before the start
        are left out.
        """
        earlier = [SourceFile(part.path, 0) for part in parts if part.since < self.start]
        if self.version is None or not earlier:
            return list(parts)
        added_by = source.log.versions_of(earlier, version, self.version)
        appended = {path for path, added in added_by.items() if added is not None and added > self.version}
        return [
            part if part.path in appended else replace(part, since=max(part.since, self.start))
            for part in parts
            if part.path in appended or part.until > self.start
        ]

    def hides(self, source: OpenInput, since: Millis, version: int) -> bool:
        """Return True if an UPDATE or a compaction wrote a file that may have rows of `[since, start)`.

        `without_unread` leaves them out, although late rows may be among them.
        """
        if self.version is None or since >= self.start:
            return False
        earlier = [SourceFile(part.path, 0) for part in of_version(source, version, None, since, self.start).parts]
        return None in source.log.versions_of(earlier, version, self.version).values()


def _smallest(times: pa.ChunkedArray) -> Millis:
    return int(pc.min(epoch_millis(times)).as_py())


class SourceRows:
    """Source rows that a snapshot has read. They are read up to a position, by default that of the snapshot."""

    def __init__(
        self,
        engine: Engine,
        source: OpenInput,
        head: Snapshot,
        tables: PipelineTables,
        position: Position | None = None,
        first_run: Callable[[], FirstRun | None] | None = None,
    ) -> None:
        self.engine = engine
        self._tables = tables
        self._source = source
        self._head = head
        self._first_run = first_run or (lambda: FirstRun.of(tables))
        self._position = source.settled(position or source.whole(source.position_of(head.manifest)))

    def keyed(self, late_rows: pa.Table) -> pa.Table:
        """Return rows of table late with the key columns of the pipeline added.

        A key column replaces any other column of its name.
        """
        bound = self._source.bound
        inputs = input_rows(late_rows, late.TRAILING, bound.source, bound.renamed.get(late.NAME, {}))
        if set(bound.key.names) & set(bound.pipeline.columns) and len(inputs):
            inputs = self._source.derived(inputs, bound.key.names)
        for name, kind in zip(bound.key.names, bound.key.types, strict=True):
            column = inputs[name].cast(kind) if name in inputs.column_names else pa.nulls(0, kind)
            place = late_rows.schema.get_field_index(name)
            late_rows = (
                late_rows.append_column(name, column) if place < 0 else late_rows.set_column(place, name, column)
            )
        return late_rows

    def passed(self, windows: Windows, within: Interval) -> pa.Table:
        """Return the windows that missed a row because they had passed, while another window accepted the row."""

        def parts() -> Sequence[FilePart]:
            return of_version(self._source, self._position.version, None, within.start, within.end).parts

        with self.located(parts, windows):
            return missed_windows(self._source, self._head, self._tables, windows, within)

    def _files(self, within: Interval) -> FileSlice:
        """Return every usable row of an interval that was read, including those of a partly read version."""
        source, position = self._source, self._position
        end = within.end if position.frontier is None else min(within.end, position.frontier)
        parts: list[FilePart] = []
        if position.version >= 0:
            parts += of_version(source, position.version, self._head.manifest, within.start, end).parts
            if (first := self._first_run()) is not None:
                parts = first.without_unread(source, parts, position.version)
        if position.files:
            (commit,) = source.commits(position.version, position.version + 1)
            parts += parts_of(source, replace(commit, files=commit.files[: position.files]), within.start, end)
        if position.version < 0 and not position.files:
            name = source.bound.pipeline.name
            raise Refused(f"pipeline {name!r} has read nothing yet", Remedy(Act.STREAM, name))
        return source.files.of(parts)

    def files_of(self, plan: RecomputePlan) -> FileSlice:
        """Return the files that may have events of the spans of a plan."""
        spans = plan.spans
        first, last = (pc.min_max(spans[name]) for name in (START, END))
        if isinstance(plan.asked, Selection):
            self._check_visible(plan, first["min"].as_py())
        return self._files(Interval(start=first["min"].as_py(), end=last["max"].as_py()))

    def _check_visible(self, plan: RecomputePlan, since: Millis) -> None:
        """Refuse to reopen windows from before the first interval if their late rows can no longer be read."""
        run, name = self._first_run(), self._source.bound.pipeline.name
        if run is not None and run.hides(self._source, since, self._position.version):
            others = ended_through(plan, run.start)
            raise RowsRewritten(
                f"late rows whose windows begin before {show_millis(run.start)}, where the first interval of "
                f"{name} begins, can't be reopened: an UPDATE or OPTIMIZE of {self._source.table} rewrote files with "
                "rows of that time, so tidegate can't tell which of them the backfill left out. Others can be reopened",
                Remedy(Act.REOPEN_FROM, name, start=others),
                Remedy(Act.NEW_NAME, name),
                concerns=[(FIRST_TIME, others)],
            )

    @contextmanager
    def located(self, parts: Callable[[], Sequence[FilePart]], windows: Windows) -> Iterator[None]:
        """Add to an error about a missing file which windows need files that are missing."""
        try:
            with reported_as(
                f"windows of {self._source.bound.pipeline.name} can't be recomputed",
                "Nothing was committed; fix the cause and run again",
            ):
                yield
        except SourceFileMissing as error:
            concerns = self._concerned(parts(), windows)
            raise SourceFileMissing(error.message, *error.remedies, concerns=concerns) from error

    def _concerned(self, parts: Sequence[FilePart], windows: Windows) -> list[tuple[Millis, Millis]]:
        """Return the spans of window starts that need files of parts that no longer exist, if they are recorded."""
        source, grid = self._source, windows.assigner.window_grid
        sizes = source.warehouse.sizes(source.log.path, [*{part.path for part in parts}])
        lost = {name for name, size in sizes.items() if size is None}
        files = source.log.active(source.columns.time_in_files or "", self._position.version)
        # An element's windows begin up to a size before it. Table late names the newest one, so the oldest begins up to
        # another size earlier.
        reach = 0 if grid is None else grid.size
        overlap = 0 if grid is None or grid.windows_of_an_element == 1 else grid.size
        return [
            (file.oldest - reach, file.newest + overlap + 1)
            for file in files
            if file.path in lost and file.oldest is not None and file.newest is not None
        ]


def ended_through(plan: RecomputePlan, time: Millis) -> Millis:
    """Return the end of the last window that begins before a time, or that shares elements with such a window.

    Late rows whose newest window begins at it or later are in none of these windows.
    """
    wanted, merges = plan.work.wanted, plan.windows.assigner.forms_sessions
    # Windows that don't merge share no element if they only touch.
    ends = wanted[END] if merges else pc.subtract(wanted[END], 1)
    place = wanted.schema.get_field_index(END)
    connected = islands(plan.epoch.bound.key, wanted.set_column(place, END, ends))
    return int(connected.ends[connected.starts < time].max(initial=time - 1)) + 1


def events_within(
    key: KeySchema, files: FileSlice, judged: Iterator[EvaluatedRows], spans: pa.Table
) -> Iterator[pa.Table]:
    """Yield the events that are in a span of their key, as `within_spans` does."""
    tables = (within_spans(key, files.events_of(rows), spans) for rows in judged)
    return (table for table in tables if len(table))


def within_spans(key: KeySchema, events: pa.Table, spans: pa.Table) -> pa.Table:
    """Return the events that are in a span of their key. Spans of a key don't touch."""
    keys = {
        name: plain(events[f"{KEY_PREFIX}{name}"]).cast(kind) for name, kind in zip(key.names, key.types, strict=True)
    }
    of_spans, of_events = encode_keys(
        key, ({name: spans[name] for name in key.names}, len(spans)), (keys, len(events))
    ).codes
    starts, ends = (np.asarray(spans[name].to_numpy(), np.int64) for name in (START, END))
    times = np.asarray(events[TIME].to_numpy(), np.int64)
    order = np.lexsort((starts, of_spans))
    # Sort events and span starts together. If an event is in a span, that span has the last start at or before the
    # event.
    everything = np.lexsort(
        (
            np.concatenate([np.zeros(len(spans)), np.ones(len(events))]),
            np.concatenate([starts[order], times]),
            np.concatenate([of_spans[order], of_events]),
        )
    )
    is_span = everything < len(spans)
    last = np.maximum.accumulate(np.where(is_span, np.arange(len(everything)), -1))
    places = everything[~is_span] - len(spans)
    nearest = everything[np.maximum(last[~is_span], 0)]
    span = order[np.minimum(nearest, len(spans) - 1)] if len(spans) else nearest
    inside = np.zeros(len(events), np.bool_)
    inside[places] = (last[~is_span] >= 0) & (of_spans[span] == of_events[places]) & (times[places] < ends[span])
    return events.filter(pa.array(inside))
