from __future__ import annotations

import random
from datetime import timedelta

import pyarrow as pa

from tests.lake import DAY0, EVENTS, at
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.definition import late, rejects
from tidegate.pipelines.definition.columns import TIMESTAMP
from tidegate.pipelines.ledger.manifest import Reopening
from tidegate.pipelines.ledger.tables.keys import digests
from tidegate.pipelines.ledger.tables.late_rows import is_meant
from tidegate.windowing.time import to_millis


def test_a_late_row_keeps_its_input_and_says_why(by_hand: ByHand) -> None:
    by_hand.epoch(("ann", at("12:00"), 1), watermark=at("12:00"))
    by_hand.epoch(("bob", at("10:00"), 7), watermark=at("12:01"))
    (row,) = by_hand.rows("late").to_pylist()
    assert (row["user"], row["at"], row["value"]) == ("bob", at("10:00"), 7)
    assert (row["reason"], row["lateness_ms"], row["watermark"]) == ("late", 7_200_000, at("12:00"))
    assert (row["window_start"], row["window_end"]) == (at("10:00"), at("10:30"))
    assert (row["timeline"], row["epoch"], row["stale"]) == (1, 2, False)


def test_columns_of_the_input_come_first_and_may_be_null() -> None:
    strict = pa.schema([field.with_nullable(False) for field in EVENTS])
    for table in (late, rejects):
        leading = list(table.schema(strict))[: len(EVENTS)]
        assert [field.name for field in leading] == EVENTS.names
        assert all(field.nullable for field in leading)


def test_an_input_column_that_is_named_like_one_of_ours_gets_a_prefix() -> None:
    clashing = pa.schema([("epoch", pa.string()), ("watermark", pa.int64())])
    assert late.schema(clashing).names[:2] == ["input_epoch", "input_watermark"]
    assert rejects.schema(clashing).names[:2] == ["input_epoch", "watermark"]


def test_what_went_in_is_on_time_late_or_filtered_in_every_epoch(by_hand: ByHand) -> None:
    by_hand.epoch(("ann", at("10:00"), 1), ("bob", at("10:01"), 1), watermark=at("11:00"))
    by_hand.epoch(("ann", at("10:10"), 1), ("ann", at("11:10"), 1), watermark=at("11:30"))
    for row in by_hand.rows("epochs").to_pylist():
        filtered = row["no_window"] + row["rejected"] + row["dropped"]
        assert row["events_in"] == row["on_time"] + row["late"] + filtered
    assert sum(by_hand.rows("epochs")["late"].to_pylist()) == len(by_hand.rows("late")) == 1


def test_late_rows_of_many_spans_are_those_whose_window_begins_in_a_span_of_their_key() -> None:
    draw = random.Random(3)
    users = [f"user{number}" for number in range(6)]
    rows = [
        {"user": draw.choice(users), "window_start": DAY0 + timedelta(minutes=draw.randrange(60)), "epoch": 1}
        for _ in range(300)
    ]
    kinds = pa.schema([("user", pa.string()), ("window_start", TIMESTAMP), ("epoch", pa.int64())])
    table = pa.Table.from_pylist([*rows, {"user": "user1", "window_start": None, "epoch": 1}], schema=kinds)
    table = table.append_column("reopened", pa.nulls(len(table), pa.int64()))
    table = table.append_column("stale", pa.repeat(pa.scalar(False), len(table)))
    owners = dict(zip(table["user"].to_pylist(), digests(table, ("user",)).to_pylist(), strict=True))
    minute, start = 60_000, to_millis(DAY0)
    spans = tuple(
        (owners.get(user, "7"), start + begin * minute, start + (begin + 5) * minute)
        for user in ("user1", "user4", "nobody")
        for begin in (10, 15, 40)
    )
    reopening = Reopening(epoch=2, start=0, end=0, spans=spans)
    expected = [
        row["window_start"] is not None
        and any(
            owners[row["user"]] == owner and first <= to_millis(row["window_start"]) < last
            for owner, first, last in spans
        )
        for row in table.to_pylist()
    ]
    assert is_meant(table, ("user",), reopening).to_pylist() == expected
    assert 10 < sum(expected) < 100
