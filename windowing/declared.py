"""Checks that values of user code fit the Arrow types that are declared for them.

A value of a state, accumulator or result is checked where user code provides it, and converted to the value that a
restore from a snapshot would read. So user code sees the same value whether or not an epoch ended in between. A value
that does not fit its type is refused:

    2.5 in int64                               refused: give an int
    datetime(2024, 5, 1, 12) in date32         refused: it would lose the time of day
    0.1 in float32                             0.10000000149011612, immediately
    {"n": 1} in struct<n: int64, of: string>   {"n": 1, "of": None}

An int in a timestamp column of a result is epoch milliseconds, as everywhere in this library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from math import isfinite, isinf
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import from_millis


def fitting(value: Any, kind: pa.DataType, state: str, owner: object = None) -> Any:
    """Return a state value of user code as a snapshot would return it. None is null.

    Raises:
        IllegalArgument: the value does not fit; the error names function, state, value and declared type.
    """
    return checker(kind, f"state {state!r}", owner)(value)


def fitting_key(key: Any, kind: pa.DataType, state: str, owner: object) -> Any:
    """Return the key of a map state as `fitting` does, but refuse None and NaN."""
    try:
        return key_converter(kind, False)(key)
    except Unfit as unfit:
        raise _refused(unfit, kind, f"state {state!r}'s key", owner) from None


def key_to_find(key: Any, kind: pa.DataType) -> Any:
    """Return the key under which `fitting_key` stores an entry; a key that doesn't fit is returned unchanged."""
    try:
        return key_converter(kind, False)(key)
    except Unfit:
        return key


def checker(kind: pa.DataType | None, name: str, owner: object, *, takes_millis: bool = False) -> Convert:
    """Return a function like `fitting` for many values of a type. It accepts every value unchanged if the type is None.

    Args:
        kind: the type that the user declared.
        name: what the type belongs to, for errors.
        owner: the function that produces the values, for errors.
        takes_millis: True accepts an int of epoch milliseconds for a timestamp, and converts it to a datetime. State
            refuses it, because user code would read back a datetime.
    """
    if kind is None:
        return _unchanged
    convert = converter(kind, takes_millis)

    def fit(value: Any) -> Any:
        try:
            return None if value is None else convert(value)
        except Unfit as unfit:
            raise _refused(unfit, kind, name, owner) from None

    return fit


def row_checker(kind: pa.DataType | None, owner: object, title: str = "result") -> Convert:
    """Return the function that checks and converts results; errors name each column of a struct."""
    if not isinstance(kind, pa.StructType):
        return checker(kind, title, owner, takes_millis=True)
    convert = converter(kind, True)

    def fit(value: Any) -> Any:
        try:
            return convert(value)
        except Unfit as unfit:
            if not unfit.steps:
                raise IllegalArgument(f"{_prefix(owner)}{title}", value, unfit.why) from None
            column = unfit.steps[0].removeprefix(".")
            part = Unfit(unfit.value, unfit.why, unfit.steps[1:])
            raise _refused(part, kind.field(column).type, f"{title} column {column!r}", owner) from None

    return fit


def _prefix(owner: object) -> str:
    if owner is None:
        return ""
    return f"{getattr(owner, '__name__', type(owner).__name__)}: "


def _refused(unfit: Unfit, kind: pa.DataType, name: str, owner: object) -> IllegalArgument:
    return IllegalArgument(
        f"{_prefix(owner)}{name}{''.join(unfit.steps)}", unfit.value, f"its declared type is {kind}: {unfit.why}"
    )


def _unchanged(value: Any) -> Any:
    return value


Convert: TypeAlias = Callable[[Any], Any]
"""Function from a value other than None to the value that a snapshot returns for it. It raises `Unfit`."""

_MICROS = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}
"""Resolution in microseconds of each timestamp unit. Tables keep microseconds, so nanoseconds are truncated there."""
_FINEST = {
    "s": "a second: round it, or declare another unit",
    "ms": "a millisecond: round it, or declare another unit",
    **dict.fromkeys(("us", "ns"), "a microsecond, which no datetime keeps: round it"),
}

_NOT_NULL = "it is declared nullable=False: give a value"

_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)

_REFUSED_BY_ARROW = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    TypeError,
    ValueError,
    OverflowError,
)


class Unfit(Exception):
    """A value, or a part of one, does not fit its type. `steps` lead to the part, such as `.tags` and `[2]`."""

    def __init__(self, value: Any, why: str, steps: tuple[str, ...] = ()) -> None:
        super().__init__(why)
        self.value, self.why, self.steps = value, why, steps

    def within(self, step: str) -> Unfit:
        """Return the same error for the enclosing value."""
        return Unfit(self.value, self.why, (step, *self.steps))


@lru_cache(maxsize=1024)
def converter(kind: pa.DataType, takes_millis: bool) -> Convert:
    """Return the function that checks and converts values of a type."""
    types = pa.types
    if types.is_integer(kind):
        return _whole(kind)
    if types.is_float64(kind):
        return _double
    if types.is_floating(kind):
        return _small_float(kind)
    if types.is_boolean(kind):
        return _bool
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _text
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return _bytes
    if types.is_timestamp(kind):
        return _timestamp(kind, takes_millis)
    if types.is_struct(kind):
        return _struct(kind, takes_millis)
    if types.is_map(kind):
        return _map(kind, takes_millis)
    if any(is_list(kind) for is_list in _LISTS):
        return _list(kind, takes_millis)
    return _decimal(kind) if types.is_decimal(kind) else _by_arrow(kind)


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _whole(kind: pa.DataType) -> Convert:
    signed = pa.types.is_signed_integer(kind)
    low = -(1 << kind.bit_width - 1) if signed else 0
    high = (1 << kind.bit_width - signed) - 1

    def convert(value: Any) -> int:
        if type(value) is int:
            whole = value
        elif not (_is_real(value) or isinstance(value, Decimal)) or not isfinite(value) or int(value) != value:
            raise Unfit(value, "give an int")
        else:
            whole = int(value)
        if not low <= whole <= high:
            raise Unfit(value, f"give an int from {low} to {high}")
        return whole

    return convert


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    if not _is_real(value):
        raise Unfit(value, "give a float")
    try:
        number = float(value)
    except OverflowError:
        raise Unfit(value, "it is too large") from None
    if isinstance(value, Integral) and number != value:
        raise Unfit(value, "a float has 53 bits, so it would become another number: declare int64, or give a float")
    return number


def _small_float(kind: pa.DataType) -> Convert:
    rounded = np.float32 if pa.types.is_float32(kind) else np.float16

    def convert(value: Any) -> float:
        number = _double(value)
        with np.errstate(over="ignore"):
            small = float(rounded(number))
        if isinf(small) and not isinf(number):
            raise Unfit(value, "it is too large")
        if isinstance(value, Integral) and small != value:
            raise Unfit(value, "it would become another number: declare float64")
        return small

    return convert


def _bool(value: Any) -> bool:
    if value is True or value is False:
        return value
    if not isinstance(value, np.bool_):
        raise Unfit(value, "give True or False")
    return bool(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Unfit(value, "give a str")
    text = value if type(value) is str else str.__str__(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Unfit(value, "it has half of a surrogate pair, which UTF-8 can't hold") from None
    return text


def _bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if not isinstance(value, bytes | bytearray | memoryview):
        raise Unfit(value, "give bytes")
    return bytes(value)


def _decimal(kind: pa.DataType) -> Convert:
    exact = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Decimal:
        number = Decimal(int(value)) if _is_real(value) and isinstance(value, Integral) else value
        if not isinstance(number, Decimal) or not number.is_finite():
            raise Unfit(value, "give a Decimal or an int")
        try:
            kept = number.quantize(unit, context=exact)
        except (Inexact, InvalidOperation):
            digits = f"{kind.precision} digits, {kind.scale} of them after the decimal point"
            raise Unfit(value, f"it has more than {digits}: round it") from None
        return kept or abs(kept)

    return convert


def _by_arrow(kind: pa.DataType) -> Convert:
    """Return the function for other types: the value that Arrow stores has to equal the given one."""
    is_date = pa.types.is_date(kind)

    def convert(value: Any) -> Any:
        try:
            kept = pa.array([value], kind)[0].as_py()
        except _REFUSED_BY_ARROW as error:
            raise Unfit(value, "give a datetime.date" if is_date else str(error)) from None
        if kept != value:
            raise Unfit(value, "give a datetime.date" if is_date else f"it would become {kept!r}")
        return kept

    return convert


def _timestamp(kind: pa.TimestampType, takes_millis: bool) -> Convert:
    zone = None if kind.tz is None else pa.scalar(0, pa.timestamp("us", kind.tz)).as_py().tzinfo
    is_utc, micros = kind.tz == "UTC", _MICROS[kind.unit]

    def convert(value: Any) -> Any:
        if not isinstance(value, datetime):
            value = moment(value)
        if (value.utcoffset() is None) != (zone is None):
            missing = "give the datetime a zone, such as datetime.UTC" if zone else "give a datetime without a zone"
            raise Unfit(value, f"{missing}, or epoch milliseconds as an int" if takes_millis else missing)
        if value.microsecond % micros or getattr(value, "nanosecond", 0):
            raise Unfit(value, f"it is finer than {_FINEST[kind.unit]}")
        if kind.unit == "ns" and not 1678 <= value.year <= 2261:
            raise Unfit(value, "nanoseconds count from 1678 to 2261: declare timestamp('us')")
        if type(value) is not datetime:
            value = datetime.combine(value.date(), value.timetz())
        if zone is None:
            return value.replace(fold=0) if value.fold else value
        if is_utc and value.tzinfo is zone:
            return value
        try:
            return value.astimezone(UTC).astimezone(zone)
        except OverflowError:
            raise Unfit(value, "in its time zone it is outside the years 1 to 9999") from None

    def moment(value: Any) -> datetime:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise Unfit(value, f"give a datetime{', or epoch milliseconds as an int' if takes_millis else ''}")
        if not takes_millis:
            raise Unfit(
                value, "after a restore it is a datetime: give a datetime, or declare int64 for epoch milliseconds"
            )
        try:
            moment = from_millis(int(value))
        except (OverflowError, ValueError):
            raise Unfit(value, "an int means epoch milliseconds, and this one is outside the years 1 to 9999") from None
        return moment if zone else moment.replace(tzinfo=None)

    return convert


def _nullable(field: pa.Field, convert: Convert) -> Convert:
    """Return a converter that also accepts None as null, if the field may be null."""

    def convert_or_null(value: Any) -> Any:
        if value is not None:
            return convert(value)
        if not field.nullable:
            raise Unfit(None, _NOT_NULL)
        return None

    return convert_or_null


def _struct(kind: pa.StructType, takes_millis: bool) -> Convert:
    fields = [(field.name, converter(field.type, takes_millis), field.nullable) for field in kind]
    names = dict.fromkeys(kind.names).keys()

    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict and not isinstance(value, Mapping):
            raise Unfit(value, f"give a mapping with {sorted(names)}")
        if not value.keys() <= names:
            unknown = min(value.keys() - names, key=str)
            raise Unfit(value, f"{unknown!r} is not one of the declared fields {sorted(names)}")
        row = {}
        name = ""
        try:
            for name, fit, is_nullable in fields:
                part = value.get(name)
                if part is not None:
                    part = fit(part)
                elif not is_nullable:
                    raise Unfit(None, _NOT_NULL)
                row[name] = part
        except Unfit as unfit:
            raise unfit.within(f".{name}") from None
        return row

    return convert


def _list(kind: pa.DataType, takes_millis: bool) -> Convert:
    fit = _nullable(kind.field(0), converter(kind.field(0).type, takes_millis))
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else None

    def convert(value: Any) -> list[Any]:
        # A string is not a list of strings, although Python can iterate over it.
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise Unfit(value, "give a list")
        items = list(value)
        if size is not None and len(items) != size:
            raise Unfit(value, f"give a list of {size}")
        at = 0
        try:
            for at, item in enumerate(items):
                items[at] = fit(item)
        except Unfit as unfit:
            raise unfit.within(f"[{at}]") from None
        return items

    return convert


@lru_cache(maxsize=1024)
def key_converter(kind: pa.DataType, takes_millis: bool) -> Convert:
    """Return the function that checks and converts map keys, which are found by equality."""
    convert = converter(kind, takes_millis)

    def fit(key: Any) -> Any:
        fitted = None if key is None else convert(key)
        if fitted is None or fitted != fitted:
            raise Unfit(key, "it does not equal itself, so it could never be found")
        return fitted

    return fit


def _map(kind: pa.MapType, takes_millis: bool) -> Convert:
    fit_key = key_converter(kind.key_type, takes_millis)
    fit_item = _nullable(kind.item_field, converter(kind.item_type, takes_millis))
    has_python_keys = not pa.types.is_nested(kind.key_type)

    def convert(value: Any) -> Any:
        if not isinstance(value, Mapping | list | tuple):
            raise Unfit(value, "give a dict")
        pairs = []
        for pair in value.items() if isinstance(value, Mapping) else value:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise Unfit(value, "give a dict, or a list of pairs")
            try:
                key = fit_key(pair[0])
            except Unfit as unfit:
                raise unfit.within("'s key") from None
            try:
                pairs.append((key, fit_item(pair[1])))
            except Unfit as unfit:
                raise unfit.within(f"[{key!r}]") from None
        if not has_python_keys:
            if takes_millis:
                return pairs
            raise Unfit(value, "Python can't use such keys: declare a list of structs")
        fitted = dict(pairs)
        if len(fitted) < len(pairs):
            raise Unfit(value, "a key occurs twice")
        return fitted

    return convert
