"""Casts between two types, with Spark's values and errors in ANSI mode: a table of kernels by source and target.

A kernel with `fails` raises an error for a value that can't be cast; without it, as in TRY_CAST, the value becomes
null.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.sources.sql import moments, texts, times
from tidegate.pipelines.sources.sql.numbers import arrays, nulls_of, saturated
from tidegate.pipelines.sources.sql.program import Call, Constant, Node, RowFailure, Value
from tidegate.pipelines.sources.sql.reading import Unproven
from tidegate.windowing.aggregates.doubles import doubles_of, unscaled
from tidegate.windowing.type_names import name_of

EXACT_DIGITS = 15
"""Digits up to which a decimal is an integral double divided by a power of ten that is a double, so that the quotient
is correctly rounded.
"""
_BITS_OF_FLOAT = 24
_MOST_DIGITS = 38
"""Digits of the widest decimal."""
_EXACT = Context(prec=2 * _MOST_DIGITS + 1)
_WHITE = "".join(map(chr, range(33))) + "\x7f"
_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")


def cast(node: Node, kind: pa.DataType, quiet: bool = False) -> Node:
    """Return a program that casts another one's values.

    With `quiet`, as in TRY_CAST, a value that can't be cast gives null. A cast that is not proven raises Unproven.
    """
    source = node.type
    if source == kind:
        return node
    if pa.types.is_null(source) and isinstance(node, Constant):
        return Constant(None, kind)
    if isinstance(node, Constant) and not quiet and (converted := _converted(node, kind)) is not None:
        return converted
    call = _cast(node, source, kind, quiet)
    if quiet and call.fails and not pa.types.is_string(source):
        raise Unproven(f"TRY_CAST of {name_of(source)} to {name_of(kind)} is not proven")
    return call


def _converted(node: Constant, kind: pa.DataType) -> Constant | None:
    """Return a numeric literal in a wider type, or in a decimal that its digits fit into."""
    value, t = node.value, pa.types
    if t.is_integer(node.type):
        if t.is_integer(kind) and kind.bit_width > node.type.bit_width:
            return Constant(value, kind)
        if t.is_float64(kind):
            return Constant(float(value), kind)
        if t.is_decimal(kind) and len(str(abs(value))) <= _whole_digits(kind):
            return Constant(Decimal(value), kind)
    if t.is_decimal(node.type):
        if t.is_float64(kind):
            return Constant(float(value), kind)
        if t.is_decimal(kind) and kind.scale >= node.type.scale and _whole_digits(kind) >= _whole_digits(node.type):
            return Constant(value, kind)
    return None


def _cast(node: Node, source: pa.DataType, kind: pa.DataType, quiet: bool) -> Call:
    if pa.types.is_float64(kind) and isinstance(node, Call) and node.kernel is pc.cast and pa.types.is_float32(source):
        inner = node.arguments[0].type
        if pa.types.is_integer(inner) and inner.bit_width > _BITS_OF_FLOAT:
            raise Unproven("Spark may skip the FLOAT between a whole number and a DOUBLE")
    given: dict[object, Any] = {_KIND: kind, _FAILS: not quiet}
    for row in _CASTS:
        if any(is_(source) for is_ in row.sources) and any(is_(kind) for is_ in row.kinds) and row.when(source, kind):
            fails = row.fails == "always" or (row.fails == "loudly" and not quiet)
            options = tuple(given.get(option, option) for option in row.options)
            return Call(row.kernel, (node,), kind, fails=fails, options=options)
    raise Unproven(f"CAST of {name_of(source)} to {name_of(kind)} is not proven")


DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
"""Number of digits of the decimal to which Spark converts an integer of each type."""


def _whole_digits(kind: Any) -> int:
    return int(kind.precision - kind.scale)


def narrower_integer(value: Value, kind: pa.DataType, fails: bool) -> Value:
    """Cast integers to narrower ones."""
    if fails:
        return value.cast(kind)
    (values,) = arrays(value)
    bounds = np.iinfo(kind.to_pandas_dtype())
    low, high = (pa.scalar(int(bound), values.type) for bound in (bounds.min, bounds.max))
    fits = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
    return pc.if_else(fits, values, pa.scalar(None, values.type)).cast(kind)


def narrower_decimal(value: Value, kind: pa.DataType, fails: bool) -> Value:
    """Cast decimals of less than 38 digits to fewer digits; digits after the point are rounded half up."""
    (values,) = arrays(value)
    scale, whole = values.type.scale, _whole_digits(kind)
    wide = pa.decimal128(_MOST_DIGITS, scale)
    numbers = values.cast(wide)
    if kind.scale < scale:
        numbers = pc.round(numbers, ndigits=kind.scale, round_mode="half_towards_infinity")
    if whole <= _whole_digits(values.type):
        limit = pa.scalar(Decimal(10) ** whole, wide)
        fits = pc.fill_null(pc.less(pc.abs(numbers), limit), True)
        if fails and fits.true_count < len(fits):
            raise RowFailure(
                f"the value {values.filter(pc.invert(fits))[0].as_py()} is out of range for {name_of(kind)}"
            )
        numbers = pc.if_else(fits, numbers, pa.scalar(None, wide))
    return numbers.cast(kind)


def is_not_zero(value: Value) -> Value:
    """Cast numbers to boolean; NaN is true."""
    return pc.not_equal(value, pa.scalar(0, value.type))


def from_boolean(value: Value, kind: pa.DataType) -> Value:
    """Cast booleans to numbers."""
    return value.cast(pa.int8()).cast(kind)


def floating_to_integer(value: Value, kind: pa.DataType) -> Value:
    """Cast doubles to integers: fractions are cut off, and NaN and values out of range are errors."""
    (values,) = arrays(value)
    numbers = np.asarray(values.fill_null(0).to_numpy(zero_copy_only=False)).astype(np.float64)
    bounds = np.iinfo(kind.to_pandas_dtype())
    fits = (np.floor(numbers) <= float(bounds.max)) & (np.ceil(numbers) >= float(bounds.min))
    if not fits.all():
        raise RowFailure(f"the value {numbers[~fits][0]!s} is out of range for {name_of(kind)}")
    return pa.array(saturated(np.trunc(numbers), np.int64), pa.int64(), mask=nulls_of(values)).cast(kind)


def decimal_to_double(value: Value) -> Value:
    """Cast decimals of at most 15 digits to double, rounded to the nearest."""
    (values,) = arrays(value)
    return pa.array(doubles_of(values), pa.float64(), mask=nulls_of(values))


def decimal_to_integer(value: Value, kind: pa.DataType) -> Value:
    """Cast decimals of at most 15 digits to integers: fractions are cut off, and values out of range are errors."""
    (values,) = arrays(value)
    numbers = unscaled(values)
    whole = np.sign(numbers) * (np.abs(numbers) // 10**values.type.scale)
    return pa.array(whole, pa.int64(), mask=nulls_of(values)).cast(kind)


def decimal_to_text(value: Value) -> Value:
    """Cast decimals to text, with all digits after the point and without an exponent."""
    (values,) = arrays(value)
    encoded = values.dictionary_encode()
    return pa.array((f"{number:f}" for number in encoded.dictionary.to_pylist()), pa.string()).take(encoded.indices)


def _texts(value: Value) -> pa.Array:
    (texts,) = arrays(value)
    return pc.utf8_trim(texts, characters=_WHITE)


def _settled(texts: pa.Array, fits: pa.Array, fails: bool, kind: pa.DataType) -> pa.Array:
    """Return the strings that fit, and null for the others; if `fails`, the others are errors."""
    fits = pc.fill_null(fits, True)
    if fits.true_count == len(fits):
        return texts
    if fails:
        raise RowFailure(
            f"the value {texts.filter(pc.invert(fits))[0].as_py()!r} is not a valid {name_of(kind).upper()}"
        )
    return pc.if_else(fits, texts, pa.scalar(None, pa.string()))


def text_to_integer(value: Value, kind: pa.DataType, fails: bool) -> Value:
    """Cast text to integers: digits with a sign, without a fraction."""
    texts = _texts(value)
    texts = _settled(texts, pc.match_substring_regex(texts, pattern=r"\A[+-]?[0-9]+\z"), fails, kind)
    digits = pc.replace_substring_regex(texts, pattern=r"\A([+-]?)0*([0-9])", replacement=r"\1\2")
    digits = pc.replace_substring_regex(digits, pattern=r"\A\+", replacement="")
    if fails:
        return digits.cast(kind)
    wide = pc.if_else(pc.less(pc.utf8_length(digits), 21), digits, pa.scalar(None, pa.string()))
    numbers = wide.cast(pa.decimal128(38, 0))
    bounds = np.iinfo(kind.to_pandas_dtype())
    low, high = (pa.scalar(int(bound)).cast(pa.decimal128(38, 0)) for bound in (bounds.min, bounds.max))
    inside = pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high))
    return pc.if_else(inside, digits, pa.scalar(None, pa.string())).cast(kind)


_NUMBER = re.compile(r"[+-]?(NaN|Infinity|((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?))", re.A)
_SPECIAL = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), float("inf")),
    **dict.fromkeys(("-inf", "-infinity"), float("-inf")),
    "nan": float("nan"),
}


def text_to_double(value: Value, _: pa.DataType, fails: bool) -> Value:
    """Cast text to doubles, rounded to the nearest."""
    (texts,) = arrays(value)
    texts = pc.utf8_trim(texts, characters=_WHITE.rstrip("\x7f"))
    usual = pc.match_substring_regex(texts, pattern=r"\A-?[0-9]+(\.[0-9]+)?\z")
    numbers = pc.if_else(usual, texts, pa.scalar(None, pa.string())).cast(pa.float64())
    strange = pc.fill_null(pc.invert(usual), False)
    if not strange.true_count:
        return numbers
    doubles = [_double(text, fails) for text in texts.filter(strange).to_pylist()]
    return pc.replace_with_mask(numbers, strange, pa.array(doubles, pa.float64()))


def _double(text: str, fails: bool) -> float | None:
    if _NUMBER.fullmatch(text):
        return float(text.rstrip("fFdD")) if text[-1] in "fFdD" else float(text)
    if text.lower() in _SPECIAL:
        return _SPECIAL[text.lower()]
    if re.match(r"[+-]?0[xX]", text):
        raise RowFailure(f"the value {text!r} is a hexadecimal number, which only Spark reads")
    if fails:
        raise RowFailure(f"the value {text!r} is not a valid DOUBLE")
    return None


_IN_TWO_PARTS = 18
"""Largest number of digits on each side of the point in strings that Arrow casts to decimals. Others are cast one by
one.
"""
_USUAL_DECIMAL = rf"\A[+-]?[0-9]{{1,{_IN_TWO_PARTS}}}(\.[0-9]{{1,{_IN_TWO_PARTS}}})?\z"
_ANY_DECIMAL = re.compile(r"(?!.*[^\0-\uffff])[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?0*\d{1,9})?")
"""As in Java, a digit may be of any script, if it is a single UTF-16 unit."""


def text_to_decimal(value: Value, kind: pa.DataType, fails: bool) -> Value:
    """Cast text to decimals; digits after the point are rounded half up."""
    (texts,) = arrays(value)
    texts = pc.utf8_trim(texts, characters=_WHITE.rstrip("\x7f"))
    usual = pc.match_substring_regex(texts, pattern=_USUAL_DECIMAL)
    wide = pa.decimal128(2 * _IN_TWO_PARTS, _IN_TWO_PARTS)
    numbers = pc.if_else(usual, texts, pa.scalar(None, pa.string())).cast(wide)
    decimals = narrower_decimal(numbers, kind, fails)
    strange = pc.fill_null(pc.invert(usual), False)
    if not strange.true_count:
        return decimals
    others = [_decimal(text, kind, fails) for text in texts.filter(strange).to_pylist()]
    return pc.replace_with_mask(decimals, strange, pa.array(others, kind))


def _decimal(text: str, kind: Any, fails: bool) -> Decimal | None:
    if not _ANY_DECIMAL.fullmatch(text):
        if fails:
            raise RowFailure(f"the value {text!r} is not a valid {name_of(kind).upper()}")
        return None
    number = Decimal(text)
    _, digits, exponent = number.as_tuple()
    # Java counts the zeros of 0E50 as digits before the point.
    if len(digits) + int(exponent) <= _MOST_DIGITS:
        number = number.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, _EXACT)
        if number.adjusted() < _whole_digits(kind) or not number:
            return number
    if fails:
        raise RowFailure(f"the value {text!r} is out of range for {name_of(kind)}")
    return None


def text_to_boolean(value: Value, _: pa.DataType, fails: bool) -> Value:
    """Cast text to booleans."""
    texts = pc.ascii_lower(_texts(value))
    yes, no = (pc.is_in(texts, value_set=pa.array(words)) for words in (_TRUE, _FALSE))
    settled = _settled(texts, pc.or_(pc.or_(yes, no), texts.is_null()), fails, pa.bool_())
    return pc.if_else(settled.is_valid(), yes, pa.scalar(None, pa.bool_()))


_Test = Callable[[pa.DataType], Any]

_KIND, _FAILS = "kind", "fails"
"""Arguments of kernels: the type that is cast to, and whether a value that can't be cast is an error."""


class _Cast(NamedTuple):
    sources: tuple[_Test, ...]
    kinds: tuple[_Test, ...]
    kernel: Callable[..., Value]
    options: tuple[object, ...] = ()
    """Further arguments of the kernel."""
    fails: Literal["never", "always", "loudly"] = "never"
    """Whether the kernel may raise an error. For `loudly`, it may unless the cast is a TRY_CAST."""
    when: Callable[[Any, Any], bool] = lambda source, kind: True
    """A condition on the source and target types."""


def _has_room(source: Any, kind: Any) -> bool:
    return bool(kind.scale >= source.scale) and _whole_digits(kind) >= _whole_digits(source)


def _is_exact(source: Any, kind: Any) -> bool:
    return bool(source.precision <= EXACT_DIGITS)


_t = pa.types
_TEXT, _BOOLEAN, _DATE, _DOUBLE = (_t.is_string,), (_t.is_boolean,), (_t.is_date,), (_t.is_float64,)
_INTEGER, _FLOATING, _DECIMAL = (_t.is_integer,), (_t.is_floating,), (_t.is_decimal,)
_TIMESTAMP: tuple[_Test, ...] = (times.UTC.equals,)

_CASTS = (
    _Cast(_TEXT, _INTEGER, text_to_integer, (_KIND, _FAILS), "loudly"),
    _Cast(_TEXT, _DOUBLE, text_to_double, (_KIND, _FAILS), "loudly"),
    _Cast(_TEXT, _DECIMAL, text_to_decimal, (_KIND, _FAILS), "loudly"),
    _Cast(_TEXT, _BOOLEAN, text_to_boolean, (_KIND, _FAILS), "loudly"),
    # TRY_CAST may fail too, for text with a named zone.
    _Cast(_TEXT, _DATE, moments.to_date, (_FAILS,), "loudly"),
    _Cast(_TEXT, _TIMESTAMP, moments.to_timestamp, (_FAILS,), "always"),
    _Cast((*_INTEGER, *_BOOLEAN), _TEXT, pc.cast, (_KIND,)),
    _Cast(_FLOATING, _TEXT, texts.floating_text, fails="always"),
    _Cast(_DECIMAL, _TEXT, decimal_to_text),
    _Cast(_DATE, _TEXT, moments.date_text),
    _Cast(_TIMESTAMP, _TEXT, moments.timestamp_text),
    _Cast(_INTEGER, _INTEGER, pc.cast, (_KIND,), when=lambda source, kind: source.bit_width <= kind.bit_width),
    _Cast(_INTEGER, _INTEGER, narrower_integer, (_KIND, _FAILS), "loudly"),
    _Cast((*_INTEGER, *_FLOATING), _FLOATING, pc.cast, (_KIND, False)),
    _Cast(_INTEGER, _DECIMAL, pc.cast, (_KIND,), when=lambda source, kind: _whole_digits(kind) >= DIGITS[source]),
    _Cast((*_INTEGER, *_FLOATING), _BOOLEAN, is_not_zero),
    _Cast(_INTEGER, _TIMESTAMP, times.saturating_seconds),
    _Cast(_BOOLEAN, (*_INTEGER, *_FLOATING), from_boolean, (_KIND,)),
    _Cast(_FLOATING, _INTEGER, floating_to_integer, (_KIND,), "always"),
    _Cast(_DECIMAL, _DECIMAL, pc.cast, (_KIND,), when=_has_room),
    _Cast(_DECIMAL, _DECIMAL, narrower_decimal, (_KIND, _FAILS), "loudly", lambda source, kind: source.precision < 38),
    _Cast(_DECIMAL, _DOUBLE, decimal_to_double, when=_is_exact),
    _Cast(_DECIMAL, _INTEGER, decimal_to_integer, (_KIND,), "always", _is_exact),
    _Cast(_DATE, _TIMESTAMP, times.midnight, fails="always"),
    _Cast(_TIMESTAMP, _DATE, times.date_of),
    _Cast(_TIMESTAMP, (_t.is_int64,), times.since_epoch, (1_000_000,)),
)
"""All casts that are proven. The first row that matches is used."""
