"""Keys as small integers: every distinct key of a shard has a code, and arrays hold the codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.columnar.hashing import UInt64s, hash_keys
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.timestamps import as_type

_LIMIT = 2**62


@dataclass(frozen=True)
class KeyCodes:
    """The distinct keys of several inputs, and the code of each row of each input: int64, 0 to `len(self) - 1`.

    `columns` has the values of each key column, indexed by code.
    """

    schema: KeySchema
    codes: tuple[Int64s, ...]
    columns: list[pa.Array]
    size: int

    def __len__(self) -> int:
        return self.size

    @cached_property
    def hashes(self) -> UInt64s:
        """Spark's hash of each key."""
        return hash_keys(self.schema, self.columns, self.size)

    def take(self, codes: Int64s) -> list[pa.Array]:
        """Return the key columns of these codes."""
        return [column.take(pa.array(codes)) for column in self.columns]


def encode_keys(schema: KeySchema, *inputs: tuple[Mapping[str, pa.Array], int]) -> KeyCodes:
    """Return the codes of the keys of several inputs.

    Null is a value like any other; the caller has already rejected keys that must not be null. Each input has its key
    columns by name, and its number of rows.
    """
    lengths = [rows for _, rows in inputs]
    joined, columns, size = _encode(
        [
            _joined([columns[name] for columns, _ in inputs], kind)
            for name, kind in zip(schema.names, schema.types, strict=True)
        ],
        sum(lengths),
    )
    bounds = np.cumsum([0, *lengths])
    codes = tuple(joined[begin:end] for begin, end in pairwise(bounds.tolist()))
    return KeyCodes(schema, codes, columns, size)


def _joined(parts: Sequence[pa.Array | pa.ChunkedArray], kind: pa.DataType) -> pa.Array:
    """Concatenate the columns, into a dictionary array if any of them is one."""
    dictionaries = any(pa.types.is_dictionary(part.type) for part in parts)
    if not dictionaries or any(part.null_count for part in parts):
        return pa.concat_arrays([_plain(part, kind) for part in parts])
    chunks: list[pa.Array] = []
    for part in parts:
        coded = part if pa.types.is_dictionary(part.type) else _plain(part, kind).dictionary_encode()
        chunks += coded.chunks if isinstance(coded, pa.ChunkedArray) else [coded]
    wanted = pa.dictionary(pa.int32(), kind)
    together = pa.chunked_array([as_type(chunk, wanted) for chunk in chunks], wanted)
    return together.unify_dictionaries().combine_chunks()


def _plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return as_type(column, kind)


def _encode(columns: Sequence[pa.Array], rows: int) -> tuple[Int64s, list[pa.Array], int]:
    if not columns:
        return np.zeros(rows, np.int64), [], 1
    codes, values = _dense(columns[0])
    parts = [values]
    size = len(values)
    for column in columns[1:]:
        more, values = _dense(column)
        if size * max(len(values), 1) > _LIMIT:
            raise OverflowError(f"{size} keys with {len(values)} values of one more column are too many for a shard")
        codes, pairs = _dense(pa.array(codes * max(len(values), 1) + more))
        whole = pairs.to_numpy(zero_copy_only=False)
        before, last = np.divmod(whole, max(len(values), 1))
        parts = [*(part.take(pa.array(before)) for part in parts), values.take(pa.array(last))]
        size = len(whole)
    return codes, parts, size


def _dense(column: pa.Array) -> tuple[Int64s, pa.Array]:
    if isinstance(column, pa.DictionaryArray):
        return column.indices.to_numpy(zero_copy_only=False).astype(np.int64), column.dictionary
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary
