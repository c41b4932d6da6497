"""Facts about a Delta table that change only with its columns or properties, and their consequences for its files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tidegate.pipelines.definition.columns import quoted
from tidegate.pipelines.definition.pipeline import Input
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.commits import SourceFile
from tidegate.pipelines.sources.delta.partition_values import scalar_of
from tidegate.pipelines.sources.delta.reader import DETAILS, PARTITION, DeltaReader
from tidegate.pipelines.sources.stored_fields import StoredField
from tidegate.pipelines.storage.warehouse import Warehouse, arrow_schema

_READ = frozenset(
    {
        "timestampNtz",
        "vacuumProtocolCheck",
        "v2Checkpoint",
        "deletionVectors",
        "columnMapping",
        "typeWidening",
        "typeWidening-preview",
    }
)
"""Reader features of Delta that Arrow reads, or that don't change the content of data files."""

_VARIANT = re.compile(r'[tT]ype": *"variant"')
"""The type VARIANT in a schema as JSON, as a column or within one. A column may have that name, too."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts about a table: its id, its schema (JSON, and in Arrow's types), and its columns with values in the log.

    `mapping` is `none`, `name` or `id`. `features` are Delta's names of the features that a reader must support; column
    mapping is included only if it is on, and VARIANT only if a column has it.
    """

    identity: str
    columns: str
    schema: pa.Schema
    mapping: str
    features: frozenset[str]

    @classmethod
    def of(cls, table: DeltaTable) -> TableFacts:
        """Return the facts of an opened table."""
        metadata, protocol = table.metadata(), table.protocol()
        mapping = str(metadata.configuration.get("delta.columnMapping.mode", "none"))
        features = set(protocol.reader_features or ())
        if protocol.min_reader_version >= 2:
            features.add("columnMapping")
        if mapping == "none":
            features.discard("columnMapping")
        columns = table.schema().to_json()
        if not _VARIANT.search(columns):
            # deltalake adds the feature whenever it sets a property of a table with features.
            features.discard("variantType")
        return cls(
            identity=str(metadata.id),
            columns=columns,
            schema=arrow_schema(table),
            mapping=mapping,
            features=frozenset(features),
        )

    def stored_name(self, name: str) -> str:
        """Return the name of a column in data files and statistics; other names are returned unchanged."""
        if self.mapping == "none":
            return name
        fields = {field["name"]: field.get("metadata") or {} for field in json.loads(self.columns)["fields"]}
        return str(fields.get(name, {}).get(_NAME, name))

    def check_input(self, part: Input, table: str) -> None:
        """Refuse keys and source partitions with a collation, because tidegate compares them byte by byte.

        Raises:
            Refused: the message names the column, and an expression that makes equal values equal bytes.
        """
        names = {*part.key, part.watermark_by} - part.columns.keys()
        for column in json.loads(self.columns)["fields"]:
            name, collations = column["name"], column.get("metadata", {}).get("__COLLATIONS") or {}
            collation = str(collations.get(name, "UTF8_BINARY"))
            if name in names and not collation.endswith("UTF8_BINARY"):
                raise Refused(
                    f"column {name!r} of source table {table} has the collation {collation}, by which Spark treats "
                    "values with different bytes as one key, but tidegate does not. Make equal values equal, for "
                    f"example columns={{{name!r}: 'lower({quoted(name)}) collate UTF8_BINARY'}}"
                )

    def left_to_spark(self) -> str | None:
        """Return the reason why the tasks can't read the table's files, or None if they can."""
        if features := sorted(self.features - _READ):
            return f"the table has {', '.join(features)}"
        try:
            stored_fields(self.columns, self.mapping)
        except ValueError as error:
            return str(error)
        return None

    def reader(self, warehouse: Warehouse, path: str, columns: pa.Schema) -> DeltaReader:
        """Return the reader for the tasks; `columns` has the types in which columns are read."""
        return DeltaReader(warehouse, path, columns, stored_fields(self.columns, self.mapping))

    def bounded(self, file: SourceFile, timestamp: str) -> SourceFile:
        """Return a file with the bounds of its event time if that is a partition column, or the file unchanged."""
        texts, name = file.details.get(PARTITION) or {}, self.stored_name(timestamp)
        if name not in texts:
            return file
        kind = self.schema.field(timestamp).type
        if not pa.types.is_timestamp(kind):
            return file
        try:
            value = scalar_of(texts[name], kind)
        except ValueError:
            # The file is refused when it is opened.
            return file
        time = value.value // 1000 if value.is_valid else None
        return replace(file, oldest=time, newest=time)


def details_of(add: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an add action that the tasks need to read its file."""
    return {name: add[name] for name in DETAILS if add.get(name)}


TABLE_ID = "table_id"
"""Field of a position: the id of the table. A table that replaces it has another id."""


_CHAR = "__CHAR_VARCHAR_TYPE_STRING"
"""Property of a column that holds the SQL type of its strings."""
_NAME, _ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"


def stored_fields(columns: str, mapping: str) -> tuple[StoredField, ...]:
    """Return all columns of a table.

    Raises:
        ValueError: a column of a mapped table has no physical name or id, or a CHAR is nested in a column.
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


def _parts(kind: Any, mapping: str) -> tuple[StoredField, ...]:
    if not isinstance(kind, dict):
        return ()
    if kind["type"] == "struct":
        return _fields(kind["fields"], mapping)
    names = {"array": ("element",), "map": ("key", "value")}.get(kind["type"], ())
    return tuple(
        StoredField(name, name, None, _parts(kind[f"{name}Type"], mapping)) for name in names if f"{name}Type" in kind
    )


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
