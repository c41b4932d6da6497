"""How many shards an epoch has, and which key groups each takes."""

from __future__ import annotations

from tidegate.pipelines.manifest import Shard
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.windowing.keys import key_group_range

ROWS_PER_SHARD = 2_500_000
"""Events and state rows that one task works on at once: about 600 MB at the peak (docs/decisions/0019)."""
BYTES_PER_SHARD = 3 * 2**28
"""What they may hold: long texts take more than rows of numbers."""
_COMPRESSED = 3
"""How many bytes one byte of a state file is about in memory."""


def cut_shards(
    shards: int, max_parallelism: int, events: int = 0, parent: Snapshot | None = None, size: int = 0
) -> tuple[Shard, ...]:
    """The key groups in contiguous ranges, one a shard: as many as asked for, or more where much is in memory at once.

    The number is doubled until no shard holds too much, at last to one key group each. So the ranges of a large
    epoch lie within those of a small one, and the state files of either serve the other.

    Args:
        shards: at least so many.
        max_parallelism: number of key groups.
        events: rows that the epoch takes in.
        parent: the snapshot whose state rows it reads.
        size: bytes that the events take, as far as that is known.
    """
    files = () if parent is None else parent.files
    rows = events + sum(file["num_records"] for file in files)
    size += sum(file["size_bytes"] for file in files) * _COMPRESSED
    while (rows > shards * ROWS_PER_SHARD or size > shards * BYTES_PER_SHARD) and shards < max_parallelism:
        shards = min(2 * shards, max_parallelism)
    ranges = [key_group_range(shard, shards, max_parallelism) for shard in range(shards)]
    return tuple(Shard(first=groups.first, last=groups.last) for groups in ranges)
