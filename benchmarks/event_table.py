"""The Delta table of a benchmark's events, in the layouts that users' tables have.

Every layout gets the same rows in the same commits, so the log is written by hand: a table that Spark partitions or
deletes from has other files in other commits. Spark and tidegate read the same table.
"""

from __future__ import annotations

import base64
import json
import string
import struct
import time
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import Schema
from pyroaring import BitMap64

Layout = Literal["plain", "partitioned", "deleted", "mapped"]
"""Plain files; partitioned by country; a row of a hundred deleted by vectors; columns that were mapped and renamed."""

COUNTRIES = ("de", "fr", "jp", "us")
DELETED = 0.01
"""Share of the rows that deletion vectors remove."""

_PLAIN = {"minReaderVersion": 1, "minWriterVersion": 2}
_FEATURES: dict[Layout, str] = {"deleted": "deletionVectors", "mapped": "columnMapping"}
_CONFIGURATION: dict[Layout, dict[str, str]] = {
    "deleted": {"delta.enableDeletionVectors": "true"},
    "mapped": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "4"},
}
_MAGIC = 1_681_511_377
"""First number of a deletion vector in the Delta protocol."""
_B85 = string.digits + string.ascii_uppercase + string.ascii_lowercase + "!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = string.digits + string.ascii_lowercase + string.ascii_uppercase + ".-:+=^!/*?&<>()[]{}@%$#"


@dataclass
class EventTable:
    """Events in a Delta table.

    Args:
        path: folder of the table.
        layout: layout of its files.
    """

    path: Path
    layout: Layout = "plain"

    @property
    def files_per_commit(self) -> int:
        """Number of files that each commit adds."""
        return len(COUNTRIES) if self.layout == "partitioned" else 2

    def append(self, rows: pa.Table) -> None:
        """Add rows in one commit. Column `country` is added to them; for a layout that deletes rows, more rows too."""
        countries = pa.array(COUNTRIES).take(pc.bit_wise_and(rows["value"], len(COUNTRIES) - 1).combine_chunks())
        rows = rows.append_column("country", countries)
        if not self._log.exists():
            self._commit(list(self._create(rows.schema)))
        self._commit([{"add": self._added(part, country)} for part, country in self._parts(rows)])

    def _create(self, schema: pa.Schema) -> Iterator[dict[str, Any]]:
        feature = _FEATURES.get(self.layout)
        listed = {"readerFeatures": [feature], "writerFeatures": [feature]}
        yield {"protocol": _PLAIN if feature is None else {"minReaderVersion": 3, "minWriterVersion": 7, **listed}}
        text = json.loads(Schema.from_arrow(schema).to_json())
        if self.layout == "mapped":
            for number, column in enumerate(text["fields"], 1):
                column["metadata"] = {
                    "delta.columnMapping.id": number,
                    "delta.columnMapping.physicalName": _physical(column["name"]),
                }
        yield {
            "metaData": {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(text),
                "partitionColumns": ["country"] if self.layout == "partitioned" else [],
                "configuration": _CONFIGURATION.get(self.layout, {}),
                "createdTime": _now(),
            }
        }

    def _commit(self, actions: list[dict[str, Any]]) -> None:
        actions.append({"commitInfo": {"timestamp": _now(), "operation": "WRITE"}})
        self._log.mkdir(parents=True, exist_ok=True)
        version = len(list(self._log.iterdir()))
        lines = "".join(json.dumps(action) + "\n" for action in actions)
        (self._log / f"{version:020d}.json").write_text(lines)

    @property
    def _log(self) -> Path:
        return self.path / "_delta_log"

    def _parts(self, rows: pa.Table) -> Iterator[tuple[pa.Table, str | None]]:
        """Yield the rows of each file, with its country if the table is partitioned."""
        if self.layout == "partitioned":
            for country in COUNTRIES:
                yield rows.filter(pc.equal(rows["country"], country)).drop_columns(["country"]), country
            return
        length = -(-len(rows) // self.files_per_commit)
        for begin in range(0, len(rows), length):
            yield rows.slice(begin, length), None

    def _added(self, rows: pa.Table, country: str | None) -> dict[str, Any]:
        """Write a file, and return its add action."""
        bounds = pc.min_max(rows["at"])
        folder = "" if country is None else f"country={country}/"
        vector = None
        if self.layout == "deleted":
            rows, places = _with_deleted_rows(rows)
            vector = self._vector(places)
        name = _physical("at") if self.layout == "mapped" else "at"
        if self.layout == "mapped":
            rows = rows.rename_columns([_physical(column) for column in rows.column_names])
        path = self.path / f"{folder}part-{uuid.uuid4().hex}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(rows, path)
        statistics = {
            "numRecords": len(rows),
            "minValues": {name: bounds["min"].as_py().isoformat(timespec="milliseconds")},
            "maxValues": {name: bounds["max"].as_py().isoformat(timespec="milliseconds")},
            "nullCount": {name: 0},
            "tightBounds": vector is None,
        }
        return {
            "path": f"{folder}{path.name}",
            "partitionValues": {} if country is None else {"country": country},
            "size": path.stat().st_size,
            "modificationTime": _now(),
            "dataChange": True,
            "stats": json.dumps(statistics),
            **({} if vector is None else {"deletionVector": vector}),
        }

    def _vector(self, places: np.ndarray) -> dict[str, Any]:
        """Write the deletion vector of a file, and return its description."""
        content = struct.pack("<i", _MAGIC) + BitMap64(places).serialize()
        number = uuid.uuid4()
        framed = struct.pack(">bi", 1, len(content)) + content + struct.pack(">I", zlib.crc32(content))
        (self.path / f"deletion_vector_{number}.bin").write_bytes(framed)
        encoded = base64.b85encode(number.bytes).decode().translate(str.maketrans(_B85, _Z85))
        return {
            "storageType": "u",
            "pathOrInlineDv": encoded,
            "offset": 1,
            "sizeInBytes": len(content),
            "cardinality": len(places),
        }


def _with_deleted_rows(rows: pa.Table) -> tuple[pa.Table, np.ndarray]:
    """Return rows with so many copies among them that deleting these leaves the rows, and the places of the copies."""
    copies = round(len(rows) * DELETED / (1 - DELETED))
    after = np.sort(np.random.default_rng(len(rows)).choice(len(rows), copies, replace=False))
    order = np.insert(np.arange(len(rows)), after, after)
    return rows.take(order), after + np.arange(copies)


def _physical(name: str) -> str:
    """Return the name of a mapped column in the files."""
    return f"col-{name}-before-it-was-renamed"


def _now() -> int:
    return time.time_ns() // 1_000_000
