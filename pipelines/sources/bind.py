"""Check of a pipeline against the newest version of its source."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tidegate.pipelines.config import Config
from tidegate.pipelines.definition.binding import BoundPipeline, bind_all
from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.sources.places import check_places
from tidegate.pipelines.sources.sql.expression import Expression, differing_setting
from tidegate.pipelines.storage import arrow_schema, warehouse_of

if TYPE_CHECKING:
    from tidegate.pipelines.sources.sql.derived import SourceSql


def look_at_sql(
    config: Config, pipeline: Pipeline, part: Input
) -> tuple[pa.Schema, SourceSql | None, tuple[Expression, ...]]:
    """Return the columns of an input's table, its programs, and each expression, without Spark.

    Args:
        config: the project.
        pipeline: the pipeline of the input.
        part: the input.

    Returns:
        The columns, the programs (None if one of `columns` is left to Spark), and the expressions with reasons.

    Raises:
        Refused: the source does not exist.
    """
    # Commands that look at pipelines without SQL should not wait for this import.
    from tidegate.pipelines.sources.sql.derived import compile_input, unusual_columns

    warehouse = warehouse_of(config)
    log = SourceLog(warehouse, warehouse.path(part.source.table))
    schema = arrow_schema(warehouse.open(log.path, log.head))
    sql, expressions = compile_input(pipeline.name, part, schema, unusual_columns(log.columns))
    setting = differing_setting(lambda name: text_of(config.spark.get(name)))
    if setting is not None:
        expressions = [replace(expression, reason=setting) for expression in expressions]
    is_typed = all(expression.reason is None for expression in expressions if expression.field != "where")
    return schema, sql if is_typed else None, tuple(expressions)


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
    paths = [warehouse.path(part.source.table) for part in pipeline.inputs]
    heads = [SourceLog(warehouse, path).head for path in paths]
    if not any(part.columns for part in pipeline.inputs):
        plain = [arrow_schema(warehouse.open(path, head)) for path, head in zip(paths, heads, strict=True)]
        return bind_all(pipeline, [(schema, schema) for schema in plain])
    compiled = [look_at_sql(config, pipeline, part) for part in pipeline.inputs]
    if all(sql is not None for _, sql, _ in compiled):
        return bind_all(pipeline, [(schema, sql.schema) for schema, sql, _ in compiled if sql is not None])
    from tidegate.pipelines.sources.delta.frames import SourceFrames
    from tidegate.pipelines.spark.session import start_session

    session = start_session(config, f"check {pipeline.name}")
    try:
        frames = [
            SourceFrames(session, path, pipeline, part) for path, part in zip(paths, pipeline.inputs, strict=True)
        ]
        return bind_all(pipeline, [frame.schemas(head) for frame, head in zip(frames, heads, strict=True)])
    finally:
        session.stop()
