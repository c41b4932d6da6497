"""Versions of a source that removed rows and are passed over: they are counted, and what was read stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.lake import EVENTS, LOCAL, Lake, assert_same_windows, at, hourly_pipeline, session_pipeline
from tests.pipelines.looping import available
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.windowing.errors import IllegalArgument

IGNORING = DeltaSource("events", timestamp="at", changes="ignore")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.append(("ann", at("10:00"), 1), ("bob", at("10:30"), 2))
    return lake


def deleted(lake: Lake) -> None:
    DeltaTable(lake.path("events")).delete("value = 1")


def updated(lake: Lake) -> None:
    DeltaTable(lake.path("events")).update({"value": "9"}, predicate="value = 1")


def overwritten(lake: Lake) -> None:
    rows = pa.Table.from_pylist([{"user": "cem", "at": at("11:00"), "value": 5}], schema=EVENTS)
    write_deltalake(lake.path("events"), rows, mode="overwrite")


def merged(lake: Lake) -> None:
    rows = pa.Table.from_pylist(
        [{"user": "ann", "at": at("10:00"), "value": 7}, {"user": "new", "at": at("10:10"), "value": 8}], schema=EVENTS
    )
    merge = DeltaTable(lake.path("events")).merge(rows, "t.user = s.user", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def put_back(lake: Lake) -> None:
    lake.append(("cem", at("10:40"), 4))
    available(lake, hourly_pipeline(source=IGNORING))
    DeltaTable(lake.path("events")).restore(0)


CHANGES = {change.__name__: change for change in (deleted, updated, overwritten, merged, put_back)}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("pipeline", [hourly_pipeline(source=IGNORING), session_pipeline(source=IGNORING)])
def test_a_stream_passes_over_a_whole_version_and_counts_it(
    lake: Lake, change: Callable[[Lake], Any], pipeline: Pipeline
) -> None:
    available(lake, pipeline)
    change(lake)
    lake.append(("ann", at("14:00"), 3))
    manifests = available(lake, pipeline)
    assert sum(manifest.counters["versions_skipped"] for manifest in manifests) == 1
    assert sum(row["versions_skipped"] for row in lake.rows(pipeline, "epochs").to_pylist()) == 1
    totals = {
        row["user"]: row["total"] for row in lake.final(pipeline).to_pylist() if row["window_start"] < at("13:00")
    }
    assert (totals["ann"], totals["bob"]) == (1, 2), "the rows that were read"
    assert "new" not in totals, "nothing that the version added"


def test_a_stream_that_meets_nothing_but_such_versions_goes_on_after_them(lake: Lake) -> None:
    pipeline = hourly_pipeline(source=IGNORING)
    available(lake, pipeline)
    deleted(lake)
    (clock,) = available(lake, pipeline)
    assert (clock.kind, clock.counters["versions_skipped"]) == ("clock", 1)
    assert clock.position_in("events").version == 1
    assert available(lake, pipeline) == []


def test_a_stream_from_the_beginning_passes_over_them_too(lake: Lake) -> None:
    deleted(lake)
    lake.append(("cem", at("11:00"), 3))
    (manifest, *_) = available(lake, hourly_pipeline(source=IGNORING))
    assert (manifest.counters["events_in"], manifest.counters["versions_skipped"]) == (3, 1)


def test_a_backfill_reads_the_table_as_it_is_and_leaves_what_it_has_read(lake: Lake) -> None:
    pipeline = hourly_pipeline(source=IGNORING)
    lake.append(("ann", at("12:10"), 4), ("bob", at("12:20"), 5))
    lake.backfill(LOCAL, pipeline, at("10:00"), at("12:00"))
    DeltaTable(lake.path("events")).delete("user = 'ann'")
    (run,) = lake.backfill(LOCAL, pipeline, at("12:00"), at("14:00"))
    assert run.manifest.counters["versions_skipped"] == 1
    totals = [(row["user"], row["total"]) for row in lake.final(pipeline).sort_by("window_start").to_pylist()]
    assert sorted(totals) == [("ann", 1), ("bob", 2), ("bob", 5)]
    (again,) = lake.backfill(LOCAL, pipeline, at("10:00"), at("12:00"))
    assert again.state == "unchanged"


def test_a_stream_takes_over_from_a_backfill_behind_such_a_version(lake: Lake) -> None:
    pipeline = hourly_pipeline(source=IGNORING)
    lake.backfill(LOCAL, pipeline, at("10:00"), at("11:00"))
    lake.append(("cem", at("12:00"), 3))
    deleted(lake)
    available(lake, pipeline)
    lake.append(("cem", at("15:00"), 3))
    available(lake, pipeline)
    assert sorted(row["total"] for row in lake.final(pipeline).to_pylist()) == [1, 2, 3]


def test_the_choice_may_change_between_two_runs(lake: Lake) -> None:
    available(lake, hourly_pipeline())
    deleted(lake)
    lake.append(("ann", at("14:00"), 3))
    with pytest.raises(Refused, match=r"version 1 \(DELETE\) .*changes='ignore', which skips such versions"):
        available(lake, hourly_pipeline())
    (manifest, *_) = available(lake, hourly_pipeline(source=IGNORING))
    assert manifest.counters["versions_skipped"] == 1
    before = lake.final(hourly_pipeline())
    available(lake, hourly_pipeline())
    assert_same_windows(lake.final(hourly_pipeline()), before)


def test_the_choice_is_no_part_of_the_fingerprint(lake: Lake) -> None:
    available(lake, hourly_pipeline())
    before = lake.snapshot(hourly_pipeline()).manifest.fingerprint
    lake.append(("ann", at("14:00"), 3))
    available(lake, hourly_pipeline(source=IGNORING))
    assert lake.snapshot(hourly_pipeline()).manifest.fingerprint == before


def test_an_unknown_choice_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(IllegalArgument, match=r"source\.changes = 'skip': give 'refuse', 'ignore' or 'correct'"):
        DeltaSource("events", timestamp="at", changes="skip")  # type: ignore[arg-type]
