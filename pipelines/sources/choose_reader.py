"""Choice of an input's reader: whether Arrow or Spark reads its files, and whether Arrow or Spark evaluates its SQL.

Tasks read files with Arrow, and evaluate SQL that is proven to mean the same in Arrow. Spark evaluates other SQL over
the rows that the tasks read. Spark reads the files itself if the user asks for it, if a source has features that
Tidegate's reader does not support, or if unproven SQL uses a column that Spark compares differently. A single
unsupported feature leaves the whole table to Spark. `explain` shows the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

import pyarrow as pa

from tidegate.pipelines.definition.accepted_times import AcceptedTimes
from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.bound_input import BoundInput
from tidegate.pipelines.definition.columns import quoted
from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.base import Source, SparkSource
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.rules import gap_column
from tidegate.pipelines.sources.source_columns import ColumnsToRead, without_metadata
from tidegate.pipelines.sources.source_table import SourceTable
from tidegate.pipelines.sources.sql.compile import compile_expression
from tidegate.pipelines.sources.sql.expression import (
    Expression,
    SourceSql,
    SparkSql,
    compile_input,
    differing_setting,
)
from tidegate.pipelines.sources.sql.program import Node
from tidegate.pipelines.sources.sql.reading import Unproven
from tidegate.pipelines.sources.sql.words import changing_call, changing_value, check_expressions, columns_in
from tidegate.pipelines.storage.warehouse import is_local
from tidegate.windowing.type_names import name_of

Setting: TypeAlias = Callable[[str], str | None]
"""Function that returns the value of a setting of Spark, or None if it is not set."""

_OF_ONE_TEXT = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean)
"""Types whose values Arrow and Spark convert to the same text, so that it can name a source partition."""


def unset(name: str) -> str | None:
    """Return None: every setting has its default."""
    return None


@dataclass(frozen=True)
class ReaderChoice:
    """The readers of an input: of its files, and of its SQL.

    Args:
        files_by_spark: the reason why Spark reads the files; None if the tasks read them.
        sql_by_spark: the reason why Spark evaluates the SQL; None if the tasks do, or if there is none.
        sql: programs of the SQL for the tasks; None if there is none, or if Spark evaluates it.
        partition: program of the text that names a row's source partition; None if none is needed.
        expressions: each expression of `columns` and `where`, with the reason if no program is proven for it.
        derived: columns after `columns=`; None if only Spark knows their types.
    """

    files_by_spark: str | None = None
    sql_by_spark: str | None = None
    sql: SourceSql | None = None
    partition: Node | None = None
    expressions: tuple[Expression, ...] = ()
    derived: pa.Schema | None = None

    @property
    def needs_spark(self) -> bool:
        """True if rows go through Spark before they are checked."""
        return self.files_by_spark is not None or self.sql_by_spark is not None


def asks_for_spark(input_: Input) -> str | None:
    """Return the reason why an input's description makes Spark read its files, or None if it doesn't."""
    # This is a field of DeltaSource: other sources need not be readable by Spark.
    return "the source says reader='spark'" if getattr(input_.source, "reader", "auto") == "spark" else None


def choose_reader(pipeline: Pipeline, input_: Input, source: Source, setting: Setting = unset) -> ReaderChoice:
    """Return what reads an input, without starting Spark.

    `setting` returns the value of a setting of Spark, None if it is not set.

    Raises:
        Refused: an expression reads the clock, uses random values, or has types that don't fit.
    """
    left = source.left_to_spark() if isinstance(source, SparkSource) else None
    files_by_spark = asks_for_spark(input_) or left or _unknown_type(source.schema)
    unusual = source.unusual if isinstance(source, SparkSource) else {}
    choice = choose_evaluator(pipeline, input_, source.schema, setting, unusual)
    if files_by_spark is None and choice.sql_by_spark is not None and unusual:
        texts = [*input_.columns.values(), *([] if input_.where is None else [input_.where])]
        for name in columns_in(texts, list(unusual)):
            files_by_spark = f"{choice.sql_by_spark}, and {unusual[name]}"
            break
    return choice if files_by_spark is None else replace(choice, files_by_spark=files_by_spark, sql=None)


def check_correctable(pipeline: Pipeline, input_: Input, source: Source, choice: ReaderChoice) -> None:
    """Refuse a source whose changes are to be corrected while its rows go through Spark."""
    if not (choice.needs_spark and input_.corrects):
        return
    # What even Spark can't evaluate, such as a missing column, is reported as such.
    check_expressions(pipeline, input_, source.schema.names)
    raise Refused(
        f"pipeline {pipeline.name!r} can't correct changes of source {input_.source.table}: "
        f"{choice.files_by_spark or choice.sql_by_spark}, and only rows that the tasks read can be compared. Change "
        "that, or give the source changes='refuse' or changes='ignore'"
    )


def choose_evaluator(
    pipeline: Pipeline,
    input_: Input,
    source: pa.Schema,
    setting: Setting = unset,
    unusual: Mapping[str, str] = MappingProxyType({}),
) -> ReaderChoice:
    """Return what evaluates the SQL of an input, given the columns of its source.

    `unusual` maps each column that the programs can't read to the reason.

    Raises:
        Refused: an expression reads the clock, uses random values, or has types that don't fit.
    """
    schema, has_sql = without_metadata(source), bool(input_.columns) or input_.where is not None
    sql: SourceSql | None = None
    expressions: tuple[Expression, ...] = ()
    reason: str | None = None
    if has_sql:
        sql, compiled = compile_input(pipeline.name, input_, schema, unusual)
        differs = differing_setting(setting)
        _check(pipeline, input_, [*schema.names, *input_.columns], compiled, has_types=differs is None)
        expressions = tuple(replace(each, reason=differs or each.reason) for each in compiled)
        reason = next((each.why for each in expressions if each.reason is not None), None)
    derived = schema if sql is None else sql.schema
    if reason is not None:
        is_typed = all(each.reason is None for each in expressions if each.field != "where")
        return ReaderChoice(sql_by_spark=reason, expressions=expressions, derived=derived if is_typed else None)
    by = input_.watermark_by
    # A missing column is refused when the pipeline is bound.
    kind = derived.field(by).type if by in derived.names else pa.string()
    if by is None or any(is_kind(kind) for is_kind in _OF_ONE_TEXT):
        return ReaderChoice(sql=sql, expressions=expressions, derived=derived)
    try:
        partition = compile_expression(f"cast({quoted(by)} as string)", derived)
    except Unproven as error:
        why = f"watermark_by = {by!r} is of type {name_of(kind)}, whose text only Spark produces: {error}"
        return ReaderChoice(sql_by_spark=why, expressions=expressions, derived=derived)
    return ReaderChoice(sql=sql, partition=partition, expressions=expressions, derived=derived)


def _check(
    pipeline: Pipeline, input_: Input, names: Sequence[str], expressions: Sequence[Expression], has_types: bool
) -> None:
    """Refuse, before starting Spark, an expression whose value may change between runs, or whose types don't fit."""
    side = "" if input_ == pipeline.inputs[0] else "right."
    for each in expressions:
        if each.reason is not None and (call := changing_call(each.text, names)) is not None:
            raise changing_value(side + each.field, pipeline.name, each.text, call)
    for each in expressions if has_types else ():
        if each.is_misfit:
            raise Refused(f"{side}{each.field} of pipeline {pipeline.name!r}: {each.text!r} {each.reason}")


def _unknown_type(schema: pa.Schema) -> str | None:
    """Return the reason why Spark must read a source with these columns, or None if it need not."""
    unknown = next((field for field in schema if not _is_known(field.type)), None)
    return None if unknown is None else f"column {unknown.name} is of type {name_of(unknown.type)}"


def _is_known(kind: pa.DataType) -> bool:
    """Return True if a type means the same in Parquet, Arrow and Spark."""
    if pa.types.is_list(kind):
        return _is_known(kind.value_type)
    if pa.types.is_map(kind):
        return _is_known(kind.key_type) and _is_known(kind.item_type)
    if pa.types.is_struct(kind):
        return all(_is_known(field.type) for field in kind)
    plain = (
        pa.types.is_string,
        pa.types.is_binary,
        pa.types.is_boolean,
        pa.types.is_signed_integer,
        pa.types.is_float32,
        pa.types.is_float64,
        pa.types.is_decimal128,
        pa.types.is_date32,
    )
    return any(is_kind(kind) for is_kind in plain) or kind in (pa.timestamp("us", tz="UTC"), pa.timestamp("us"))


@dataclass(frozen=True)
class InputColumns:
    """The columns of an input, with their types: in its source, and after `columns=`.

    `by_spark` has `where` and `columns` for Spark. It is None if no row goes through Spark.
    """

    source: pa.Schema
    derived: pa.Schema
    by_spark: SparkSql | None = None


OfSpark: TypeAlias = Callable[[Pipeline, Input, Source, ReaderChoice], InputColumns]
"""Function that returns the columns of an input whose rows go through Spark."""


def columns_of(
    pipeline: Pipeline, input_: Input, source: Source, choice: ReaderChoice, of_spark: OfSpark
) -> InputColumns:
    """Return the columns of an input.

    `of_spark` is called only if rows go through Spark, which knows the types of what it evaluates.

    Raises:
        Refused: an expression can't be evaluated, or neither the tasks nor Spark can read the source.
    """
    if choice.needs_spark:
        return of_spark(pipeline, input_, source, choice)
    schema = without_metadata(source.schema)
    return InputColumns(schema, schema if choice.sql is None else choice.sql.schema)


def slice_of(
    bound: BoundPipeline, sources: Sequence[Source], choices: Sequence[ReaderChoice], columns: Sequence[InputColumns]
) -> FileSlice:
    """Return the slice of a pipeline's inputs, without files."""
    tables = []
    for part, source, choice, typed in zip(bound.inputs, sources, choices, columns, strict=True):
        read = columns_to_read(bound.pipeline, part, choice, typed.by_spark)
        reader = None if choice.files_by_spark is not None else source.reader(read.as_read)
        in_files = read.time_in_files
        is_instant = in_files is not None and part.source.field(in_files).type == pa.timestamp("us", "UTC")
        by_spark = None
        if choice.files_by_spark is not None and isinstance(source, SparkSource):
            by_spark = source.spark_reader(in_files if is_instant else None)
        tables.append(SourceTable(reader, read, part.side, by_spark, source.path, not is_local(source.path)))
    return slice_of_tables(bound, tables)


def columns_to_read(
    pipeline: Pipeline, part: BoundInput, choice: ReaderChoice, by_spark: SparkSql | None
) -> ColumnsToRead:
    """Return the columns of an input, with the settings of the rules that check its rows."""
    described, is_number = part.input.source, pa.types.is_integer
    return ColumnsToRead(
        schema=part.source,
        timestamp=described.timestamp,
        unit=described.unit if is_number(part.derived.field(described.timestamp).type) else None,
        key=part.input.key,
        used=part.used,
        accepted=AcceptedTimes.of(described, pipeline.compute),
        reject_null_keys=pipeline.null_keys == "reject",
        max_ahead=pipeline.max_ahead_millis,
        gap=gap_column(pipeline),
        zone=described.zone,
        sql=choice.sql,
        by_spark=by_spark,
        partition_by=part.input.watermark_by,
        partition=choice.partition,
    )


def slice_of_tables(bound: BoundPipeline, tables: Sequence[SourceTable]) -> FileSlice:
    """Return a slice without files for the inputs of a pipeline, with the given tables."""
    values = pa.schema(zip(bound.used, bound.value_types, strict=True))
    return FileSlice(tuple(tables), bound.key.names, values, bound.source)
