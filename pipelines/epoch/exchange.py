"""How events reach the shards: tasks read them together, or pack them by shard and the engine moves the packs.

A pack is an Arrow stream, so events never become Spark rows, and string keys stay in dictionaries.

Tasks on one machine that each need the whole slice share their reading: each file is read once, and the tasks exchange
events through a folder. A task starts on a bundle of files that no other task has started, and leaves the other tasks'
events in the folder. No task waits for another: at the end, a task itself reads what others have started but not
delivered. So tasks may run one after the other, or be repeated, and a task that dies only costs time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.event_columns import COMMIT, KEY_PREFIX, key_type
from tidegate.pipelines.engine.base import PACKED, Pack, exchange_folder
from tidegate.pipelines.ledger.manifest import Shard
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.windowing.columnar.hashing import key_groups
from tidegate.windowing.columnar.key_codes import KeyCodes, encode_keys
from tidegate.windowing.keys import KeySchema

_ROWS_AT_A_TIME = 1_000_000
"""Number of rows that a task packs together. A repeated key is written once per pack."""
_BYTES_AT_A_TIME = 2**28
"""Number of bytes that a task packs together. A pack must fit in one array, whose limit is 2 GiB."""
_FIRST_COMMIT = b"first_commit"
_TASKS_THAT_READ = 3
"""Reading a row three times costs about as much as reading and shuffling it once (docs/decisions/reading-rows.md)."""
_ROWS_READ_AGAIN = 2_000_000
"""Number of rows that a core may read and discard before an exchange, with its extra stage, is cheaper."""
_ROWS_IN_PLACE = 10_000_000
"""Largest number of rows for which tasks may keep their events in memory. The packs of an exchange are on disk."""


def is_exchange_cheaper(rows: int, readers: int, cores: int) -> bool:
    """Return True if shuffling rows costs less than having several tasks read them and keep their own events."""
    return rows > _ROWS_IN_PLACE or rows * max(0, readers - _TASKS_THAT_READ) / cores > _ROWS_READ_AGAIN


@dataclass(frozen=True)
class Placing:
    """Assignment of keys to shards; this value is sent to the tasks."""

    key: KeySchema
    shards: tuple[Shard, ...]
    max_parallelism: int

    def keys_of(self, events: pa.Table) -> KeyCodes:
        """Return the distinct keys of events."""
        return encode_keys(self.key, ({name: events[f"{KEY_PREFIX}{name}"] for name in self.key.names}, len(events)))

    def shards_of(self, keys: KeyCodes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the shard number of each distinct key."""
        firsts = np.array([shard.first for shard in self.shards])
        return np.searchsorted(firsts, key_groups(keys.hashes, self.max_parallelism), side="right") - 1

    def select(self, tables: Iterable[pa.Table], shards: Sequence[int]) -> dict[int, pa.Table]:
        """Return the events of each of the given shards. A shard without events has no entry."""
        parts: dict[int, list[pa.Table]] = {}
        for table in gathered(tables):
            keys = self.keys_of(table)
            (codes,) = keys.codes
            of_key = self.shards_of(keys)
            for shard in shards:
                mine = of_key == shard
                if len(rows := np.flatnonzero(mine[codes])):
                    parts.setdefault(shard, []).append(self._compact(table, rows, keys, mine))
        return {shard: pa.concat_tables(tables, promote_options="default") for shard, tables in parts.items()}

    def packs(self, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        """Yield the events, packed by shard."""
        for table in gathered(tables):
            keys = self.keys_of(table)
            (codes,) = keys.codes
            of_key = self.shards_of(keys)
            of_row = of_key[codes].astype(np.int16 if len(self.shards) < 2**15 else np.int32)
            order = np.argsort(of_row, kind="stable")
            numbers, begins = np.unique(of_row[order], return_index=True)
            ends = np.append(begins[1:], len(order))
            packs = [
                _packed(self._compact(table, order[begin:end], keys, of_key == number))
                for number, begin, end in zip(numbers.tolist(), begins.tolist(), ends.tolist(), strict=True)
            ]
            yield pa.RecordBatch.from_arrays(
                [pa.array(numbers.astype(np.int32)), pa.array(packs, pa.binary())], schema=PACKED
            )

    def _compact(
        self,
        events: pa.Table,
        rows: np.ndarray[tuple[int], np.dtype[np.int64]],
        keys: KeyCodes,
        present: np.ndarray[tuple[int], np.dtype[np.bool_]],
    ) -> pa.Table:
        """Return rows of events. A key of one string column becomes a dictionary with only the keys of these rows.

        `rows` are numbers of rows, and `present` is True for each distinct key that they have.
        """
        whole = len(rows) == len(events)
        if len(self.key.names) != 1 or key_type(self.key.types[0]) == self.key.types[0]:
            return events if whole else events.take(pa.array(rows))
        # Before Arrow takes rows of a dictionary column, it unifies the dictionaries; the codes are already unified.
        name = f"{KEY_PREFIX}{self.key.names[0]}"
        rest = events.drop_columns(name)
        kept = rest if whole else rest.take(pa.array(rows))
        (codes,), (values,) = keys.codes, keys.columns
        taken = codes if whole else codes[rows]
        missing = None
        if values.null_count:
            null = values.is_null().to_numpy(zero_copy_only=False)
            present, missing = present & ~null, null[taken]
        numbers = (np.cumsum(present) - 1)[taken].astype(np.int32)
        column = pa.DictionaryArray.from_arrays(pa.array(numbers, mask=missing), values.filter(pa.array(present)))
        return kept.add_column(events.schema.get_field_index(name), name, column)


def unpacked(packs: Sequence[Pack]) -> Iterator[pa.Table]:
    """Yield the events of packs, one pack at a time, ordered by the first commit in each.

    A pack is opened when its events are needed, so the packs need not fit in memory together.
    """

    def first_commit(pack: Pack) -> int:
        return int(pa.ipc.open_stream(pack()).schema.metadata[_FIRST_COMMIT])

    for pack in sorted(packs, key=first_commit):
        yield pa.ipc.open_stream(pack()).read_all().replace_schema_metadata()


def joined(tables: Sequence[pa.Table]) -> pa.Table | None:
    """Concatenate tables; return None if there are none. A column that a table lacks is null in its rows."""
    return pa.concat_tables(tables, promote_options="default") if tables else None


def _packed(events: pa.Table) -> bytes:
    first = pc.min(events[COMMIT]).as_py()
    marked = events.replace_schema_metadata({_FIRST_COMMIT: str(first)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, marked.schema) as writer:
        writer.write_table(marked.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


def gathered(
    tables: Iterable[pa.Table], rows: int = _ROWS_AT_A_TIME, size: int = _BYTES_AT_A_TIME
) -> Iterator[pa.Table]:
    """Yield the rows of tables in larger tables of about equal size; a large table is split first.

    A table is yielded when it has about this many rows or bytes.
    """
    waiting: list[pa.Table] = []
    held_rows = held_bytes = 0
    for piece in (piece for table in tables for piece in _pieces(table, size)):
        if waiting and held_bytes + piece.nbytes > size:
            yield pa.concat_tables(waiting)
            waiting, held_rows, held_bytes = [], 0, 0
        waiting.append(piece)
        held_rows += len(piece)
        held_bytes += piece.nbytes
        if held_rows >= rows:
            yield pa.concat_tables(waiting)
            waiting, held_rows, held_bytes = [], 0, 0
    if held_rows:
        yield pa.concat_tables(waiting)


def _pieces(table: pa.Table, size: int) -> Iterator[pa.Table]:
    rows = len(table) if table.nbytes <= size else max(1, len(table) * size // table.nbytes)
    for begin in range(0, len(table), max(1, rows)):
        yield table.slice(begin, rows)


_BUNDLES_PER_TASK = 5
"""Number of bundles per task. Tasks rarely end at the same time, and with this number few files are read twice."""
_ROWS_OF_A_BUNDLE = range(100_000, 1_000_000)
"""Number of rows in a bundle. Smaller bundles cost more than they save, and larger ones no longer fit one batch."""


@dataclass(frozen=True, slots=True)
class SharedReading:
    """A folder that all tasks of an epoch see, and the bundles of files that they read; it is sent to the tasks."""

    folder: Path
    bundles: tuple[tuple[int, ...], ...]

    def read(
        self, events: Callable[[Sequence[int]], Iterable[pa.Table]], placing: Placing, shards: Sequence[int]
    ) -> dict[int, pa.Table]:
        """Read the events of the given shards. A shard without events has no entry."""
        pieces: dict[int, dict[int, pa.Table]] = {}
        first = len(self.bundles) * shards[0] // len(placing.shards)
        order = [*range(first, len(self.bundles)), *range(first)]
        all_shards, begun_by_others = range(len(placing.shards)), []
        for bundle in order:
            if (left := self._left(bundle, shards)) is not None:
                pieces[bundle] = left
            elif self._begin(bundle):
                tables = placing.select(events(self.bundles[bundle]), all_shards)
                self._leave(bundle, tables, [shard for shard in all_shards if shard not in shards])
                pieces[bundle] = {shard: tables[shard] for shard in shards if shard in tables}
            else:
                begun_by_others.append(bundle)
        for bundle in begun_by_others:
            left = self._left(bundle, shards)
            pieces[bundle] = placing.select(events(self.bundles[bundle]), shards) if left is None else left
        read: dict[int, list[pa.Table]] = {}
        for _, tables in sorted(pieces.items()):
            for shard, table in tables.items():
                read.setdefault(shard, []).append(table)
        return {shard: pa.concat_tables(parts, promote_options="default") for shard, parts in read.items()}

    def _begin(self, bundle: int) -> bool:
        try:
            (self.folder / f"{bundle}.begun").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _leave(self, bundle: int, tables: dict[int, pa.Table], shards: Sequence[int]) -> None:
        """Leave events for the tasks of some shards. A piece without events is an empty file."""
        partial = self.folder / f"{bundle}.partial"
        try:
            for shard in shards:
                with pa.OSFile(str(partial), "wb") as file:
                    if (table := tables.get(shard)) is not None:
                        with pa.ipc.new_stream(file, table.schema) as writer:
                            writer.write_table(table.combine_chunks())
                partial.rename(self._piece(bundle, shard))
        except OSError:
            # The disk may be full: tasks that need these events read them from the source.
            partial.unlink(missing_ok=True)

    def _left(self, bundle: int, shards: Sequence[int]) -> dict[int, pa.Table] | None:
        """Return the events that another task left, or None if it did not leave those of all shards."""
        pieces = {shard: self._piece(bundle, shard) for shard in shards}
        if not all(piece.exists() for piece in pieces.values()):
            return None
        tables = {}
        for shard, piece in pieces.items():
            if piece.stat().st_size:
                # The mapping outlives the file, so the tables stay usable after the folder is removed.
                with pa.memory_map(str(piece)) as file:
                    tables[shard] = pa.ipc.open_stream(file).read_all()
        return tables

    def _piece(self, bundle: int, shard: int) -> Path:
        return self.folder / f"{bundle}-{shard}.arrow"


@contextmanager
def shared_reading(files: FileSlice | None, tasks: int) -> Iterator[SharedReading | None]:
    """Create a folder in which tasks share what they read, and remove it afterwards; None if sharing is not worthwhile.

    All tasks run on this machine.
    """
    bundles = () if files is None else bundles_of([part.rows or 0 for part in files.parts], tasks)
    if tasks < 2 or len(bundles) < 2 * tasks:
        yield None
        return
    with exchange_folder() as folder:
        yield SharedReading(folder, bundles)


def bundles_of(rows: Sequence[int], tasks: int) -> tuple[tuple[int, ...], ...]:
    """Divide the numbers of parts, in order, into bundles with about equal numbers of rows."""
    size = min(max(sum(rows) // (_BUNDLES_PER_TASK * tasks), _ROWS_OF_A_BUNDLE.start), _ROWS_OF_A_BUNDLE.stop)
    bundles: dict[int, list[int]] = {}
    for number, (count, end) in enumerate(zip(rows, accumulate(rows), strict=True)):
        bundles.setdefault((end - count // 2) // size, []).append(number)
    return tuple(map(tuple, bundles.values()))
