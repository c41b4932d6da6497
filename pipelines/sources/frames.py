"""The rows of a slice as a Spark frame: exact files, derived columns, event time, and what is unusable.

What Arrow may not read (`plain.py` says what that is) is read through Spark, which handles column mapping,
deletion vectors, partitions and SQL; the files to read come from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.pipelines.definition.event_columns import COMMIT, DROPPED, LAST_TIME, OK, ROW, STATUS, TIME
from tidegate.pipelines.definition.pipeline import DeltaSource, Input, Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.limits import columns_read, gap_column
from tidegate.pipelines.sources.rules import COMMITTED, OF_TIME, RuleSettings, status_in_sql
from tidegate.pipelines.tables.columns import quoted
from tidegate.pipelines.tables.far_times import holds_times
from tidegate.windowing.time import Millis

_PATH = "__path"
_UNTIMELY = "untimely"
_ORIGIN = "__origin"


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
            origins: by path of each file, as the log has it decoded, the index of its commit and the time that no
                row may lie too far ahead of; None where there is one commit and no row can lie ahead. A row of a file
                that is not among them is an error.
        """
        row = F.struct(*[F.col(quoted(name)) for name in source.names]).alias(ROW)
        derived = self.derived(frame.select("*", row, self._path_of_file().alias(_PATH)))
        timed = derived.withColumn(TIME, event_millis(self._input.source, derived))
        if origins is None:
            alone = timed.withColumn(COMMIT, F.lit(0)).withColumn(COMMITTED, F.lit(None).cast("long"))
            return self._with_status(alone).drop(_PATH, COMMITTED)
        if len(set(origins.values())) == 1:
            index, committed = next(iter(origins.values()))
            known = timed.withColumn(COMMIT, F.lit(index)).withColumn(COMMITTED, F.lit(committed))
        else:
            rows = [(path, (index, time)) for path, (index, time) in origins.items()]
            origin = f"struct<{COMMIT}: int, {COMMITTED}: long>"
            files = self._spark.createDataFrame(rows, f"{_PATH} string, {_ORIGIN} {origin}")
            nowhere = F.raise_error(
                F.concat(
                    F.lit(f"source table {self._path}: a row of file "),
                    F.col(_PATH),
                    F.lit(", which no commit that is read added. Nothing was committed; this is a fault of tidegate"),
                )
            )
            # An inner join would lose the rows of a file that is spelled otherwise, and nothing would tell.
            known = timed.join(F.broadcast(files), _PATH, "left").withColumn(
                _ORIGIN, F.when(F.col(_ORIGIN).isNull(), nowhere.cast(origin)).otherwise(F.col(_ORIGIN))
            )
            known = known.withColumns({name: F.col(f"{_ORIGIN}.{name}") for name in (COMMIT, COMMITTED)})
            known = known.drop(_ORIGIN)
        return self._with_status(known).drop(_PATH, COMMITTED)

    def _with_status(self, frame: DataFrame) -> DataFrame:
        """Rows with their status; those that `where` drops keep a time only if a watermark may go by it."""
        rules = self._rules(frame)
        status = F.expr(status_in_sql(rules))
        if self._input.where is None:
            return frame.withColumn(STATUS, status)
        kept = F.coalesce(F.expr(self._input.where), F.lit(False))
        if self._input.watermark_from == "kept":
            return frame.withColumn(STATUS, F.when(kept, status).otherwise(DROPPED))
        timely = F.expr(status_in_sql(rules, OF_TIME)) == OK
        judged = frame.withColumn(STATUS, F.when(kept, status).when(timely, DROPPED).otherwise(_UNTIMELY))
        untimely = F.col(STATUS) == _UNTIMELY
        time = F.when(~untimely, F.col(TIME))
        return judged.withColumn(TIME, time).withColumn(STATUS, F.when(untimely, DROPPED).otherwise(F.col(STATUS)))

    def _path_of_file(self) -> Column:
        """The path of a row's file as the log has it decoded: relative to the table where it lies in its folder."""
        root = unquote(self._log.dataPath().toUri().toString()).rstrip("/") + "/"
        # In a path a plus is a plus; `url_decode` takes it for a space.
        path = F.url_decode(F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B")))
        inside = F.substring(path, F.lit(len(root) + 1), F.length(path))
        return F.when(F.startswith(path, F.lit(root)), inside).otherwise(path)

    def _rules(self, frame: DataFrame) -> RuleSettings:
        """What the rules that reject a row go by."""
        pipeline = self._pipeline
        read = columns_read(pipeline, self._input, frame.columns)
        kinds = to_arrow_schema(StructType([frame.schema[name] for name in read]), timezone="UTC")
        return RuleSettings(
            key=self._input.key if pipeline.null_keys == "reject" else (),
            max_ahead=pipeline.max_ahead_millis,
            gap=gap_column(pipeline),
            times=tuple((field.name, field.type) for field in kinds if holds_times(field.type)),
        )

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


def map_in_arrow(
    frame: DataFrame, run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """Run a function over the batches of a frame, whatever its columns are called.

    Spark's own `mapInArrow` looks each column up by its name, and takes a dot in it for a field of a struct.

    Args:
        frame: the rows.
        run: gets batches with the names of the frame.
        schema: of the batches that it gives.
    """
    names = frame.columns

    def renamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run(batch.rename_columns(names) for batch in batches)

    return frame.toDF(*(f"c{number}" for number in range(len(names)))).mapInArrow(renamed, schema)


def event_millis(source: DeltaSource, frame: DataFrame) -> Column:
    """Event time as epoch milliseconds, microseconds floored."""
    column = F.col(quoted(source.timestamp))
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
