"""SQL of an input that Spark evaluates: derived columns, and a flag for rows that `where` keeps.

Spark evaluates expressions that have no proven Arrow program (`sql`), over batches that Tidegate's tasks read. Only the
columns that expressions and events need go through Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate.pipelines.definition.columns import quoted
from tidegate.pipelines.definition.event_columns import KEPT, OURS, PARTITION
from tidegate.pipelines.engine.spark.versions import from_arrow, to_arrow
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.source_columns import without_metadata
from tidegate.pipelines.sources.sql.expression import SparkSql
from tidegate.pipelines.sources.sql.words import changing_call, changing_value

_COPY, _BESIDE = f"{OURS}copy", f"{OURS}beside"

_NONDETERMINISTIC = "INVALID_NON_DETERMINISTIC_EXPRESSIONS"


def typed(sql: SparkSql, rows: DataFrame) -> SparkSql:
    """Return the expressions with the types that Spark gives their columns.

    Args:
        sql: the expressions.
        rows: rows with all columns of the source.

    Raises:
        Refused: an expression can't be evaluated, or gives a different value each time it is evaluated.
    """
    frame = rows
    for name, text in sql.programs.items():
        _check(sql, f"columns[{name!r}]", text, frame)
        frame = frame.withColumn(name, F.expr(text))
    if sql.where is not None:
        _check(sql, "where", sql.where, frame)
        _analysed(sql, "where", partial(frame.where, sql.where))
    return replace(sql, derived=without_metadata(to_arrow(frame.schema)))


def evaluated(sql: SparkSql, rows: DataFrame, names: Sequence[str], also: Sequence[str]) -> DataFrame:
    """Return columns of events, the flag of kept rows, the text of the source partition, and further columns.

    Args:
        sql: the expressions.
        rows: rows with the columns that `SparkSql.reads` names.
        names: the columns of events.
        also: columns of `rows` that are returned unchanged.
    """
    rows = _flagged(sql, rows)
    # With `watermark_from="all"`, dropped rows need their event times too.
    for_all = sql.where is None or sql.all_move
    for name, text in sql.programs.items():
        rows = rows.withColumn(name, F.expr(text) if for_all else F.when(F.col(KEPT), F.expr(text)))
    partition = F.lit("") if sql.partition_by is None else F.col(quoted(sql.partition_by)).cast("string")
    columns = [F.col(quoted(name)) for name in (*names, *also)]
    return rows.select(*columns, F.col(KEPT), partition.alias(PARTITION))


def _flagged(sql: SparkSql, rows: DataFrame) -> DataFrame:
    """Flag the rows that `where` keeps. `where` sees derived columns, which may replace others."""
    if sql.where is None:
        return rows.withColumn(KEPT, F.lit(True))
    names = rows.columns
    copies = [f"{_COPY}{number}" for number in range(len(names))]
    seen = rows.select("*", *(F.col(quoted(name)).alias(copy) for name, copy in zip(names, copies, strict=True)))
    for name, text in sql.programs.items():
        seen = seen.withColumn(name, F.expr(text))
    kept: Column = F.coalesce(F.expr(sql.where), F.lit(False))
    stored = [F.col(copy).alias(name) for name, copy in zip(names, copies, strict=True)]
    return seen.select(*stored, kept.alias(KEPT))


def _check(sql: SparkSql, field: str, text: str, rows: DataFrame) -> None:
    """Refuse an expression that Spark can't evaluate row by row, or whose value changes between runs."""
    if (call := changing_call(text, rows.columns)) is not None:
        raise changing_value(sql.prefix + field, sql.pipeline, text, call)
    # Spark accepts only a deterministic expression over single rows as the condition of a join.
    beside = rows.limit(0).select(F.lit(1).alias(_BESIDE))

    def analyse() -> DataFrame:
        joined = rows.join(beside, F.expr(text).isNull())
        # With Spark Connect, a plan is analysed only when something about it is requested.
        _ = joined.schema
        return joined

    try:
        _analysed(sql, field, analyse)
    except Refused as error:
        cause = error.__cause__
        if isinstance(cause, AnalysisException) and cause.getCondition() == _NONDETERMINISTIC:
            raise changing_value(sql.prefix + field, sql.pipeline, text, "an expression") from cause
        raise


def _analysed(sql: SparkSql, field: str, act: Callable[[], DataFrame]) -> DataFrame:
    try:
        return act()
    except AnalysisException as error:
        raise Refused(f"{sql.prefix}{field} of pipeline {sql.pipeline!r}: {str(error).splitlines()[0]}") from error


def empty_frame(spark: SparkSession, schema: pa.Schema) -> DataFrame:
    """Return a frame with the columns of a schema, and no rows."""
    return spark.createDataFrame([], from_arrow(schema))
