"""Types of kept elements to which fields were added, because columns were added to their source.

A snapshot has types as text. Text is compared with text, and values are converted by their real types, so a name that
the text can't tell apart (with brackets, for example) can't give a value another meaning: such a type is refused.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow as pa

_Parsed: TypeAlias = "str | tuple[str, tuple[tuple[str, _Parsed], ...]]"
"""A type as text, or the name of a nested type with the names and types of its parts."""


def only_adds(found: object, expected: object) -> bool:
    """Return True if a type, as text, differs from another only by fields that were added to its structs."""
    if not isinstance(found, str) or not isinstance(expected, str):
        return False
    return found != expected and _holds(_parsed(expected), _parsed(found))


def _holds(new: _Parsed, old: _Parsed) -> bool:
    if isinstance(new, str) or isinstance(old, str):
        return new == old
    parts, is_struct = dict(new[1]), new[0] == "struct"
    if new[0] != old[0] or (not is_struct and len(parts) != len(old[1])):
        return False
    return all(name in parts and _holds(parts[name], part) for name, part in old[1])


def _parsed(text: str) -> _Parsed:
    kind, opened, inside = text.partition("<")
    if not opened or not text.endswith(">") or kind not in ("struct", "list", "map"):
        return text
    parts, depth, begin = [], 0, 0
    inside = inside[:-1]
    for place, letter in enumerate(inside):
        depth += (letter in "<[(") - (letter in ">])")
        if letter == "," and not depth:
            parts.append(inside[begin:place])
            begin = place + 2
    parts.append(inside[begin:])
    if kind == "map":
        return kind, tuple((str(number), _parsed(part)) for number, part in enumerate(parts))
    named = (part.partition(": ") for part in parts)
    return kind, tuple((name, _parsed(of)) for name, _, of in named)


def with_added(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Convert values to a type whose structs have more fields, which become null, or fields in another order.

    Raises:
        pa.ArrowException: another part of the type differs.
    """
    return pa.chunked_array([_with_added(chunk, kind) for chunk in values.chunks], kind)


def _with_added(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type == kind or not pa.types.is_nested(kind):
        return values.cast(kind)
    # A slice with offsets can't have a mask.
    values = pa.concat_arrays([values]) if values.offset else values
    mask: Any = values.is_null() if values.null_count else None
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        names = {field.name for field in values.type}
        parts = [
            _with_added(values.field(field.name), field.type)
            if field.name in names
            else pa.nulls(len(values), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) and pa.types.is_list(values.type):
        elements = _with_added(values.values, kind.value_type)
        return pa.ListArray.from_arrays(values.offsets, elements, type=kind, mask=mask)
    if pa.types.is_map(kind) and pa.types.is_map(values.type):
        keys, items = _with_added(values.keys, kind.key_type), _with_added(values.items, kind.item_type)
        return pa.MapArray.from_arrays(values.offsets, keys, items, type=kind, mask=mask)
    raise pa.ArrowInvalid(f"{values.type} has other parts than {kind}")
