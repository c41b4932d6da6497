"""The rows of a slice as a Spark frame: exact files, derived columns, event time, and what is unusable.

What Arrow may not read (`plain.py` says what that is) is read through Spark, which handles column mapping,
deletion vectors, partitions and SQL; the files to read come from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from pipelines.errors import Refused
from pipelines.pipeline import DeltaSource, Input, Pipeline
from pipelines.sources.columns import COMMIT, DROPPED, FIRST_TIME, LAST_TIME, OK, ROW, STATUS, TIME
from pipelines.tables import rejects
from windowing.time import Millis

_FILE_NAME = "__file_name"
_COMMITTED = "__committed"


class SourceFrames:
    """Frames over one source table, as one pipeline sees it.

    Args:
        spark: the session.
        path: of the table.
        pipeline: that reads it.
        one: which of its inputs; None for the first.
    """

    def __init__(self, spark: SparkSession, path: str, pipeline: Pipeline, one: Input | None = None) -> None:
        self._spark = spark
        self._path = path
        self._pipeline = pipeline
        self._input = pipeline.inputs[0] if one is None else one
        self._field = "" if self._input == pipeline.inputs[0] else "right."
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)

    def snapshot(self, version: int) -> DataFrame:
        """All rows of a version."""
        return self._spark.read.format("delta").option("versionAsOf", version).load(self._path)

    def files(self, version: int, actions: Sequence[str]) -> DataFrame:
        """The rows of just these files, read with the schema of `version`."""
        jvm = self._jvm
        none = jvm.scala.Option.empty()
        adds = jvm.java.util.ArrayList()
        for action in actions:
            adds.add(jvm.org.apache.spark.sql.delta.actions.Action.fromJson(action))
        snapshot = self._log.getSnapshotAt(version, none, none, False)
        frame = self._log.createDataFrame(
            snapshot, jvm.org.apache.spark.api.python.PythonUtils.toSeq(adds), False, none
        )
        return DataFrame(frame, self._spark)

    def schemas(self, version: int) -> tuple[pa.Schema, pa.Schema]:
        """The columns of the source, and those after `columns=`.

        Raises:
            Refused: an expression of `columns` or `where` can't be evaluated.
        """
        frame = self.snapshot(version)
        derived = self.derived(frame)
        kept = derived
        if self._input.where is not None:
            kept = self._checked("where", partial(derived.where, self._input.where))
        if not kept._jdf.queryExecution().analyzed().deterministic():
            raise Refused(
                f"columns or where of pipeline {self._pipeline.name!r} has an expression that gives another value each "
                "time it is read, such as rand() or uuid(): a run that is repeated would not be the same. Write such "
                "values into the source table"
            )
        return to_arrow_schema(frame.schema, timezone="UTC"), to_arrow_schema(derived.schema, timezone="UTC")

    def judged(
        self, frame: DataFrame, source: pa.Schema, origins: Mapping[str, tuple[int, Millis]] | None = None
    ) -> DataFrame:
        """A frame with derived columns, event time, status, commit index, and the source row as a struct.

        Args:
            frame: rows of the source.
            source: columns of the source, for the struct.
            origins: by name of each file, the index of its commit and the time that no row may lie too far
                ahead of; None where there is one commit and no row can lie ahead.
        """
        row = F.struct(*[F.col(f"`{name}`") for name in source.names]).alias(ROW)
        derived = self.derived(frame.select("*", row, F.col("_metadata.file_name").alias(_FILE_NAME)))
        timed = derived.withColumn(TIME, event_millis(self._input.source, derived))
        if origins is None:
            return timed.withColumn(COMMIT, F.lit(0)).withColumn(STATUS, self._status(None)).drop(_FILE_NAME)
        if len(set(origins.values())) == 1:
            index, committed = next(iter(origins.values()))
            known = timed.withColumn(COMMIT, F.lit(index)).withColumn(_COMMITTED, F.lit(committed))
        else:
            rows = [(name, index, time) for name, (index, time) in origins.items()]
            names = self._spark.createDataFrame(rows, f"{_FILE_NAME} string, {COMMIT} int, {_COMMITTED} long")
            known = timed.join(F.broadcast(names), _FILE_NAME)
        return known.withColumn(STATUS, self._status(F.col(_COMMITTED))).drop(_FILE_NAME, _COMMITTED)

    def _status(self, committed: Column | None) -> Column:
        pipeline, time = self._pipeline, F.col(TIME)
        status = F.lit(OK)
        if committed is not None:
            status = F.when(time > committed + F.lit(pipeline.max_ahead_millis), rejects.AHEAD).otherwise(status)
        status = F.when((time < FIRST_TIME) | (time >= LAST_TIME), rejects.OUT_OF_RANGE).otherwise(status)
        status = F.when(time.isNull(), rejects.NULL_TIMESTAMP).otherwise(status)
        if pipeline.null_keys == "reject" and self._input.key:
            null_key = F.lit(False)
            for name in self._input.key:
                null_key = null_key | F.col(f"`{name}`").isNull()
            status = F.when(null_key, rejects.NULL_KEY).otherwise(status)
        if self._input.where is not None:
            status = F.when(F.coalesce(F.expr(self._input.where), F.lit(False)), status).otherwise(DROPPED)
        return status

    def derived(self, frame: DataFrame) -> DataFrame:
        """Rows of the source with the columns of `columns=`."""
        for name, expression in self._input.columns.items():
            add = partial(frame.withColumn, name, F.expr(expression))
            frame = self._checked(f"columns[{name!r}]", add)
        return frame

    def _checked(self, field: str, act: Callable[[], DataFrame]) -> DataFrame:
        try:
            return act()
        except AnalysisException as error:
            raise Refused(
                f"{self._field}{field} of pipeline {self._pipeline.name!r}: {str(error).splitlines()[0]}"
            ) from error


def event_millis(source: DeltaSource, frame: DataFrame) -> Column:
    """Event time as epoch milliseconds, microseconds floored."""
    column = F.col(f"`{source.timestamp}`")
    kind = frame.schema[source.timestamp].dataType.typeName()
    if kind == "timestamp":
        return F.unix_millis(column)
    if kind == "timestamp_ntz":
        return F.unix_millis(F.to_utc_timestamp(column.cast("timestamp"), source.zone or "UTC"))
    number = column.cast("long")
    if source.unit == "ms":
        return number
    # What lies beyond the last usable second lies beyond it by whatever factor; unbounded, the product would overflow.
    beyond = F.lit(LAST_TIME)
    return F.when(number > beyond, beyond).when(number < -beyond, -beyond).otherwise(number) * 1000
