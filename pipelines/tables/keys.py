"""Keys by their values: nulls are equal, and no other key is taken for one, whatever its hash.

The hash of a key (`tables.key_groups`) tells in which group it is, and nothing else: nulls don't change it, and
anybody finds a text with the hash of another one. Manifests name keys by a digest, which nobody can do that with.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Sequence
from hashlib import blake2b
from json.encoder import encode_basestring_ascii
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.tables.key_groups import key_schema
from tidegate.windowing.columnar.key_codes import encode_keys
from tidegate.windowing.keys import DECIMALS, KeySchema, signed64
from tidegate.windowing.type_names import name_of

Key: TypeAlias = tuple[pa.Scalar, ...]
"""The value of each key column, in order and of the column's type."""

NULL = r"\N"
"""Text that stands for a null in any key column."""

_NULL = "null"
"""Text that stands for a null too, in columns of which it is no value."""
_HEX = r"x((?:[0-9a-fA-F]{2})+)"
_BYTES = re.compile(rf"\\{_HEX}")
_MORE_BACKSLASHES = re.compile(rf"\\{{2,}}(N|{_HEX})")
_SALT_BYTES = 16


def key_of_texts(schema: KeySchema, texts: Sequence[str]) -> Key:
    r"""Return a key from the texts of its parts. `\N` is a null, and `\\N` the text `\N`.

    In columns of text and bytes, `\x00ff` are two bytes: a shell can't give each of them as they are.

    Raises:
        UsageError: the texts are no key of these columns.
    """
    if len(texts) != len(schema.names) or not schema.names:
        names = ", ".join(schema.names) or "none"
        raise UsageError(f"the key has the columns {names}: give one value for each, in order")
    return tuple(map(_value_of_text, schema.names, schema.types, texts))


def group_of(schema: KeySchema, key: Key, max_parallelism: int) -> int:
    """Return the key group of a key."""
    return schema.key_group_of(schema.key_of([value.as_py() for value in key]), max_parallelism)


def hash_of(schema: KeySchema, key: Key) -> int:
    """Return Spark's hash of a key, int64, by which an older tidegate named it in manifests."""
    return signed64(schema.hash_of(schema.key_of([value.as_py() for value in key])))


def are_of_key(rows: pa.Table, names: Sequence[str], key: Key) -> pa.ChunkedArray:
    """Return a boolean for each row: True if its columns `names` have the values of the key."""
    are = pa.chunked_array([pa.repeat(pa.scalar(True), len(rows))])
    for name, value in zip(names, key, strict=True):
        column = rows[name]
        is_same = pc.fill_null(pc.equal(column, value), False) if value.is_valid else pc.is_null(column)
        are = pc.and_(are, is_same)
    return are


def rows_of_key(rows: pa.Table, names: Sequence[str], texts: Sequence[str]) -> pa.Table:
    """Return the rows of a key.

    Args:
        rows: rows with the key columns.
        names: names of the key columns.
        texts: texts of their values, in order; see `key_of_texts`.

    Raises:
        UsageError: a text is no value of its column.
    """
    return rows.filter(are_of_key(rows, names, key_of_texts(key_schema(rows.schema, tuple(names)), texts)))


def are_in(rows: pa.Table, others: pa.Table, names: Sequence[str]) -> pa.BooleanArray:
    """Return a boolean for each row: True if another table has a row with the same values in some columns."""
    schema = key_schema(others.schema, tuple(names))
    parts = [({name: part[name] for name in names}, len(part)) for part in (rows, others)]
    of_rows, of_others = encode_keys(schema, *parts).codes
    return pa.array(np.isin(of_rows, of_others), pa.bool_())


def digests(rows: pa.Table, names: Sequence[str], salt: bytes = b"") -> pa.Array:
    """Return a text for each row that names its key without showing it. Each distinct key is looked at once.

    Equal keys have equal texts, whatever width or unit their columns have. Nobody finds two keys with one text.

    Args:
        rows: rows with the key columns.
        names: names of the key columns.
        salt: at most 64 bytes; with other bytes, a key has another text.
    """
    schema = key_schema(rows.schema, tuple(names))
    keys = encode_keys(schema, ({name: rows[name] for name in names}, len(rows)))
    texts = zip(*map(_texts, keys.columns), strict=True) if names else [()]
    salted, of_keys = blake2b(key=salt, digest_size=32), []
    for parts in texts:
        hashed = salted.copy()
        hashed.update(",".join("null" if part is None else encode_basestring_ascii(part) for part in parts).encode())
        of_keys.append(hashed.hexdigest())
    return pa.array(of_keys, pa.string()).take(pa.array(keys.codes[0]))


def digest_of(key: Key) -> str:
    """Return the text that names a key; see `digests`."""
    return str(_digest(key, b""))


def mark_of_forgotten(key: Key) -> str:
    """Return a text by which a forgotten key is told, with a salt of its own: it is never the same for a key."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return f"{salt.hex()}:{_digest(key, salt)}"


def are_forgotten(rows: pa.Table, names: Sequence[str], marks: Collection[str]) -> pa.ChunkedArray:
    """Return a boolean for each row: True if one of the marks is of its key; see `mark_of_forgotten`."""
    are = pa.chunked_array([pa.repeat(pa.scalar(False), len(rows))])
    for mark in marks:
        salt, _, digest = mark.partition(":")
        are = pc.or_(are, pc.equal(digests(rows, names, bytes.fromhex(salt)), digest))
    return are


def is_forgotten(key: Key, mark: str) -> bool:
    """Return True if a mark is of a key; see `mark_of_forgotten`."""
    salt, _, digest = mark.partition(":")
    return bool(_digest(key, bytes.fromhex(salt)) == digest)


def _digest(key: Key, salt: bytes) -> str:
    names = [str(place) for place in range(len(key))]
    row = pa.table({name: pa.array([value.as_py()], value.type) for name, value in zip(names, key, strict=True)})
    return str(digests(row, names, salt)[0].as_py())


def _texts(column: pa.Array) -> list[str | None]:
    """Return each value as text, for a digest."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts: list[str | None] = column.to_pylist()
        return texts
    if pa.types.is_decimal(kind):
        return [None if value is None else str(value.normalize(DECIMALS)) for value in column.to_pylist()]
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", tz=getattr(kind, "tz", None))).cast(pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return [None if value is None else value.hex() for value in column.to_pylist()]
    return [None if value is None else str(int(value)) for value in column.to_pylist()]


def _value_of_text(name: str, kind: pa.DataType, text: str) -> pa.Scalar:
    """Return the value of a key column from its text; a null from the text of one.

    Raises:
        UsageError: the text is no value of the column's type.
    """
    may_be_any_text = not pa.types.is_primitive(kind) and not pa.types.is_decimal(kind)
    if text == NULL or (text == _NULL and not may_be_any_text):
        return pa.scalar(None, kind)
    try:
        if may_be_any_text and (hexadecimal := _BYTES.fullmatch(text)):
            return pa.scalar(bytes.fromhex(hexadecimal[1])).cast(kind)
        return _parsed(text[1:] if _MORE_BACKSLASHES.fullmatch(text) else text, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeEncodeError) as error:
        raise UsageError(
            f"{text!r} is not a value of key column {name!r}, which has type {name_of(kind)}{_example(kind)}"
        ) from error


def _parsed(text: str, kind: pa.DataType) -> pa.Scalar:
    value = pa.scalar(text)
    try:
        return value.cast(kind)
    except pa.ArrowInvalid:
        # A column of moments takes a text without a zone as UTC, as --start and --end do.
        if not pa.types.is_timestamp(kind) or kind.tz is None:
            raise
    return value.cast(pa.timestamp(kind.unit)).cast(pa.int64()).cast(kind)


def _example(kind: pa.DataType) -> str:
    """Return the form of a type's values, for a message."""
    if pa.types.is_integer(kind):
        return f": give a whole number of {kind.bit_width} bits, such as 42"
    if pa.types.is_date(kind):
        return ": give a date, such as 2024-03-01"
    if pa.types.is_timestamp(kind):
        zone = "" if kind.tz is None else "; without a zone it is in UTC"
        return f": give a date-time, such as 2024-03-01T06:00:00{'' if kind.tz is None else 'Z'}{zone}"
    if pa.types.is_boolean(kind):
        return ": give true or false"
    if pa.types.is_decimal(kind):
        whole = kind.precision - kind.scale
        return f": give a number with at most {whole} digits before the decimal point and {kind.scale} after it"
    return r": give characters of UTF-8, or bytes as hexadecimal digits after \x, such as \x00ff"
