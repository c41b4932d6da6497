"""Compaction: the many small files of short epochs become few, and no row changes. Rows of very old epochs go.

Our own, since the files of another writer would have statistics that readers can't trust (NaN).
Table state needs none: its files are those of its shards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import log
from typing import Any

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.storage import active_files, arrow_schema
from tidegate.pipelines.tables import epochs
from tidegate.pipelines.tables.files import add_action, check_written, remove_action, write_file
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import Millis, to_millis

COMPACTION = "tidegate_compaction"
"""Metadata of commits that put rows into other files, or take old epochs away: the table."""

_TIER = 8
"""Files are of about one size if the largest is less than so many times the smallest."""

_ENOUGH = 16
"""Files of about one size that a table has at most after it was kept up."""

FILE_SIZE = 32 * 1024 * 1024
"""Bytes that a file of a compacted table has at most, about; files of half of it are left alone."""


def compact(tables: PipelineTables, table: str, together: int | None = None) -> tuple[int, int]:
    """Put small files of a table together, in one commit; how many files there were and are.

    The caller holds the lease.

    Args:
        tables: of the pipeline.
        table: name of the table.
        together: files of about one size are put together where there are so many; then a row is written again a few
            times only, however often this is done. None puts all small files together.

    Raises:
        Refused: somebody else commits to the table at the same time.
    """
    handle = tables.open(table)
    files = active_files(handle)
    groups = [group for tier in _tiers(files, together) for group in _groups(tier)]
    if not groups:
        return len(files), len(files)
    path, schema = tables.path(table), arrow_schema(handle)
    written = []
    for group in groups:
        rows = tables.warehouse.read_files(path, [file["path"] for file in group], schema)
        file = write_file(tables.warehouse, path, f"{table}-compacted", rows)
        written += [] if file is None else [file]
    check_written(tables.warehouse, path, written)
    adds = [add_action(file, data_change=False) for file in written]
    removes = [remove_action(file, data_change=False) for group in groups for file in group]
    _commit(tables, table, handle, adds, removes)
    return len(files), len(files) - sum(map(len, groups)) + len(written)


def drop_old_epochs(tables: PipelineTables, before: Millis, needed: int) -> int:
    """Take files of table epochs away that hold only epochs which began before a moment; how many epochs those were.

    Its files are put together in the order of their epochs, so the oldest go. The caller holds the lease.

    Args:
        tables: of the pipeline.
        before: int64 epoch milliseconds.
        needed: the oldest epoch whose snapshot is retained; it and those after it stay.

    Raises:
        Refused: somebody else commits to the table at the same time.
    """
    handle = tables.open(epochs.NAME)
    gone = []
    for file in sorted(active_files(handle), key=lambda file: file["min.epoch"]):
        if file["max.epoch"] >= needed or not _all_began_before(tables, file["path"], before):
            break
        gone.append(file)
    if gone:
        _commit(tables, epochs.NAME, handle, [], [remove_action(file) for file in gone])
    return sum(file["num_records"] for file in gone)


def _all_began_before(tables: PipelineTables, name: str, moment: Millis) -> bool:
    """Whether every epoch in a file began before a moment, as the file's own statistics tell."""
    import pyarrow.parquet as pq

    filesystem, root = tables.warehouse.filesystem(tables.path(epochs.NAME))
    with filesystem.open_input_file(f"{root}/{name}" if root else name) as opened:
        told = pq.ParquetFile(opened).metadata
    place = told.schema.names.index("started_at") if "started_at" in told.schema.names else None
    if place is None:
        return False
    for group in range(told.num_row_groups):
        known = told.row_group(group).column(place).statistics
        if known is None or not known.has_min_max or to_millis(known.max) >= moment:
            return False
    return True


def _commit(
    tables: PipelineTables, table: str, handle: DeltaTable, adds: list[AddAction], removes: list[RemoveAction]
) -> None:
    try:
        handle.create_write_transaction(
            [*adds, *removes],
            "append",
            handle.schema(),
            commit_properties=CommitProperties(custom_metadata={COMPACTION: table}, max_commit_retries=0),
            post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
        )
    except CommitFailedError as error:
        path = tables.path(table)
        raise Refused(f"somebody commits to {path} at this moment; only tidegate may. Try again") from error
    tables.warehouse.make_commit_durable(tables.path(table), handle.version() + 1)


def _tiers(files: list[dict[str, Any]], together: int | None) -> Iterator[list[dict[str, Any]]]:
    """The small files that are to be put together: all, or those of about one size where there are enough of them."""
    small = [file for file in files if file["size_bytes"] < FILE_SIZE // 2]
    if together is None:
        yield small
        return
    tiers = defaultdict[int, list[dict[str, Any]]](list)
    for file in small:
        tiers[int(log(max(file["size_bytes"], 1), _TIER))].append(file)
    yield from (tier for tier in tiers.values() if len(tier) >= min(together, _ENOUGH))


def _groups(files: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Small files in the order of their epochs, as many together as make a file of full size."""
    small = sorted(files, key=lambda file: (file.get("min.epoch") or 0, file["path"]))
    group: list[dict[str, Any]] = []
    for file in small:
        if group and sum(member["size_bytes"] for member in group) + file["size_bytes"] > FILE_SIZE:
            if len(group) > 1:
                yield group
            group = []
        group.append(file)
    if len(group) > 1:
        yield group
