"""The types of columns as Great Expectations reads them from a data frame, and limits that don't fit them.

Pandas has no decimals, dates, lists, structs or maps: it would hold them as Python objects, whose arithmetic and
comparisons fail at the first null, or at a limit of another type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import great_expectations.expectations as gxe
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.expectations.needs import Fact, Reads, fact_of
from tidegate.pipelines.definition.row_sets import texts_of
from tidegate.windowing.aggregates.doubles import doubles_of

OF_ONE: Final = ("column", "column_A", "column_B")
OF_SEVERAL: Final = ("column_list", "key")
"""Parameters that name columns."""

_LIMITS: Final = ("min_value", "max_value", "value_set", "value_pairs_set", "partition_object")
"""Parameters with values that columns are compared with."""

_WITH_ZONE: Final = "times in UTC"
_WITHOUT_ZONES: Final = (gxe.ExpectColumnMostCommonValueToBeInSet, gxe.ExpectColumnPairValuesToBeInSet)
"""They read NumPy's times, which have no zone."""


def columns_of(expectation: Any) -> list[str]:
    """Return the columns that an expectation names."""
    one = [getattr(expectation, name, None) for name in OF_ONE]
    several = [each for name in OF_SEVERAL for each in getattr(expectation, name, None) or ()]
    return [name for name in (*one, *several) if isinstance(name, str)]


def typed(rows: pa.Table, reads: Reads) -> pa.Table:
    """Return rows with the types in which an expectation reads their columns."""
    for place, field in enumerate(rows.schema):
        kind, column = field.type, rows.column(place)
        if pa.types.is_decimal(kind) and reads in ("values", "numbers"):
            column = pa.chunked_array([_doubles(chunk) for chunk in column.chunks], pa.float64())
        elif pa.types.is_boolean(kind) and reads == "numbers":
            column = column.cast(pa.int8())
        elif pa.types.is_nested(kind) and reads == "identity":
            # The text of a row is that of a tuple with one value.
            texts = pa.array([text[1:-2] for text in texts_of(pa.table({"value": column}))], pa.string())
            column = pa.chunked_array([pc.if_else(column.combine_chunks().is_valid(), texts, None)])
        else:
            continue
        rows = rows.set_column(place, field.name, column)
    return rows


def _doubles(values: pa.Array) -> pa.Array:
    """Return decimals as the nearest doubles, to which Python also rounds the limits."""
    return pa.array(doubles_of(values), pa.float64(), mask=values.is_null().to_numpy(zero_copy_only=False))


def fitted(expectation: Any, schema: pa.Schema) -> Any:
    """Return an expectation with limits of the types in which `typed` gives its columns.

    For a column of dates, dates are times at midnight; for decimals, limits are doubles.
    """
    kinds = [schema.field(name).type for name in columns_of(expectation) if name in schema.names]
    of_dates, of_decimals = any(map(pa.types.is_date, kinds)), any(map(pa.types.is_decimal, kinds))
    if fact_of(expectation).reads not in ("values", "numbers") or not (of_dates or of_decimals):
        return expectation

    def fit(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: fit(each) for name, each in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return type(value)(map(fit, value))
        if of_dates and isinstance(value, date) and not isinstance(value, datetime):
            return datetime(value.year, value.month, value.day)
        return float(value) if of_decimals and isinstance(value, Decimal) else value

    given = {name: getattr(expectation, name) for name in _LIMITS if getattr(expectation, name, None) is not None}
    return expectation.copy(update={name: fit(value) for name, value in given.items()})


def type_faults(expectation: Any, schema: pa.Schema) -> Iterator[str]:
    """Yield the reasons why an expectation can't read its columns, or compare them with its limits."""
    fact = fact_of(expectation)
    reads = fact.reads
    fields = [schema.field(name) for name in columns_of(expectation) if name in schema.names]
    for field in fields:
        what = _kind(field.type)
        if pa.types.is_nested(field.type) and reads in ("values", "numbers"):
            yield (
                f"column {field.name!r} holds {what}, which can't be compared with a value. Write the condition as SQL "
                "in an UnexpectedRowsExpectation, or as a Rule"
            )
        elif reads == "numbers" and what not in ("numbers", "true and false"):
            yield f"it computes with numbers, but column {field.name!r} holds {what}"
        elif fact == Fact("neighbours", "values") and what in ("text", "bytes", "true and false"):
            yield f"it subtracts values, but column {field.name!r} holds {what}"
        elif isinstance(expectation, _WITHOUT_ZONES) and what == _WITH_ZONE:
            yield (
                f"column {field.name!r} holds {what}, but it compares times without their zone, so no value would "
                "match. Use ExpectColumnValuesToBeInSet or ExpectColumnDistinctValuesToBeInSet"
            )
        elif reads == "values":
            yield from (
                fault
                for name in _LIMITS
                for value in _scalars(getattr(expectation, name, None))
                if (fault := _misfit(name, value, field)) is not None
            )


def _misfit(name: str, value: Any, field: pa.Field) -> str | None:
    """Return why a value can't be compared with a column, or None."""
    holds = f"column {field.name!r} holds {_kind(field.type)}"
    if isinstance(value, datetime):
        why = _misfit_of_time(value, field.type, holds)
    elif isinstance(value, date):
        why = _misfit_of_date(value, field.type, holds)
    elif isinstance(value, int | float) and not isinstance(value, bool) and name in ("min_value", "max_value"):
        why = _misfit_of_number(field.type, holds)
    else:
        return None
    return why and f"{name} {value} {why}"


def _misfit_of_time(value: datetime, kind: pa.DataType, holds: str) -> str | None:
    if not (is_time := pa.types.is_timestamp(kind)) and not pa.types.is_date(kind):
        return f"is a time, but {holds}"
    if (has_zone := is_time and kind.tz is not None) and value.tzinfo is None:
        return f"has no time zone, but {holds}: write datetime(..., tzinfo=UTC)"
    return None if has_zone or value.tzinfo is None else f"has a time zone, but {holds}: write it without tzinfo"


def _misfit_of_date(value: date, kind: pa.DataType, holds: str) -> str | None:
    if pa.types.is_timestamp(kind):
        zone = "" if kind.tz is None else ", tzinfo=UTC"
        return f"is a date, but {holds}: write datetime({value:%Y}, {value.month}, {value.day}{zone})"
    return None if pa.types.is_date(kind) else f"is a date, but {holds}"


def _misfit_of_number(kind: pa.DataType, holds: str) -> str | None:
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return f"is a number, but {holds}: write a datetime"
    return f"is a number, but {holds}" if _kind(kind) in ("text", "bytes") else None


def _scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from _scalars([*value.values()])
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _scalars(each)
    elif value is not None:
        yield value


def _kind(kind: pa.DataType) -> str:
    """Return in plain words what a column of a type holds."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "lists"
    if pa.types.is_struct(kind):
        return "structs"
    if pa.types.is_map(kind):
        return "maps"
    if pa.types.is_timestamp(kind):
        return "times without a zone" if kind.tz is None else _WITH_ZONE
    if pa.types.is_date(kind):
        return "dates"
    if pa.types.is_boolean(kind):
        return "true and false"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    return "numbers"
