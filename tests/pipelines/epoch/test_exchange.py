"""Events reach the shard of their key, whether every shard reads all events or they are packed and moved."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.pipelines.definition.event_columns import COMMIT, PACK, SHARD, TIME
from tidegate.pipelines.epoch.exchange import Placing, gathered, joined, unpacked
from tidegate.pipelines.epoch.plan import BYTES_PER_SHARD, ROWS_PER_SHARD, cut_shards
from tidegate.windowing.keys import KeySchema

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["a", "ü", "", "long enough for several words of the hash"]),
    "text with null": (pa.string(), ["a", None, "c"]),
    "integers": (pa.int64(), [0, -1, 2**62, None]),
    "bytes": (pa.binary(), [b"", b"\x00"]),
    "decimals": (pa.decimal128(30, 2), [Decimal("1.25"), None]),
}


def events_of(kinds: list[str], picks: list[int]) -> tuple[Placing, pa.Table]:
    names = tuple(f"k{number}" for number in range(len(kinds)))
    key = KeySchema(names, tuple(KEYS[kind][0] for kind in kinds))
    columns: dict[str, pa.Array] = {TIME: pa.array(range(len(picks)), pa.int64())}
    columns[COMMIT] = pa.array([0] * len(picks), pa.int32())
    for number, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        values = KEYS[kind][1]
        columns[f"key_{name}"] = pa.array([values[(pick + number) % len(values)] for pick in picks], KEYS[kind][0])
    return Placing(key, cut_shards(3, 16), 16), pa.table(columns)


def opened(packs: Iterable[bytes]) -> pa.Table | None:
    return joined(list(unpacked([partial(pa.py_buffer, pack) for pack in packs])))


def rows(table: pa.Table | None) -> list[dict[str, Any]]:
    return [] if table is None else table.to_pylist()


@given(
    st.lists(st.sampled_from(sorted(KEYS)), max_size=2), st.lists(st.integers(0, 11), max_size=30), st.integers(1, 3)
)
def test_reading_everywhere_and_moving_packs_give_each_shard_the_events_of_its_key_groups(
    kinds: list[str], picks: list[int], pieces: int
) -> None:
    placing, events = events_of(kinds, picks)
    parts = [events.slice(start, 4) for start in range(0, len(events), 4)]
    packs = [pack for piece in range(pieces) for pack in placing.packs(parts[piece::pieces])]
    for number, shard in enumerate(placing.shards):
        moved = opened(
            pack
            for batch in packs
            for owner, pack in zip(batch[SHARD].to_pylist(), batch[PACK].to_pylist(), strict=True)
            if owner == number
        )
        expected = [
            row
            for row in events.to_pylist()
            if shard.first
            <= placing.key.key_group_of(placing.key.key_of([row[f"key_{name}"] for name in placing.key.names]), 16)
            <= shard.last
        ]
        assert rows(placing.select(parts, [number]).get(number)) == expected
        assert rows(placing.select(parts, range(len(placing.shards))).get(number)) == expected
        assert sorted(rows(moved), key=lambda row: row[TIME]) == expected


def test_a_text_key_travels_as_a_dictionary_of_just_the_shard_s_keys() -> None:
    placing, events = events_of(["text"], [0, 1, 2, 3] * 50)
    found = placing.select([events], range(3))
    assert sum(map(len, found.values())) == len(events)
    for own in found.values():
        column = own["key_k0"].combine_chunks()
        assert isinstance(column, pa.DictionaryArray)
        assert len(column.dictionary) == len(set(own["key_k0"].to_pylist()))


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_a_key_travels_in_one_type_whether_or_not_a_task_meets_a_null(kind: pa.DataType) -> None:
    placing = Placing(KeySchema(("k",), (kind,)), cut_shards(1, 16), 16)
    tasks = [[b"a", b"b"], [b"a", None, b"c", None], [None]]
    packs = [
        pack
        for keys in tasks
        for batch in placing.packs([pa.table({COMMIT: [0] * len(keys), "key_k": pa.array(keys).cast(kind)})])
        for pack in batch[PACK].to_pylist()
    ]
    moved = opened(packs)
    assert moved.schema.field("key_k").type == pa.dictionary(pa.int32(), kind)
    assert moved["key_k"].null_count == 3
    assert (
        moved["key_k"].cast(kind).to_pylist()
        == pa.array([key for keys in tasks for key in keys]).cast(kind).to_pylist()
    )
    assert [chunk.dictionary.null_count for chunk in moved["key_k"].chunks] == [0, 0, 0]


@pytest.mark.parametrize("tables", [[], [pa.table({"a": [1]}), pa.table({"a": [2], "b": ["x"]})]])
def test_a_column_that_some_packs_lack_is_null_there(tables: list[pa.Table]) -> None:
    together = joined(tables)
    assert rows(together) == ([{"a": 1, "b": None}, {"a": 2, "b": "x"}] if tables else [])


def lengths(tables: list[pa.Table], **limits: int) -> list[int]:
    """The number of rows that are processed in one batch; none is lost or out of order."""
    found = list(gathered(tables, **limits))
    assert pa.concat_tables(found).equals(pa.concat_tables(tables))
    return [len(table) for table in found]


def test_what_a_task_looks_at_together_ends_at_rows_or_bytes() -> None:
    numbers = [pa.table({"n": [begin, begin + 1]}) for begin in range(0, 10, 2)]
    assert lengths(numbers) == [10]
    assert lengths(numbers, rows=4) == [4, 4, 2]
    assert lengths(numbers, size=5 * 8) == [4, 4, 2]


def test_a_large_table_is_taken_in_pieces() -> None:
    texts = [pa.table({"s": ["x" * 1000] * 10}), pa.table({"s": ["y"]})]
    assert max(lengths(texts, size=3_100)) == 3
    assert lengths(texts, size=1) == [1] * 11


def test_a_large_dictionary_does_not_cut_a_table_into_single_rows() -> None:
    keys = pa.array([f"{number:0100}" for number in range(100)]).dictionary_encode()
    assert lengths([pa.table({"k": keys})], size=5_000) == [46, 46, 8]


# --- the number of shards ----------------------------------------------------------------------------


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
