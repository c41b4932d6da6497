"""Columns of an input that a pipeline's definition reads for each column of its tables, and how it reads them.

    key=("user",)                      user          <- user          identity
    columns={"day": "to_date(at)"}     day           <- at            transformation
    aggregate={"total": Sum("value")}  total         <- value         aggregation
    timestamp="at"                     window_start  <- at            transformation
    where="value > 0"                  every row     <- value         filter

User code, such as a process function, may use any of its columns, so each result comes from all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from tidegate.pipelines.definition import late, rejects, results
from tidegate.pipelines.definition.column_names import input_fields
from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.definition.windows import NAME as WINDOWS
from tidegate.pipelines.definition.windows import PARTITIONS
from tidegate.pipelines.observe.lineage.names import DatasetName
from tidegate.windowing.compute import CoProcess, Join, KeyedProcess, WindowJoin, Windows
from tidegate.windowing.sides import SIDES

DIRECT, INDIRECT = "DIRECT", "INDIRECT"
"""Whether a value comes from the column, or the column selects rows."""

_WINDOW_COLUMNS = ("window_start", "window_end", "final_at")


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a column of an input.

    Args:
        dataset: the input's table.
        column: name of the column in it.
        kind: `DIRECT` or `INDIRECT`.
        subtype: one of OpenLineage's, such as `AGGREGATION` or `FILTER`.
        description: the part of the definition, as text or SQL; empty for an identity.
    """

    dataset: DatasetName
    column: str
    kind: str
    subtype: str
    description: str = ""


@dataclass(frozen=True)
class LineageInput:
    """An input of a pipeline, with the name of its table, and the table's columns; none if there is no table yet."""

    part: Input
    dataset: DatasetName
    names: tuple[str, ...]

    def uses(self, columns: Iterable[str], kind: str, subtype: str, description: str = "") -> tuple[Use, ...]:
        """Return the uses of the table columns from which columns of an event come, even if these are derived."""
        uses = []
        for column in columns:
            origin = self._origins.get(column.casefold(), _Origin((column,)))
            changes = subtype == "IDENTITY" and not all(map(is_plain, origin.expressions))
            shown = () if subtype == "IDENTITY" and not changes else origin.expressions
            words = "; ".join(filter(None, [description, *shown]))
            uses += [Use(self.dataset, name, kind, _CHANGED if changes else subtype, words) for name in origin.columns]
        return tuple(uses)

    @cached_property
    def _origins(self) -> dict[str, _Origin]:
        """The origin of each column of an event, by its name in lower case.

        An expression sees the derived columns before it, and a derived column may have the same name as a table column.
        """
        origins = {name.casefold(): _Origin((name,)) for name in self.names}
        visible = dict.fromkeys(self.names)
        for name, text in self.part.columns.items():
            read = columns_of_sql(text, tuple(visible) if self.names else ())
            behind = [origins.get(column.casefold(), _Origin((column,))) for column in read]
            columns = dict.fromkeys(column for origin in behind for column in origin.columns)
            origins[name.casefold()] = _Origin(
                tuple(columns), (text, *(more for each in behind for more in each.expressions))
            )
            visible[name] = None
        return origins

    @property
    def read(self) -> tuple[str, ...]:
        """Columns of an event that user code may read."""
        if self.part.uses is not None:
            return self.part.uses
        return (*(name for name in self.names if name not in self.part.columns), *self.part.columns)

    @property
    def context(self) -> tuple[str, ...]:
        """Columns that a function gets with each element, regardless of `uses`: the key and the event time."""
        return (*self.part.key, self.part.source.timestamp)

    @property
    def filters(self) -> tuple[Use, ...]:
        """Uses by the input's `where`."""
        if self.part.where is None:
            return ()
        visible = dict.fromkeys([*self.names, *self.part.columns]) if self.names else ()
        return self.uses(columns_of_sql(self.part.where, tuple(visible)), INDIRECT, "FILTER", self.part.where)


@dataclass(frozen=True, slots=True)
class _Origin:
    """The columns of the table behind a column of an event, and the expressions in between."""

    columns: tuple[str, ...]
    expressions: tuple[str, ...] = ()


_CHANGED, _SUM = "TRANSFORMATION", "AGGREGATION"


def is_plain(text: str) -> bool:
    """Return True if an expression is just the name of a column."""
    return re.fullmatch(r"\w+|`[^`]+`", text.strip()) is not None


def columns_of_sql(text: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a table that an expression in Spark SQL names, in the order of the table.

    If the table's columns are unknown (no names), columns are named as written.
    """
    # Pipelines without SQL should not wait for this import.
    from sqlglot import exp, parse_one
    from sqlglot.dialects import Spark
    from sqlglot.errors import SqlglotError

    from tidegate.pipelines.sources.sql.words import columns_in

    try:
        tree = parse_one(text, dialect="spark")
    except SqlglotError:
        return tuple(columns_in([text], names))
    if tree.find(exp.Star):
        return tuple(names)
    # The first part of `place.distance` is the column; sqlglot parses it as a table.
    written = [column.parts[0].name for column in tree.find_all(exp.Column)]
    if not names:
        return tuple(dict.fromkeys(written))
    # Spark prefers a column to a function without parentheses, such as current_date.
    written += [bare.sql_name() for bare in tree.find_all(*Spark.Parser.NO_PAREN_FUNCTIONS.values())]
    named = {name.casefold() for name in written}
    return tuple(name for name in names if name.casefold() in named)


def column_lineage(
    pipeline: Pipeline, inputs: Sequence[LineageInput], table: str, schema: pa.Schema
) -> dict[str, object] | None:
    """Return OpenLineage's facet `columnLineage` of a table of the pipeline; None for a table without source values.

    `fields` are the uses of the inputs' columns for each column of the table, and `dataset` those that affect its rows.
    """
    if table in (results.NAME, WINDOWS):
        of_compute = _of_windows if isinstance(pipeline.compute, Windows) else _of_elements
        partitions = set(PARTITIONS.values()) if table == WINDOWS else set()
        plain = pa.schema([column for column in schema if column.name not in partitions])
        fields = [*_of_keys(pipeline, inputs), *of_compute(pipeline, inputs, plain)]
        fields += [(name, uses) for column, uses in fields if column == "window_start" for name in partitions]
        rows = tuple(_of_rows(pipeline, inputs))
    elif table in (late.NAME, rejects.NAME):
        fields = list(_of_side_table(pipeline, inputs, table))
        rows = tuple(use for each in inputs for use in each.filters)
    else:
        return None
    by_column = {name: {"inputFields": _input_fields(uses)} for name, uses in _joined(fields, schema).items()}
    return {"fields": by_column, "dataset": _input_fields(rows)}


_Fields = Iterator[tuple[str, tuple[Use, ...]]]


def _of_keys(pipeline: Pipeline, inputs: Sequence[LineageInput]) -> _Fields:
    for each in inputs:
        for name, column in zip(pipeline.key, each.part.key, strict=True):
            yield name, each.uses([column], DIRECT, "IDENTITY")


def _of_windows(pipeline: Pipeline, inputs: Sequence[LineageInput], schema: pa.Schema) -> _Fields:
    """Yield the uses in the results of windows: their bounds, and the values of aggregates or of user code."""
    windows, only, time = pipeline.compute, inputs[0], pipeline.source.timestamp
    assert isinstance(windows, Windows)
    gap = [*filter(None, [windows.assigner.column_of_gaps])]
    if windows.assigner.is_event_time and not windows.assigner.is_global:
        bounds = only.uses([time, *gap], DIRECT, _CHANGED, type(windows.assigner).__name__)
        yield from ((name, bounds) for name in _WINDOW_COLUMNS)
    aggregates = windows.aggregate if isinstance(windows.aggregate, Mapping) else {}
    is_own = windows.process is not None or windows.evictor is not None
    if aggregates and not is_own:
        for name, aggregate in aggregates.items():
            words = f"{type(aggregate).__name__}({', '.join(aggregate.columns)})"
            yield name, only.uses(aggregate.columns, DIRECT, _SUM, words)
            if aggregate.bind(None).takes_time:
                yield name, only.uses([time], INDIRECT, "SORT", words)
        return
    code = next(each for each in (windows.process, windows.reduce, windows.aggregate) if each is not None)
    columns = [column for aggregate in aggregates.values() for column in aggregate.columns] if aggregates else only.read
    context = (*only.context, *gap) if is_own else ()
    subtype = _CHANGED if code is windows.process and windows.aggregate is None else _SUM
    uses = only.uses((*columns, *context), DIRECT, subtype, _name_of(code))
    yield from ((name, uses) for name in _computed(pipeline, schema, results.RESERVED))


def _of_elements(pipeline: Pipeline, inputs: Sequence[LineageInput], schema: pa.Schema) -> _Fields:
    """Yield the uses in the results of a process function or a join."""
    compute = pipeline.compute
    assert not isinstance(compute, Windows)
    for each in inputs:
        yield "event_time", each.uses([each.part.source.timestamp], DIRECT, "IDENTITY")
    if isinstance(compute, Join) and compute.join is None:
        for side, each in zip(SIDES, inputs, strict=True):
            yield side, each.uses(each.read, DIRECT, "IDENTITY")
            for bound in ("window_start", "window_end"):
                yield bound, each.uses([each.part.source.timestamp], DIRECT, _CHANGED)
        return
    joins = isinstance(compute, Join)
    code = compute.join if isinstance(compute, Join) else compute.function
    for each in inputs:
        columns = each.read if joins else (*each.read, *each.context)
        uses = each.uses(columns, DIRECT, _CHANGED, _name_of(code))
        yield from ((name, uses) for name in _computed(pipeline, schema, results.ELEMENT_RESERVED))


def _name_of(code: object) -> str:
    return str(getattr(code, "__name__", type(code).__name__))


def _computed(pipeline: Pipeline, schema: pa.Schema, reserved: Iterable[str]) -> list[str]:
    """Return the columns of table results that the computation produces."""
    others = {*pipeline.key, *reserved}
    return [name for name in schema.names if name not in others]


def _of_side_table(pipeline: Pipeline, inputs: Sequence[LineageInput], table: str) -> _Fields:
    """Yield the uses in table late or rejects, which keep source rows unchanged."""
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
        time = [each.part.source.timestamp]
        yield "reason", each.uses(time if table == late.NAME else each.context, INDIRECT, "CONDITIONAL")
        if table == late.NAME:
            for name in ("lateness_ms", "window_start", "window_end"):
                yield name, each.uses(time, DIRECT, _CHANGED)


def _of_rows(pipeline: Pipeline, inputs: Sequence[LineageInput]) -> Iterator[Use]:
    """Yield the uses that determine which rows table results has."""
    compute = pipeline.compute
    for each in inputs:
        time, joins = [each.part.source.timestamp], isinstance(compute, Join)
        yield from each.uses(each.part.key, INDIRECT, "JOIN" if joins else "GROUP_BY")
        if isinstance(compute, Windows):
            gap = filter(None, [compute.assigner.column_of_gaps])
            yield from each.uses([*time, *gap], INDIRECT, "WINDOW", type(compute.assigner).__name__)
        elif joins:
            yield from each.uses(
                time, INDIRECT, "JOIN", "window join" if isinstance(compute, WindowJoin) else "interval join"
            )
        elif isinstance(compute, KeyedProcess | CoProcess) and compute.time_sorted:
            yield from each.uses(time, INDIRECT, "SORT")
        if each.part.watermark_by is not None:
            words = "source partition of the watermark"
            yield from each.uses([each.part.watermark_by], INDIRECT, "CONDITIONAL", words)
        yield from each.filters


def _joined(fields: Iterable[tuple[str, tuple[Use, ...]]], schema: pa.Schema) -> dict[str, tuple[Use, ...]]:
    """Return the uses by column, in the order of the table, without columns that the table lacks."""
    uses: dict[str, list[Use]] = {}
    for name, more in fields:
        uses.setdefault(name, []).extend(more)
    return {name: tuple(dict.fromkeys(uses[name])) for name in schema.names if uses.get(name)}


def _input_fields(uses: Iterable[Use]) -> list[dict[str, object]]:
    """Return uses as OpenLineage's input fields: one for each column, with all its uses."""
    by_column: dict[tuple[DatasetName, str], list[dict[str, object]]] = {}
    for use in uses:
        transformation: dict[str, object] = {"type": use.kind, "subtype": use.subtype, "masking": False}
        if use.description:
            transformation["description"] = use.description
        by_column.setdefault((use.dataset, use.column), []).append(transformation)
    return [
        {**dataset._asdict(), "field": column, "transformations": transformations}
        for (dataset, column), transformations in by_column.items()
    ]
