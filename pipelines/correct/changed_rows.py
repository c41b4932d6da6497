"""Rows that were deleted and added between two versions of a source: the multiset difference of the changed files.

Rows are compared by everything that the pipeline reads: event time, key, the columns that the computation uses, and the
source partition. A row that was only rewritten, or that changed only in other columns, counts as neither deleted nor
added.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import late, rejects
from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.column_names import input_rows
from tidegate.pipelines.definition.columns import TIMESTAMP
from tidegate.pipelines.definition.event_columns import (
    FILE,
    FIRST_TIME,
    KEY_PREFIX,
    LAST_TIME,
    PARTITION,
    PLACE,
    STATUS,
    TIME,
    VALUE_PREFIX,
    plain,
)
from tidegate.pipelines.definition.row_sets import surplus
from tidegate.pipelines.epoch.open_input import OpenInput, by_other_code
from tidegate.pipelines.ledger.manifest import Manifest, of_line
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.sources.commits import ChangedFiles, FilePart
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.rules import Int64s
from tidegate.pipelines.sources.source_columns import ColumnsToRead
from tidegate.pipelines.sources.source_table import EvaluatedRows
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing.time import Millis

USABLE, KEY_TOO_LONG = -1, rejects.REASONS.index(rejects.KEY_TOO_LONG)
"""Status of a usable row. Other statuses are numbers of rejection reasons."""


_OF_CODE = [
    rejects.REASONS.index(reason)
    for reason in (
        rejects.NULL_KEY,
        rejects.BEFORE,
        rejects.NULL_GAP,
        rejects.GAP_OUT_OF_RANGE,
        rejects.VALUE_OUT_OF_RANGE,
    )
]
"""Reasons for which a row is rejected or not, depending on the code that reads it."""

InColumns: TypeAlias = Callable[[pa.Table, Sequence[int]], pa.Table]
"""Function from rows with all source columns and their statuses to the columns by which rows are compared."""


@dataclass(frozen=True)
class DeletedRows:
    """Rows that were deleted from the source.

    Args:
        usable: usable rows that windows may contain.
        late: usable rows that are in no window, because they were late and were not reopened.
        deleted_by_table: the deleted rows of tables late and rejects, by table, with all columns of the table.
    """

    usable: pa.Table
    late: pa.Table
    deleted_by_table: Mapping[str, pa.Table]

    @classmethod
    def of_no_tables(cls, deleted: pa.Table) -> DeletedRows:
        """Return deleted rows, none of which is in table late or rejects."""
        usable = deleted.filter(pc.equal(deleted[STATUS], USABLE))
        return cls(usable, usable.slice(0, 0), {})


@dataclass(frozen=True)
class HeldRows:
    """Rows of tables late and rejects that were added in a snapshot's lineage. Stale rows are left out.

    The tables are published up to that snapshot.
    """

    tables: PipelineTables
    bound: BoundPipeline
    manifest: Manifest

    @cached_property
    def is_by_other_code(self) -> bool:
        """True if other code ran in the lineage: it may have counted rows that the current code leaves out."""
        return by_other_code(self.bound, self.tables, self.manifest) is not None

    def separated(self, deleted: pa.Table, in_columns: InColumns, names: Sequence[str]) -> DeletedRows:
        """Separate deleted rows by the table that contains them.

        A row that the current code rejects, and that table rejects lacks, was counted by other code. Among equal rows,
        those that are in no window are taken first: rejected ones, then late ones. The pipeline can't distinguish them.
        The times of the rows were not compared with the commit time, so none counts as ahead of it.
        """
        if not len(deleted):
            return DeletedRows.of_no_tables(deleted)
        rejected = self._read(rejects.NAME)
        statuses = [rejects.REASONS.index(reason) for reason in rejected["reason"].to_pylist()]
        # The rules of other code, or another commit time, may have rejected a row that is usable now.
        names = [name for name in names if name != STATUS]
        is_left, stays = surplus(deleted, in_columns(self._inputs(rejects.NAME, rejected), statuses), names)
        rejected = rejected.filter(pa.array(~stays))
        deleted = deleted.filter(pa.array(is_left))
        is_usable = pc.equal(deleted[STATUS], USABLE)
        if not pc.all(is_usable).as_py() and self.is_by_other_code:
            is_usable = pc.or_(is_usable, pc.is_in(deleted[STATUS], pa.array(_OF_CODE, pa.int8())))
        deleted = deleted.filter(is_usable)
        deleted = deleted.set_column(
            deleted.schema.get_field_index(STATUS), STATUS, pa.repeat(pa.scalar(USABLE, pa.int8()), len(deleted))
        )
        late_rows = self._late_near(deleted)
        is_open = late.is_open(late_rows)
        waiting, reopened = late_rows.filter(is_open), late_rows.filter(pc.invert(is_open))
        is_of_window, still_waits = surplus(deleted, self._in_columns(waiting, in_columns), names)
        usable, was_late = deleted.filter(pa.array(is_of_window)), deleted.filter(pa.array(~is_of_window))
        _, still_reopened = surplus(usable, self._in_columns(reopened, in_columns), names)
        left = [waiting.filter(pa.array(~still_waits)), reopened.filter(pa.array(~still_reopened))]
        deleted_by_table = {late.NAME: pa.concat_tables(left), rejects.NAME: rejected}
        return DeletedRows(usable, was_late, {table: rows for table, rows in deleted_by_table.items() if len(rows)})

    def _late_near(self, deleted: pa.Table) -> pa.Table:
        """Return the late rows whose windows may contain deleted rows. Row groups without such windows are not read."""
        bounds = pc.min_max(deleted[TIME])
        first, last = (pa.scalar((bounds[name].as_py() or 0) * 1000, TIMESTAMP) for name in ("min", "max"))
        start, end = pc.field("window_start"), pc.field("window_end")
        rows = self._read(late.NAME, start.is_null() | ((start <= last) & (end >= first)))
        return rows if len(deleted) else rows.slice(0, 0)

    def _read(self, table: str, where: pc.Expression | None = None) -> pa.Table:
        ours = of_line(self.manifest.line)
        handle = self.tables.newest(table)
        return read_table(self.tables.warehouse, handle, where=ours if where is None else ours & where)

    def _inputs(self, table: str, rows: pa.Table) -> pa.Table:
        trailing = {late.NAME: late.TRAILING, rejects.NAME: rejects.TRAILING}[table]
        return input_rows(rows, trailing, self.bound.source, self.bound.renamed.get(table, {}))

    def _in_columns(self, late_rows: pa.Table, in_columns: InColumns) -> pa.Table:
        return in_columns(self._inputs(late.NAME, late_rows), [USABLE] * len(late_rows))


@dataclass(frozen=True)
class ChangedRows:
    """Rows that were deleted from the source, and rows that were added to it.

    Args:
        deleted: usable rows that were deleted and that windows may contain: event time, key and used columns, named as
            in events.
        added: usable rows that were added.
        files: the files that were compared.
        rejected: added rows that can't be used: number of the part, position in its file, and number of the reason.
        deleted_unusable: number of deleted rows that had been rejected or dropped.
        deleted_late: usable rows that were deleted, and that are in no window because they were late.
        deleted_by_table: the deleted rows of tables late and rejects, by table, with all columns of the table.
        dropped: number of added rows for which `where` is not true.
        largest: largest event time of added rows that move the watermark, by source partition.
        before: usable added rows with times before those that the pipeline reads; no window accepts them.
        by_feed: True if some of the rows come from a change feed.
    """

    deleted: pa.Table
    added: pa.Table
    files: FileSlice
    rejected: pa.Table
    deleted_unusable: int = 0
    dropped: int = 0
    largest: Mapping[str, Millis] = field(default_factory=dict)
    before: pa.Table | None = None
    by_feed: bool = False
    deleted_late: pa.Table | None = None
    deleted_by_table: Mapping[str, pa.Table] = field(default_factory=dict)

    def since(self, start: Millis) -> ChangedRows:
        """Return the same rows, with those before a time (the start of the first interval) marked as in no window."""
        since_deleted, since_added = (pc.greater_equal(side[TIME], start) for side in (self.deleted, self.added))
        return replace(
            self,
            deleted=self.deleted.filter(since_deleted),
            added=self.added.filter(since_added),
            deleted_unusable=self.deleted_unusable + len(self.deleted) - int(pc.sum(since_deleted).as_py() or 0),
            before=self.added.filter(pc.invert(since_added)),
        )

    @property
    def all_deleted(self) -> pa.Table:
        """All usable rows that were deleted, including late ones."""
        return self.deleted if self.deleted_late is None else pa.concat_tables([self.deleted, self.deleted_late])

    @property
    def deleted_count(self) -> int:
        """Number of deleted rows."""
        return len(self.all_deleted) + self.deleted_unusable

    @property
    def added_count(self) -> int:
        """Number of added rows."""
        before = 0 if self.before is None else len(self.before)
        return len(self.added) + len(self.rejected) + self.dropped + before

    @property
    def any(self) -> bool:
        """True if any row was deleted or added."""
        return bool(self.deleted_count or self.added_count)

    def rejected_rows(self) -> pa.Table:
        """Return the rejected rows with all columns of the source, and the reason."""
        numbers, places = (np.asarray(self.rejected[name].to_numpy(), np.int64) for name in (FILE, PLACE))
        rows = self.files.source_rows(numbers, places)
        reasons = pa.array(rejects.REASONS).take(self.rejected[STATUS].cast(pa.int64()))
        return rows.append_column(STATUS, reasons)


def changed_rows(
    source: OpenInput,
    changed: ChangedFiles,
    version: int,
    held: HeldRows | None = None,
    until: Millis = LAST_TIME,
) -> ChangedRows:
    """Compare the rows of the files in which two versions differ.

    Usable rows with event time `until` or later are left out.
    """
    listed = [(False, file) for file in changed.deleted] + [(True, file) for file in changed.added]
    files = source.files.of(
        # No row is ahead of its commit here: a rewritten row has a later commit than before. Unusable rows belong to no
        # interval, so they are all compared.
        FilePart.of(file, int(is_added), LAST_TIME, FIRST_TIME, LAST_TIME, input=source.number, version=version)
        for is_added, file in listed
    )
    read = _Read(source, files)
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as threads:
        judged = list(threads.map(read.part, range(len(files.parts))))
    sides = [
        [each for (is_added, _), part in zip(listed, judged, strict=True) if is_added is side for each in part]
        for side in (False, True)
    ]
    deleted, added = (pa.concat_tables([read.nothing, *map(read.events, side)]) for side in sides)
    names = [name for name in deleted.column_names if name not in (FILE, PLACE)]
    kept_deleted, kept_added = surplus(deleted, added, names)
    deleted, added = deleted.filter(pa.array(kept_deleted)), added.filter(pa.array(kept_added))
    written = np.array([file.written for _, file in listed], np.int64)
    added = _rejecting_ahead(added, written, source.columns.max_ahead)
    dropped = [pa.concat_tables(tables) if (tables := read.dropped(side, until)) else None for side in sides]
    deleted_dropped, added_dropped = _surplus_of(*dropped)
    if len(deleted_dropped) and held is not None and held.is_by_other_code:
        deleted = pa.concat_tables([deleted, read.of_dropped(deleted_dropped)])
        deleted_dropped = deleted_dropped.slice(0, 0)
    deleted_count = len(deleted) + len(deleted_dropped)
    separated = DeletedRows.of_no_tables(deleted) if held is None else held.separated(deleted, read.of_rows, names)
    is_usable = pc.equal(added[STATUS], USABLE)
    usable, rejected = _before(added.filter(is_usable), until), added.filter(pc.invert(is_usable))
    events = [name for name in names if name not in (STATUS, PARTITION)]
    return ChangedRows(
        deleted=_before(separated.usable, until).select(events),
        added=usable.select(events),
        files=files,
        rejected=rejected.select([FILE, PLACE, STATUS]),
        deleted_unusable=deleted_count - len(separated.usable) - len(separated.late),
        dropped=len(added_dropped),
        largest=_largest(_before(added.filter(_is_counted(added)), until)),
        by_feed=changed.by_feed,
        deleted_late=separated.late.select(events),
        deleted_by_table=separated.deleted_by_table,
    )


@dataclass(frozen=True)
class _Read:
    """Reads rows of an input: the columns by which they are compared, the number of their part, and their position."""

    source: OpenInput
    files: FileSlice

    @property
    def nothing(self) -> pa.Table:
        """No rows."""
        columns, files = self.source.columns, self.files
        kinds = columns.of_events
        keys = {
            f"{KEY_PREFIX}{name}": kinds.field(column).type for name, column in zip(files.key, columns.key, strict=True)
        }
        values = {f"{VALUE_PREFIX}{each.name}": each.type for each in files.values}
        fixed = {TIME: pa.int64(), STATUS: pa.int8(), PARTITION: pa.string()}
        return pa.schema({**fixed, **keys, **values, FILE: pa.int32(), PLACE: pa.int64()}).empty_table()

    def part(self, number: int) -> list[EvaluatedRows]:
        """Return the rows of a part, with their statuses."""
        columns = self.source.columns
        return list(self.files.evaluated([number], [self._names(columns)]))

    @staticmethod
    def _names(columns: ColumnsToRead) -> list[str]:
        by = [] if columns.partition_by is None else [columns.partition_by]
        return list(dict.fromkeys([*columns.names, *by]))

    def events(self, judged: EvaluatedRows) -> pa.Table:
        """Return all rows with their rejection reason, if any."""
        statuses = np.full(len(judged.times), USABLE, np.int8)
        for reason, flags in judged.rejected.items():
            statuses[flags] = rejects.REASONS.index(reason)
        return self._rows(judged.table, judged.times, statuses, judged.number, judged.places)

    def of_rows(self, rows: pa.Table, statuses: Sequence[int]) -> pa.Table:
        """Return rows with all columns of the source, with the given statuses."""
        columns = self.source.columns
        events = columns.derive(rows, self._names(columns))
        times, _ = columns.millis(events[columns.timestamp])
        return self._rows(events, times, np.array(statuses, np.int8), 0, np.zeros(len(rows), np.int64))

    def _rows(
        self, table: pa.Table, times: Int64s, statuses: npt.NDArray[np.int8], number: int, places: Int64s
    ) -> pa.Table:
        columns, schema = self.source.columns, self.nothing.schema
        if (long := statuses == KEY_TOO_LONG).any():
            table = self._cut(table, pa.array(long))
        arrays = [
            pa.chunked_array([pa.array(times)]),
            pa.chunked_array([pa.array(statuses)]),
            columns.partitions(table),
            *(plain(table[name]) for name in columns.key),
            *(plain(table[each.name]) for each in self.files.values),
            pa.chunked_array([pa.repeat(pa.scalar(number, pa.int32()), len(times))]),
            pa.chunked_array([pa.array(places)]),
        ]
        return pa.table([array.cast(each.type) for array, each in zip(arrays, schema, strict=True)], schema=schema)

    def _cut(self, table: pa.Table, long: pa.Array) -> pa.Table:
        """Cut the texts of rows whose keys are too long as in table `rejects`, so that its rows can be recognized.

        Values derived from such a text are left out, because those derived from the cut text would differ.
        """
        columns = {name: plain(table[name]).combine_chunks() for name in table.column_names}
        for name, column in columns.items():
            if rejects.is_text(column.type):
                shown = (
                    pa.nulls(len(table), column.type) if self.source.columns.is_derived(name) else rejects.cut(column)
                )
                columns[name] = pc.if_else(long, shown, column)
        return pa.table(columns)

    def of_dropped(self, rows: pa.Table) -> pa.Table:
        """Return rows that `where` drops like those that it keeps, without those that have no usable time."""
        columns = self.source.columns
        _, timely = columns.timely(columns.derive(rows, [columns.timestamp])[columns.timestamp], None)
        rows = rows.filter(pa.array(timely))
        return self.of_rows(rows, [USABLE] * len(rows))

    def dropped(self, side: Sequence[EvaluatedRows], until: Millis) -> list[pa.Table]:
        """Return the rows before `until` that `where` drops, with the columns of the source."""
        columns, tables = self.source.columns, []
        for dropped in (judged.dropped for judged in side if judged.dropped is not None):
            times, timely = columns.timely(columns.derive(dropped, [columns.timestamp])[columns.timestamp], None)
            tables.append(dropped.filter(pa.array(~timely | (times < until))))
        return tables


def _is_counted(rows: pa.Table) -> pa.ChunkedArray:
    """Return a flag for each row: whether its time moves the watermark, as `EvaluatedRows.counted` does."""
    return pc.is_in(rows[STATUS], pa.array([USABLE, KEY_TOO_LONG], pa.int8()))


def _before(rows: pa.Table, until: Millis) -> pa.Table:
    return rows if until == LAST_TIME else rows.filter(pc.less(rows[TIME], until))


def _rejecting_ahead(added: pa.Table, written: Int64s, max_ahead: Millis) -> pa.Table:
    """Return added rows, rejecting those whose time is after the time at which their file was written."""
    if not len(added):
        return added
    numbers, times, statuses = (np.asarray(added[name].to_numpy()) for name in (FILE, TIME, STATUS))
    ahead = (statuses == USABLE) & (times > written[numbers] + max_ahead)
    reason = np.int8(rejects.REASONS.index(rejects.AHEAD))
    place = added.schema.get_field_index(STATUS)
    return added.set_column(
        place, added.schema.field(place), pa.array(np.where(ahead, reason, statuses).astype(np.int8))
    )


def _surplus_of(deleted: pa.Table | None, added: pa.Table | None) -> tuple[pa.Table, pa.Table]:
    """Return the rows that only one of two tables has. None stands for an empty table."""
    if deleted is None or added is None:
        nothing = pa.table({})
        return nothing if deleted is None else deleted, nothing if added is None else added
    only_deleted, only_added = surplus(deleted, added, deleted.column_names)
    return deleted.filter(pa.array(only_deleted)), added.filter(pa.array(only_added))


def _largest(rows: pa.Table) -> dict[str, Millis]:
    grouped = rows.group_by(PARTITION).aggregate([(TIME, "max")])
    return dict(zip(grouped[PARTITION].to_pylist(), grouped[f"{TIME}_max"].to_pylist(), strict=True))
