"""Expressions of a pipeline and where they run, and the Spark settings that their meaning depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.sources.sql.words import columns_in

_AS_BY_DEFAULT = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.legacy.literal.pickMinimumPrecision": "true",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
    "spark.sql.legacy.castComplexTypesToString.enabled": "false",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.ansi.relationPrecedence": "false",
    "spark.sql.icu.caseMappings.enabled": "true",
}
"""Settings of Spark that change the meaning of SQL, with the values for which the programs are proven."""


def differing_setting(value_of: Callable[[str], str | None]) -> str | None:
    """Return, as a reason, a setting for which the programs are not proven, or None if there is none.

    `value_of` returns the value of a setting of Spark, or None if it is not set.
    """
    for name, wanted in _AS_BY_DEFAULT.items():
        value = value_of(name)
        if value is not None and value.lower() != wanted.lower():
            return f"Spark has {name} = {value}"
    return None


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression of an input.

    Args:
        field: its place in the pipeline: `where`, or `columns['name']`.
        text: the expression.
        reason: the reason why Spark evaluates it; None if the tasks do.
        is_misfit: True if Spark can't evaluate it either, because types don't fit; the reason names them.
    """

    field: str
    text: str
    reason: str | None = None
    is_misfit: bool = False

    @property
    def why(self) -> str:
        """The reason why Spark reads the source."""
        return f"{self.field} = {self.text!r} is evaluated by Spark: {self.reason}"


@dataclass(frozen=True)
class SparkSql:
    """The expressions of an input; this value is sent to the tasks.

    Args:
        pipeline: name of the pipeline, for errors.
        prefix: "right." for the second input, for errors.
        programs: expression of each derived column.
        where: the condition; None without `where`.
        all_move: True if the times of rows that `where` drops also move the watermark.
        partition_by: column of source partitions; None if there is only one.
        derived: columns of an event, after `columns=`; None until Spark has determined their types.
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
        """Return the columns of the source from which columns of events, and the expressions, are computed."""
        partition = [] if self.partition_by is None else [self.partition_by]
        texts = [*self.programs.values(), *([] if self.where is None else [self.where])]
        wanted = {*columns_in(texts, source), *(name for name in (*names, *partition) if name not in self.programs)}
        return [name for name in source if name in wanted] or list(source[:1])
