"""The events of a slice in order, for watermark generators that read each event; the driver reads them once."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tidegate.pipelines.definition.bound_input import BoundInput
from tidegate.pipelines.definition.event_columns import COMMIT, PARTITION, TIME, plain
from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.source_table import JudgedRows
from tidegate.windowing.watermarks import SeenEvent


class SeenEvents:
    """Usable events, ordered by commit, time and columns. They are streamed, so a slice need not fit on the driver.

    Args:
        engine: the engine of the run.
        files: the slice.
        input_: the input. A generator gets the columns that `uses` names, or else all columns.
        number: number of the input; events of the other input are left out.
    """

    def __init__(self, engine: Engine, files: FileSlice, input_: BoundInput, number: int) -> None:
        read = files.of(part for part in files.parts if part.input == number)
        self._names = input_.derived.names if input_.input.uses is None else list(input_.input.uses)
        self._rows: Iterator[SeenEvent] = self._ordered(engine, read, input_, number) if read.parts else iter(())
        self._next = next(self._rows, None)

    def _ordered(self, engine: Engine, files: FileSlice, input_: BoundInput, number: int) -> Iterator[SeenEvent]:
        names, columns = self._names, files.tables[number].columns
        kinds = [input_.derived.field(name).type for name in names]
        schema = pa.schema(
            [
                (COMMIT, pa.int32()),
                (PARTITION, pa.string()),
                (TIME, pa.int64()),
                *((f"c{place}", kind) for place, kind in enumerate(kinds)),
            ]
        )

        read = list(dict.fromkeys([*columns.names, *([columns.partition_by] if columns.partition_by else []), *names]))

        def events(judged: Iterator[JudgedRows]) -> Iterator[pa.RecordBatch]:
            for rows in judged:
                part = files.parts[rows.number]
                for table, times in rows.moving(part, columns, read):
                    commits = pa.repeat(pa.scalar(part.commit, pa.int32()), len(table))
                    values = [plain(table[name]) for name in names]
                    seen = pa.table([commits, columns.partitions(table), pa.array(times), *values], schema=schema)
                    yield from seen.to_batches()

        ties = [f"c{place}" for place, kind in enumerate(kinds) if not pa.types.is_nested(kind)]
        columns_read = [read] * len(files.tables)
        for batch in engine.in_order(files, events, schema, columns_read, [COMMIT, TIME, *ties]):
            for row in batch.to_pylist():
                event = {name: row[f"c{place}"] for place, name in enumerate(names)}
                yield SeenEvent(row[COMMIT], row[PARTITION], row[TIME], event)

    def of(self, commit: int) -> Iterator[SeenEvent]:
        """Yield the events of a commit. Call it for the commits in ascending order."""
        while self._next is not None and self._next.commit == commit:
            yield self._next
            self._next = next(self._rows, None)
