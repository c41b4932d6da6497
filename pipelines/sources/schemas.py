"""Schemas of sources in Arrow's types and in Spark's, without the metadata of their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def of_spark(schema: StructType) -> pa.Schema:
    """Return the columns of a frame in Arrow's types; a TIMESTAMP is in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return without_metadata(to_arrow_schema(schema, timezone="UTC"))


def to_spark(schema: pa.Schema) -> StructType:
    """Return columns in Spark's types; a timestamp without a zone is a TIMESTAMP_NTZ."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


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
