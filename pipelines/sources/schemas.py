"""Schemas of sources without the metadata of their fields, so that two schemas differ only in names and types."""

from __future__ import annotations

import pyarrow as pa


def without_metadata(schema: pa.Schema) -> pa.Schema:
    """Return a schema without the metadata of its fields, at any depth."""
    return pa.schema([_bare(field) for field in schema])


def _bare(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _bare_type(field.type), field.nullable)


def _bare_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_bare(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_bare(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_bare(kind.key_field), _bare(kind.item_field))
    return kind
