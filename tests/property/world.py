"""Realistic data to draw from: every Delta type as key and as value, awkward names, equal times and gaps. Rows and keys
are drawn as a whole from lists that contain the edge cases of each type, because drawing each value separately costs
more than running what is tested. Names contain what breaks quoting: dots, backticks, brackets, capitals, any script.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 12, 31, 23, 59, 59, 999_999)
WIDE, LEAST = Decimal("99999999999999999999999999999999.999999"), Decimal("-99999999999999999999999999999999.999999")

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "gap": (pa.int64(), [1, 5, 12, 3]),
    "tiny": (pa.int8(), [0, 127, -128, 1]),
    "Small": (pa.int16(), [None, 0, 32_767, -32_768, 3]),
    "an.int": (pa.int32(), [0, 2**31 - 1, -(2**31), 7, -1]),
    "n": (pa.int64(), [None, 0, 1, -5, 3, 2**40]),
    "N": (pa.int64(), [0, 2**53 + 1, 2**63 - 1, -(2**63), 1_709_254_800_123_456_789, None, 5]),
    "f": (pa.float32(), [None, 0.0, 1.5, -2.5, math.nan, math.inf]),
    "x": (pa.float64(), [None, 0.0, -0.0, 1.5, -2.25, math.nan, math.inf, -math.inf, 1e9]),
    "`mixed`": (pa.float64(), [0.1, 0.2, -0.3, 1e9, -1e9, 0.7, None, 1e-5, 3.0]),
    "cents[2]": (
        pa.decimal128(12, 2),
        [None, Decimal("0.00"), Decimal("-1.25"), Decimal("0.35"), Decimal("9999999999.99")],
    ),
    "wide": (pa.decimal128(38, 6), [None, WIDE, LEAST, Decimal("0.000001"), Decimal("12345678901234567890123.456789")]),
    "é 日本": (pa.string(), [None, "", "a", "b", "é", "e\u0301", "\U0001f600", "\x00", "a`.[b]"]),
    "b": (pa.bool_(), [None, True, False]),
    "raw": (pa.binary(), [None, b"", b"\x00", b"\xff\x00", b"abc"]),
    "day": (pa.date32(), [None, date(1, 1, 1), date(9999, 12, 31), date(1969, 12, 31), date(1970, 1, 1)]),
    "at time": (
        pa.timestamp("us", tz="UTC"),
        [None, *(EPOCH + timedelta(seconds=second) for second in (-3, 0, 1)), LATEST.replace(tzinfo=UTC)],
    ),
    "wall": (pa.timestamp("us"), [None, datetime(1970, 1, 1), datetime(1, 1, 1), LATEST]),
}
"""Columns by name, with their types and the values to draw from: nulls, extremes, equal and nearly equal values."""

INPUT = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])

ROWS = [
    {name: values[i * (j + 1) % len(values)] for j, (name, (_, values)) in enumerate(COLUMNS.items())}
    for i in range(150)
]

KEYS: dict[Any, list[Any]] = {
    pa.string(): ["", "a", "ü€", "e\u0301", "\U0001f600", "\x00", None],
    pa.int8(): [0, -128, 127, None],
    pa.int16(): [0, -32_768, None],
    pa.int32(): [0, -1, 2**31 - 1, None],
    pa.int64(): [0, -5, 2**60, 7, -(2**63)],
    pa.date32(): [date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31), None],
    pa.timestamp("us", tz="UTC"): [EPOCH, datetime(2024, 2, 29, 1, 2, 3, 4, UTC), datetime(1, 1, 1, tzinfo=UTC)],
    pa.timestamp("us"): [datetime(1970, 1, 1), datetime(2024, 2, 29, 1, 2, 3, 4), LATEST, None],
    pa.decimal128(10, 2): [Decimal("0.00"), Decimal("-1.25"), None],
    pa.decimal128(30, 2): [Decimal("0.00"), Decimal("-123456789012345678901234.25")],
    pa.decimal128(38, 0): [
        Decimal("12345678901234567890123456781"),
        Decimal("12345678901234567890123456782"),
        Decimal("-99999999999999999999999999999999999999"),
    ],
    pa.decimal128(38, 38): [Decimal("0.12345678901234567890123456789012345678"), Decimal("-1E-38"), None],
    pa.bool_(): [True, False, None],
    pa.binary(): [b"", b"\x00\xff", None],
}
"""Types of key columns, with values for each."""

NAMES = ("User.Name", "`k`[1]", "é", "Key", "k")
"""Names of key columns."""


@st.composite
def key_columns(draw: st.DrawFn, most: int = 2) -> tuple[tuple[str, ...], tuple[pa.DataType, ...]]:
    """Names and types of zero or more key columns."""
    kinds = draw(st.lists(st.sampled_from(list(KEYS)), max_size=most))
    first = draw(st.integers(0, len(NAMES) - 1))
    return tuple(NAMES[(first + i) % len(NAMES)] for i in range(len(kinds))), tuple(kinds)


def times(scale: int = 1) -> st.SearchStrategy[st.SearchStrategy[int]]:
    """Ways to draw times: from many, from few, or nearly always the same one, since events of one log often have equal
    times.
    """
    spread = st.integers(-20, 60).map(lambda time: time * scale)
    few = st.sampled_from([0, 0, 0, scale, 7 * scale])
    return st.sampled_from([spread, spread, few, st.just(scale)])
