"""An expression of a pipeline with the place where it runs, and the settings of Spark that its meaning rests on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    """Return a setting for which the programs are not proven, as a reason; None if there is none.

    Args:
        value_of: returns the value of a setting of Spark; None if it is not set.
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
        is_misfit: True if Spark can't evaluate it either, because types don't fit: the reason says which.
    """

    field: str
    text: str
    reason: str | None = None
    is_misfit: bool = False

    @property
    def why(self) -> str:
        """The reason why Spark reads the source."""
        return f"{self.field} = {self.text!r} is evaluated by Spark: {self.reason}"
