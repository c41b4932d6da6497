"""Columns of a Delta table from its log: physical names and ids, lengths of CHAR, and collations."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.pipelines.definition.columns import quoted
from tidegate.pipelines.definition.pipeline import Input
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.stored_fields import StoredField

_CHAR = "__CHAR_VARCHAR_TYPE_STRING"
"""Property of a column with the SQL type of its texts."""
_NAME, _ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"


def stored_fields(columns: str, mapping: str) -> tuple[StoredField, ...]:
    """Return all columns of a table.

    Args:
        columns: the table's schema in the log, JSON.
        mapping: mode of column mapping: `none`, `name` or `id`.

    Raises:
        ValueError: a column of a mapped table has no physical name or id, or texts within a column are CHAR.
    """
    return _fields(json.loads(columns)["fields"], mapping)


def _fields(fields: Sequence[Mapping[str, Any]], mapping: str) -> tuple[StoredField, ...]:
    stored = []
    for field in fields:
        name, metadata = field["name"], field.get("metadata") or {}
        parts, length = _parts(field["type"], mapping), _length(name, metadata)
        if mapping == "none":
            stored.append(StoredField(name, name, None, parts, length))
        elif _NAME not in metadata or _ID not in metadata:
            raise ValueError(f"column {name!r} has no physical name or no id, though the table has column mapping")
        else:
            number = int(metadata[_ID]) if mapping == "id" else None
            stored.append(StoredField(name, str(metadata[_NAME]), number, parts, length))
    return tuple(stored)


def _length(name: str, metadata: Mapping[str, Any]) -> int | None:
    kind = str(metadata.get(_CHAR, "")).lower()
    if match := re.fullmatch(r"char\((\d+)\)", kind):
        return int(match[1])
    if re.search(r"\bchar\(", kind):
        raise ValueError(f"column {name!r} holds CHAR in a nested type, {kind}")
    return None


def stored_name(columns: str, mapping: str, name: str) -> str:
    """Return the name of a column in data files and statistics; other names are returned unchanged."""
    if mapping == "none":
        return name
    fields = {field["name"]: field.get("metadata") or {} for field in json.loads(columns)["fields"]}
    return str(fields.get(name, {}).get(_NAME, name))


def _parts(kind: Any, mapping: str) -> tuple[StoredField, ...]:
    if not isinstance(kind, dict):
        return ()
    if kind["type"] == "struct":
        return _fields(kind["fields"], mapping)
    names = {"array": ("element",), "map": ("key", "value")}.get(kind["type"], ())
    return tuple(
        StoredField(name, name, None, _parts(kind[f"{name}Type"], mapping)) for name in names if f"{name}Type" in kind
    )


def collations(columns: str) -> dict[str, str]:
    """Return the collation of each column that is not compared byte by byte."""
    by_name = {}
    for column in json.loads(columns)["fields"]:
        for place, collation in (column.get("metadata", {}).get("__COLLATIONS") or {}).items():
            if place == column["name"] and not str(collation).endswith("UTF8_BINARY"):
                by_name[column["name"]] = str(collation)
    return by_name


def unusual_columns(columns: str) -> dict[str, str]:
    """Return the columns that only Spark reads or compares correctly, with the reasons."""
    reasons = {}
    for column in json.loads(columns)["fields"]:
        text = json.dumps(column)
        if "__COLLATIONS" in text:
            reasons[column["name"]] = f"column {column['name']!r} has a collation"
        elif "__CHAR_VARCHAR_TYPE_STRING" in text:
            reasons[column["name"]] = f"column {column['name']!r} is of type CHAR or VARCHAR"
    return reasons


def check_collations(part: Input, table: str, columns: str) -> None:
    """Refuse keys and source partitions with a collation, because tidegate compares them byte by byte.

    Raises:
        Refused: the message names the column, and an expression that makes equal values equal bytes.
    """
    names = (*part.key, *([part.watermark_by] if part.watermark_by else []))
    by_name = collations(columns) if names else {}
    for name in names:
        if name in by_name and name not in part.columns:
            raise Refused(
                f"column {name!r} of source table {table} has the collation {by_name[name]}, by which Spark treats "
                "values with different bytes as one key, but tidegate does not. Make equal values equal, for example "
                f"columns={{{name!r}: 'lower({quoted(name)}) collate UTF8_BINARY'}}"
            )
