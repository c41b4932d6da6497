"""Records of parallel arrays: every field has a value for each row. Rows are taken and concatenated field by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Self, get_type_hints

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Bools, Int64s


@dataclass(frozen=True, kw_only=True)
class ParallelArrays:
    """Base class of records whose fields are arrays of the same length.

    In records about windows, `codes` are the codes of the keys, `starts` and `ends` (exclusive) the bounds of the
    windows, and `watermarks` the watermarks at a firing or before an element: int64 epoch milliseconds.

    A field is a NumPy array, an Arrow array or table, a list or a mapping of Arrow arrays, or None if the record
    does not have it. The first field gives the length: it is a NumPy array, or an Arrow array or table.

    Example:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Spans(ParallelArrays):
        ...     starts: Int64s
        ...     names: pa.Array
        >>> spans = Spans(starts=np.array([1, 5, 9]), names=pa.array(["a", "b", "c"]))
        >>> spans.take(np.array([2, 0])).names.to_pylist()
        ['c', 'a']
        >>> len(Spans.concat([spans, spans])), len(Spans.empty(names=pa.array([], pa.string())))
        (6, 0)
    """

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def take(self, rows: Int64s) -> Self:
        """Return these rows, in this order."""
        places = pa.array(rows)
        return type(self)(**{field.name: _taken(getattr(self, field.name), rows, places) for field in fields(self)})

    def slice(self, start: int, length: int) -> Self:
        """Return `length` rows from `start` on, without copying them."""
        return type(self)(**{field.name: _sliced(getattr(self, field.name), start, length) for field in fields(self)})

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of several records, concatenated; `parts` is not empty."""
        if len(parts) == 1:
            return parts[0]
        return cls(**{field.name: _joined([getattr(part, field.name) for part in parts]) for field in fields(cls)})

    @classmethod
    def empty(cls, **others: Any) -> Self:
        """Return a record without rows.

        Args:
            others: values of the fields that are not NumPy arrays of integers or flags.
        """
        kinds = _kinds(cls)  # type: ignore[arg-type]  # mypy takes `type[Self]` for unhashable
        return cls(**{name: np.empty(0, kind) for name, kind in kinds.items() if name not in others}, **others)


def taken(arrays: Sequence[pa.Array], rows: Int64s) -> list[pa.Array]:
    """Return these rows of each array."""
    places = pa.array(rows)
    return [array.take(places) for array in arrays]


def joined(parts: Sequence[Sequence[pa.Array]]) -> list[pa.Array]:
    """Return lists of arrays concatenated, column by column."""
    return [pa.concat_arrays(list(column)) for column in zip(*parts, strict=True)]


def _taken(value: Any, rows: Int64s, places: pa.Array) -> Any:
    if isinstance(value, np.ndarray):
        return value[rows]
    if isinstance(value, Mapping):
        return {name: column.take(places) for name, column in value.items()}
    if isinstance(value, list):
        return [array.take(places) for array in value]
    return None if value is None else value.take(places)


def _sliced(value: Any, start: int, length: int) -> Any:
    if isinstance(value, np.ndarray):
        return value[start : start + length]
    if isinstance(value, Mapping):
        return {name: column.slice(start, length) for name, column in value.items()}
    if isinstance(value, list):
        return [array.slice(start, length) for array in value]
    return None if value is None else value.slice(start, length)


def _joined(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(values)
    if isinstance(first, Mapping):
        return {name: pa.concat_arrays([value[name] for value in values]) for name in first}
    if isinstance(first, list):
        return joined(values)
    if isinstance(first, pa.Table):
        return pa.concat_tables(values)
    return None if first is None else pa.concat_arrays(values)


@cache  # Resolving annotations takes a millisecond, and an epoch makes several empty records in each shard.
def _kinds(cls: type[ParallelArrays]) -> dict[str, type[np.generic]]:
    """Return the type of the values of each field that is a NumPy array."""
    kinds: dict[Any, type[np.generic]] = {Int64s: np.int64, Bools: np.bool_}
    return {name: kinds[hint] for name, hint in get_type_hints(cls).items() if hint in kinds}
