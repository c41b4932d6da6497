"""A row whose key is longer than 1 MB goes to table `rejects`, where the key is cut and its size is named. No row is
lost or counted twice, in streams, backfills, corrections, and in the harness. Its time moves the watermark: a plan
counts rows by statistics, which don't show how long a key is.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.lake import DAY0, EVENTS, LOCAL, Clock, Lake, at, hourly_pipeline
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.definition import rejects
from tidegate.pipelines.definition.rejects import KEY_TOO_LONG, LONGEST_KEY, NULL_KEY
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import Max, Sum
from tidegate.windowing.time import to_millis

LONG = "\u00e9" * (LONGEST_KEY // 2 + 1)
SHOWN = "\u00e9" * 1000 + f"... ({LONGEST_KEY + 2} bytes)"
ROWS = [("ann", at("10:00"), 1), (LONG, at("11:30"), 2), (None, at("10:20"), 3), ("x" * LONGEST_KEY, at("10:30"), 4)]
PIPELINE = hourly_pipeline(max_ahead=timedelta(days=9))
DAY = timedelta(days=1)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake", Clock(to_millis(DAY0)))


def rejected(lake: Lake, pipeline: Pipeline = PIPELINE) -> list[tuple[Any, ...]]:
    rows = lake.rows(pipeline, rejects.NAME).to_pylist()
    return sorted((row["reason"], row["user"], row["value"]) for row in rows)


def totals(lake: Lake, pipeline: Pipeline = PIPELINE) -> dict[int, int]:
    return {len(row["user"]): row["total"] for row in lake.latest(pipeline).to_pylist()}


@pytest.mark.parametrize("key", [("user",), ("user", "value")])
def test_a_stream_rejects_them_and_their_times_move_the_watermark(lake: Lake, key: tuple[str, ...]) -> None:
    lake.append_in_files(ROWS[:2], ROWS[2:])
    pipeline = replace(PIPELINE, key=key)
    (epoch, *_) = lake.stream(LOCAL, pipeline)
    assert rejected(lake, pipeline) == [(KEY_TOO_LONG, SHOWN, 2), (NULL_KEY, None, 3)]
    assert epoch.watermark == to_millis(at("10:30")) - 1
    assert {name: epoch.counters[name] for name in ("events_in", "on_time", "late", "rejected")} == {
        "events_in": 4,
        "on_time": 2,
        "late": 0,
        "rejected": 2,
    }
    lake.append(("bob", at("23:00"), 1))
    lake.stream(LOCAL, pipeline)
    assert totals(lake, pipeline) == {3: 1, LONGEST_KEY: 4}


def test_a_backfill_rejects_each_of_them_in_the_interval_of_its_time(lake: Lake) -> None:
    lake.append_in_files(ROWS, [(LONG, at("10:00", day=1), 5), ("bob", at("11:00", day=1), 6)])
    lake.backfill(LOCAL, PIPELINE, DAY0, DAY0 + DAY)
    assert rejected(lake) == [(KEY_TOO_LONG, SHOWN, 2), (NULL_KEY, None, 3)]
    lake.backfill(LOCAL, PIPELINE, DAY0 + DAY, DAY0 + 2 * DAY)
    assert rejected(lake) == [(KEY_TOO_LONG, SHOWN, 2), (KEY_TOO_LONG, SHOWN, 5), (NULL_KEY, None, 3)]
    assert {row["epoch"]: row["rejected"] for row in lake.rows(PIPELINE, "epochs").to_pylist()} == {1: 2, 2: 1}


def test_the_harness_rejects_the_same_rows(lake: Lake) -> None:
    lake.append_in_files(ROWS)
    (epoch, *_) = lake.stream(LOCAL, PIPELINE)
    harness = PipelineHarness(PIPELINE, EVENTS)
    harness.commit([dict(zip(EVENTS.names, row, strict=True)) for row in ROWS], at=DAY0)
    harness.run()
    shown = [(row["reason"], row["user"], row["value"]) for row in harness.rejected()]
    assert sorted(shown) == rejected(lake)
    assert harness.watermark == epoch.watermark


@pytest.mark.first(1)
@pytest.mark.parametrize("columns", [{}, {"name": "concat('u-', user)"}], ids=["stored", "derived"])
def test_a_correction_finds_them_when_the_source_deletes_them(lake: Lake, columns: dict[str, str]) -> None:
    source = DeltaSource("events", timestamp="at", changes="correct")
    aggregates = {"total": Sum("value"), **{name: Max(name) for name in columns}}
    pipeline = hourly_pipeline(max_ahead=timedelta(days=9), source=source, columns=columns, aggregate=aggregates)
    lake.append(*ROWS[:2])
    lake.stream(LOCAL, pipeline)
    assert rejected(lake, pipeline) == [(KEY_TOO_LONG, SHOWN, 2)]
    table = DeltaTable(lake.path("events"))
    table.update({"value": "7"}, predicate="value = 2")
    lake.stream(LOCAL, pipeline)
    assert rejected(lake, pipeline) == [(KEY_TOO_LONG, SHOWN, 7)]
    table.delete("value = 7")
    lake.stream(LOCAL, pipeline)
    assert rejected(lake, pipeline) == []
    lake.append(("bob", at("23:00"), 1))
    lake.stream(LOCAL, pipeline)
    assert totals(lake, pipeline) == {3: 1}
