"""Presents the rows of a test as a slice, which the code of a run evaluates, checks and counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition import rejects
from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.bound_input import BoundInput
from tidegate.pipelines.definition.columns import to_delta
from tidegate.pipelines.definition.event_columns import KEPT, LAST_TIME
from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.engine.base import Batches, Names, Run
from tidegate.pipelines.engine.local import order_by
from tidegate.pipelines.epoch.event_times import SeenEvents
from tidegate.pipelines.epoch.file_measure import Measures, count_all
from tidegate.pipelines.sources.choose_reader import ReaderChoice, choose_evaluator, columns_to_read, slice_of_tables
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.source_table import EvaluatedRows, SourceTable
from tidegate.pipelines.sources.sql.expression import SparkSql
from tidegate.windowing.errors import IllegalArgument

Row: TypeAlias = Mapping[str, Any]

Derive: TypeAlias = Callable[[dict[str, Any]], Row | None]
"""A substitute for `columns` and `where`. It returns the row with its derived columns, or None to drop the row."""


@dataclass(frozen=True, slots=True)
class HarnessInput:
    """Evaluates the rows of an input with `derive`, or with the programs of a run if it is None.

    Args:
        source: columns of the source, in the types of Delta.
        derived: columns after `columns=`.
        choice: the programs of `columns` and `where`.
        derive: the substitute for them.
    """

    source: pa.Schema
    derived: pa.Schema
    choice: ReaderChoice
    derive: Derive | None = None

    @classmethod
    def of(
        cls, pipeline: Pipeline, input_: Input, source: pa.Schema, derived: pa.Schema | None, derive: Derive | None
    ) -> HarnessInput:
        """Return the input of a harness.

        Raises:
            IllegalArgument: a run leaves an expression to Spark, and `derive` is None; the error names the expression.
        """
        schema = _in_delta(source)
        if derive is not None:
            # The function takes the place of the expressions.
            choice = _choice(pipeline, replace(input_, columns={}, where=None), schema)
            return cls(schema, schema if derived is None else _in_delta(derived), choice, derive)
        choice = _choice(pipeline, input_, schema)
        for expression in choice.expressions:
            if expression.reason is not None:
                raise IllegalArgument(
                    expression.field,
                    expression.text,
                    f"Spark evaluates it in a run ({expression.reason}), and the harness has no Spark: give derive= a "
                    "function that does the same for a row",
                )
        return cls(schema, schema if choice.sql is None else choice.sql.schema, choice)


def _choice(pipeline: Pipeline, input_: Input, schema: pa.Schema) -> ReaderChoice:
    choice = choose_evaluator(pipeline, input_, schema)
    if choice.sql_by_spark is None or any(expression.reason is not None for expression in choice.expressions):
        return choice
    # Only Spark names source partitions of this type; Arrow's text divides the rows in the same way.
    return choose_evaluator(pipeline, replace(input_, watermark_by=None), schema)


def _in_delta(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each.with_type(to_delta(each.type)) for each in schema])


@dataclass(frozen=True)
class HarnessSlice:
    """The rows of a test that an epoch reads, each part with its rows; it takes the place of the files of a slice."""

    bound: BoundPipeline
    inputs: Sequence[HarnessInput]
    parts: list[FilePart] = field(default_factory=list)
    judged: list[EvaluatedRows] = field(default_factory=list)
    measures: Measures = field(default_factory=Measures)
    rejected: list[dict[str, Any]] = field(default_factory=list)

    def add(self, part: FilePart, rows: Sequence[Row], with_rejects: bool = True) -> None:
        """Evaluate the rows of a part, check and count them. For `with_rejects`, see `measure_files`."""
        table = self.slice.tables[part.input]
        source = _table(rows, self.inputs[part.input].source)
        number, places, columns = len(self.parts), np.arange(len(rows)), table.columns
        self.parts.append(part)
        names = self._names(self.bound.inputs[part.input], columns.names)
        if self.inputs[part.input].derive is None:
            judged = table.evaluated_rows(number, part, source, places, names)
        else:
            judged = table.evaluated_by_spark(number, part, self._derived(part.input, rows), places, None)
        judged = replace(judged, rows=source.take(pa.array(judged.places)))
        self.judged.append(judged)
        self.measures.add_all(part, number, count_all(columns, judged, part, with_rejects))
        flags_of = {reason: flags for reason, flags in judged.rejected.items() if with_rejects}
        if (long := judged.rejected.get(rejects.KEY_TOO_LONG)) is not None:
            # Such rows count as usable, because a run rejects them in the interval of their times.
            flags_of[rejects.KEY_TOO_LONG] = long & judged.counted(part.since, part.until)
        reasons = {int(place): reason for reason, flags in flags_of.items() for place in judged.places[flags]}
        self.rejected.extend(self._rejected(part, rows[place], reasons[place]) for place in sorted(reasons))

    @property
    def slice(self) -> FileSlice:
        """The slice, whose parts have no files."""
        tables = []
        for part, given in zip(self.bound.inputs, self.inputs, strict=True):
            by_spark = None
            if given.derive is not None:
                by_spark = replace(SparkSql.of(self.bound.pipeline, part.input), derived=given.derived)
            columns = columns_to_read(self.bound.pipeline, part, given.choice, by_spark)
            tables.append(SourceTable(None, columns, part.side))
        # Each row may turn out to be late, so each event has its source row.
        late = {part.commit: LAST_TIME for part in self.parts}
        return slice_of_tables(self.bound, tables).of(self.parts, late)

    def events(self) -> list[pa.Table]:
        """Return the usable rows as events."""
        files = self.slice
        return [files.events_of(judged) for judged in self.judged]

    def seen(self, number: int) -> SeenEvents:
        """Return the events of an input for a generator that reads them."""
        return SeenEvents(self, self.slice, self.bound.inputs[number], number)

    def in_order(self, files: FileSlice, run: Run, schema: pa.Schema, names: Names, by: Sequence[str]) -> Batches:
        """Run a function over the rows of the parts of a slice, and yield its results in order."""
        mine = [
            replace(judged, number=files.parts.index(part))
            for part, judged in zip(self.parts, self.judged, strict=True)
            if part in files.parts
        ]
        table = pa.Table.from_batches(run(iter(mine)), schema)
        yield from table.take(order_by(table, by)).to_batches()

    def _rejected(self, part: FilePart, row: Row, reason: str) -> dict[str, Any]:
        """Return a row as in table `rejects`, where long values are cut if the key is too long."""
        shown = {}
        for each in self.inputs[part.input].source if reason == rejects.KEY_TOO_LONG else ():
            if rejects.has_text(each.type):
                shown[each.name] = rejects.cut(pa.array([row[each.name]], each.type))[0].as_py()
        return {**row, **shown, "reason": reason}

    def _names(self, part: BoundInput, names: Sequence[str]) -> list[str]:
        by = [] if part.input.watermark_by is None else [part.input.watermark_by]
        uses = part.derived.names if part.input.uses is None else part.input.uses
        return list(dict.fromkeys([*names, *by, *(uses if part.reads_events else ())]))

    def _derived(self, number: int, rows: Sequence[Row]) -> pa.Table:
        """Return the columns that the user's function derives, and a flag for each row: True if it is kept."""
        derive, schema = self.inputs[number].derive, self.inputs[number].derived
        assert derive is not None
        derived = [derive(dict(row)) for row in rows]
        # A row that is dropped has only the columns of the source.
        values = [row if of_row is None else of_row for row, of_row in zip(rows, derived, strict=True)]
        kept = pa.array([of_row is not None for of_row in derived], pa.bool_())
        return _table(values, schema).append_column(KEPT, kept)


def _table(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    return pa.table(
        [_column(each.name, [row.get(each.name) for row in rows], each.type) for each in schema], schema=schema
    )


def _column(name: str, values: Sequence[object], kind: pa.DataType) -> pa.Array:
    try:
        column = pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise TypeError(f"rows: column {name!r} has type {kind}: {error}") from None
    # Arrow cuts 1.5 to a whole number and a time to its date, and takes a time without a zone as one in UTC.
    exact = not (pa.types.is_nested(kind) or pa.types.is_floating(kind))
    for given, held in zip(values, column.to_pylist(), strict=True) if exact else ():
        if given != held:
            raise TypeError(f"rows: column {name!r} has type {kind}, which can't hold {given!r}: give {held!r}")
    return column
