"""Check of a pipeline against the newest version of its source."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tidegate.pipelines.config import Config
from tidegate.pipelines.definition.binding import BoundPipeline, bind_all
from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.base import Source, SparkReader
from tidegate.pipelines.sources.choose_reader import Setting
from tidegate.pipelines.sources.open_source import open_source
from tidegate.pipelines.sources.places import check_places
from tidegate.pipelines.sources.sql.expression import Expression, differing_setting
from tidegate.pipelines.storage import warehouse_of

if TYPE_CHECKING:
    from tidegate.pipelines.sources.sql.derived import SourceSql


def look_at_sql(
    config: Config, pipeline: Pipeline, part: Input, source: Source
) -> tuple[SourceSql | None, tuple[Expression, ...]]:
    """Return the programs of an input's SQL, and each expression, without Spark.

    Args:
        config: the project.
        pipeline: the pipeline of the input.
        part: the input.
        source: its source.

    Returns:
        The programs (None if one of `columns` is left to Spark), and the expressions with reasons.
    """
    sql, expressions = _compiled(pipeline, part, source, lambda name: text_of(config.spark.get(name)))
    is_typed = all(expression.reason is None for expression in expressions if expression.field != "where")
    return sql if is_typed else None, tuple(expressions)


def _compiled(pipeline: Pipeline, part: Input, source: Source, setting: Setting) -> tuple[SourceSql, list[Expression]]:
    """Return the programs of an input's SQL, and each expression, with a reason if Spark must evaluate it."""
    # Commands that look at pipelines without SQL should not wait for this import.
    from tidegate.pipelines.sources.sql.derived import compile_input

    sql, expressions = compile_input(pipeline.name, part, source.schema, source.unusual)
    if (reason := differing_setting(setting)) is not None:
        expressions = [replace(expression, reason=reason) for expression in expressions]
    return sql, expressions


def columns_of(
    pipeline: Pipeline, part: Input, source: Source, spark_reader: SparkReader | None, setting: Setting
) -> tuple[pa.Schema, pa.Schema]:
    """Return the columns of an input's source, and the columns after `columns=`.

    Args:
        pipeline: the pipeline of the input.
        part: the input.
        source: its source.
        spark_reader: reader of the source by Spark, which knows all types; None if the tasks alone can read it.
        setting: returns the value of a setting of Spark; None if it is not set.

    Raises:
        Refused: an expression can't be evaluated.
    """
    if spark_reader is not None:
        return spark_reader.schemas(source.head)
    if part.where is None and not part.columns:
        return source.schema, source.schema
    sql, expressions = _compiled(pipeline, part, source, setting)
    if (expression := next((each for each in expressions if each.reason is not None), None)) is not None:
        raise no_spark(pipeline, source, expression.why)
    return source.schema, sql.schema


def no_spark(pipeline: Pipeline, source: Source, reason: str) -> Refused:
    """Return the error for a source that Spark can't read, where it would have to."""
    return Refused(
        f"pipeline {pipeline.name!r} can't read source {source.path}: {reason}, and a source of this kind can be read "
        "by the tasks alone. Change that part of the pipeline, or write the events into a Delta table"
    )


def text_of(value: object) -> str | None:
    """Return the value of a setting as Spark writes it."""
    return None if value is None else str(value)


def bind_to_source(config: Config, pipeline: Pipeline) -> BoundPipeline:
    """Check a pipeline against the newest version of its source. Only columns that Spark evaluates need its start.

    Raises:
        Refused: the source does not exist, or `bind` refuses.
    """
    warehouse = warehouse_of(config)
    check_places(warehouse, pipeline)
    sources = [open_source(part.source, warehouse) for part in pipeline.inputs]
    parts = list(zip(pipeline.inputs, sources, strict=True))
    if not any(part.columns for part in pipeline.inputs):
        return bind_all(pipeline, [(source.schema, source.schema) for source in sources])
    compiled = [(source, look_at_sql(config, pipeline, part, source)[0]) for part, source in parts]
    if all(sql is not None for _, sql in compiled):
        return bind_all(pipeline, [(source.schema, sql.schema) for source, sql in compiled if sql is not None])
    from tidegate.pipelines.spark.session import start_session

    session = start_session(config, f"check {pipeline.name}")
    try:
        readers = [source.spark_reader(session, pipeline, part) for part, source in parts]

        def setting(name: str) -> str | None:
            return session.conf.get(name, None)

        return bind_all(
            pipeline,
            [
                columns_of(pipeline, part, source, reader, setting)
                for (part, source), reader in zip(parts, readers, strict=True)
            ],
        )
    finally:
        session.stop()
