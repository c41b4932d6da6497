"""The number of shards of an epoch: as many as asked for, more if too much would be in memory at once."""

from __future__ import annotations

import pytest

from tidegate.pipelines.epoch.plan import BYTES_PER_SHARD, ROWS_PER_SHARD, cut_shards


@pytest.mark.parametrize(("shards", "max_parallelism"), [(1, 1), (2, 128), (3, 128), (7, 10), (128, 128)])
def test_the_ranges_cover_every_key_group_once(shards: int, max_parallelism: int) -> None:
    cut = cut_shards(shards, max_parallelism)
    assert [group for shard in cut for group in range(shard.first, shard.last + 1)] == list(range(max_parallelism))
    assert len(cut) == shards


def test_a_few_rows_take_as_many_shards_as_asked_for() -> None:
    assert len(cut_shards(2, 128, events=2 * ROWS_PER_SHARD)) == 2


@pytest.mark.parametrize(("events", "expected"), [(2 * ROWS_PER_SHARD + 1, 4), (20 * ROWS_PER_SHARD, 32)])
def test_many_rows_take_more(events: int, expected: int) -> None:
    assert len(cut_shards(2, 128, events=events)) == expected


@pytest.mark.parametrize(("size", "expected"), [(2 * BYTES_PER_SHARD, 2), (2 * BYTES_PER_SHARD + 1, 4)])
def test_large_rows_take_more_too(size: int, expected: int) -> None:
    assert len(cut_shards(2, 128, events=1000, size=size)) == expected


def test_there_are_never_more_than_key_groups() -> None:
    assert len(cut_shards(3, 10, events=10**12)) == 10
    assert len(cut_shards(100, 128, events=10**12)) == 128


@pytest.mark.parametrize(("shards", "rows"), [(3, 10 * ROWS_PER_SHARD), (3, 10**12), (60, 10**12)])
def test_the_ranges_of_a_large_epoch_lie_within_those_of_a_small_one(shards: int, rows: int) -> None:
    small, large = cut_shards(shards, 100), cut_shards(shards, 100, events=rows)
    assert len(large) > len(small)
    for shard in large:
        assert any(other.first <= shard.first and shard.last <= other.last for other in small)
