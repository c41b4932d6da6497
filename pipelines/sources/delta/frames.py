"""The rows of a slice as a Spark frame: rows of given files, with derived columns, event time and status.

Spark reads the sources that Arrow can't read (see `choose_reader.py`): it handles column mapping, deletion vectors,
partitions and SQL. The log names the files to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidegate.pipelines.definition.event_columns import COMMIT, DROPPED, LAST_TIME, OK, ROW, STATUS, TIME
from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.definition.source import SourceDescription
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.limits import columns_read, gap_column
from tidegate.pipelines.sources.rules import COMMITTED, OF_TIME, RuleSettings, status_in_sql
from tidegate.pipelines.spark.connect import is_connect
from tidegate.pipelines.spark.versions import to_arrow
from tidegate.pipelines.tables.columns import quoted
from tidegate.pipelines.tables.far_times import holds_times
from tidegate.windowing.time import Millis

_PATH = "__path"
_UNTIMELY = "untimely"
_ORIGIN = "__origin"


class SourceFrames:
    """Frames over one source table, for one input of a pipeline.

    Args:
        spark: the Spark session.
        path: path of the table.
        pipeline: the pipeline.
        part: the input that reads the table; None for the first.
    """

    def __init__(self, spark: SparkSession, path: str, pipeline: Pipeline, part: Input | None = None) -> None:
        self._spark = spark
        self._path = path
        self._pipeline = pipeline
        self._input = pipeline.inputs[0] if part is None else part
        self._field = "" if self._input == pipeline.inputs[0] else "right."

    @cached_property
    def _jvm(self) -> Any:
        if is_connect(self._spark):
            raise Refused(
                f"pipeline {self._pipeline.name!r} reads {self._path} through Spark, which Spark Connect can't do. "
                "`tidegate explain` shows why Spark must read it: change that, or run it without Connect"
            )
        return self._spark._jvm

    @cached_property
    def _log(self) -> Any:
        return self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self._path)

    def snapshot(self, version: int) -> DataFrame:
        """Return all rows of a version."""
        return self._spark.read.format("delta").option("versionAsOf", version).load(self._path)

    def files(self, version: int, actions: Sequence[str]) -> DataFrame:
        """Return the rows of the files that `actions` add, read with the schema of `version`."""
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
        """Return the columns of the source, and the columns after `columns=`.

        Raises:
            Refused: an expression of `columns` or `where` can't be evaluated.
        """
        frame = self.snapshot(version)
        derived = self.derived(frame)
        kept = derived
        if self._input.where is not None:
            kept = self._checked("where", partial(derived.where, self._input.where))
        if not is_connect(self._spark) and not kept._jdf.queryExecution().analyzed().deterministic():
            raise Refused(
                f"columns or where of pipeline {self._pipeline.name!r} has an expression that gives another value each "
                "time it is read, such as rand() or uuid(): a run that is repeated would not be the same. Write such "
                "values into the source table"
            )
        return to_arrow(frame.schema), to_arrow(derived.schema)

    def judged(
        self, frame: DataFrame, source: pa.Schema, origins: Mapping[str, tuple[int, Millis]] | None = None
    ) -> DataFrame:
        """Return rows with derived columns, event time, status, commit index, and the source row as a struct.

        Args:
            frame: rows of the source.
            source: columns of the source, for the struct.
            origins: index of the commit, and the time against which rows are checked to be ahead, by the decoded path
                of each file in the log. None if all rows belong to one commit and none can be ahead. A row from
                another file raises an error.
        """
        row = F.struct(*[F.col(quoted(name)) for name in source.names]).alias(ROW)
        derived = self.derived(frame.select("*", row, self._path_of_file().alias(_PATH)))
        timed = derived.withColumn(TIME, event_millis(self._input.source, derived))
        if origins is None:
            alone = timed.withColumn(COMMIT, F.lit(0)).withColumn(COMMITTED, F.lit(None).cast("long"))
            return self._with_status(alone).drop(_PATH, COMMITTED)
        if len(set(origins.values())) == 1:
            index, committed = next(iter(origins.values()))
            placed = timed.withColumn(COMMIT, F.lit(index)).withColumn(COMMITTED, F.lit(committed))
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
            # If a path is spelled otherwise, an inner join would lose the rows of its file without an error.
            placed = timed.join(F.broadcast(files), _PATH, "left").withColumn(
                _ORIGIN, F.when(F.col(_ORIGIN).isNull(), nowhere.cast(origin)).otherwise(F.col(_ORIGIN))
            )
            placed = placed.withColumns({name: F.col(f"{_ORIGIN}.{name}") for name in (COMMIT, COMMITTED)})
            placed = placed.drop(_ORIGIN)
        return self._with_status(placed).drop(_PATH, COMMITTED)

    def _with_status(self, frame: DataFrame) -> DataFrame:
        """Return rows with their status. A row that `where` drops keeps its time only if it may move the watermark."""
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
        """Return the decoded path of a row's file as in the log: relative to the table if the file is in its folder."""
        root = unquote(self._log.dataPath().toUri().toString()).rstrip("/") + "/"
        # `url_decode` would turn a plus into a space, but in a path it means a plus.
        path = F.url_decode(F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B")))
        inside = F.substring(path, F.lit(len(root) + 1), F.length(path))
        return F.when(F.startswith(path, F.lit(root)), inside).otherwise(path)

    def _rules(self, frame: DataFrame) -> RuleSettings:
        """Return the settings of the rules that reject a row."""
        pipeline = self._pipeline
        read = columns_read(pipeline, self._input, frame.columns)
        kinds = to_arrow(StructType([frame.schema[name] for name in read]))
        return RuleSettings(
            key=self._input.key if pipeline.null_keys == "reject" else (),
            max_ahead=pipeline.max_ahead_millis,
            gap=gap_column(pipeline),
            times=tuple((field.name, field.type) for field in kinds if holds_times(field.type)),
        )

    def derived(self, frame: DataFrame) -> DataFrame:
        """Return rows of the source with the columns of `columns=`."""
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
    """Run a function over the batches of a frame; its columns may have any names.

    Spark's own `mapInArrow` looks each column up by its name, and reads a dot in the name as a field of a struct.

    Args:
        frame: the rows.
        run: function that gets batches with the names of the frame.
        schema: schema of the batches that the function yields.
    """
    names = frame.columns

    def renamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run(batch.rename_columns(names) for batch in batches)

    return frame.toDF(*(f"c{number}" for number in range(len(names)))).mapInArrow(renamed, schema)


def event_millis(source: SourceDescription, frame: DataFrame) -> Column:
    """Return event time as epoch milliseconds; microseconds are rounded down."""
    column = F.col(quoted(source.timestamp))
    kind = frame.schema[source.timestamp].dataType.typeName()
    if kind == "timestamp":
        return F.unix_millis(column)
    if kind == "timestamp_ntz":
        return F.unix_millis(F.to_utc_timestamp(column.cast("timestamp"), source.zone or "UTC"))
    number = column.cast("long")
    if source.unit == "ms":
        return number
    # A number beyond the last usable time stays unusable when multiplied; without the bound it would overflow.
    beyond = F.lit(LAST_TIME)
    return F.when(number > beyond, beyond).when(number < -beyond, -beyond).otherwise(number) * 1000
