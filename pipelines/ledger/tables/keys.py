"""Keys by their values: nulls are equal, and different keys are never confused, even if their hashes are equal.

The hash of a key (`tables.key_groups`) only determines its group: a null does not change it, and anybody can construct
keys with equal hashes. Manifests identify keys by a digest, for which that is infeasible.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from hashlib import blake2b
from json.encoder import encode_basestring_ascii
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs, late, rejects, results, windows
from tidegate.pipelines.errors import UsageError
from tidegate.windowing.columnar.hashing import key_groups as groups_of
from tidegate.windowing.columnar.key_codes import KeyCodes, encode_keys
from tidegate.windowing.keys import DECIMALS, KeySchema
from tidegate.windowing.type_names import name_of

Key: TypeAlias = tuple[pa.Scalar, ...]
"""The value of each key column, in order and of the column's type."""

NULL = r"\N"
"""The string that stands for a null in any key column."""

_NULL = "null"
"""A string that also stands for a null, in columns that can't have it as a value."""
_HEX = r"x((?:[0-9a-fA-F]{2})+)"
_BYTES = re.compile(rf"\\{_HEX}")
_ESCAPE = re.compile(rf"\\+(N|{_HEX})")
"""Strings that are read as a null or as bytes unless another backslash precedes them."""
_MORE_BACKSLASHES = re.compile(rf"\\{{2,}}(N|{_HEX})")
_SALT_BYTES = 16


def key_of_texts(schema: KeySchema, texts: Sequence[str]) -> Key:
    r"""Return a key from the texts of its parts. `\N` is a null, and `\\N` is the text `\N`.

    In text and binary columns, `\x00ff` are two bytes, since a shell can't pass every byte as it is.

    Raises:
        UsageError: the texts are not a key of these columns.
    """
    if len(texts) != len(schema.names) or not schema.names:
        names = ", ".join(schema.names) or "none"
        raise UsageError(f"the key has the columns {names}: give one value for each, in order")
    return tuple(map(_value_of_text, schema.names, schema.types, texts))


def text_of_value(value: object) -> str:
    r"""Return the text of a key's value as written on the command line: `key_of_texts` reads it back.

    >>> [text_of_value(value) for value in ("ann", None, r"\N", 7)]
    ['ann', '\\N', '\\\\N', '7']
    """
    if value is None:
        return NULL
    if isinstance(value, bytes):
        return f"\\x{value.hex()}" if value else ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, str):
        return f"\\{value}" if _ESCAPE.fullmatch(value) else value
    return str(value)


def named_key(key: Mapping[str, object]) -> str:
    r"""Return a key with the names of its columns, each value as on the command line.

    >>> named_key({"user": "ann", "device": None})
    'user ann, device \\N'
    """
    return ", ".join(f"{name} {text_of_value(value)}" for name, value in key.items())


def key_columns(table: str, schema: pa.Schema, key: tuple[str, ...], derived: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names of the key columns in a published table; empty if the table has no keys.

    `derived` has the derived key columns: a column of that name in tables late and rejects is the source's.
    """
    if table == epochs.NAME:
        return ()
    if table in (results.NAME, windows.NAME):
        return key
    ours = {field.name.casefold() for field in (late.TRAILING if table == late.NAME else rejects.TRAILING)}
    named = tuple(f"input_{name}" if name.casefold() in ours else name for name in key)
    return named if set(named) <= set(schema.names) and not derived else ()


def group_of(key: Key, max_parallelism: int) -> int:
    """Return the key group of a key."""
    return int(key_groups(*_row_of(key), max_parallelism)[0].as_py())


def are_of_key(rows: pa.Table, names: Sequence[str], key: Key) -> pa.ChunkedArray:
    """Return a flag for each row: whether its columns `names` have the values of the key."""
    are = pa.chunked_array([pa.repeat(pa.scalar(True), len(rows))])
    for name, value in zip(names, key, strict=True):
        column = rows[name]
        is_same = pc.fill_null(pc.equal(column, value), False) if value.is_valid else pc.is_null(column)
        are = pc.and_(are, is_same)
    return are


def are_of_keys(rows: pa.Table, names: Sequence[str], keys: Sequence[Key]) -> pa.ChunkedArray:
    """Return a flag for each row: whether its columns `names` have the values of one of the keys."""
    if len(names) == 1 and len(keys) > 1:
        values = pa.array([key[0].as_py() for key in keys], keys[0][0].type)
        return pc.is_in(rows[names[0]], value_set=values)
    are = pa.chunked_array([pa.repeat(pa.scalar(False), len(rows))])
    for key in keys:
        are = pc.or_(are, are_of_key(rows, names, key))
    return are


def rows_of_key(rows: pa.Table, names: Sequence[str], texts: Sequence[str]) -> pa.Table:
    """Return the rows of a key, given by the texts of its values; see `key_of_texts`. Without key columns: all rows."""
    if not names and not texts:
        return rows
    return rows.filter(are_of_key(rows, names, key_of_texts(key_schema(rows.schema, tuple(names)), texts)))


def are_in(rows: pa.Table, others: pa.Table, names: Sequence[str]) -> pa.BooleanArray:
    """Return a flag for each row: whether another table has a row with the same values in these columns."""
    schema = key_schema(others.schema, tuple(names))
    parts = [({name: part[name] for name in names}, len(part)) for part in (rows, others)]
    of_rows, of_others = encode_keys(schema, *parts).codes
    return pa.array(np.isin(of_rows, of_others), pa.bool_())


def digests(rows: pa.Table, names: Sequence[str], salt: bytes = b"") -> pa.Array:
    """Return a digest for each row that identifies its key without revealing it. Each distinct key is processed once.

    Equal keys have equal digests, whatever width or unit their columns have. It is infeasible to find two keys with the
    same digest. A different salt, at most 64 bytes, gives different digests.
    """
    keys = _coded(rows, names)
    texts = zip(*map(_texts, keys.columns), strict=True) if names else [()]
    salted, of_keys = blake2b(key=salt, digest_size=32), []
    for parts in texts:
        hashed = salted.copy()
        hashed.update(",".join("null" if part is None else encode_basestring_ascii(part) for part in parts).encode())
        of_keys.append(hashed.hexdigest())
    return pa.array(of_keys, pa.string()).take(pa.array(keys.codes[0]))


def digest_of(key: Key) -> str:
    """Return the text that identifies a key; see `digests`."""
    return str(_digest(key, b""))


def mark_of_forgotten(key: Key) -> str:
    """Return a salted text that identifies a forgotten key; each call returns a different text."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return f"{salt.hex()}:{_digest(key, salt)}"


def are_forgotten(rows: pa.Table, names: Sequence[str], marks: Collection[str]) -> pa.ChunkedArray:
    """Return a flag for each row: whether one of the marks belongs to its key; see `mark_of_forgotten`."""
    are = pa.chunked_array([pa.repeat(pa.scalar(False), len(rows))])
    for mark in marks:
        salt, _, digest = mark.partition(":")
        are = pc.or_(are, pc.equal(digests(rows, names, bytes.fromhex(salt)), digest))
    return are


def is_forgotten(key: Key, mark: str) -> bool:
    """Return True if a mark belongs to a key; see `mark_of_forgotten`."""
    salt, _, digest = mark.partition(":")
    return bool(_digest(key, bytes.fromhex(salt)) == digest)


def _digest(key: Key, salt: bytes) -> str:
    return str(digests(*_row_of(key), salt)[0].as_py())


def _row_of(key: Key) -> tuple[pa.Table, tuple[str, ...]]:
    """Return a table with a key as its only row, and the names of its columns."""
    names = tuple(str(place) for place in range(len(key)))
    return pa.table([pa.array([value.as_py()], value.type) for value in key], names), names


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
    """Return the value of a key column from its text, or a null from the text for null."""
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
        # A key is a value of a column, so it does not depend on the pipeline's `timezone`.
        if not pa.types.is_timestamp(kind) or kind.tz is None:
            raise
    return value.cast(pa.timestamp(kind.unit)).cast(pa.int64()).cast(kind)


def _example(kind: pa.DataType) -> str:
    """Return an example of a type's values, for a message."""
    if pa.types.is_integer(kind):
        return f": give a {kind.bit_width}-bit integer, such as 42"
    if pa.types.is_date(kind):
        return ": give a date, such as 2024-03-01"
    if pa.types.is_timestamp(kind):
        zone = "" if kind.tz is None else "; without a zone, it is in UTC"
        return f": give a date-time, such as 2024-03-01T06:00:00{'' if kind.tz is None else 'Z'}{zone}"
    if pa.types.is_boolean(kind):
        return ": give true or false"
    if pa.types.is_decimal(kind):
        whole = kind.precision - kind.scale
        return f": give a number with at most {whole} digits before the decimal point and {kind.scale} after it"
    return r": give characters of UTF-8, or bytes as hexadecimal digits after \x, such as \x00ff"


def key_groups(rows: pa.Table, key: tuple[str, ...], max_parallelism: int) -> pa.Array:
    """Return the key group of each row, int32. Each distinct key is hashed once."""
    keys = _coded(rows, key)
    return pa.array(groups_of(keys.hashes, max_parallelism)[keys.codes[0]])


def _coded(rows: pa.Table, names: Sequence[str]) -> KeyCodes:
    return encode_keys(key_schema(rows.schema, tuple(names)), ({name: rows[name] for name in names}, len(rows)))


def key_schema(schema: pa.Schema, key: tuple[str, ...]) -> KeySchema:
    """Return the key columns of a table with their value types, even for dictionary columns."""
    kinds = (schema.field(name).type for name in key)
    return KeySchema(key, tuple(kind.value_type if pa.types.is_dictionary(kind) else kind for kind in kinds))


KeyTexts: TypeAlias = tuple[tuple[re.Pattern[str], ...], ...]
"""For each part of a key that a text may contain, a pattern for each way to write it."""

_SHORTEST, _LONGEST = 3, 200
"""Lengths to which outputs may shorten a part before an ellipsis."""


def texts_of_key(key: Key, given: Sequence[str]) -> KeyTexts:
    """Return how a key may be written. Nulls and empty strings are left out, because they occur in every text.

    `given` has the same values as a user wrote them.
    """
    parts = []
    for value, text in zip((part.as_py() for part in key), given, strict=True):
        ways = () if value is None else tuple(filter(None, dict.fromkeys(_ways(value, text))))
        if ways:
            is_number = isinstance(value, int | Decimal)
            parts.append(tuple(map(_number if is_number else _text, ways)))
    return tuple(parts)


def names_key(shown: str, key: KeyTexts) -> bool:
    """Return True if a text contains every part of a key."""
    return bool(key) and all(_has(shown, part) for part in key)


def names_part(shown: str, key: KeyTexts) -> bool:
    """Return True if a text contains a part of a key that is not part of a longer word."""
    return any(re.search(rf"(?<![^\W_])(?:{way.pattern})(?![^\W_])", shown) for part in key for way in part)


def _has(shown: str, part: tuple[re.Pattern[str], ...]) -> bool:
    # Logs contain texts as JSON within JSON.
    plain = shown.replace("\\", "")
    return any(way.search(shown) or way.search(plain) for way in part)


def _ways(value: Any, text: str) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield from (value.hex(), repr(value)[2:-1], value.decode(errors="replace"))
    elif isinstance(value, datetime):
        moment = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        yield text
        for separator in "T ":
            # A text that continues with a fraction of a second or a zone also matches.
            yield moment.isoformat(separator, "seconds")
    elif isinstance(value, date):
        yield value.isoformat()
    elif isinstance(value, Decimal):
        yield from (text, f"{value:f}", f"{value.normalize(DECIMALS):f}")
    else:
        yield from (text, str(value), str(value).lower())


def _number(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.]){re.escape(text)}(?!\w)")


def _text(text: str) -> re.Pattern[str]:
    forms = {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1]}
    # SQL doubles quotes; `plain` above has no backslashes.
    forms |= {form.replace("'", "''") for form in forms} | {form.replace("\\", "") for form in forms}
    cut = {f"{form[:end]}..." for form in forms for end in range(_SHORTEST, min(_LONGEST, len(form)))}
    return re.compile("|".join(map(re.escape, sorted((forms | cut) - {""}))))
