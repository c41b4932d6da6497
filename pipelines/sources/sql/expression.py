"""The expressions of an input, `columns` and `where`: as programs for the tasks, or as text for Spark.

A column of `columns` may use earlier ones and may replace a column of the source, and `where` sees all of them. Columns
are evaluated for the rows that `where` keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.event_columns import plain
from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.sql.compile import as_condition, columns_of, compile_expression
from tidegate.pipelines.sources.sql.program import Node, RowFailure, as_array, columns_read
from tidegate.pipelines.sources.sql.reading import Misfit, Unproven
from tidegate.pipelines.sources.sql.words import columns_in

_AS_BY_DEFAULT = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.legacy.literal.pickMinimumPrecision": "true",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
    "spark.sql.legacy.castComplexTypesToString.enabled": "false",
    "spark.sql.legacy.interval.enabled": "false",
    "spark.sql.legacy.decimal.retainFractionDigitsOnTruncate": "false",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.ansi.relationPrecedence": "false",
    "spark.sql.icu.caseMappings.enabled": "true",
}
"""Settings of Spark that change the meaning of SQL, with the values for which the programs are proven."""


def differing_setting(value_of: Callable[[str], str | None]) -> str | None:
    """Return, as a reason, a setting for which the programs are not proven, or None if there is none.

    `value_of` returns the value of a setting of Spark, or None if it is not set.
    """
    for name, wanted in _AS_BY_DEFAULT.items():
        value = value_of(name)
        if value is not None and value.lower() != wanted.lower():
            return f"Spark has {name} = {value}"
    return None


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression of an input.

    Args:
        field: its place in the pipeline: `where`, or `columns['name']`.
        text: the expression.
        reason: the reason why Spark evaluates it; None if the tasks do.
        is_misfit: True if Spark can't evaluate it either, because types don't fit; the reason names them.
    """

    field: str
    text: str
    reason: str | None = None
    is_misfit: bool = False

    @property
    def why(self) -> str:
        """The reason why Spark reads the source."""
        return f"{self.field} = {self.text!r} is evaluated by Spark: {self.reason}"


@dataclass(frozen=True)
class SparkSql:
    """The expressions of an input; this value is sent to the tasks.

    Args:
        pipeline: name of the pipeline, for errors.
        prefix: "right." for the second input, for errors.
        programs: expression of each derived column.
        where: the condition; None without `where`.
        all_move: True if the times of rows that `where` drops also move the watermark.
        partition_by: column of source partitions; None if there is only one.
        derived: columns of an event, after `columns=`; None until Spark has determined their types.
    """

    pipeline: str
    prefix: str
    programs: Mapping[str, str]
    where: str | None
    all_move: bool
    partition_by: str | None = None
    derived: pa.Schema | None = None

    @classmethod
    def of(cls, pipeline: Pipeline, input_: Input) -> SparkSql:
        """Return the expressions of an input of a pipeline, without the types of its columns."""
        prefix = "" if input_ == pipeline.inputs[0] else "right."
        all_move = input_.watermark_from == "all"
        return cls(pipeline.name, prefix, dict(input_.columns), input_.where, all_move, input_.watermark_by)

    @property
    def schema(self) -> pa.Schema:
        """Columns of an event."""
        assert self.derived is not None
        return self.derived

    def reads(self, names: Sequence[str], source: Sequence[str]) -> list[str]:
        """Return the columns of the source from which columns of events, and the expressions, are computed."""
        partition = [] if self.partition_by is None else [self.partition_by]
        texts = [*self.programs.values(), *([] if self.where is None else [self.where])]
        wanted = {*columns_in(texts, source), *(name for name in (*names, *partition) if name not in self.programs)}
        return [name for name in source if name in wanted] or list(source[:1])


@dataclass(frozen=True)
class SourceSql:
    """The programs of an input; this value is sent to the tasks.

    Args:
        pipeline: name of the pipeline, for errors.
        schema: columns of an event, after `columns=`.
        programs: program of each derived column.
        where: program of the condition; None without `where`.
        texts: text of each expression, by its field.
        all_move: True if the times of rows that `where` drops also move the watermark.
    """

    pipeline: str
    schema: pa.Schema
    programs: Mapping[str, Node]
    where: Node | None
    texts: Mapping[str, str]
    all_move: bool = False

    def reads(self, names: Sequence[str]) -> list[str]:
        """Return the columns of the source from which columns of events and `where` are computed."""
        read: dict[str, None] = {}
        for name in names:
            program = self.programs.get(name)
            read.update(dict.fromkeys([name] if program is None else sorted(columns_read(program))))
        if self.where is not None:
            read.update(dict.fromkeys(sorted(columns_read(self.where))))
        return list(read)

    def kept(self, rows: pa.Table) -> npt.NDArray[np.bool_] | None:
        """Return a flag for each row of the source: whether `where` keeps it. Return None if it keeps all."""
        if self.where is None:
            return None
        met = self._evaluated("where", self.where, _plain(rows, columns_read(self.where)))
        kept = np.asarray(pc.fill_null(met, False).to_numpy())
        return None if kept.all() else kept

    def derive(self, rows: pa.Table, names: Sequence[str], key: Sequence[str] = ()) -> pa.Table:
        """Return columns of events. Strings and bytes of a `key` become dictionaries."""
        columns = []
        for name in names:
            program = self.programs.get(name)
            if program is None:
                columns.append(rows[name])
                continue
            values = self._evaluated(f"columns[{name!r}]", program, _plain(rows, columns_read(program)))
            is_text = pa.types.is_string(values.type) or pa.types.is_binary(values.type)
            columns.append(values.dictionary_encode().unify_dictionaries() if is_text and name in key else values)
        return pa.table(columns, names=list(names))

    def _evaluated(self, field: str, program: Node, rows: pa.Table) -> pa.ChunkedArray:
        try:
            empty = [pa.array([], field.type) for field in rows.schema]
            batches = rows.to_batches() or [pa.RecordBatch.from_arrays(empty, schema=rows.schema)]
            chunks = [as_array(program.evaluate(batch), batch.num_rows) for batch in batches]
            return pa.chunked_array(chunks, program.type)
        except (RowFailure, pa.ArrowInvalid) as error:
            raise Refused(
                f"{field} of pipeline {self.pipeline!r}: {self.texts[field]!r} fails for a row: {error}. Nothing was "
                "committed. Rewrite it so that such a row gives null, for example with try_cast, try_to_timestamp, "
                "nullif or CASE. If Spark can evaluate the row, give the source reader='spark'"
            ) from error


def _plain(rows: pa.Table, names: frozenset[str]) -> pa.Table:
    """Return the named columns without dictionaries; if none is named, one column, which keeps the number of rows."""
    wanted = sorted(names) or rows.column_names[:1]
    return pa.table([plain(rows[name]) for name in wanted], names=wanted)


def compile_input(
    pipeline: str, input_: Input, source: pa.Schema, unusual: Mapping[str, str]
) -> tuple[SourceSql, list[Expression]]:
    """Compile the expressions of an input.

    Returns:
        The programs, which are usable only if no expression has a reason, and all expressions.
    """
    columns, schema = columns_of(source), source
    programs: dict[str, Node] = {}
    expressions: list[Expression] = []
    unproven: set[str] = set()
    for name, text in input_.columns.items():
        field = f"columns[{name!r}]"
        try:
            program = _checked(text, columns, unusual)
            if any(other.lower() == name.lower() and other != name for other in columns):
                raise Unproven("it replaces a column whose name differs only in case")
        except Unproven as error:
            expressions.append(Expression(field, text, _reason(error, unproven), isinstance(error, Misfit)))
            unproven.add(name)
            columns.pop(name, None)
            continue
        expressions.append(Expression(field, text))
        columns[name] = programs[name] = program
        place, derived = schema.get_field_index(name), pa.field(name, program.type)
        schema = schema.append(derived) if place < 0 else schema.set(place, derived)
    where = None
    if input_.where is not None:
        try:
            where = as_condition(_checked(input_.where, columns, unusual))
            expressions.append(Expression("where", input_.where))
        except Unproven as error:
            expressions.append(Expression("where", input_.where, _reason(error, unproven), isinstance(error, Misfit)))
    texts = {expression.field: expression.text for expression in expressions}
    return SourceSql(pipeline, schema, programs, where, texts, input_.watermark_from == "all"), expressions


def _reason(error: Unproven, left_to_spark: Collection[str]) -> str:
    """Return the reason for an expression. To the compiler, a column that Spark evaluates is unknown."""
    for name in sorted(left_to_spark):
        if str(error).startswith(repr(name)):
            return f"it uses {name!r}, which Spark evaluates"
    return str(error)


def _checked(text: str, columns: Mapping[str, Node], unusual: Mapping[str, str]) -> Node:
    program = compile_expression(text, columns)
    for name in sorted(columns_read(program)):
        if name in unusual:
            raise Unproven(unusual[name])
    return program
