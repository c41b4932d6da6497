"""SQL of an input that no program of Arrow is proven for, so that only Spark evaluates it; a plain value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.sources.sql.words import columns_in


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

    def reads(self, names: Sequence[str], source: Sequence[str]) -> list[str]:
        """Return the columns of the source that columns of events, and the expressions, are made from."""
        partition = [] if self.partition_by is None else [self.partition_by]
        texts = [*self.programs.values(), *([] if self.where is None else [self.where])]
        wanted = {*columns_in(texts, source), *(name for name in (*names, *partition) if name not in self.programs)}
        return [name for name in source if name in wanted] or list(source[:1])
