"""Compaction: the many small files of short epochs become few, and no row changes.

Our own, since the files of another writer would have statistics that readers can't trust (NaN).
Table state needs none: its files are those of its shards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import log
from typing import Any

from deltalake import CommitProperties, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError

from pipelines.errors import Refused
from pipelines.storage import active_files, arrow_schema
from pipelines.tables.files import add_action, check_written, remove_action, write_file
from pipelines.tables.pipeline_tables import PipelineTables

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
    try:
        handle.create_write_transaction(
            [
                *(add_action(file, data_change=False) for file in written),
                *(remove_action(file, data_change=False) for group in groups for file in group),
            ],
            "append",
            handle.schema(),
            commit_properties=CommitProperties(max_commit_retries=0),
            post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
        )
    except CommitFailedError as error:
        raise Refused(f"somebody commits to {path} at this moment; only tidegate may. Try again") from error
    return len(files), len(files) - sum(map(len, groups)) + len(written)


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
