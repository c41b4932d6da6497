"""SQL of an input that Spark evaluates: derived columns, and a flag for each row that `where` keeps.

Spark evaluates what no program of Arrow is proven for (`sql`), over batches that our tasks read. Only the columns that
expressions and events need go through Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate.pipelines.definition.event_columns import KEPT, OURS, PARTITION
from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.schemas import without_metadata
from tidegate.pipelines.sources.sql.words import changing_call, changing_value, columns_in
from tidegate.pipelines.spark.versions import from_arrow, to_arrow
from tidegate.pipelines.tables.columns import quoted

_COPY, _BESIDE = f"{OURS}copy", f"{OURS}beside"

_NONDETERMINISTIC = "INVALID_NON_DETERMINISTIC_EXPRESSIONS"


@dataclass(frozen=True)
class SparkSql:
    """The expressions of an input; this value travels to the tasks.

    Args:
        pipeline: name of the pipeline, for errors.
        prefix: "right." for the second input, for errors.
        programs: expression of each derived column.
        where: the condition; None without `where`.
        all_move: True if the times of rows that `where` drops move the watermark, too.
        partition_by: column of source partitions; None if there is only one.
        derived: columns of an event, after `columns=`; None before Spark was asked for their types.
    """

    pipeline: str
    prefix: str
    programs: Mapping[str, str]
    where: str | None
    all_move: bool
    partition_by: str | None = None
    derived: pa.Schema | None = None

    @classmethod
    def of(cls, pipeline: Pipeline, input_: Input) -> SparkSql:
        """Return the expressions of an input of a pipeline, without the types of its columns."""
        prefix = "" if input_ == pipeline.inputs[0] else "right."
        all_move = input_.watermark_from == "all"
        return cls(pipeline.name, prefix, dict(input_.columns), input_.where, all_move, input_.watermark_by)

    @property
    def schema(self) -> pa.Schema:
        """Columns of an event."""
        assert self.derived is not None
        return self.derived

    def typed(self, rows: DataFrame) -> SparkSql:
        """Return the expressions with the types that Spark gives their columns.

        Args:
            rows: rows with all columns of the source.

        Raises:
            Refused: an expression can't be evaluated, or gives another value each time it is read.
        """
        frame = rows
        for name, text in self.programs.items():
            self._check(f"columns[{name!r}]", text, frame)
            frame = frame.withColumn(name, F.expr(text))
        if self.where is not None:
            self._check("where", self.where, frame)
            self._analysed("where", partial(frame.where, self.where))
        return replace(self, derived=without_metadata(to_arrow(frame.schema)))

    def reads(self, names: Sequence[str], source: Sequence[str]) -> list[str]:
        """Return the columns of the source that columns of events, and the expressions, are made from."""
        partition = [] if self.partition_by is None else [self.partition_by]
        texts = [*self.programs.values(), *([] if self.where is None else [self.where])]
        wanted = {*columns_in(texts, source), *(name for name in (*names, *partition) if name not in self.programs)}
        return [name for name in source if name in wanted] or list(source[:1])

    def evaluated(self, rows: DataFrame, names: Sequence[str], also: Sequence[str]) -> DataFrame:
        """Return columns of events, the flag of kept rows, the text of the source partition, and further columns.

        Args:
            rows: rows with the columns that `reads` names.
            names: the columns of events.
            also: columns of `rows` that are returned as they are.
        """
        rows = self._flagged(rows)
        # With `watermark_from="all"`, dropped rows need their event times, too.
        for_all = self.where is None or self.all_move
        for name, text in self.programs.items():
            rows = rows.withColumn(name, F.expr(text) if for_all else F.when(F.col(KEPT), F.expr(text)))
        partition = F.lit("") if self.partition_by is None else F.col(quoted(self.partition_by)).cast("string")
        columns = [F.col(quoted(name)) for name in (*names, *also)]
        return rows.select(*columns, F.col(KEPT), partition.alias(PARTITION))

    def _flagged(self, rows: DataFrame) -> DataFrame:
        """Return rows with the flags of those that `where` keeps. It sees derived columns, which may replace others."""
        if self.where is None:
            return rows.withColumn(KEPT, F.lit(True))
        names = rows.columns
        copies = [f"{_COPY}{number}" for number in range(len(names))]
        seen = rows.select("*", *(F.col(quoted(name)).alias(copy) for name, copy in zip(names, copies, strict=True)))
        for name, text in self.programs.items():
            seen = seen.withColumn(name, F.expr(text))
        kept: Column = F.coalesce(F.expr(self.where), F.lit(False))
        stored = [F.col(copy).alias(name) for name, copy in zip(names, copies, strict=True)]
        return seen.select(*stored, kept.alias(KEPT))

    def _check(self, field: str, text: str, rows: DataFrame) -> None:
        """Refuse an expression that Spark can't evaluate for each row alone, or whose value changes between runs."""
        if (call := changing_call(text, rows.columns)) is not None:
            raise changing_value(self.prefix + field, self.pipeline, text, call)
        # Spark accepts only a deterministic expression over single rows as the condition of a join.
        beside = rows.limit(0).select(F.lit(1).alias(_BESIDE))

        def analyse() -> DataFrame:
            joined = rows.join(beside, F.expr(text).isNull())
            # Through Spark Connect, only a question about the plan makes Spark analyse it.
            _ = joined.schema
            return joined

        try:
            self._analysed(field, analyse)
        except Refused as error:
            cause = error.__cause__
            if isinstance(cause, AnalysisException) and cause.getCondition() == _NONDETERMINISTIC:
                raise changing_value(self.prefix + field, self.pipeline, text, "an expression") from cause
            raise

    def _analysed(self, field: str, act: Callable[[], DataFrame]) -> DataFrame:
        try:
            return act()
        except AnalysisException as error:
            raise Refused(
                f"{self.prefix}{field} of pipeline {self.pipeline!r}: {str(error).splitlines()[0]}"
            ) from error


def empty_frame(spark: SparkSession, schema: pa.Schema) -> DataFrame:
    """Return a frame with the columns of a schema, and no rows."""
    return spark.createDataFrame([], from_arrow(schema))
