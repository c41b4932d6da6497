"""Compaction: combines the many small files of short epochs without changing rows, and removes very old epochs.

Tidegate compacts its tables itself, because other writers give files statistics that readers can't trust (NaN). Table
state needs no compaction: each commit writes one file for each shard.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import log
from typing import Any

import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs
from tidegate.pipelines.ledger.tables.commits import commit
from tidegate.pipelines.ledger.tables.files import add_action, check_written, partition_of, remove_action, write_rows
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import active_files, stored_schema
from tidegate.windowing.time import Millis
from tidegate.windowing.timestamps import epoch_millis

COMPACTION = "tidegate_compaction"
"""Metadata field with the table's name, in commits that move rows to other files or remove old epochs."""

_TIER = 8
"""Upper limit of the ratio between the largest and the smallest file of a tier of similar sizes."""

_ENOUGH = 16
"""Number of files in a tier at which the tier is always combined."""

FILE_SIZE = 32 * 1024 * 1024
"""Approximate upper limit of the size of a compacted file in bytes. Files of half this size or more are left
unchanged."""


def compact(tables: PipelineTables, table: str, together: int | None = None) -> tuple[int, int]:
    """Combine small files of a table in one commit. Return the number of files before and after.

    The caller holds the lease. `together` is the number of files of similar size at which these are combined, so that
    each row is rewritten only a few times, however often this runs. None combines all small files.
    """
    handle = tables.newest(table)
    files = active_files(handle)
    groups = [
        group for partition in _partitions(files) for tier in _tiers(partition, together) for group in _groups(tier)
    ]
    if not groups:
        return len(files), len(files)
    path, schema = tables.path(table), stored_schema(handle)
    written, adds = [], []
    for group in groups:
        rows = tables.warehouse.read_files(path, [file["path"] for file in group], schema)
        for file in write_rows(tables.warehouse, path, f"{table}-compacted", rows):
            written.append(file)
            adds.append(add_action(file, data_change=False, partition=partition_of(group[0])))
    check_written(tables.warehouse, path, written)
    removes = [remove_action(file, data_change=False) for group in groups for file in group]
    commit(tables.warehouse, handle, [*adds, *removes], {COMPACTION: table})
    return len(files), len(files) - sum(map(len, groups)) + len(written)


def drop_old_epochs(tables: PipelineTables, before: Millis, needed: int, now: Millis) -> int:
    """Remove the files of table epochs whose epochs all began before a time. Return how many epochs these were.

    Compaction combines the files in the order of their epochs, so the oldest files hold the oldest epochs. The caller
    holds the lease. The epoch `needed`, the oldest whose snapshot is retained, and later ones are kept.
    """
    handle = tables.newest(epochs.NAME)
    gone = []
    files = sorted(active_files(handle), key=lambda file: file["min.epoch"])
    for number, file in enumerate(files):
        if file["max.epoch"] >= needed or _last_began(tables, [each["path"] for each in files[number:]], now) >= before:
            break
        gone.append(file)
    if gone:
        commit(tables.warehouse, handle, [remove_action(file) for file in gone], {COMPACTION: epochs.NAME})
    return sum(file["num_records"] for file in gone)


def _last_began(tables: PipelineTables, names: Sequence[str], now: Millis) -> Millis:
    """Return the time at which the last epoch of the first files began.

    An epoch whose clock was ahead of `now` counts as older than the epochs of the next file.
    """
    bounds = _began(tables, names[0])
    if bounds is None:
        return now
    if bounds[1] <= now:
        return bounds[1]
    later = (_began(tables, name) for name in names[1:])
    return next((first for first, _ in filter(None, later) if first <= now), now)


def _began(tables: PipelineTables, name: str) -> tuple[Millis, Millis] | None:
    """Return the first and the last start of an epoch in a file, or None if it has no such time."""
    rows = tables.warehouse.read_files(tables.path(epochs.NAME), [name], epochs.SCHEMA, ["started_at"])
    bounds = pc.min_max(epoch_millis(rows["started_at"]))
    return (bounds["min"].as_py(), bounds["max"].as_py()) if bounds["min"].is_valid else None


def _partitions(files: list[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    """Return the files of each partition; only table `windows` may have several."""
    partitions = defaultdict[tuple[str | None, ...], list[dict[str, Any]]](list)
    for file in files:
        partitions[tuple(partition_of(file).values())].append(file)
    return partitions.values()


def _tiers(files: list[dict[str, Any]], together: int | None) -> Iterator[list[dict[str, Any]]]:
    """Yield the small files to combine: all of them, or those of each size tier that has enough files."""
    small = [file for file in files if file["size_bytes"] < FILE_SIZE // 2]
    if together is None:
        yield small
        return
    tiers = defaultdict[int, list[dict[str, Any]]](list)
    for file in small:
        tiers[int(log(max(file["size_bytes"], 1), _TIER))].append(file)
    yield from (tier for tier in tiers.values() if len(tier) >= min(together, _ENOUGH))


def _groups(files: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield groups of small files, in the order of their epochs. Each group fits into a file of full size."""
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
