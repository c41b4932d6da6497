"""Rows that a pipeline rejected because they lay ahead of their commit: none is taken later, as another one.

In event order a row is held against the time its file was written, and OPTIMIZE writes files anew: a row that was
rejected for lying ahead would be in time there. Which rows were rejected is in table rejects, with all their columns,
so as many rows with the same values are rejected again. Rows with the same values can't be told apart anyway.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tidegate.pipelines.definition.event_columns import ROW, STATUS
from tidegate.pipelines.manifest import Manifest
from tidegate.pipelines.storage import read_table
from tidegate.pipelines.tables import rejects
from tidegate.pipelines.tables.columns import input_rows, quoted
from tidegate.pipelines.tables.pipeline_tables import PipelineTables

_TEXT, _COPIES = "__text", "__copies"
_EXACT = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Times as text with all their digits."""


def rejected_ahead(
    tables: PipelineTables, manifest: Manifest, source: pa.Schema, renamed: Mapping[str, str]
) -> pa.Table | None:
    """Rows that were rejected for lying ahead on the line of a snapshot; None where there are none.

    Args:
        tables: the pipeline's.
        manifest: of the snapshot.
        source: columns of a source row, as table rejects keeps it.
        renamed: what the table calls those whose type changed.
    """
    if not tables.warehouse.exists(tables.path(rejects.NAME)):
        return None
    where = (pc.field("reason") == rejects.AHEAD) & ~pc.field("stale")
    rows = read_table(tables.warehouse, tables.open(rejects.NAME), where=where)
    on_line = [any(first <= epoch <= last for first, last in manifest.line) for epoch in rows["epoch"].to_pylist()]
    rows = rows.filter(pa.array(on_line, pa.bool_()))
    return input_rows(rows, rejects.TRAILING, source, renamed) if len(rows) else None


def rejected_again(spark: SparkSession, judged: DataFrame, rejected: pa.Table) -> DataFrame:
    """Judged rows of a version, of which those that were rejected are rejected again.

    Args:
        spark: the session.
        judged: every row of the version.
        rejected: the rows that were, in the columns of the source.
    """
    row = F.struct(*[F.col(quoted(name)) for name in rejected.column_names])
    copies = (
        spark.createDataFrame(rejected).select(_text(row).alias(_TEXT)).groupBy(_TEXT).agg(F.count("*").alias(_COPIES))
    )
    rows = judged.withColumn(_TEXT, _text(F.col(ROW))).join(F.broadcast(copies), _TEXT, "left")
    # Copies that lie ahead of their file still are those that were rejected.
    order = F.when(F.col(STATUS) == rejects.AHEAD, 0).otherwise(1)
    number = F.row_number().over(Window.partitionBy(_TEXT).orderBy(order))
    doubtful = rows.where(F.col(_COPIES).isNotNull()).withColumn("__number", number)
    status = F.when(F.col("__number") <= F.col(_COPIES), rejects.AHEAD).otherwise(F.col(STATUS))
    settled = doubtful.withColumn(STATUS, status).drop("__number")
    return rows.where(F.col(_COPIES).isNull()).unionByName(settled).drop(_TEXT, _COPIES)


def _text(row: Column) -> Column:
    return F.to_json(row, _EXACT)
