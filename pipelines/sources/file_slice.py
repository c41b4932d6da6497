"""The rows of a slice: parts of the files of one table, or of the tables of two inputs, converted to events.

Each event has the number of its part and its position in the file, so columns that only late rows need are read later,
and only for these rows. Rows that Spark reads carry these columns instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.event_columns import (
    COMMIT,
    FILE,
    KEY_PREFIX,
    PLACE,
    ROW,
    SIDE,
    TIME,
    VALUE_PREFIX,
    plain,
)
from tidegate.pipelines.sources.base import OpenPart
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.rules import Bools, Int64s
from tidegate.pipelines.sources.source_table import EvaluatedRows, SourceTable
from tidegate.pipelines.storage.ahead import AT_ONCE, ahead
from tidegate.windowing.sides import value_column
from tidegate.windowing.time import MIN_TIMESTAMP, Millis

_MANY = 1_000_000


@dataclass(frozen=True)
class FileSlice:
    """The rows of a slice, from the table of each input; this value is sent to the tasks.

    The rows of two inputs share the columns of events, `key` and `values`, and of source rows, `row`. `late` has, by
    commit, the time up to which its rows may be late. A commit without such rows has no entry.
    """

    tables: tuple[SourceTable, ...]
    key: tuple[str, ...]
    values: pa.Schema
    row: pa.Schema
    parts: tuple[FilePart, ...] = ()
    late: Mapping[int, Millis] = field(default_factory=dict)

    def of(self, parts: Iterable[FilePart], late: Mapping[int, Millis] | None = None) -> FileSlice:
        """Return a slice of the same tables with other parts."""
        return replace(self, parts=tuple(parts), late=late or {})

    def table_of(self, number: int) -> SourceTable:
        """Return the table of a part."""
        return self.tables[self.parts[number].input]

    @property
    def needs_spark(self) -> bool:
        """True if rows of a part go through Spark before they are checked."""
        return any(self.table_of(number).needs_spark for number in range(len(self.parts)))

    def evaluated(
        self, numbers: Iterable[int] | None = None, names: Sequence[Sequence[str]] | None = None
    ) -> Iterator[EvaluatedRows]:
        """Yield the checked rows of parts that the tasks read and evaluate.

        Raises:
            Refused: a file is missing or can't be read as Spark would read it; the message names the file.
        """
        asked = list(range(len(self.parts)) if numbers is None else numbers)
        for number, (file, closing) in zip(asked, self.opened(asked), strict=True):
            part, table = self.parts[number], self.table_of(number)
            of_part = table.columns.names if names is None else names[part.input]
            with closing:
                yield from table.evaluated(number, part, file, of_part)

    def opened(self, numbers: Iterable[int]) -> Iterator[tuple[OpenPart, ExitStack]]:
        """Yield open files of parts in order, each with what closes it. Files are opened ahead.

        Errors within the block that closes a file become errors that name the file.
        """

        def entered(number: int) -> tuple[OpenPart, ExitStack]:
            closing = ExitStack()
            return closing.enter_context(self.table_of(number).open(self.parts[number])), closing

        at_once = AT_ONCE if any(table.is_far for table in self.tables) else 1
        calls = (partial(entered, number) for number in numbers)
        for opened in ahead(calls, at_once=at_once, leave=lambda each: each[1].close()):
            yield opened()

    def events(self, numbers: Iterable[int] | None = None) -> Iterator[pa.Table]:
        """Yield the usable rows of parts that the tasks evaluate: event time, commit, origin, key and used columns.

        String and binary keys are dictionaries.
        """
        return map(self.events_of, self.evaluated(numbers))

    def events_of(self, judged: EvaluatedRows) -> pa.Table:
        """Return the usable rows of a part as events."""
        part, table, rows = self.parts[judged.number], self.table_of(judged.number), len(judged.times)
        keys = zip(self.key, table.columns.key, strict=True)
        events = {
            TIME: pa.array(judged.times),
            COMMIT: pa.repeat(pa.scalar(part.commit, pa.int32()), rows),
            **{f"{KEY_PREFIX}{name}": judged.table[column] for name, column in keys},
            **{f"{VALUE_PREFIX}{field.name}": self._values(judged, field) for field in self.values},
        }
        wanted = judged.usable(part.since, part.until)
        if self.late:
            events[FILE] = pa.repeat(pa.scalar(judged.number, pa.int32()), rows)
            events[PLACE] = pa.array(judged.places)
            if judged.rows is not None:
                late = pa.array(wanted & (judged.times <= self.late.get(part.commit, MIN_TIMESTAMP)))
                whole = self.as_rows(judged, np.ones(rows, np.bool_)).to_struct_array().combine_chunks()
                events[ROW] = pc.if_else(late, whole, pa.scalar(None, whole.type))
        table_of_events = pa.table(events)
        return table_of_events if wanted.all() else table_of_events.filter(pa.array(wanted))

    def _values(self, judged: EvaluatedRows, field: pa.Field) -> pa.Array | pa.ChunkedArray:
        """Return a used column; it is null if it belongs to the other input."""
        side, rows = self.table_of(judged.number).side, len(judged.times)
        if side is None:
            return plain(judged.table[field.name])
        if field.name == SIDE:
            return pa.repeat(side, rows)
        prefix = value_column(side, "")
        if not field.name.startswith(prefix):
            return pa.nulls(rows, field.type)
        column = plain(judged.table[field.name.removeprefix(prefix)])
        return column if column.type == field.type else column.cast(field.type)

    @property
    def expected_rows(self) -> int:
        """Number of rows of all parts, for choosing the number of tasks. A part of unknown size counts as large."""
        return sum(_MANY if part.rows is None else part.rows for part in self.parts)

    def as_rows(self, judged: EvaluatedRows, wanted: Bools) -> pa.Table:
        """Return the wanted rows of a part with all columns of the source."""
        part, table, flags = self.parts[judged.number], self.table_of(judged.number), pa.array(wanted)
        rows = table.source_rows(part, judged.places[wanted]) if judged.rows is None else judged.rows.filter(flags)
        return self._in_shape(table, rows, [judged.table[column].filter(flags) for column in table.columns.key])

    def source_rows(self, numbers: Int64s, places: Int64s, keys: Sequence[pa.ChunkedArray] = ()) -> pa.Table:
        """Return rows with all columns of a source row, in the given order.

        Each row is given by the number of its part and its position in the file. Only two inputs need the keys.
        """
        tables, order = [self.row.empty_table()], []
        for number in np.unique(numbers).tolist():
            asked = np.flatnonzero(numbers == number)
            table = self.table_of(number)
            rows = table.source_rows(self.parts[number], places[asked])
            tables.append(self._in_shape(table, rows, [key.take(pa.array(asked)) for key in keys]))
            order.append(asked)
        if not order:
            return tables[0]
        back = np.argsort(np.concatenate(order), kind="stable")
        return pa.concat_tables(tables).take(pa.array(back))

    def _in_shape(self, table: SourceTable, rows: pa.Table, keys: Sequence[pa.ChunkedArray]) -> pa.Table:
        """Return rows of a table in the columns that both inputs share; unchanged if there is only one input."""
        schema = self.row
        if table.side is None:
            return pa.table(rows.columns, schema=schema)
        columns = [plain(key).cast(schema.field(name).type) for name, key in zip(self.key, keys, strict=True)]
        columns.append(pa.chunked_array([pa.repeat(table.side, len(rows))]))
        for wanted in list(schema)[len(columns) :]:
            whole = rows.to_struct_array() if wanted.name == table.side else pa.nulls(len(rows), wanted.type)
            columns.append(whole.cast(wanted.type))
        return pa.table(columns, schema=schema)
