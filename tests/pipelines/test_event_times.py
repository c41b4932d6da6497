"""What event time follows besides counted rows: dropped rows, ends of intervals, and times ahead of their commit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from tests.lake import EVENTS, LOCAL, Lake, at, session_pipeline
from tests.pipelines.counting import counting
from tidegate.pipelines import DeltaSource
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.ledger.snapshots.compatibility import compare
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing.time import to_millis


def test_another_watermark_by_is_told_before_a_run(lake: Lake) -> None:
    lake.append(("ann", at("01:00"), 1))
    lake.stream(LOCAL, counting())
    manifest = lake.snapshot(counting()).manifest
    assert compare(bind(counting(), EVENTS, EVENTS), manifest).notes == ()
    (note,) = compare(bind(counting(watermark_by="user"), EVENTS, EVENTS), manifest).notes
    assert note == "watermark_by of events is 'user' now, so its source partitions start again at the watermark"
    lake.append(("ann", at("05:00"), 1))
    lake.stream(LOCAL, counting(watermark_by="user"))
    manifest = lake.snapshot(counting()).manifest
    assert manifest.watermark_by == {"": "user"}
    assert list(manifest.partitions) == ["ann"]
    assert lake.final(counting()).num_rows == 1
    (note,) = compare(bind(counting(), EVENTS, EVENTS), manifest).notes
    assert "is None now" in note


@pytest.mark.parametrize(
    ("zone", "columns", "expected"),
    [(None, {}, True), ("America/Los_Angeles", {}, False), (None, {"at": "at + interval 5 days"}, False)],
)
def test_only_the_tables_own_instants_are_bounded_by_statistics(
    tmp_path: Path, zone: str | None, columns: dict[str, str], expected: bool
) -> None:
    lake, now = Lake(tmp_path), datetime.now(UTC)
    kind = pa.timestamp("us", tz="UTC" if zone is None else None)
    ahead = now + timedelta(hours=5)
    value = ahead if zone is None else ahead.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    lake.write(pa.table({"user": ["u"], "at": pa.array([value], kind)}))
    pipeline = counting(source=DeltaSource("events", timestamp="at", zone=zone), columns=columns)
    schema = pa.schema([("user", pa.string()), ("at", kind)])
    log = SourceLog(Warehouse(str(tmp_path)), lake.path("events"))
    nothing = cast("Any", None)
    opened = OpenInput(log, bind(pipeline, schema, schema), log.warehouse, nothing, nothing)
    assert opened.has_instants is expected
    if zone is not None:
        (file,) = log.active("at")
        assert file.newest is not None
        assert file.newest < file.written < to_millis(ahead), "statistics of a wall clock say nothing of an instant"


@pytest.mark.parametrize(("watermark_from", "watermark"), [("kept", "01:00"), ("all", "03:00")])
def test_what_where_drops_moves_the_watermark_where_the_pipeline_says_so(watermark_from: str, watermark: str) -> None:
    pipeline = counting(where="value > 0", watermark_from=watermark_from)
    harness = PipelineHarness(pipeline, EVENTS, derive=lambda row: row if row["value"] > 0 else None)
    rows = [("ann", at("01:00"), 1), ("bob", at("03:00"), -1), ("bob", at("01:00", 300), -1), ("bob", None, -1)]
    harness.commit([dict(zip(EVENTS.names, row, strict=True)) for row in rows], at("03:00"))
    harness.run()
    assert harness.watermark == to_millis(at(watermark)) - 1


def test_an_interval_past_the_last_event_closes_what_crosses_the_end_of_the_data(lake: Lake) -> None:
    """Promise 5 of the README: event time advances to the end of an interval, with or without data."""
    pipeline = session_pipeline()
    lake.append(("ann", at("23:50"), 1))
    lake.backfill(LOCAL, pipeline, at("00:00"), at("00:00", 1))
    assert lake.snapshot(pipeline).manifest.counters["open_windows"] == 1
    lake.backfill(LOCAL, pipeline, at("00:00", 1), at("01:00", 1))
    assert lake.snapshot(pipeline).manifest.counters["open_windows"] == 0
    assert [(row["window_start"], row["events"]) for row in lake.final(pipeline).to_pylist()] == [(at("23:50"), 1)]


def test_a_time_an_hour_ahead_of_its_commit_is_the_last_that_is_taken_by_default() -> None:
    harness = PipelineHarness(counting(), EVENTS)
    rows = [("ann", at("03:00"), 1), ("bob", at("03:00") + timedelta(milliseconds=1), 1)]
    harness.commit([dict(zip(EVENTS.names, row, strict=True)) for row in rows], at("02:00"))
    harness.run()
    assert [row["user"] for row in harness.rejected()] == ["bob"]
    assert harness.watermark == to_millis(at("03:00")) - 1
