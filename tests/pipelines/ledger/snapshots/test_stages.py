"""A manifest is made of typed stages; an epoch without rows keeps every field of its parent that it does not set."""

from __future__ import annotations

from tidegate.pipelines.definition.counters import KEPT
from tidegate.pipelines.definition.recorded import Position, Schemas, Shape
from tidegate.pipelines.ledger.manifest import (
    DataFile,
    Interval,
    Manifest,
    PartitionWatermark,
    Publish,
    RaisedLateness,
    Reopening,
    Shard,
    StaleInterval,
)
from tidegate.pipelines.ledger.snapshots.stages import NewEpoch, manifest_of
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED

NOW = 1_800_000_000_000

PARENT = Manifest(
    pipeline="hours",
    timeline=2,
    epoch=7,
    parent=6,
    line=((1, 3), (5, 7)),
    kind="backfill",
    order="event",
    interval=Interval(start=0, end=3_600_000),
    positions={"events": Position(version=3, frontier=3_600_000)},
    watermark=3_599_999,
    partitions={"a": PartitionWatermark(watermark=3_599_999, pending=5)},
    inputs={"left": 1},
    watermark_by={"": "gateway"},
    processing_time=4_000_000,
    stagger_offset=60_000,
    max_parallelism=64,
    shards=(Shard(first=0, last=63, rows=9, counters={"open_windows": 4, "late": 2}, next_event_time_timer=5),),
    fingerprint="code",
    schemas=Schemas(key={"user": "string"}, namespace="window", contents={"count": "int64"}),
    counters={"late": 2},
    stale=(StaleInterval(start=0, end=1, epochs=(4,)),),
    publish={
        table: Publish(
            files=(DataFile(path="x", size=1, rows=1, stats="{}"),), reopened=(Reopening(epoch=7),), forgotten=("mark",)
        )
        for table in PUBLISHED
    },
    phases={"job": 1.0},
    closed_through=3_500_000,
    raised_lateness=RaisedLateness(since=1, by=2, until=3),
    shape=Shape(size=3_600_000, slide=3_600_000),
    ends_by_clock=True,
    run_id="run",
    started_at=1,
    library_version="0.0.1",
    engine="local",
    slices=True,
    accumulation="accumulating",
    merges=False,
    placed_by={"source.timestamp": "at"},
    raised=True,
    skipped=True,
    recomputed_by="other code",
)

ITS_OWN = {
    "epoch",
    "parent",
    "line",
    "kind",
    "interval",
    "shards",
    "counters",
    "publish",
    "phases",
    "run_id",
    "started_at",
    "library_version",
    "engine",
    "recomputed_by",
}
"""Fields that an epoch without rows does not take from its parent."""


def test_each_field_of_the_parent_above_differs_from_its_default() -> None:
    """Otherwise the next test would not notice a field that is lost. The number of the format can't differ."""
    fields = {name: field for name, field in Manifest.model_fields.items() if name != "format"}
    assert [name for name, field in fields.items() if getattr(PARENT, name) == field.default] == []


def test_an_epoch_without_rows_keeps_every_other_field_of_its_parent() -> None:
    manifest = manifest_of(NewEpoch.without_rows("prune", PARENT, NOW))
    kept = [name for name in Manifest.model_fields if getattr(manifest, name) == getattr(PARENT, name)]
    assert set(Manifest.model_fields) - set(kept) == ITS_OWN
    assert (manifest.epoch, manifest.parent, manifest.line) == (8, 7, ((1, 3), (5, 8)))
    assert all(work.is_empty for work in manifest.publish.values())


def test_an_epoch_without_rows_counts_nothing_but_the_open_windows() -> None:
    manifest = manifest_of(NewEpoch.without_rows("reset", PARENT, NOW))
    assert {name for name, count in manifest.counters.items() if count} == {"open_windows"}
    assert set(manifest.counters) == {counter.name for counter in KEPT}
    assert manifest.counters["open_windows"] == manifest.shards[0].counters["open_windows"] == 4
    assert (manifest.shards[0].rows, manifest.shards[0].counters["late"]) == (9, 0)
