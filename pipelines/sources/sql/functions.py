"""Functions that are proven equal to Spark's, by name: each builds a program from the programs of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from inspect import signature

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.extras import is_installed
from tidegate.pipelines.sources.sql import moments, numbers, rounding, texts, times
from tidegate.pipelines.sources.sql.casts import cast
from tidegate.pipelines.sources.sql.formats import time_patterns, time_text, writing_pieces
from tidegate.pipelines.sources.sql.operators import common_type, compared, decimal, is_ordered, need_number
from tidegate.pipelines.sources.sql.program import Call, Choice, Constant, FirstValid, Node, without_literal
from tidegate.pipelines.sources.sql.reading import Unproven
from tidegate.pipelines.sources.zones import NotAZone, OfJavaOnly, zone_of
from tidegate.windowing.type_names import name_of

Builder = Callable[..., Node]

TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": times.UTC,
}
"""Types of CAST without arguments, which are also functions, by name."""

_TEXT, _BIGINT = pa.string(), pa.int64()
_MOST_DIGITS = 38

_SINCE = {"try_to_date": (4, 1)}
"""The first Spark version of each function that the oldest supported Spark lacks."""


def lacks_function(name: str) -> bool:
    """Return True if the installed Spark lacks an SQL function that newer versions have; False without Spark."""
    if name not in _SINCE or not is_installed("pyspark"):
        return False
    major, minor = version("pyspark").split(".")[:2]
    return (int(major), int(minor)) < _SINCE[name]


def built(build: Builder, arguments: Sequence[Node]) -> Node:
    """Return the program of a call; Unproven if the function is not proven for so many arguments."""
    try:
        signature(build).bind(*arguments)
    except TypeError:
        raise Unproven(f"a call with {len(arguments)} arguments is not proven") from None
    return build(*arguments)


def _need(node: Node, *kinds: pa.DataType) -> Node:
    if node.type not in kinds:
        raise Unproven(f"an argument of type {name_of(node.type)} is not proven")
    return node


def _literal(node: Node, kind: type) -> object:
    if not isinstance(node, Constant) or type(node.value) is not kind:
        raise Unproven(f"it is proven for a literal {kind.__name__} only")
    if isinstance(node.value, int) and not -(2**31) <= node.value < 2**31:
        raise Unproven(f"{node.value} is beyond INT, the type of the argument")
    return node.value


def _simple(
    kernel: Callable[..., object],
    kind: pa.DataType,
    *accepted: pa.DataType,
    options: tuple[object, ...] = (),
    fails: bool = False,
) -> Builder:
    """Return the builder of a function of one argument."""

    def build(argument: Node) -> Node:
        return Call(kernel, (_need(argument, *accepted),), kind, fails, options)

    return build


def coalesce(*arguments: Node) -> Node:
    """Build COALESCE: the first value that is not null."""
    if not arguments:
        raise Unproven("it has no arguments")
    kind = common_type(arguments)
    return FirstValid(tuple(cast(argument, kind) for argument in arguments), kind)


def choose(branches: Sequence[tuple[Node, Node]], otherwise: Node) -> Node:
    """Build CASE from conditions with their values."""
    for condition, _ in branches:
        _need(condition, pa.bool_(), pa.null())
    kind = common_type([*(value for _, value in branches), otherwise])
    cases = tuple((cast(condition, pa.bool_()), cast(value, kind)) for condition, value in branches)
    return Choice(cases, cast(otherwise, kind), kind)


def _if(condition: Node, value: Node, otherwise: Node) -> Node:
    return choose([(condition, value)], otherwise)


def _nvl(value: Node, other: Node) -> Node:
    return coalesce(value, other)


def _nvl2(value: Node, if_valid: Node, otherwise: Node) -> Node:
    return choose([(_is_valid(value), if_valid)], otherwise)


def _nullif(value: Node, other: Node) -> Node:
    is_equal = Call(numbers.equal, compared(value, other), pa.bool_())
    return Choice(((is_equal, Constant(None, value.type)),), value, value.type)


def is_missing(value: Node) -> Node:
    """Build IS NULL."""
    return Call(pc.is_null, (value,), pa.bool_())


def _is_valid(value: Node) -> Node:
    return Call(pc.is_valid, (value,), pa.bool_())


def _absolute(value: Node) -> Node:
    kind = value.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise Unproven(f"an argument of type {name_of(kind)} is not proven")
    return Call(pc.abs_checked, (value,), kind, fails=pa.types.is_integer(kind))


def _round(value: Node, places: Node | None = None) -> Node:
    digits, kind = (0 if places is None else _literal(places, int)), value.type
    assert isinstance(digits, int)
    if pa.types.is_integer(kind):
        if digits >= 0:
            return without_literal(value)
        return Call(rounding.round_integer, (value,), kind, fails=True, options=(max(digits, -_MOST_DIGITS),))
    if pa.types.is_decimal(kind):
        scale, most = min(kind.scale, max(digits, 0)), max(kind.precision - kind.scale + 1, 1 - min(digits, 0))
        result = decimal(most + scale, scale)
        return Call(rounding.round_decimal, (value,), result, fails=True, options=(min(digits, kind.scale), result))
    if not pa.types.is_float64(kind) or not 0 <= digits <= rounding.MOST_PLACES:
        raise Unproven(f"rounding {name_of(kind)} to {digits} places is not proven")
    return Call(rounding.round_double, (value,), kind, options=(digits,))


def _positive(value: Node) -> Node:
    need_number(value)
    return without_literal(value)


def _extreme(kernel: Callable[..., object], *arguments: Node) -> Node:
    if len(arguments) < 2:
        raise Unproven("it needs two arguments")
    kind = common_type(arguments)
    if not is_ordered(kind):
        raise Unproven(f"a comparison of {name_of(kind)} is not proven")
    return Call(kernel, tuple(cast(node, kind) for node in arguments), kind, strict=False)


def concat(*arguments: Node) -> Node:
    """Build CONCAT; numbers, booleans and dates become text."""
    if not arguments:
        raise Unproven("it has no arguments")
    if any(pa.types.is_null(argument.type) for argument in arguments):
        raise Unproven("NULL without a type is not proven")
    return Call(texts.concat, tuple(cast(node, pa.string()) for node in arguments), pa.string(), strict=False)


def _substring(text: Node, position: Node, size: Node | None = None) -> Node:
    options = (_literal(position, int), None if size is None else _literal(size, int))
    return Call(texts.substring, (_need(text, _TEXT),), _TEXT, options=options)


def _end_of_text(is_left: bool, text: Node, count: Node) -> Node:
    size = _literal(count, int)
    assert isinstance(size, int)
    options = (1, size) if is_left or size <= 0 else (-size, None)
    return Call(texts.substring, (_need(text, _TEXT),), _TEXT, options=options)


def _has_text(kernel: Callable[..., object], text: Node, wanted: Node) -> Node:
    return Call(kernel, (_need(text, _TEXT),), pa.bool_(), options=(_literal(wanted, str),))


def _replace(text: Node, wanted: Node, replacement: Node) -> Node:
    return Call(
        texts.replace, (_need(text, _TEXT),), _TEXT, options=(_literal(wanted, str), _literal(replacement, str))
    )


def _regexp_replace(text: Node, pattern: Node, replacement: Node) -> Node:
    options = texts.regex_replacing(str(_literal(pattern, str)), str(_literal(replacement, str)))
    return Call(texts.regex_replace, (_need(text, _TEXT),), _TEXT, options=options)


def _date(node: Node) -> Node:
    return cast(_need(node, pa.date32(), times.UTC), pa.date32())


_DATE_PARTS = ("year", "month", "quarter", "day", "dayofweek", "weekday", "dayofyear")
_TIME_PARTS = ("hour", "minute", "second")


def _part(name: str, moment: Node) -> Node:
    value = _need(moment, times.UTC) if name in _TIME_PARTS else _date(moment)
    return Call(times.part, (value,), pa.int32(), options=(name,))


def _date_trunc(unit: Node, moment: Node) -> Node:
    level = str(_literal(unit, str)).lower()
    name = CALENDAR_OR_UNIT.get(level)
    if name is None:
        raise Unproven(f"the unit {level!r} is not proven")
    return Call(times.truncate, (_need(moment, times.UTC),), times.UTC, fails=True, options=(name,))


CALENDAR_OR_UNIT = {**times.CALENDAR, **{name: name for name in times.UNITS}}


def _trunc(date: Node, unit: Node) -> Node:
    level = str(_literal(unit, str)).lower()
    if level not in times.CALENDAR:
        raise Unproven(f"the unit {level!r} is not proven")
    return Call(times.truncate_date, (_need(date, pa.date32()),), pa.date32(), options=(times.CALENDAR[level],))


def _to_moment(kind: pa.DataType, quiet: bool, value: Node, pattern: Node | None = None) -> Node:
    _need(value, _TEXT, pa.date32(), times.UTC)
    if pattern is None:
        return cast(value, kind, quiet and pa.types.is_string(value.type))
    options = (*time_patterns(str(_literal(pattern, str))), not quiet)
    call = Call(moments.to_timestamp_by, (_need(value, _TEXT),), times.UTC, fails=not quiet, options=options)
    return cast(call, kind)


def _date_format(moment: Node, pattern: Node) -> Node:
    value = cast(_need(moment, pa.date32(), times.UTC), times.UTC)
    return Call(time_text, (value,), _TEXT, options=(writing_pieces(str(_literal(pattern, str))),))


def _in_zone(kernel: Callable[..., object], moment: Node, zone: Node) -> Node:
    name = str(_literal(zone, str))
    try:
        options = (zone_of(name),)
    except (NotAZone, OfJavaOnly):
        raise Unproven(f"the zone {name!r} is not proven") from None
    value = cast(_need(moment, pa.date32(), times.UTC), times.UTC)
    return Call(kernel, (value,), times.UTC, fails=True, options=options)


def _unix_timestamp(moment: Node) -> Node:
    value = cast(_need(moment, pa.date32(), times.UTC), times.UTC)
    return Call(times.whole_seconds, (value,), pa.int64())


def _shift_days(sign: int, start: Node, days: Node) -> Node:
    count = _need(days, pa.int32(), pa.int16(), pa.int8())
    return Call(times.add_days, (_date(start), count), pa.date32(), options=(sign,))


def _days_between(end: Node, start: Node) -> Node:
    return Call(times.days_between, (_date(end), _date(start)), pa.int32())


def _cast_to(kind: pa.DataType, value: Node) -> Node:
    return without_literal(cast(value, kind))


_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_MICROS_OF = (("seconds", 1_000_000), ("millis", 1000), ("micros", 1))

FUNCTIONS: dict[str, Builder] = {
    "coalesce": coalesce,
    "if": _if,
    "nvl": _nvl,
    "ifnull": _nvl,
    "nvl2": _nvl2,
    "nullif": _nullif,
    "isnull": is_missing,
    "isnotnull": _is_valid,
    "isnan": _simple(numbers.is_nan, pa.bool_(), pa.float32(), pa.float64()),
    "abs": _absolute,
    "positive": _positive,
    "round": _round,
    "floor": _simple(numbers.floor, _BIGINT, pa.float64()),
    "ceil": _simple(numbers.ceil, _BIGINT, pa.float64()),
    "ceiling": _simple(numbers.ceil, _BIGINT, pa.float64()),
    "greatest": partial(_extreme, numbers.greatest),
    "least": partial(_extreme, numbers.least),
    "concat": concat,
    **dict.fromkeys(("length", "char_length", "character_length", "len"), _simple(pc.utf8_length, pa.int32(), _TEXT)),
    **{
        name: _simple(kernel, _TEXT, _TEXT, options=(" ",))
        for name, kernel in (
            *(("trim", pc.utf8_trim), ("btrim", pc.utf8_trim)),
            *(("ltrim", pc.utf8_ltrim), ("rtrim", pc.utf8_rtrim)),
        )
    },
    **dict.fromkeys(("lower", "lcase"), _simple(texts.lower, _TEXT, _TEXT, fails=True)),
    **dict.fromkeys(("upper", "ucase"), _simple(texts.upper, _TEXT, _TEXT, fails=True)),
    **dict.fromkeys(("substring", "substr"), _substring),
    "left": partial(_end_of_text, True),
    "right": partial(_end_of_text, False),
    "startswith": partial(_has_text, pc.starts_with),
    "endswith": partial(_has_text, pc.ends_with),
    "contains": partial(_has_text, pc.match_substring),
    "replace": _replace,
    "regexp_replace": _regexp_replace,
    **{
        alias: partial(_part, name)
        for alias, name in (*((name, name) for name in (*_DATE_PARTS, *_TIME_PARTS)), ("dayofmonth", "day"))
    },
    "date_trunc": _date_trunc,
    "trunc": _trunc,
    "to_date": partial(_to_moment, pa.date32(), False),
    "to_timestamp": partial(_to_moment, times.UTC, False),
    "try_to_date": partial(_to_moment, pa.date32(), True),
    "try_to_timestamp": partial(_to_moment, times.UTC, True),
    "date_format": _date_format,
    "to_utc_timestamp": partial(_in_zone, times.to_utc),
    "from_utc_timestamp": partial(_in_zone, times.from_utc),
    "unix_timestamp": _unix_timestamp,
    **{
        f"unix_{unit}": _simple(times.since_epoch, _BIGINT, times.UTC, options=(micros,)) for unit, micros in _MICROS_OF
    },
    **{
        f"timestamp_{unit}": _simple(times.from_epoch, times.UTC, *_INTEGERS, options=(micros,), fails=True)
        for unit, micros in _MICROS_OF
    },
    "unix_date": _simple(pc.cast, pa.int32(), pa.date32(), options=(pa.int32(),)),
    "date_from_unix_date": _simple(pc.cast, pa.date32(), pa.int32(), options=(pa.date32(),)),
    **dict.fromkeys(("date_add", "dateadd"), partial(_shift_days, 1)),
    "date_sub": partial(_shift_days, -1),
    **dict.fromkeys(("datediff", "date_diff"), _days_between),
    **{name: partial(_cast_to, kind) for name, kind in TYPES.items()},
}
"""Builders by the lower-case name of the function."""
