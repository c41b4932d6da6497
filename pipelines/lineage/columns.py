"""Columns of an input that a pipeline's definition reads for each column of its tables, and how it reads them.

    key=("user",)                      user          <- user          identity
    columns={"day": "to_date(at)"}     day           <- at            transformation
    aggregate={"total": Sum("value")}  total         <- value         aggregation
    timestamp="at"                     window_start  <- at            transformation
    where="value > 0"                  every row     <- value         filter

Code of a user's own, such as a process function, may use any of its columns, so each result comes from all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.lineage.names import DatasetName
from tidegate.pipelines.tables import late, rejects, results
from tidegate.pipelines.tables.columns import input_fields
from tidegate.windowing.aggregates import Aggregate
from tidegate.windowing.compute import CoProcess, IntervalJoin, KeyedProcess, Windows
from tidegate.windowing.operators.two_inputs import SIDES

DIRECT, INDIRECT = "DIRECT", "INDIRECT"
"""A value comes from the column, or the column decides about rows."""

_WINDOW_COLUMNS = ("window_start", "window_end", "final_at")


@dataclass(frozen=True, slots=True)
class Use:
    """Use of a column of an input.

    Args:
        dataset: the input's table.
        column: name of the column in it.
        kind: `DIRECT` or `INDIRECT`.
        subtype: one of OpenLineage's, such as `AGGREGATION` or `FILTER`.
        description: the part of the definition, in words or SQL; empty for an identity.
    """

    dataset: DatasetName
    column: str
    kind: str
    subtype: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class ColumnUses:
    """Uses of the inputs' columns in one table.

    Args:
        fields: uses by column of the table.
        dataset: uses that decide about the rows of the whole table.
    """

    fields: Mapping[str, tuple[Use, ...]]
    dataset: tuple[Use, ...]

    def to_facet(self) -> dict[str, object]:
        """Return the content of OpenLineage's facet `columnLineage`."""
        return {
            "fields": {name: {"inputFields": _input_fields(uses)} for name, uses in self.fields.items()},
            "dataset": _input_fields(self.dataset),
        }


@dataclass(frozen=True, slots=True)
class LineageInput:
    """An input of a pipeline, with the columns of its table.

    Args:
        part: the input.
        dataset: name of its table.
        names: columns of its table; empty if there is no table yet.
    """

    part: Input
    dataset: DatasetName
    names: tuple[str, ...]

    def uses(self, column: str, kind: str, subtype: str, description: str = "") -> tuple[Use, ...]:
        """Return the uses of columns of the table behind a column of an event, which may be derived."""
        behind, expressions = self._behind(column, len(self.part.columns))
        if subtype == "IDENTITY" and all(map(is_plain, expressions)):
            expressions = []
        elif subtype == "IDENTITY":
            subtype = _CHANGED
        words = "; ".join(filter(None, [description, *expressions]))
        return tuple(Use(self.dataset, name, kind, subtype, words) for name in behind)

    def _behind(self, column: str, limit: int) -> tuple[list[str], list[str]]:
        """Return the columns of the table behind a column, and the expressions on the way.

        An expression sees the derived columns before it, and a derived column may have the name of one of the table.

        Args:
            column: name of the column.
            limit: number of the derived columns that are seen.
        """
        derived = list(self.part.columns)[:limit]
        place = next((i for i, name in enumerate(derived) if name.casefold() == column.casefold()), None)
        if place is None:
            return [next((name for name in self.names if name.casefold() == column.casefold()), column)], []
        text = self.part.columns[derived[place]]
        visible = dict.fromkeys([*self.names, *derived[:place]]) if self.names else ()
        columns, expressions = list[str](), [text]
        for name in columns_of_sql(text, tuple(visible)):
            further, more = self._behind(name, place)
            columns += further
            expressions += more
        return list(dict.fromkeys(columns)), expressions

    @property
    def read(self) -> tuple[str, ...]:
        """Columns of an event that code of the user's own may read."""
        if self.part.uses is not None:
            return self.part.uses
        return (*(name for name in self.names if name not in self.part.columns), *self.part.columns)


_CHANGED = "TRANSFORMATION"
_BARE_FUNCTIONS = frozenset(
    {
        "current_catalog",
        "current_database",
        "current_date",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_user",
        "localtime",
        "localtimestamp",
        "session_user",
        "user",
    }
)
"""Functions of Spark that need no parentheses."""


def is_plain(text: str) -> bool:
    """Return True if an expression is only the name of a column."""
    return re.fullmatch(r"\w+|`[^`]+`", text.strip()) is not None


def columns_of_sql(text: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a table that an expression in Spark SQL names, in the order of the table.

    Args:
        text: the expression.
        names: all columns of the table; empty if they are not known, and then columns are named as they are written.
    """
    # Pipelines without SQL should not wait for this import.
    from sqlglot import exp, parse_one
    from sqlglot.errors import SqlglotError

    from tidegate.pipelines.sources.sql.words import columns_in

    try:
        tree = parse_one(text, dialect="spark")
    except SqlglotError:
        return tuple(columns_in([text], names))
    if tree.find(exp.Star):
        return tuple(names)
    # The first part of `place.distance` is the column, and sqlglot takes it for a table.
    written = [column.parts[0].name for column in tree.find_all(exp.Column)]
    if not names:
        return tuple(dict.fromkeys(written))
    # For Spark a column goes before a function that needs no parentheses, such as current_date.
    written += columns_in([text], [name for name in names if name.casefold() in _BARE_FUNCTIONS])
    named = {name.casefold() for name in written}
    return tuple(name for name in names if name.casefold() in named)


def column_uses(pipeline: Pipeline, inputs: Sequence[LineageInput], table: str, schema: pa.Schema) -> ColumnUses | None:
    """Return the uses of the inputs' columns in one of the pipeline's tables; None for a table without source values.

    Args:
        pipeline: the pipeline.
        inputs: its inputs.
        table: `results`, `late` or `rejects`.
        schema: columns of the table.
    """
    if table == results.NAME:
        fields = _of_results(pipeline, inputs, schema)
        return ColumnUses(_joined(fields, schema), tuple(_of_rows(pipeline, inputs)))
    if table not in (late.NAME, rejects.NAME):
        return None
    fields = _of_side_table(pipeline, inputs, table)
    filters = (use for each in inputs for use in _of_where(each))
    return ColumnUses(_joined(fields, schema), tuple(filters))


_Fields = Iterator[tuple[str, tuple[Use, ...]]]


def _of_results(pipeline: Pipeline, inputs: Sequence[LineageInput], schema: pa.Schema) -> _Fields:
    yield from _of_keys(pipeline, inputs)
    compute = pipeline.compute
    if isinstance(compute, Windows):
        only = inputs[0]
        if compute.assigner.is_event_time and not compute.assigner.is_global:
            assigner = type(compute.assigner).__name__
            behind = [pipeline.source.timestamp, *filter(None, [compute.assigner.column_of_gaps])]
            for name in _WINDOW_COLUMNS:
                yield name, tuple(use for column in behind for use in only.uses(column, DIRECT, _CHANGED, assigner))
        if isinstance(compute.aggregate, Mapping) and compute.process is None:
            for name, aggregate in compute.aggregate.items():
                words = f"{type(aggregate).__name__}({', '.join(aggregate.columns)})"
                yield name, tuple(use for column in aggregate.columns for use in only.uses(column, DIRECT, _SUM, words))
                if aggregate.bind(None).takes_time:
                    yield name, only.uses(pipeline.source.timestamp, INDIRECT, "SORT", words)
            return
        words, subtype = _own_code(compute)
        columns = _of_aggregates(compute.aggregate) if isinstance(compute.aggregate, Mapping) else only.read
        if compute.process is not None:
            columns = (*columns, *_of_context(only), *filter(None, [compute.assigner.column_of_gaps]))
        uses = tuple(use for column in columns for use in only.uses(column, DIRECT, subtype, words))
        yield from ((name, uses) for name in _computed(pipeline, schema, results.RESERVED))
        return
    for each in inputs:
        yield "event_time", each.uses(each.part.source.timestamp, DIRECT, "IDENTITY")
    names = _computed(pipeline, schema, results.ELEMENT_RESERVED)
    if isinstance(compute, IntervalJoin) and compute.join is None:
        for side, each in zip(SIDES, inputs, strict=True):
            yield side, tuple(use for column in each.read for use in each.uses(column, DIRECT, "IDENTITY"))
        return
    function = compute.join if isinstance(compute, IntervalJoin) else compute.function
    words = getattr(function, "__name__", type(function).__name__)
    for each in inputs:
        columns = each.read if isinstance(compute, IntervalJoin) else (*each.read, *_of_context(each))
        uses = tuple(use for column in columns for use in each.uses(column, DIRECT, _CHANGED, words))
        yield from ((name, uses) for name in names)


def _of_context(each: LineageInput) -> tuple[str, ...]:
    """Return the columns that a function gets beside its elements, whatever `uses` says: the key and the event time."""
    return (*each.part.key, each.part.source.timestamp)


_SUM = "AGGREGATION"


def _own_code(windows: Windows) -> tuple[str, str]:
    """Return the name of the function that makes a result of a window's elements, and the kind of its work."""
    if windows.process is not None:
        return type(windows.process).__name__, _CHANGED if windows.aggregate is None else _SUM
    if windows.reduce is not None:
        return getattr(windows.reduce, "__name__", type(windows.reduce).__name__), _SUM
    return type(windows.aggregate).__name__, _SUM


def _of_aggregates(aggregates: Mapping[str, Aggregate]) -> list[str]:
    return list(dict.fromkeys(column for aggregate in aggregates.values() for column in aggregate.columns))


def _computed(pipeline: Pipeline, schema: pa.Schema, reserved: Iterable[str]) -> list[str]:
    """Return the columns of table results that the computation makes."""
    others = {*pipeline.key, *reserved}
    return [name for name in schema.names if name not in others]


def _of_keys(pipeline: Pipeline, inputs: Sequence[LineageInput]) -> _Fields:
    for each in inputs:
        for name, column in zip(pipeline.key, each.part.key, strict=True):
            yield name, each.uses(column, DIRECT, "IDENTITY")


def _of_side_table(pipeline: Pipeline, inputs: Sequence[LineageInput], table: str) -> _Fields:
    """Yield the uses in table late or rejects, which keep rows of the source as they are."""
    if len(inputs) == 1:
        only = inputs[0]
        source = pa.schema([pa.field(name, pa.null()) for name in only.names])
        kept = input_fields(late.TRAILING if table == late.NAME else rejects.TRAILING, source)
        for name, field in zip(only.names, kept, strict=True):
            yield field.name, (Use(only.dataset, name, DIRECT, "IDENTITY"),)
    else:
        yield from _of_keys(pipeline, inputs)
        for side, each in zip(SIDES, inputs, strict=True):
            yield side, tuple(Use(each.dataset, name, DIRECT, "IDENTITY") for name in each.names)
    for each in inputs:
        keys = [] if table == late.NAME else each.part.key
        deciding = [*keys, each.part.source.timestamp]
        yield "reason", tuple(use for column in deciding for use in each.uses(column, INDIRECT, "CONDITIONAL"))
        if table == late.NAME:
            for name in ("lateness_ms", "window_start", "window_end"):
                yield name, each.uses(each.part.source.timestamp, DIRECT, _CHANGED)


def _of_rows(pipeline: Pipeline, inputs: Sequence[LineageInput]) -> Iterator[Use]:
    """Yield the uses that decide which rows table results has."""
    compute = pipeline.compute
    for each in inputs:
        time = each.part.source.timestamp
        joins = isinstance(compute, IntervalJoin)
        for column in each.part.key:
            yield from each.uses(column, INDIRECT, "JOIN" if joins else "GROUP_BY")
        if isinstance(compute, Windows):
            words = type(compute.assigner).__name__
            for column in filter(None, [time, compute.assigner.column_of_gaps]):
                yield from each.uses(column, INDIRECT, "WINDOW", words)
        elif joins:
            yield from each.uses(time, INDIRECT, "JOIN", "interval join")
        elif isinstance(compute, KeyedProcess | CoProcess) and compute.time_sorted:
            yield from each.uses(time, INDIRECT, "SORT")
        if each.part.watermark_by is not None:
            yield from each.uses(each.part.watermark_by, INDIRECT, "CONDITIONAL", "source partition of the watermark")
        yield from _of_where(each)


def _of_where(each: LineageInput) -> Iterator[Use]:
    if each.part.where is not None:
        visible = dict.fromkeys([*each.names, *each.part.columns]) if each.names else ()
        for column in columns_of_sql(each.part.where, tuple(visible)):
            yield from each.uses(column, INDIRECT, "FILTER", each.part.where)


def _joined(fields: _Fields, schema: pa.Schema) -> dict[str, tuple[Use, ...]]:
    """Return the uses by column, in the order of the table; a column that the table lacks is left out."""
    uses: dict[str, list[Use]] = {}
    for name, more in fields:
        uses.setdefault(name, []).extend(more)
    return {name: tuple(dict.fromkeys(uses[name])) for name in schema.names if uses.get(name)}


def _input_fields(uses: Iterable[Use]) -> list[dict[str, object]]:
    """Return uses as OpenLineage's input fields: one for each column, with all that is done with it."""
    by_column: dict[tuple[DatasetName, str], list[dict[str, object]]] = {}
    for use in uses:
        transformation: dict[str, object] = {"type": use.kind, "subtype": use.subtype, "masking": False}
        if use.description:
            transformation["description"] = use.description
        by_column.setdefault((use.dataset, use.column), []).append(transformation)
    return [
        {**dataset.to_dict(), "field": column, "transformations": transformations}
        for (dataset, column), transformations in by_column.items()
    ]
