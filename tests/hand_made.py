"""Delta tables written by hand: partition values, deletion vectors and mapped columns, as the protocol describes
them.
"""

from __future__ import annotations

import base64
import json
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

Storage = Literal["i", "u", "p"]

WRITTEN = 1_710_000_000_000
"""Time at which all files are written, int64 epoch milliseconds: some days after the events of tests."""

_MAGIC = (1_681_511_377).to_bytes(4, "little")
_PYTHON = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def z85(content: bytes) -> str:
    """Encode bytes in the text form that Delta uses for UUIDs and inline vectors, padded to whole groups of four."""
    padded = content + bytes(-len(content) % 4)
    return base64.b85encode(padded).decode().translate(str.maketrans(_PYTHON, _Z85))


def column(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    """Return a field of a Delta schema; `kind` is a type's name, or the JSON of a nested type."""
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def mapped(name: str, kind: Any, number: int, stored: str | None = None) -> dict[str, Any]:
    """Return a field of a schema with column mapping."""
    names = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": stored or f"col-{number}"}
    return column(name, kind, **names)


def struct(*fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of a struct."""
    return {"type": "struct", "fields": list(fields)}


@dataclass
class HandMade:
    """A Delta table whose log entries a test writes.

    Args:
        folder: folder of the table.
        columns: fields of its schema.
        partition_by: its partition columns.
        features: reader features.
        properties: properties of the table.
    """

    folder: Path
    columns: Sequence[Mapping[str, Any]]
    partition_by: Sequence[str] = ()
    features: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    version: int = -1

    def __post_init__(self) -> None:
        features = list(self.features)
        protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
        if features:
            protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
            protocol |= {"readerFeatures": features, "writerFeatures": features}
        self.commit({"protocol": protocol}, self.metadata())

    def metadata(self) -> dict[str, Any]:
        """Return the action that describes the table, with a new id."""
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": list(self.columns)}),
            "partitionColumns": list(self.partition_by),
            "configuration": dict(self.properties),
            "createdTime": 0,
        }
        return {"metaData": metadata}

    def commit(self, *actions: Mapping[str, Any], time: int = 0) -> int:
        """Write a log entry; return its version."""
        self.version += 1
        log = self.folder / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        lines = [{"commitInfo": {"timestamp": time, "operation": "WRITE"}}, *actions]
        (log / f"{self.version:020d}.json").write_text("\n".join(map(json.dumps, lines)))
        return self.version

    def file(
        self,
        rows: pa.Table,
        partition: Mapping[str, str | None] | None = None,
        name: str | None = None,
        deleted: Iterable[int] = (),
        storage: Storage = "u",
        **options: Any,
    ) -> dict[str, Any]:
        """Write a data file, and the vector of its deleted rows; return the add action.

        Args:
            rows: columns of the file.
            partition: texts of the partition values.
            name: path of the file, relative to the table.
            deleted: positions of deleted rows.
            storage: place of the deletion vector.
            options: options of the Parquet writer.
        """
        name = name or f"part-{uuid.uuid4().hex}.parquet"
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path, **options)
        add: dict[str, Any] = {
            "path": quote(name),
            "partitionValues": dict(partition or {}),
            "size": path.stat().st_size,
            "modificationTime": WRITTEN,
            "dataChange": True,
            "stats": json.dumps({"numRecords": len(rows)}),
        }
        if places := sorted(deleted):
            add["deletionVector"] = self.vector(places, storage)
        return {"add": add}

    def vector(self, places: Sequence[int], storage: Storage = "u", folder: str = "ab") -> dict[str, Any]:
        """Write a deletion vector; return its description."""
        content = _MAGIC + BitMap64(places).serialize()
        described = {"storageType": storage, "sizeInBytes": len(content), "cardinality": len(places)}
        if storage == "i":
            return {**described, "pathOrInlineDv": z85(content)}
        number = uuid.uuid4()
        file = self.folder / folder / f"deletion_vector_{number}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        # Another vector precedes ours, as in files that Spark writes.
        other = bytes(7)
        checked = len(content).to_bytes(4, "big") + content + zlib.crc32(content).to_bytes(4, "big")
        file.write_bytes(b"\x01" + other + checked)
        place = f"{folder}{z85(number.bytes)}" if storage == "u" else f"file:{quote(str(file))}"
        return {**described, "pathOrInlineDv": place, "offset": 1 + len(other)}
