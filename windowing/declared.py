"""Checks of user code's values against the Arrow types that are declared for them.

Arrow reads an int in a timestamp column as a count of the column's unit, a datetime in a date column as its day, and
1e300 in a float32 column as infinity. It drops fields of a struct that are not declared. Here an int in a timestamp
column is epoch milliseconds, as everywhere in this library, and the other values are refused.

    1714564800000 in timestamp[us, tz=UTC]     2024-05-01 12:00:00 UTC
    datetime(2024, 5, 1, 12) in date32         refused: it would lose the time of day
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from numbers import Integral
from typing import Any, NoReturn, TypeAlias

import pyarrow as pa

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import from_millis

Convert: TypeAlias = Callable[[Any, str], Any]
"""Function from a value and the field's name (for errors) to the value that Arrow reads as the user meant it."""

_LARGEST_FLOAT32 = 3.4028235677973366e38


def declared_values(
    field: str, values: Sequence[Any], declared: pa.DataType, takes_millis: bool = True
) -> Sequence[Any]:
    """Return values that Arrow reads as the user meant them: an int in a timestamp becomes a datetime.

    Args:
        field: the name for errors; a part of a nested value is `field.part`.
        values: values of user code; None is null.
        declared: the type that the user declared.
        takes_millis: False refuses an int in a timestamp. A snapshot needs this: user code would read a datetime.

    Raises:
        IllegalArgument: a value does not fit; the error names the field, the value and the declared type.
    """
    convert = _converter(declared, _Declaration(declared, takes_millis))
    return values if convert is None else [None if value is None else convert(value, field) for value in values]


def declared_array(
    field: str, values: Sequence[Any], kind: pa.DataType, declared: pa.DataType | None = None
) -> pa.Array:
    """Return values as an array of a type, after the checks of `declared_values`.

    Args:
        field: the name for errors, as in `declared_values`.
        values: values of user code; None is null.
        kind: type of the array.
        declared: the type that the user declared, if a table keeps the values in another one; None for `kind`.

    Raises:
        IllegalArgument: a value does not fit; the error names the field, the value and the declared type.
    """
    declaration = _Declaration(declared or kind)
    converted = declared_values(field, values, declared or kind)
    try:
        return pa.array(converted, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        declaration.refuse(field, _culprit(converted, values, kind), str(error))


def check_names(title: str, value: Any, names: Collection[str]) -> None:
    """Refuse a result that is no mapping, or has a name that is not declared.

    Raises:
        IllegalArgument: the error names the result and the declared names.
    """
    if not isinstance(value, Mapping):
        raise IllegalArgument(title, value, f"give a mapping with {sorted(names)}, as its type is declared")
    if unknown := sorted(set(value) - set(names), key=str):
        raise IllegalArgument(title, value, f"{unknown[0]!r} is not declared; declared are {sorted(names)}")


class _Declaration:
    """A declared type, for the errors about values that don't fit it."""

    def __init__(self, declared: pa.DataType, takes_millis: bool = True) -> None:
        self._declared = declared
        self.takes_millis = takes_millis

    def refuse(self, field: str, value: Any, why: str) -> NoReturn:
        raise IllegalArgument(field, value, f"its declared type is {self._declared}: {why}")


def _culprit(converted: Iterable[Any], values: Iterable[Any], kind: pa.DataType) -> Any:
    """Return the first given value whose converted value Arrow refuses."""
    for value, given in zip(converted, values, strict=True):
        try:
            pa.array([value], kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            return given
    return None


def _converter(kind: pa.DataType, declaration: _Declaration) -> Convert | None:
    """Return the function that checks and converts values of a type; None if Arrow alone reads them as meant."""
    if pa.types.is_timestamp(kind):
        return _timestamp(kind, declaration)
    if pa.types.is_date(kind):
        return _only(declaration, "give a datetime.date", lambda value: type(value) is date)
    if pa.types.is_integer(kind):
        return _only(declaration, "give an int", _is_whole)
    if pa.types.is_float32(kind) or pa.types.is_float16(kind):
        return _only(declaration, "it is too large", lambda value: _is_number(value) and _fits_float32(value))
    if pa.types.is_floating(kind):
        return _only(declaration, "give a float", _is_number)
    if pa.types.is_struct(kind):
        return _struct(kind, declaration)
    if pa.types.is_map(kind):
        return _map(kind, declaration)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _list(kind, declaration)
    return None


def _only(declaration: _Declaration, why: str, is_right: Callable[[Any], bool]) -> Convert:
    def convert(value: Any, field: str) -> Any:
        if not is_right(value):
            declaration.refuse(field, value, why)
        return value

    return convert


def _is_whole(value: Any) -> bool:
    """Return False for a number with a fraction, which Arrow would cut off. Arrow itself refuses other values."""
    return not isinstance(value, float | Decimal) or (isfinite(value) and value == int(value))


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool)


def _fits_float32(value: Any) -> bool:
    return not isinstance(value, float) or not isfinite(value) or abs(value) <= _LARGEST_FLOAT32


def _timestamp(kind: pa.TimestampType, declaration: _Declaration) -> Convert:
    def convert(value: Any, field: str) -> Any:
        if isinstance(value, datetime):
            if (value.utcoffset() is None) != (kind.tz is None):
                missing = (
                    "give the datetime a zone, such as datetime.UTC" if kind.tz else "give a datetime without a zone"
                )
                declaration.refuse(field, value, f"{missing}, or epoch milliseconds as an int")
            return value
        if isinstance(value, bool) or not isinstance(value, Integral):
            declaration.refuse(field, value, "give a datetime, or epoch milliseconds as an int")
        if not declaration.takes_millis:
            declaration.refuse(
                field,
                value,
                "after a restore it is a datetime: give a datetime, or declare int64 for epoch milliseconds",
            )
        try:
            moment = from_millis(int(value))
        except (OverflowError, ValueError):
            declaration.refuse(
                field, value, "an int counts epoch milliseconds, and this one is not in the years 1 to 9999"
            )
        return moment if kind.tz else moment.replace(tzinfo=None)

    return convert


def _struct(kind: pa.StructType, declaration: _Declaration) -> Convert | None:
    parts = {field.name: _converter(field.type, declaration) for field in kind}

    def convert(value: Any, field: str) -> Any:
        if not isinstance(value, Mapping):
            declaration.refuse(field, value, f"give a mapping with {sorted(parts)}")
        if unknown := [name for name in value if name not in parts]:
            declaration.refuse(field, value, f"{unknown[0]!r} is not declared; declared are {sorted(parts)}")
        return {
            name: part if part is None or parts[name] is None else parts[name](part, f"{field}.{name}")  # type: ignore[misc]
            for name, part in value.items()
        }

    return convert


def _list(kind: pa.ListType, declaration: _Declaration) -> Convert:
    of_item = _converter(kind.value_type, declaration)

    def convert(value: Any, field: str) -> Any:
        # A text is not a list of texts, although Python can iterate over it.
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            declaration.refuse(field, value, "give a list")
        if of_item is None:
            return list(value)
        return [None if item is None else of_item(item, f"{field}[{i}]") for i, item in enumerate(value)]

    return convert


def _map(kind: pa.MapType, declaration: _Declaration) -> Convert:
    of_key, of_item = _converter(kind.key_type, declaration), _converter(kind.item_type, declaration)

    def convert(value: Any, field: str) -> Any:
        if not isinstance(value, Mapping | list | tuple):
            declaration.refuse(field, value, "give a dict")
        pairs = value.items() if isinstance(value, Mapping) else value
        return [
            (
                key if of_key is None else of_key(key, f"{field}'s key"),
                item if item is None or of_item is None else of_item(item, f"{field}[{key!r}]"),
            )
            for key, item in pairs
        ]

    return convert
