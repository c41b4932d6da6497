"""Every reader of the state finds the same open windows, whether they share slices or have contents of their own."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.expectations.broken import broken_in
from tests.lake import Clock, at, hourly_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.ask.contents import key_group_counts, window_rows
from tidegate.pipelines.ask.waiting import open_windows
from tidegate.pipelines.definition import results
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.head import state_rows
from tidegate.windowing import Count, SlidingEventTimeWindows, Sum, Variance, Windows
from tidegate.windowing.time import to_millis

MINUTE = timedelta(minutes=1)
ASSIGNER = SlidingEventTimeWindows.of(60 * MINUTE, 10 * MINUTE, 5 * MINUTE)
SUMS: dict[str, Any] = {"events": Count(), "total": Sum("value")}
SLICED = hourly_pipeline("sliced", compute=Windows(ASSIGNER, aggregate=SUMS))
WHOLE = hourly_pipeline("whole", compute=Windows(ASSIGNER, aggregate={**SUMS, "spread": Variance("value")}))
"""Variances would not merge exactly, so these windows have separate rows."""
PARTS = {"sliced": {"slice"}, "whole": {"window"}}


def waiting(hand: ByHand) -> list[tuple[Any, ...]]:
    shown, count = open_windows(hand.warehouse, hand.head(), 0, 0)
    assert count == len(shown)
    return sorted((str(each.key), each.start, each.next_event_time_timer, str(each.reason)) for each in shown)


def published(hand: ByHand) -> list[tuple[Any, ...]]:
    names = ("user", "window_start", "window_end", "pane", "op", "events", "total", "watermark", "epoch")
    return sorted(tuple(row[name] for name in names) for row in hand.rows(results.NAME).to_pylist())


def same(sliced: ByHand, whole: ByHand) -> None:
    """Compare what two pipelines report about their windows."""
    manifests = [hand.head().manifest for hand in (sliced, whole)]
    counters = [[shard.counters for shard in manifest.shards] for manifest in manifests]
    assert counters[0] == counters[1]
    timers = [[shard.next_event_time_timer for shard in manifest.shards] for manifest in manifests]
    assert timers[0] == timers[1]
    assert waiting(sliced) == waiting(whole)
    groups = [key_group_counts(window_rows(hand.tables, hand.head()), ("user",)) for hand in (sliced, whole)]
    assert groups[0] == groups[1]
    assert published(sliced) == published(whole)
    for hand in (sliced, whole):
        assert broken_in(hand.tables, hand.pipeline) == set()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_every_reader_of_the_state_finds_the_same_windows(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    hands = [ByHand(tmp_path, pipeline) for pipeline in (SLICED, WHOLE)]
    for hour in range(8, 12):
        times = [f"{hour - draw.choice([0, 0, 1]):02}:{draw.randrange(60):02}" for _ in range(8)]
        rows = [(draw.choice(["ann", "bob", "cy"]), at(text), draw.randrange(9)) for text in times]
        # The third epoch has another parallelism.
        watermark, parallelism = at(f"{hour:02}:{draw.randrange(60):02}"), 2 if hour != 10 else 3
        for hand in hands:
            hand.parallelism = parallelism
            hand.epoch(*rows, watermark=watermark)
            namespaces = set(state_rows(hand.warehouse, hand.head())["namespace"].to_pylist())
            assert namespaces == PARTS[hand.pipeline.name]
        same(*hands)
    for hand in hands:
        with Lease(hand.tables, "forget", Clock()):
            forget(hand.tables, hand.pipeline, [("ann",)], to_millis(at("12:00")))
    same(*hands)


def test_a_manifest_says_whether_its_state_has_slices(tmp_path: Path) -> None:
    """A reader without the field would mistake slices for windows without contents."""
    sliced, whole = (ByHand(tmp_path, pipeline) for pipeline in (SLICED, WHOLE))
    texts = [hand.epoch(("ann", at("08:10"), 1), watermark=at("08:00")).model_dump_json() for hand in (sliced, whole)]
    assert [json.loads(text)["slices"] for text in texts] == [True, False]
    with pytest.raises(Refused, match="slicez"):
        Manifest.parse(texts[0].replace('"slices"', '"slicez"'))


def test_the_mark_stays_where_newer_code_shares_no_slices(tmp_path: Path) -> None:
    """A shard without work keeps its slices."""
    hand = ByHand(tmp_path, SLICED)
    hand.epoch(("ann", at("08:10"), 1), watermark=at("08:00"))
    hand.pipeline = hourly_pipeline("sliced", compute=Windows(ASSIGNER, aggregate=SUMS, allowed_lateness=10 * MINUTE))
    manifest = hand.epoch(watermark=at("08:20"))
    assert (manifest.slices, manifest.counters["fired_on_time"]) == (True, 1)
    assert hand.epoch(watermark=at("10:20")).counters["fired_on_time"] == 5
