"""Columns as data files store them: different names, narrower types, fields in a different order or missing.

With column mapping, a file has a column under its physical name or its id, so a table can rename and drop columns
without rewriting files. When a column gets a wider type, older files keep the narrower one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.timestamps import as_type

_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class StoredField:
    """A column or a field of a struct with the name that it has in data files.

    Args:
        name: name in the table.
        stored: name in data files and in the log.
        number: id of the field in data files if the table is mapped by id, otherwise None.
        parts: fields of a struct, the element of a list, or key and value of a map.
        length: length of a CHAR column, whose values Spark pads with spaces; None for other columns.
    """

    name: str
    stored: str
    number: int | None = None
    parts: tuple[StoredField, ...] = ()
    length: int | None = None

    def part(self, place: int, name: str | None = None) -> StoredField:
        """Return the field of a struct by its name, or a part of a list or map by its position."""
        if name is None:
            return self.parts[place]
        return next(part for part in self.parts if part.name == name)


def fields_of(schema: pa.Schema) -> tuple[StoredField, ...]:
    """Return the columns of a schema, with their names in data files."""
    return tuple(_field_of(field.name, field.type) for field in schema)


def _field_of(name: str, kind: pa.DataType) -> StoredField:
    if pa.types.is_struct(kind):
        parts = [(field.name, field.type) for field in kind]
    elif pa.types.is_map(kind):
        parts = [("key", kind.key_type), ("value", kind.item_type)]
    elif pa.types.is_list(kind):
        parts = [("element", kind.value_type)]
    else:
        parts = []
    return StoredField(name, name, None, tuple(_field_of(*part) for part in parts))


def place_of(field: StoredField, in_file: Sequence[pa.Field]) -> int | None:
    """Return the position of a column among the fields of a file or of a struct in it, or None if it is missing.

    Names may differ in case, as in Delta, to which 'ß' and 'ss' are two names.
    """
    if field.number is not None:
        numbers = [(candidate.metadata or {}).get(_FIELD_ID) for candidate in in_file]
        wanted = str(field.number).encode()
        return numbers.index(wanted) if wanted in numbers else None
    names = [candidate.name for candidate in in_file]
    if field.stored in names:
        return names.index(field.stored)
    lower = [name.lower() for name in names]
    return lower.index(field.stored.lower()) if field.stored.lower() in lower else None


def has_numbers(in_file: pa.Schema) -> bool:
    """Return True if the columns of a file have ids."""
    return any(_FIELD_ID in (field.metadata or {}) for field in in_file)


def converted(column: pa.ChunkedArray, kind: pa.DataType, field: StoredField) -> pa.ChunkedArray:
    """Return a column of a file in the type of the table. Fields that the file lacks are null.

    Raises:
        pa.ArrowException: the file's type can't become the table's without loss.
    """
    return pa.chunked_array([_converted(chunk, kind, field) for chunk in column.chunks], kind)


def filled(texts: pa.Array, length: int) -> pa.Array:
    """Pad strings, or a dictionary of strings, with spaces to a number of characters, as Spark does for CHAR."""
    if pa.types.is_dictionary(texts.type):
        return pa.DictionaryArray.from_arrays(texts.indices, filled(texts.dictionary, length))
    return pc.utf8_rpad(texts, length)


_STORED = (
    (pa.types.is_struct, (pa.types.is_struct,)),
    (pa.types.is_map, (pa.types.is_map,)),
    (pa.types.is_list, (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)),
)
"""The kinds of nested types in a table, each with the kinds that its files may use instead."""


def _converted(values: pa.Array, kind: pa.DataType, field: StoredField) -> pa.Array:
    if not pa.types.is_nested(kind):
        if _is_other_time(values.type, kind):
            raise pa.ArrowInvalid(f"{field.stored} is {values.type}, but the table says {kind}")
        values = as_type(values, kind)
        return values if field.length is None else filled(values, field.length)
    if not any(is_kind(kind) and any(is_stored(values.type) for is_stored in stored) for is_kind, stored in _STORED):
        raise pa.ArrowInvalid(f"{field.stored} is {values.type}, but the table says {kind}")
    if pa.types.is_struct(kind):
        return _struct(values, kind, field)
    if pa.types.is_map(kind):
        entries = _from_start(values)
        keys = _converted(entries.keys, kind.key_type, field.part(0))
        items = _converted(entries.items, kind.item_type, field.part(1))
        return pa.MapArray.from_arrays(entries.offsets, keys, items, type=kind, mask=_mask(entries))
    if not pa.types.is_list(values.type):
        values = values.cast(pa.list_(values.type.value_field))
    lists = _from_start(values)
    elements = _converted(lists.values, kind.value_type, field.part(0))
    return pa.ListArray.from_arrays(lists.offsets, elements, type=kind, mask=_mask(lists))


def _is_other_time(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Return True if only one of two types is an instant.

    Arrow would cast without the unit of a number or the zone of a wall-clock time. INT96 is an instant without a zone.
    """
    is_time, should_be = pa.types.is_timestamp(stored), pa.types.is_timestamp(kind)
    if is_time and should_be:
        return bool(stored.tz and not kind.tz)
    return bool((is_time and pa.types.is_integer(kind)) or (should_be and pa.types.is_integer(stored)))


def _struct(values: pa.StructArray, kind: pa.StructType, field: StoredField) -> pa.StructArray:
    in_file, columns = list(values.type), []
    for wanted in kind:
        part = field.part(0, wanted.name)
        place = place_of(part, in_file)
        columns.append(
            pa.nulls(len(values), wanted.type) if place is None else _converted(values.field(place), wanted.type, part)
        )
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=_mask(values))


def _from_start(values: pa.Array) -> pa.Array:
    """Return an array that begins at the start of its buffers: a slice with offsets can't have a mask."""
    return values if values.offset == 0 else pa.concat_arrays([values])


def _mask(values: pa.Array) -> pa.Array | None:
    return values.is_null() if values.null_count else None
