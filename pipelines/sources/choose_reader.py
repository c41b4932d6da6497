"""Check who reads a source: Arrow in the tasks, or Spark.

Spark reads what is left to it: SQL that is not proven to mean the same in Arrow, two sources, generators that see every
event, types that are not listed here, and what the source itself leaves to Spark. `explain` shows the reason. A source
is never read in part: one unknown feature sends it to Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.sources.base import Source
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.limits import gap_column
from tidegate.pipelines.sources.source_columns import SourceColumns
from tidegate.pipelines.sources.sql.expression import differing_setting

if TYPE_CHECKING:
    from tidegate.pipelines.sources.sql.derived import SourceSql

Setting: TypeAlias = "Callable[[str], str | None]"
"""Function that returns the value of a setting of Spark; None if it is not set."""

_OF_ONE_TEXT = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean)
"""Types whose values Arrow and Spark write as the same text, which names a source partition."""


def unset(name: str) -> str | None:
    """Return None: a setting has its default."""
    return None


def why_through_spark(bound: BoundPipeline, source: Source, setting: Setting = unset) -> str | None:
    """Return the reason why Arrow can't read a source's files; None if it can.

    Args:
        bound: the pipeline, bound to the source.
        source: the source.
        setting: returns the value of a setting of Spark; None if it is not set.
    """
    if (reason := asks_for_spark(bound.pipeline)) is not None:
        return reason
    _, left_to_spark = _sql_of(bound, source, setting)
    if left_to_spark is not None:
        return left_to_spark
    pipeline = bound.pipeline
    if (reason := source.left_to_spark()) is not None:
        return reason
    if pipeline.watermark_by is not None:
        kind = bound.derived.field(pipeline.watermark_by).type
        if not any(is_kind(kind) for is_kind in _OF_ONE_TEXT):
            return f"watermark_by = {pipeline.watermark_by!r} is of type {kind}"
    unknown = [field.name for field in bound.source if not _is_known(field.type)]
    if unknown:
        return f"column {unknown[0]} is of type {bound.source.field(unknown[0]).type}"
    return None


def asks_for_spark(pipeline: Pipeline) -> str | None:
    """Return the reason in the pipeline itself why Spark must read the source; None if there is none."""
    # A field of DeltaSource: other sources need not be readable by Spark.
    if getattr(pipeline.source, "reader", "auto") == "spark":
        return "the source says reader='spark'"
    if len(pipeline.inputs) > 1:
        return "it has two sources"
    if pipeline.watermark.reads_events:
        return "its watermark generator sees every event"
    return None


def _sql_of(bound: BoundPipeline, source: Source, setting: Setting) -> tuple[SourceSql | None, str | None]:
    """Return the programs of an input's SQL, None if it has none or Spark evaluates it, and the reason why."""
    input_ = bound.pipeline.inputs[0]
    if input_.where is None and not input_.columns:
        return None, None
    if (reason := differing_setting(setting)) is not None:
        return None, reason
    # Pipelines without SQL should not wait for this import.
    from tidegate.pipelines.sources.sql.derived import compile_input, differing_type

    sql, expressions = compile_input(bound.pipeline.name, input_, bound.source, source.unusual)
    expression = next((expression for expression in expressions if expression.reason is not None), None)
    expression = differing_type(sql, bound.derived) if expression is None else expression
    return (sql, None) if expression is None else (None, expression.why)


def slice_of(bound: BoundPipeline, source: Source, setting: Setting = unset) -> FileSlice:
    """Return a slice of a source that the tasks can read, without files."""
    pipeline = bound.pipeline
    columns = SourceColumns(
        schema=bound.source,
        timestamp=pipeline.source.timestamp,
        unit=pipeline.source.unit if pa.types.is_integer(bound.derived.field(pipeline.source.timestamp).type) else None,
        key=pipeline.key,
        used=bound.used,
        reject_null_keys=pipeline.null_keys == "reject",
        max_ahead=pipeline.max_ahead_millis,
        gap=gap_column(pipeline),
        zone=pipeline.source.zone,
        sql=_sql_of(bound, source, setting)[0],
    )
    return FileSlice(source.reader(columns.as_read), columns, ())


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
