"""The history of a pipeline's newest snapshot, reconstructed from table `epochs` and the log of its source.

The source records the order in which rows arrived, and table `epochs` the watermark of each epoch. The code that
planned the epochs advances event time over the commits again, and the result is compared with the table. So the history
doesn't depend on how many snapshots are retained.

A history may start at an epoch instead of at the first row. Then the rows that the source had at that epoch count as
one step, without their order of arrival; rows that were late by then are in table `late`. It starts at the newest epoch
that corrected changed rows, because the source's earlier rows are not kept, or at the newest epoch if older files or
log entries of the source no longer exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.ask.lives import BASE, PART, PLACE, STEP, TIME, Bounds, Identity, Life, LifeStep
from tidegate.pipelines.correct.source_rows import FirstRun
from tidegate.pipelines.definition import epochs, late
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME, plain
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.pipeline import Pipeline, has_history
from tidegate.pipelines.definition.row_sets import sorted_by
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.epoch.event_times import EventOrder, restored_times, times_of
from tidegate.pipelines.epoch.file_slices import of_added, of_version, parts_of
from tidegate.pipelines.epoch.open_input import OpenInput, choices_of
from tidegate.pipelines.epoch.plan_commits import ReadCommit, in_steps, of_commits, steps_of
from tidegate.pipelines.errors import Refused, SourceFileMissing
from tidegate.pipelines.ledger.manifest import Manifest, of_line
from tidegate.pipelines.ledger.snapshots.compatibility import check_restorable
from tidegate.pipelines.ledger.snapshots.erased import forgotten_marks
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, read_snapshot
from tidegate.pipelines.ledger.snapshots.published import require_settled
from tidegate.pipelines.ledger.tables.keys import Key, is_forgotten
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.sources.commits import FilePart, SourceCommit
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.source_table import EvaluatedRows
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing.assigners.base import NO_CLOCK
from tidegate.windowing.compute import Windows
from tidegate.windowing.functions import AggregateFunction
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis, to_millis
from tidegate.windowing.watermarks import EventTimes
from tidegate.windowing.windows import TimeWindow


class NoHistory(Refused):
    """The history can't be reconstructed from the data that is kept."""


@dataclass(frozen=True)
class History:
    """The steps that led to a snapshot, and the opened source.

    Args:
        after: only the output of later epochs is needed; None for everything.
        lower: event time from which the rows of the first step are read; other steps are read whole.
    """

    source: OpenInput
    tables: PipelineTables
    manifest: Manifest
    steps: tuple[LifeStep, ...]
    after: int | None = None
    lower: Millis = FIRST_TIME

    @property
    def begins(self) -> int | None:
        """The epoch at which the history starts; None if it starts with the first row."""
        return self.steps[0].epoch if self.steps and self.steps[0].kind == BASE else None

    @cached_property
    def first_start(self) -> Millis:
        """Start of the first interval of a backfill; earlier rows were read only if they were added later."""
        first = FirstRun.of(self.tables)
        return FIRST_TIME if first is None else first.start

    @property
    def windows(self) -> Windows:
        """The computation, with bound aggregates."""
        compute = self.source.bound.compute
        assert isinstance(compute, Windows)
        return compute

    @cached_property
    def other_code(self) -> tuple[int, Millis]:
        """The newest epoch that ran other code (0 if none is known), and the longest session gap of such code."""
        rows, present = _epochs(self.tables, self.manifest, 0), self.source.bound.fingerprint
        others = [row for row in rows if row.get(epochs.FINGERPRINT) not in (None, present)]
        gaps = [(row.get(epochs.SHAPE) or {}).get("gap") or 0 for row in others]
        return max((row["epoch"] for row in others), default=0), max(gaps, default=0)

    @cached_property
    def oldest_known(self) -> int:
        """The oldest epoch that table `epochs` still has, if it has dropped older ones; otherwise 0."""
        rows = _epochs(self.tables, self.manifest, 0)
        return int(rows[0]["epoch"]) if rows and rows[0]["parent"] is not None else 0

    @cached_property
    def pruned(self) -> int:
        """The newest epoch that pruned late rows, 0 if none did. Abandoned epochs count, as they stay pruned."""
        handle = self.tables.open(epochs.NAME)
        prunes = read_table(self.tables.warehouse, handle, ["epoch"], pc.field("kind") == "prune")
        return max(prunes["epoch"].to_pylist(), default=0)

    def read(self, wanted: Callable[[pa.Table], npt.NDArray[np.bool_]], after: int = 0) -> tuple[History, Rows]:
        """Return the usable rows of some keys, as `rows` does, with this history or with one that starts later.

        If files of the source no longer exist, it is the history that starts with the newest epoch.
        """
        try:
            return self, self.rows(wanted, after)
        except SourceFileMissing:
            later = replace(self, steps=tuple(_steps(self.source, self.tables, self.manifest, self.manifest)))
            return later, later.rows(wanted, after)

    def rows(self, wanted: Callable[[pa.Table], npt.NDArray[np.bool_]], after: int = 0) -> Rows:
        """Return the usable rows of some keys that epochs after one have read, in order of step and time.

        `wanted` returns a flag for each row of a table with the key columns.

        Raises:
            SourceFileMissing: a file no longer exists, except for those of a `BASE`, which are in `Rows.gone`.
        """
        parts = [
            replace(part, commit=number)
            for number, step in enumerate(self.steps)
            for part in step.parts
            if step.epoch > after
        ]
        files = self.source.files.of(parts)
        columns = files.tables[0].columns
        names = list(dict.fromkeys(filter(None, [*columns.names, *columns.limited, columns.partition_by])))
        bound, found, gone = self.source.bound, [], list[FilePart]()
        other_code, by_other_code = self.other_code[0], [np.empty(0, np.int64)]
        for parts_of_file, judged in self._evaluated(files, names, gone):
            of_keys = wanted(judged.table) if bound.key.names else np.ones(len(judged.times), np.bool_)
            for number in parts_of_file:
                part = files.parts[number]
                if other_code and self.read_by(self.steps[part.commit]) <= other_code:
                    by_other_code.append(judged.times_of_all(part, columns))
                kept = judged.usable(part.since, part.until) & of_keys
                if not kept.any():
                    continue
                flags, places = pa.array(kept), np.flatnonzero(kept)
                added = {
                    STEP: pa.array(np.full(len(places), part.commit)),
                    TIME: pa.array(judged.times[places]),
                    PART: pa.array(np.full(len(places), number)),
                    PLACE: pa.array(judged.places[places]),
                }
                # Keys are decoded after filtering, because decoding all of them takes longer than reading them.
                columns_of = {name: plain(judged.table[name].filter(flags)) for name in columns.names}
                found.append(pa.table({**added, **columns_of}))
        rows = pa.concat_tables(found) if found else None
        if rows is not None:
            by = [STEP, TIME, *(name for name in bound.used if name in rows.column_names)]
            rows = sorted_by(rows, [name for name in by if not pa.types.is_nested(rows.schema.field(name).type)])
        listed = [] if rows is None else rows.to_pylist(maps_as_pydicts="lossy")
        return Rows(tuple(files.parts), listed, self._spans_of(gone), np.sort(np.concatenate(by_other_code)))

    def read_by(self, step: LifeStep) -> int:
        """Return the epoch that read the rows of a step, 0 if several may have."""
        return 0 if step.kind == BASE else step.epoch

    def _evaluated(
        self, files: FileSlice, names: list[str], gone: list[FilePart]
    ) -> Iterator[tuple[list[int], EvaluatedRows]]:
        """Yield the rows of each file, with the numbers of its parts.

        A file is read once, although each interval of a backfill reads all files whose times are not known.
        """
        of_file: dict[tuple[Any, ...], list[int]] = {}
        for number, part in enumerate(files.parts):
            same = part.path, part.input, repr(part.details), part.committed, part.again
            of_file.setdefault(same, []).append(number)
        for numbers in of_file.values():
            parts = [files.parts[number] for number in numbers]
            since, until = min(part.since for part in parts), max(part.until for part in parts)
            whole = files.of([replace(parts[0], since=since, until=until)])
            try:
                for rows in whole.evaluated(names=[names]):
                    yield numbers, rows
            except SourceFileMissing:
                if any(self.steps[part.commit].kind != BASE for part in parts):
                    raise
                gone.extend(parts)

    def _spans_of(self, gone: Sequence[FilePart]) -> tuple[Bounds, ...]:
        """Return the event-time spans of missing files: all of time if the log has no statistics for a file."""
        if not gone:
            return ()
        times = self.source.columns.time_in_files or ""
        of_path = {file.path: file for file in self.source.log.active(times, gone[0].version, to_read=True)}
        spans, is_utc = list[Bounds](), self.source.columns.zone is None
        for part in gone:
            file = of_path.get(part.path)
            if file is None or file.oldest is None or file.newest is None or not is_utc:
                spans.append((FIRST_TIME, LAST_TIME))
            else:
                spans.append((file.oldest, file.newest + 1))
        return tuple(spans)

    def lives(self, rows: Rows, late_rows: Sequence[Mapping[str, Any]], published: Iterable[Mapping[str, Any]]) -> Life:
        """Return the life of the windows of one key, from its rows, and from those in tables `late` and `results`."""
        newest, final_at = dict[Bounds, int](), dict[Bounds, Millis]()
        for row in published:
            window = to_millis(row["window_start"]), to_millis(row["window_end"])
            newest[window] = max(row["epoch"], newest.get(window, 0))
            final_at[window] = max(to_millis(row["final_at"]), final_at.get(window, MIN_TIMESTAMP))
        begins = self.begins
        of_source = self._columns_in_both(rows, late_rows)

        def identity(row: Mapping[str, Any]) -> Identity:
            return row[TIME], tuple(repr(row[name]) for name in of_source)

        late_before = [
            identity(row)
            for row in late_rows
            if begins is not None
            and row["epoch"] <= begins
            and (row.get(late.REOPENED) is None or row[late.REOPENED] > begins)
        ]
        reopened: dict[int, list[Identity]] = {}
        for row in late_rows:
            if (epoch := row.get(late.REOPENED)) is not None:
                reopened.setdefault(epoch, []).append(identity(row))
        merges, lateness = self.windows.assigner.merges, self.windows.lateness
        life = Life(self.steps, self.windows_of, merges, lateness, identity, reopened, late_before, newest, final_at)
        return life.live(rows.rows)

    def _columns_in_both(self, rows: Rows, late_rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the non-nested source columns that both source rows and late rows have."""
        own = {TIME, *self.source.bound.pipeline.columns, *(column.name for column in late.TRAILING)}
        kinds = {field.name for field in self.source.bound.source if not pa.types.is_nested(field.type)}
        both = set(rows.rows[0] if rows.rows else ()) & set(late_rows[0] if late_rows else ())
        return sorted((both & kinds) - own)

    def forgotten(self, key: Key) -> int | None:
        """Return the newest epoch that forgot a key, 0 if none did, or None if that is unknown."""
        unknown = False
        for epoch, marks in self._marks.items():
            if marks is not None and any(is_forgotten(key, mark) for mark in marks):
                return epoch
            unknown |= marks is None
        return None if unknown else 0

    @cached_property
    def _marks(self) -> dict[int, frozenset[str] | None]:
        return forgotten_marks(self.tables)

    def windows_of(self, row: Mapping[str, Any]) -> list[Bounds]:
        """Return the windows of a row."""
        assigned = self.windows.assigner.assign_windows(row, row[TIME], NO_CLOCK)
        return [(window.start, window.end) for window in assigned if isinstance(window, TimeWindow)]

    def result_of(self, rows: Rows, numbers: Sequence[int]) -> dict[str, Any]:
        """Return the value of a window by definition: its rows are given to the bound aggregate one by one."""
        function = self.windows.aggregate
        assert isinstance(function, AggregateFunction)
        contents = function.create_accumulator()
        for element in (rows.rows[number] for number in sorted(numbers)):
            contents = function.add_at(element, element[TIME], contents)
        result: dict[str, Any] = function.get_result(contents)
        return result


@dataclass(frozen=True)
class Rows:
    """Rows of the source, as dicts with the columns of events and `STEP`, `TIME`, `PART` and `PLACE`.

    `gone` has the spans of event time whose rows can no longer be read, because their files no longer exist.
    `by_other_code` has the event times of the rows of all keys that other code may have read, sorted. These rows may
    include some that the current code leaves out or gives another key.
    """

    parts: tuple[FilePart, ...]
    rows: list[dict[str, Any]]
    gone: tuple[Bounds, ...]
    by_other_code: npt.NDArray[np.int64]


def read_history(
    config: Config,
    pipeline: str,
    since: Manifest | None = None,
    lower: Millis = FIRST_TIME,
    manifest: Manifest | None = None,
) -> History:
    """Return the history of a snapshot, by its manifest; None for the newest that is published.

    It starts at epoch `since`, with rows from event time `lower` on; None for as early as possible.

    Raises:
        Refused: it can't be reconstructed; the message says why.
    """
    value, tables = load_pipeline(config, pipeline), PipelineTables.of(config, pipeline)
    manifest = manifest or require_settled(tables).manifest
    source = _source(config, value, tables, manifest)
    if since is not None:
        return History(
            source, tables, manifest, tuple(_steps(source, tables, manifest, since, lower)), since.epoch, lower
        )
    rows = _epochs(tables, manifest, 0)
    _check_known(pipeline, rows)
    changed = [row["epoch"] for row in rows if row["kind"] == "change"]
    if changed and (base := _retained(tables, changed[-1])) is not None:
        return History(source, tables, manifest, tuple(_steps(source, tables, manifest, base)))
    # Only an epoch of a stream or an interval tells what it read without the epochs before it, which may be dropped.
    is_cut = bool(rows) and rows[0]["parent"] is not None and rows[0]["kind"] not in ("stream", "backfill")
    try:
        steps = None if changed or is_cut else tuple(_steps(source, tables, manifest))
    except NoHistory:
        raise
    except Refused:
        # Log entries or files of older versions no longer exist, but the rows of the newest version may.
        steps = None
    return History(source, tables, manifest, steps or tuple(_steps(source, tables, manifest, manifest)))


def _source(config: Config, pipeline: Pipeline, tables: PipelineTables, manifest: Manifest) -> OpenInput:
    """Return the opened source of a pipeline, whose windows have the offset that the snapshot's have.

    Raises:
        NoHistory: the pipeline has no history.
    """
    if not has_history(pipeline):
        raise NoHistory(
            f"pipeline {pipeline.name!r} does not compute `Windows` of event time: only those have a history"
        )
    for choice in choices_of(config, pipeline):
        if (reason := choice.files_by_spark or choice.sql_by_spark) is not None:
            raise NoHistory(f"pipeline {pipeline.name!r}: {reason}, and its rows are read without Spark here")
    if manifest.unrepeatable is not None:
        raise NoHistory(
            f"pipeline {pipeline.name!r} has {manifest.unrepeatable}, so the rows of the source don't tell which of "
            "them its windows have. Backfill it under another name"
        )
    if pipeline.watermark.reads_events:
        raise NoHistory(
            f"pipeline {pipeline.name!r}: its watermark generator sees every event, so its history is unknown"
        )
    source = OpenInput.open(LocalEngine.of(config), tables, pipeline)
    check_restorable(source.bound, manifest)
    if manifest.stagger_offset is not None:
        bound = source.bound.compute
        assert isinstance(bound, Windows)
        drawn = replace(bound, assigner=bound.assigner.with_stagger(manifest.stagger_offset))
        source = replace(source, bound=replace(source.bound, compute=drawn))
    return source


def _check_known(pipeline: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuse epochs before which rows are unknown.

    Raises:
        NoHistory: the rows of earlier epochs are unknown.
    """
    if any(row["kind"] == "reset" for row in rows):
        raise NoHistory(
            f"pipeline {pipeline!r}: its source was replaced and read from the beginning, so the rows of earlier "
            "epochs are no longer known"
        )
    if rows and rows[0]["kind"] == "restore":
        raise NoHistory(
            f"pipeline {pipeline!r}: its oldest epoch here, {rows[0]['epoch']}, is a restore, for example of a "
            "savepoint from another warehouse, so the rows of earlier epochs are not known"
        )


def _epochs(tables: PipelineTables, manifest: Manifest, after: int) -> list[dict[str, Any]]:
    """Return the rows of table `epochs` on the lineage of a snapshot after an epoch, in order."""
    where = of_line(manifest.line) & (pc.field("epoch") > after)
    rows = read_table(tables.warehouse, tables.open(epochs.NAME), where=where).sort_by("epoch")
    on_line: list[dict[str, Any]] = rows.to_pylist()
    return on_line


def _retained(tables: PipelineTables, epoch: int) -> Manifest | None:
    for entry in list_snapshots(tables):
        if entry.epoch == epoch and (snapshot := read_snapshot(tables, entry.version)) is not None:
            return snapshot.manifest
    return None


def _steps(
    source: OpenInput,
    tables: PipelineTables,
    manifest: Manifest,
    base: Manifest | None = None,
    lower: Millis = FIRST_TIME,
) -> Iterator[LifeStep]:
    """Yield the steps of the epochs on the lineage of a snapshot.

    The history starts at the epoch `base`, with rows from event time `lower` on; None to start with the first row.
    """
    rows = _epochs(tables, manifest, 0 if base is None else base.epoch)
    shapes = {row["epoch"]: row.get(epochs.SHAPE) for row in rows}
    if base is not None and base.shape is not None:
        shapes[base.epoch] = base.shape.model_dump()
    for step in _moves(source, tables, rows, manifest, base, lower):
        shape = shapes.get(step.epoch)
        yield step if shape is None else replace(step, lateness=shape["lateness"])


def _moves(
    source: OpenInput,
    tables: PipelineTables,
    rows: Sequence[Mapping[str, Any]],
    manifest: Manifest,
    base: Manifest | None,
    lower: Millis,
) -> Iterator[LifeStep]:
    """Yield the same steps, all with the allowed lateness of the current code."""
    times: EventTimes | None = times_of(source.bound.pipeline, None)
    read, corrected, watermark, frontier = -1, -1, MIN_TIMESTAMP, None
    if base is not None:
        position = base.position_in(source.table)
        read, watermark, frontier = position.version, base.watermark, position.frontier
        times = times_of(source.bound.pipeline, base) if frontier is None else None
        step, corrected = _first_step(source, tables, base, lower)
        yield step
    for row in rows:
        epoch, kind, version = row["epoch"], row["kind"], row["source_version"]
        clock = to_millis(row["processing_time"])
        after = _watermark(row["watermark"], watermark, manifest if epoch == manifest.epoch else None)
        if kind == "backfill":
            start, frontier = to_millis(row["interval_start"]), to_millis(row["interval_end"])
            inside = of_version(source, version, manifest, start, frontier).parts
            late = of_added(source, list(_appends(source, read, version)), until=start).parts if read >= 0 else ()
            lag = EventOrder.of(source.bound.compute).lag
            before = start - lag if watermark == MIN_TIMESTAMP else watermark
            yield LifeStep(epoch, kind, version, clock, before, after, lag, (*late, *inside))
            times = None
        elif kind == "stream" and times is None:
            # The first epoch of a stream after a backfill reads the rest of the version of the backfill.
            assert frontier is not None
            rest = of_version(source, source.log.settled(read), None, frontier)
            times = restored_times(source.bound.pipeline, watermark, clock, {}, {})
            times.read_together([source.measure(rest).largest.get(0, {})], clock, [()])
            yield LifeStep(epoch, kind, version, clock, watermark, after, None, rest.parts)
        elif kind in ("stream", "clock") and times is not None:
            yield from _commits(source, times, epoch, (read, corrected), version, watermark)
            if kind == "clock":
                yield LifeStep(epoch, kind, None, clock, watermark, max(after, times.advance(clock)))
        else:
            yield LifeStep(epoch, kind, None, clock, watermark, after)
        if kind == "stream" and times is not None and after not in (times.watermark, MAX_TIMESTAMP):
            raise NoHistory(
                f"pipeline {source.bound.pipeline.name!r}: the watermark after epoch {epoch} differs from that of the "
                f"current code, so a different watermark strategy was in use then, or rows were filtered differently"
            )
        read, watermark = version, after


def _first_step(source: OpenInput, tables: PipelineTables, base: Manifest, lower: Millis) -> tuple[LifeStep, int]:
    """Return the step with all rows that a history's first epoch had read, and the version up to which it had."""
    position = base.position_in(source.table)
    # The rows of a corrected version are in the windows before these rows move the watermark.
    corrected = source.whole(position).version
    upper = LAST_TIME if position.frontier is None else position.frontier
    parts = list(of_version(source, source.log.settled(corrected), base, lower, upper).parts) if corrected >= 0 else []
    if (first := FirstRun.of(tables)) is not None:
        parts = first.without_unread(source, parts, corrected)
    step = LifeStep(
        base.epoch,
        BASE,
        corrected,
        base.processing_time,
        MIN_TIMESTAMP,
        base.watermark,
        parts=tuple(parts),
        closed_through=MIN_TIMESTAMP if base.closed_through is None else base.closed_through,
    )
    return step, corrected


def _commits(
    source: OpenInput, times: EventTimes, epoch: int, read: tuple[int, int], until: int, watermark: Millis
) -> Iterator[LifeStep]:
    """Yield the steps of the commits after a version, and advance event time over them.

    `read` has the version up to which commits have moved the watermark, and that up to which their rows were read.
    """
    for commit in _appends(source, read[0], until, read[1]):
        (alone,) = in_steps([ReadCommit(commit, commit.files, len(commit.files), True)], times)
        largest = source.measure(of_commits(source.files, [alone])).largest
        steps = steps_of([alone], times, largest, lambda read: ())
        before = max(watermark, steps[0].watermark if len(steps) > 1 else MIN_TIMESTAMP)
        watermark = max(watermark, times.watermark)
        parts = parts_of(source, commit) if commit.version > read[1] else ()
        yield LifeStep(epoch, "stream", commit.version, steps[-1].clock, before, watermark, None, parts)


def _appends(source: OpenInput, after: int, until: int, corrected: int = -1) -> Iterator[SourceCommit]:
    """Yield the commits between two versions, without those after `corrected` that changed rows.

    A correction has an epoch of its own, at which a history begins.
    """
    return (c for c in source.log.unread(after, until) if not c.changes or c.version <= corrected)


def _watermark(value: Any, before: Millis, newest: Manifest | None) -> Millis:
    """Return the watermark after an epoch. In table epochs, null means the beginning of time or the end of input."""
    if newest is not None:
        return newest.watermark
    if value is not None:
        return to_millis(value)
    return before if before == MIN_TIMESTAMP else MAX_TIMESTAMP


def late_rows_of(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows of table `late` as dicts, with their event times in `TIME`."""
    times = late.event_times(rows).tolist() if len(rows) else []
    return [{**row, TIME: time} for row, time in zip(rows.to_pylist(), times, strict=True)]
