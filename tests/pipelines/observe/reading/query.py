"""A streaming query without a JVM: the offset log, the batches and the commit log of Spark's micro-batches. As Spark
does, a query writes the offsets of a batch before it reads the batch, and its commit afterwards; a restarted query
repeats a batch without a commit. Tasks get a pickled reader and a pickled split, as executors do.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from tidegate.pipelines.observe.reading.data_source import StreamReader, TidegateFormat

STEPS = ("offset", "planned", "half", "written", "committed")
"""Steps of a batch, as they are reported."""

Rows = Counter[tuple[object, ...]]


@dataclass(frozen=True)
class Query:
    """A query that stores the rows of a view of a pipeline.

    Args:
        checkpoint: folder of its logs.
        target: folder of the rows of each batch; a batch that is repeated replaces its own.
        options: options of the format.
    """

    checkpoint: Path
    target: Path
    options: dict[str, str]

    def reader(self) -> StreamReader:
        """Return the reader that Spark would create."""
        made = TidegateFormat(self.options)
        reader = made.streamReader(made.schema())
        assert isinstance(reader, StreamReader)
        return reader

    def run(self, tell: Callable[[int, str], None] = lambda batch, step: None) -> None:
        """Read everything there is, and end."""
        for folder in (self.checkpoint / "offsets", self.checkpoint / "commits", self.target):
            folder.mkdir(parents=True, exist_ok=True)
        reader = self.reader()
        number = len(list((self.checkpoint / "commits").iterdir()))
        while True:
            start = reader.initialOffset() if not number else self._offset(number - 1)
            if not (self.checkpoint / "offsets" / str(number)).exists():
                latest = reader.latestOffset()
                if latest == start:
                    return
                _write(self.checkpoint / "offsets" / str(number), latest)
            tell(number, "offset")
            parts = reader.partitions(start, self._offset(number))
            tell(number, "planned")
            rows = []
            for part in parts[: len(parts) // 2]:
                rows += list(_task(cloudpickle.dumps((reader, part))))
            tell(number, "half")
            for part in parts[len(parts) // 2 :]:
                rows += list(_task(cloudpickle.dumps((reader, part))))
            _write(self.target / f"{number:04}", rows)
            tell(number, "written")
            _write(self.checkpoint / "commits" / str(number), {})
            tell(number, "committed")
            number += 1

    def total(self, signed: bool = True) -> Rows:
        """Return the rows that the target has after all batches; if rows are signed, those with `-` cancel others."""
        total: Rows = Counter()
        for file in sorted(self.target.glob("[0-9]*")):
            for op, *values in json.loads(file.read_text()):
                total[tuple(values) if signed else (op, *values)] += -1 if signed and op == "-" else 1
        assert all(count >= 0 for count in total.values()), "a row left that never came"
        return +total

    def _offset(self, number: int) -> Any:
        return json.loads((self.checkpoint / "offsets" / str(number)).read_text())


def _task(pickled: bytes) -> Iterator[list[Any]]:
    reader, part = cloudpickle.loads(pickled)
    for batch in reader.read(part):
        yield from values_of(pa.Table.from_batches([batch]))


def values_of(rows: pa.Table) -> list[list[Any]]:
    """Return op and everything that identifies a final window and its result, in a form that fits JSON."""
    return [
        [row.get("op", "+"), *(str(row[name]) for name in rows.column_names if name != "op")]
        for row in rows.to_pylist()
    ]


def _write(file: Path, content: Any) -> None:
    part = file.with_name(f".{file.name}")
    part.write_text(json.dumps(content))
    part.replace(file)
