"""The Delta table of a benchmark's events, in the layouts that users' tables have.

Every layout gets the same rows in the same commits, so the log is written by hand: a table that Spark partitions or
deletes from has other files in other commits. Spark and tidegate read the same table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema

from tests.hand_made import HandMade, mapped

Layout = Literal["plain", "partitioned", "deleted", "mapped"]
"""Plain files; partitioned by country; a row of a hundred deleted by vectors; columns that were mapped and renamed."""

COUNTRIES = ("de", "fr", "jp", "us")
DELETED = 0.01
"""Share of the rows that deletion vectors remove."""

_TABLES: dict[Layout, dict[str, Any]] = {
    "plain": {},
    "partitioned": {"partition_by": ("country",)},
    "deleted": {"features": ("deletionVectors",), "properties": {"delta.enableDeletionVectors": "true"}},
    "mapped": {
        "features": ("columnMapping",),
        "properties": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "4"},
    },
}


@dataclass
class EventTable:
    """Events in a Delta table.

    Args:
        path: folder of the table.
        layout: layout of its files.
    """

    path: Path
    layout: Layout = "plain"
    _table: HandMade | None = field(default=None, init=False)

    @property
    def files_per_commit(self) -> int:
        """Number of files that each commit adds."""
        return len(COUNTRIES) if self.layout == "partitioned" else 2

    def append(self, rows: pa.Table) -> None:
        """Add rows in one commit. Column `country` is added to them; for a layout that deletes rows, more rows too."""
        countries = pa.array(COUNTRIES).take(pc.bit_wise_and(rows["value"], len(COUNTRIES) - 1).combine_chunks())
        rows = rows.append_column("country", countries)
        if self._table is None:
            self._table = HandMade(self.path, self._columns(rows.schema), **_TABLES[self.layout])
        files = [self._file(self._table, part, country) for part, country in self._parts(rows)]
        self._table.commit(*files, time=time.time_ns() // 1_000_000)

    def _columns(self, schema: pa.Schema) -> list[dict[str, Any]]:
        columns: list[dict[str, Any]] = json.loads(Schema.from_arrow(schema).to_json())["fields"]
        if self.layout != "mapped":
            return columns
        return [
            mapped(each["name"], each["type"], number, _stored(each["name"])) for number, each in enumerate(columns, 1)
        ]

    def _parts(self, rows: pa.Table) -> Iterator[tuple[pa.Table, str | None]]:
        """Yield the rows of each file, with its country if the table is partitioned."""
        if self.layout == "partitioned":
            for country in COUNTRIES:
                yield rows.filter(pc.equal(rows["country"], country)).drop_columns(["country"]), country
            return
        length = -(-len(rows) // self.files_per_commit)
        for begin in range(0, len(rows), length):
            yield rows.slice(begin, length), None

    def _file(self, table: HandMade, rows: pa.Table, country: str | None) -> dict[str, Any]:
        """Write a file, and return its add action with the bounds of the event time."""
        bounds = pc.min_max(rows["at"])
        rows, deleted = _with_deleted_rows(rows) if self.layout == "deleted" else (rows, ())
        time_column = _stored("at") if self.layout == "mapped" else "at"
        if self.layout == "mapped":
            rows = rows.rename_columns([_stored(name) for name in rows.column_names])
        partition = {} if country is None else {"country": country}
        action = table.file(rows, partition, deleted=deleted)
        action["add"]["stats"] = json.dumps(
            {
                "numRecords": len(rows),
                "minValues": {time_column: bounds["min"].as_py().isoformat(timespec="milliseconds")},
                "maxValues": {time_column: bounds["max"].as_py().isoformat(timespec="milliseconds")},
                "nullCount": {time_column: 0},
                "tightBounds": not len(deleted),
            }
        )
        action["add"]["modificationTime"] = time.time_ns() // 1_000_000
        return action


def _with_deleted_rows(rows: pa.Table) -> tuple[pa.Table, np.ndarray]:
    """Return rows with so many copies among them that deleting these leaves the rows, and the places of the copies."""
    copies = round(len(rows) * DELETED / (1 - DELETED))
    after = np.sort(np.random.default_rng(len(rows)).choice(len(rows), copies, replace=False))
    order = np.insert(np.arange(len(rows)), after, after)
    return rows.take(order), after + np.arange(copies)


def _stored(name: str) -> str:
    """Return the name of a mapped column in the files."""
    return f"col-{name}-before-it-was-renamed"
