"""The number of an epoch's shards, and their key groups."""

from __future__ import annotations

from tidegate.pipelines.manifest import Shard
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.windowing.keys import key_group_range

ROWS_PER_SHARD = 2_500_000
"""Events and state rows that one task works on at once: about 600 MB at the peak (docs/decisions/reading-rows.md)."""
BYTES_PER_SHARD = 3 * 2**28
"""Bytes in memory that one task works on at once: long texts need more bytes than rows of numbers."""
_COMPRESSED = 3
"""Approximate bytes in memory for one byte of a state file."""


def cut_shards(
    shards: int, max_parallelism: int, events: int = 0, parent: Snapshot | None = None, size: int = 0
) -> tuple[Shard, ...]:
    """Return the shards: contiguous ranges of key groups; more than `shards` if they would need too much memory.

    The number is doubled until no shard is too large, or until each shard has one key group. So each range of a large
    epoch lies within a range of a small epoch, and each epoch can read the state files of the other.

    Args:
        shards: smallest number of shards.
        max_parallelism: number of key groups.
        events: number of rows that the epoch reads.
        parent: the snapshot whose state rows the epoch reads.
        size: bytes of the events, 0 if they are not known.
    """
    files = () if parent is None else parent.files
    rows = events + sum(file["num_records"] for file in files)
    size += sum(file["size_bytes"] for file in files) * _COMPRESSED
    while (rows > shards * ROWS_PER_SHARD or size > shards * BYTES_PER_SHARD) and shards < max_parallelism:
        shards = min(2 * shards, max_parallelism)
    ranges = [key_group_range(shard, shards, max_parallelism) for shard in range(shards)]
    return tuple(Shard(first=groups.first, last=groups.last) for groups in ranges)
