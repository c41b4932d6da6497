"""Rows that a pipeline rejected because their time was ahead of their commit: they are rejected in every later read.

In event order, a row's time is compared with the time at which its file was written, and OPTIMIZE writes files anew. So
a row that was rejected could be accepted later. Table rejects has the rejected rows with all their columns, so the same
number of rows with equal values are rejected again. Nothing distinguishes rows with equal values anyway.
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
"""Options of Spark that convert times to text with all their digits."""


def rejected_ahead(
    tables: PipelineTables, manifest: Manifest, source: pa.Schema, renamed: Mapping[str, str]
) -> pa.Table | None:
    """Return the rows that the line of a snapshot rejected because their time was ahead; None if there are none.

    Args:
        tables: the pipeline's tables.
        manifest: manifest of the snapshot.
        source: columns of a source row, as table rejects keeps it.
        renamed: new names in the table of columns whose type changed.
    """
    if not tables.warehouse.exists(tables.path(rejects.NAME)):
        return None
    where = (pc.field("reason") == rejects.AHEAD) & ~pc.field("stale")
    rows = read_table(tables.warehouse, tables.open(rejects.NAME), where=where)
    on_line = [any(first <= epoch <= last for first, last in manifest.line) for epoch in rows["epoch"].to_pylist()]
    rows = rows.filter(pa.array(on_line, pa.bool_()))
    return input_rows(rows, rejects.TRAILING, source, renamed) if len(rows) else None


def rejected_again(spark: SparkSession, judged: DataFrame, rejected: pa.Table) -> DataFrame:
    """Return the judged rows of a version after those that were rejected before are rejected again.

    Args:
        spark: the Spark session.
        judged: every row of the version.
        rejected: the rows that were rejected before, in the columns of the source.
    """
    row = F.struct(*[F.col(quoted(name)) for name in rejected.column_names])
    copies = (
        spark.createDataFrame(rejected).select(_text(row).alias(_TEXT)).groupBy(_TEXT).agg(F.count("*").alias(_COPIES))
    )
    rows = judged.withColumn(_TEXT, _text(F.col(ROW))).join(F.broadcast(copies), _TEXT, "left")
    # Among rows with equal values, those that are still ahead of their file are rejected first.
    order = F.when(F.col(STATUS) == rejects.AHEAD, 0).otherwise(1)
    number = F.row_number().over(Window.partitionBy(_TEXT).orderBy(order))
    doubtful = rows.where(F.col(_COPIES).isNotNull()).withColumn("__number", number)
    status = F.when(F.col("__number") <= F.col(_COPIES), rejects.AHEAD).otherwise(F.col(STATUS))
    settled = doubtful.withColumn(STATUS, status).drop("__number")
    return rows.where(F.col(_COPIES).isNull()).unionByName(settled).drop(_TEXT, _COPIES)


def _text(row: Column) -> Column:
    return F.to_json(row, _EXACT)
