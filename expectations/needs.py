"""What an expectation needs in addition to the new windows, and how it reads the columns that it names.

A check sees only the windows that are new since the last one that passed. That is enough for a rule about single
windows. A rule that compares windows would find nothing to compare with, so it declares what it needs:

- `nothing`: the new windows are judged on their own; a mean or a share describes the new windows of one check.
- `neighbours`: each window is compared with the one before it of its key. A rule marks the later one of two windows
  that don't agree.
- `partition`: all windows of each event-time partition (a day, an hour or a month). Totals and row counts are judged
  once the partition is complete.
- `standing`: all standing windows, new and old.

A class declares it as `needs: ClassVar[Needs]`. `CORE` has a decision for each expectation of Great Expectations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import great_expectations.expectations as gxe

Needs: TypeAlias = Literal["nothing", "neighbours", "partition", "standing"]
NEEDS: Final = ("nothing", "neighbours", "partition", "standing")

Reads: TypeAlias = Literal["as they are", "identity", "values", "numbers"]
"""How an expectation reads its columns.

`identity` tells values apart, so a list, struct or map is given as text. `values` compares them with limits, and
`numbers` computes with them: both get decimals as doubles, as the limits are doubles, and neither can read a list, a
struct or a map.
"""


class Fact(NamedTuple):
    """What an expectation of Great Expectations needs, and how it reads its columns."""

    needs: Needs
    reads: Reads


_ONE = Fact("nothing", "as they are")
_COMPARED = Fact("nothing", "values")

CORE: Final[Mapping[type[Any], Fact]] = {
    # Order: each window is compared with the previous one.
    gxe.ExpectColumnValuesToBeIncreasing: Fact("neighbours", "values"),
    gxe.ExpectColumnValuesToBeDecreasing: Fact("neighbours", "values"),
    # Uniqueness over time, and distance from what is usual.
    gxe.ExpectColumnValuesToBeUnique: Fact("standing", "identity"),
    gxe.ExpectCompoundColumnsToBeUnique: Fact("standing", "identity"),
    gxe.ExpectColumnValueZScoresToBeLessThan: Fact("standing", "numbers"),
    gxe.ExpectColumnValuesToNotBeOutliers: Fact("standing", "numbers"),
    gxe.ExpectColumnStdevToBeBetween: Fact("standing", "numbers"),
    # Totals depend on how many windows are counted, and completeness on which windows exist.
    gxe.ExpectTableRowCountToBeBetween: Fact("partition", "as they are"),
    gxe.ExpectTableRowCountToEqual: Fact("partition", "as they are"),
    gxe.ExpectColumnSumToBeBetween: Fact("partition", "numbers"),
    gxe.ExpectColumnUniqueValueCountToBeBetween: Fact("partition", "identity"),
    gxe.ExpectColumnDistinctValuesToContainSet: Fact("partition", "values"),
    gxe.ExpectColumnDistinctValuesToEqualSet: Fact("partition", "values"),
    # Typical values of the windows of one check.
    gxe.ExpectColumnMeanToBeBetween: _COMPARED,
    gxe.ExpectColumnMedianToBeBetween: _COMPARED,
    gxe.ExpectColumnMinToBeBetween: _COMPARED,
    gxe.ExpectColumnMaxToBeBetween: _COMPARED,
    gxe.ExpectColumnQuantileValuesToBeBetween: Fact("nothing", "numbers"),
    gxe.ExpectColumnKLDivergenceToBeLessThan: _COMPARED,
    gxe.ExpectColumnMostCommonValueToBeInSet: _COMPARED,
    gxe.ExpectColumnDistinctValuesToBeInSet: _COMPARED,
    gxe.ExpectColumnProportionOfNonNullValuesToBeBetween: _ONE,
    gxe.ExpectColumnProportionOfUniqueValuesToBeBetween: Fact("nothing", "identity"),
    # Each row on its own.
    gxe.ExpectColumnValuesToBeBetween: _COMPARED,
    gxe.ExpectColumnValuesToBeInSet: _COMPARED,
    gxe.ExpectColumnValuesToNotBeInSet: _COMPARED,
    gxe.ExpectColumnPairValuesAToBeGreaterThanB: _COMPARED,
    gxe.ExpectColumnPairValuesToBeInSet: _COMPARED,
    gxe.ExpectMulticolumnSumToEqual: Fact("nothing", "numbers"),
    gxe.ExpectColumnPairValuesToBeEqual: Fact("nothing", "identity"),
    gxe.ExpectMulticolumnValuesToBeEqual: Fact("nothing", "identity"),
    gxe.ExpectMulticolumnValuesToBeUnique: Fact("nothing", "identity"),
    gxe.ExpectSelectColumnValuesToBeUniqueWithinRecord: Fact("nothing", "identity"),
    gxe.ExpectColumnValuesToBeNull: _ONE,
    gxe.ExpectColumnValuesToNotBeNull: _ONE,
    gxe.ExpectColumnValueLengthsToBeBetween: _ONE,
    gxe.ExpectColumnValueLengthsToEqual: _ONE,
    gxe.ExpectColumnValuesToBeOfType: _ONE,
    gxe.ExpectColumnValuesToBeInTypeList: _ONE,
    gxe.ExpectColumnValuesToBeDateutilParseable: _ONE,
    gxe.ExpectColumnValuesToBeJsonParseable: _ONE,
    gxe.ExpectColumnValuesToMatchJsonSchema: _ONE,
    gxe.ExpectColumnValuesToMatchLikePattern: _ONE,
    gxe.ExpectColumnValuesToMatchLikePatternList: _ONE,
    gxe.ExpectColumnValuesToNotMatchLikePattern: _ONE,
    gxe.ExpectColumnValuesToNotMatchLikePatternList: _ONE,
    gxe.ExpectColumnValuesToMatchRegex: _ONE,
    gxe.ExpectColumnValuesToMatchRegexList: _ONE,
    gxe.ExpectColumnValuesToNotMatchRegex: _ONE,
    gxe.ExpectColumnValuesToNotMatchRegexList: _ONE,
    gxe.ExpectColumnValuesToMatchStrftimeFormat: _ONE,
    # The columns of the table, whatever its rows are.
    gxe.ExpectColumnToExist: _ONE,
    gxe.ExpectColumnTypeToBe: _ONE,
    gxe.ExpectTableColumnCountToBeBetween: _ONE,
    gxe.ExpectTableColumnCountToEqual: _ONE,
    gxe.ExpectTableColumnsToMatchOrderedList: _ONE,
    gxe.ExpectTableColumnsToMatchSet: _ONE,
    # These need a database.
    gxe.ExpectTableRowCountToEqualOtherTable: _ONE,
    gxe.ExpectQueryResultsToMatchComparison: _ONE,
    # A query that compares rows declares what it needs in a subclass.
    gxe.UnexpectedRowsExpectation: _ONE,
}
"""Each expectation of Great Expectations. A subclass has the facts of its base, unless it declares `needs`."""


def fact_of(expectation: Any) -> Fact:
    """Return the facts of an expectation; a user's class judges single rows unless it declares otherwise."""
    known = next((CORE[each] for each in type(expectation).__mro__ if each in CORE), _ONE)
    return known._replace(needs=getattr(expectation, "needs", known.needs))
