"""How many shards an epoch has, and which key groups each takes."""

from __future__ import annotations

from pipelines.snapshots.head import Snapshot
from pipelines.snapshots.manifest import Shard
from windowing.keys import key_group_range

ROWS_PER_SHARD = 2_500_000
"""Events and state rows that one task works on at once: about 600 MB at the peak (docs/decisions/0019)."""


def cut_shards(shards: int, max_parallelism: int, events: int = 0, parent: Snapshot | None = None) -> tuple[Shard, ...]:
    """The key groups in contiguous ranges, one a shard: as many as asked for, or more where much is in memory at once.

    The number is doubled until no shard holds too much. So the ranges of a large epoch lie within those of a
    small one, and the state files of either serve the other.

    Args:
        shards: at least so many.
        max_parallelism: number of key groups.
        events: rows that the epoch takes in.
        parent: the snapshot whose state rows it reads.
    """
    rows = events + sum(file["num_records"] for file in (() if parent is None else parent.files))
    while rows > shards * ROWS_PER_SHARD and shards * 2 <= max_parallelism:
        shards *= 2
    ranges = [key_group_range(shard, shards, max_parallelism) for shard in range(shards)]
    return tuple(Shard(first=groups.first, last=groups.last) for groups in ranges)
