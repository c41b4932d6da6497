"""Names of types as in Spark SQL, for messages: users declare columns in SQL, not in Arrow."""

from __future__ import annotations

import pyarrow as pa

_NAMES = {
    pa.null(): "NULL",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
}


def name_of(kind: pa.DataType) -> str:
    """Return Spark's name of a type; Arrow's name of a type that Spark does not have.

    Example:
        >>> name_of(pa.struct([("os", pa.string()), ("seen", pa.list_(pa.timestamp("us", tz="UTC")))]))
        'struct<os: string, seen: array<timestamp>>'
    """
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{name_of(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{name_of(kind.key_type)}, {name_of(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {name_of(field.type)}' for field in kind)}>"
    return _NAMES.get(kind, str(kind))
