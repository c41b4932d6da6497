"""Reading of a slice by tasks of one machine: a file is read once, and the tasks exchange events through a folder.

A task begins a bundle of files that no other task has begun, and leaves the events of the other tasks in the folder.
No task waits for another: what another has begun and not left in the end, a task reads by itself. So tasks may run one
after the other, or again, and a task that dies costs time only.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pyarrow as pa

from tidegate.pipelines.epoch.exchange import Placing
from tidegate.pipelines.sources.file_slice import FileSlice

_PREFIX, _LOCK = "tidegate-shared-", "driver.lock"
_BUNDLES_PER_TASK = 5
"""Tasks rarely end at once; with this many bundles, the files that two tasks read are few."""
_ROWS = range(100_000, 1_000_000)
"""Rows of a bundle: fewer are not worth files of their own, and more are not placed together."""


@dataclass(frozen=True, slots=True)
class SharedReading:
    """A folder that all tasks of an epoch see, and the bundles of files that they read; it travels to the tasks.

    Args:
        folder: the folder.
        bundles: numbers of the parts of each bundle, in the order of the slice.
    """

    folder: Path
    bundles: tuple[tuple[int, ...], ...]

    def read(
        self, events: Callable[[Sequence[int]], Iterable[pa.Table]], placing: Placing, shards: Sequence[int]
    ) -> dict[int, pa.Table]:
        """Read the events of the given shards; a shard without events has no entry.

        Args:
            events: returns the events of parts of the slice.
            placing: assignment of keys to the shards.
            shards: the shards of this task.
        """
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
        """Return True if no other task has begun a bundle."""
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
            # The disk may be full: whoever needs these events reads them from the source.
            partial.unlink(missing_ok=True)

    def _left(self, bundle: int, shards: Sequence[int]) -> dict[int, pa.Table] | None:
        """Return the events that another task left; None if it did not leave those of all shards."""
        pieces = {shard: self._piece(bundle, shard) for shard in shards}
        if not all(piece.exists() for piece in pieces.values()):
            return None
        tables = {}
        for shard, piece in pieces.items():
            if piece.stat().st_size:
                # The mapping outlives the file, so the tables may be used after the folder was removed.
                with pa.memory_map(str(piece)) as file:
                    tables[shard] = pa.ipc.open_stream(file).read_all()
        return tables

    def _piece(self, bundle: int, shard: int) -> Path:
        return self.folder / f"{bundle}-{shard}.arrow"


@contextmanager
def shared_reading(files: FileSlice | None, tasks: int) -> Iterator[SharedReading | None]:
    """Make a folder in which tasks share what they read, and remove it; None if sharing would not pay.

    Args:
        files: the slice; None if it has no events.
        tasks: number of tasks, which all run on this machine.
    """
    bundles = () if files is None else _bundles([part.rows or 0 for part in files.parts], tasks)
    if tasks < 2 or len(bundles) < 2 * tasks:
        yield None
        return
    _remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield SharedReading(folder, bundles)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned() -> None:
    """Remove folders of drivers that were killed: nobody holds their locks any more."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            with path.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
        except OSError:
            # Its driver is at work, another has just removed it, or it belongs to another user.
            continue


def _bundles(rows: Sequence[int], tasks: int) -> tuple[tuple[int, ...], ...]:
    """Return numbers of successive parts in bundles of about equal numbers of rows."""
    size = min(max(sum(rows) // (_BUNDLES_PER_TASK * tasks), _ROWS.start), _ROWS.stop)
    bundles: dict[int, list[int]] = {}
    for number, (count, end) in enumerate(zip(rows, accumulate(rows), strict=True)):
        bundles.setdefault((end - count // 2) // size, []).append(number)
    return tuple(map(tuple, bundles.values()))
