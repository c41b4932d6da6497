"""A stream continues from any of its snapshots, after a month, and from a savepoint. What it can't continue from is
refused by name, and the tables stay unchanged.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.commit_times import vacuum_with_no_hours
from tests.lake import DAY0, LOCAL, Lake
from tests.recovery.arrivals import (
    PIPELINE,
    USERS,
    Runs,
    commit_to,
    copy_of,
    differences,
    outcome,
    rows_of,
    run,
)
from tidegate.pipelines import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, find_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing import Max, Windows

pytestmark = pytest.mark.recovery

DAY = 86_400_000


def go_back(lake: Lake, target: str) -> None:
    tables = lake.tables(PIPELINE)
    with Lease(tables, "restore", lake.clock):
        restore(tables, find_snapshot(tables, target), lake.clock())


def shorten_log(path: str) -> None:
    """Clean up a log as its expiry does: a checkpoint at the head is kept, and no entry before it."""
    table = DeltaTable(path)
    table.create_checkpoint()
    for entry in Path(path, "_delta_log").glob("*.json"):
        if entry.stem.isdigit() and int(entry.stem) < table.version():
            entry.unlink()


@pytest.mark.long
def test_after_a_pause_of_31_days_and_a_clean_up_of_all_logs_it_goes_on(runs: Runs, tmp_path: Path) -> None:
    """The manifest is a row of the state: neither its version nor the log's metadata is needed to find it."""
    lake = copy_of(runs.begun, tmp_path / "lake")
    lake.clock.now += 31 * DAY
    for table in ALL:
        path = lake.path(f"{PIPELINE.name}/{table}")
        for entry in Path(path, "_delta_log").iterdir():
            os.utime(entry, (1, 1))
        DeltaTable(path).optimize.compact()
        vacuum_with_no_hours(path)
        shorten_log(path)
    run(LOCAL, lake)
    told = differences(rows_of(lake), rows_of(runs.ended))
    assert set(told) <= {"position"}, "but for the clock, which went on"


def test_a_savepoint_goes_on_after_everything_else_was_cleaned_up(runs: Runs, tmp_path: Path) -> None:
    lake = copy_of(runs.begun, tmp_path / "lake")
    tables = lake.tables(PIPELINE)
    create_savepoint(tables, lake.snapshot(PIPELINE), "half-way", lake.clock())
    run(LOCAL, lake)
    with Lease(tables, "vacuum", lake.clock):
        vacuum(tables, Retention(1, timedelta(0)), lake.clock() + DAY)
    for table in ALL:
        vacuum_with_no_hours(tables.path(table))
        shorten_log(tables.path(table))
    go_back(lake, "savepoint:half-way")
    run(LOCAL, lake)
    assert differences(rows_of(lake), rows_of(runs.ended)) == {}


def test_checkpoints_that_an_older_version_left_are_removed_and_never_trusted(runs: Runs, tmp_path: Path) -> None:
    lake = copy_of(runs.begun, tmp_path / "lake")
    checkpoints = lake.config.work_folder / "checkpoints"
    left, others = checkpoints / f"{PIPELINE.name}-0123abcd", checkpoints / f"{PIPELINE.name}-of-others-0123"
    for folder in (left, others):
        for name in ("offsets/9", "commits/9"):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text('v1\n{}\n{"reservoirVersion": 900, "index": -1, "isStartingVersion": false}')
    run(LOCAL, lake)
    assert differences(outcome(lake), outcome(runs.ended)) == {}
    assert list(checkpoints.iterdir()) == [others]


def compacted_away(lake: Lake) -> None:
    DeltaTable(lake.path("events")).optimize.compact()
    vacuum_with_no_hours(lake.path("events"))


def put_back(lake: Lake) -> None:
    DeltaTable(lake.path("events")).restore(0)


def made_anew(lake: Lake) -> None:
    shutil.rmtree(lake.path("events"))
    for number in range(1, 4):
        commit_to(lake, number)


def deleted_from(lake: Lake) -> None:
    DeltaTable(lake.path("events")).delete("value < 50")


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (compacted_away, r"version 2 lacks [0-9]+ files? .*: they were compacted and vacuumed before"),
        (lambda lake: shorten_log(lake.path("events")), "the log entry of version 2 no longer exists"),
        (deleted_from, r"not append-only: version 4 \(DELETE\)"),
        (put_back, r"not append-only: version 4 \(RESTORE\)"),
        (made_anew, "was replaced: its id .* differs"),
    ],
    ids=["vacuumed", "log cleaned up", "deleted from", "put back", "made anew"],
)
def test_a_source_that_is_not_what_it_was_stops_the_stream_with_what_happened_named(
    runs: Runs, tmp_path: Path, harm: Callable[[Lake], Any], told: str
) -> None:
    lake = copy_of(runs.begun, tmp_path / "lake")
    before = outcome(lake)
    harm(lake)
    with pytest.raises(Refused, match=told):
        run(LOCAL, lake)
    assert outcome(lake) == before


def test_an_aggregate_that_is_added_counts_from_then_on_and_changes_nothing_else(runs: Runs, tmp_path: Path) -> None:
    lake = copy_of(runs.begun, tmp_path / "lake")
    assert isinstance(PIPELINE.compute, Windows)
    aggregate = {**PIPELINE.compute.aggregate, "most": Max("value")}
    pipeline = replace(PIPELINE, compute=replace(PIPELINE.compute, aggregate=aggregate))
    run(LOCAL, lake, pipeline=pipeline)
    told = differences(rows_of(lake, pipeline, ("epoch", "timeline", "most")), rows_of(runs.ended))
    assert set(told) <= {"state"}, "which holds the added one's contents"
    commit_to(lake, 4)
    run(LOCAL, lake, pipeline=pipeline)
    new = [row for row in lake.latest(pipeline).to_pylist() if row["window_start"] >= DAY0 + timedelta(hours=5)]
    events = read_table(lake.tables(pipeline).warehouse, DeltaTable(lake.path("events"))).to_pylist()
    assert len(new) == 2 * USERS
    for window in new:
        assert window["most"] == max(
            row["value"]
            for row in events
            if row["user"] == window["user"]
            and row["at"] is not None
            and window["window_start"] <= row["at"] < window["window_end"]
        )


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("pipeline", "told"),
    [
        (replace(PIPELINE, max_parallelism=16), "max_parallelism is 8 in the snapshot and 16 in the code"),
        (replace(PIPELINE, key=("value",)), "key column 'user' is string in the snapshot and absent in the code"),
        (
            replace(PIPELINE, key=("user", "value")),
            "key column 'value' is absent in the snapshot and int64 in the code",
        ),
    ],
    ids=["max_parallelism", "another key", "a longer key"],
)
def test_code_that_can_not_go_on_is_refused_with_the_field_named(
    runs: Runs, tmp_path: Path, pipeline: Pipeline, told: str
) -> None:
    lake = copy_of(runs.begun, tmp_path / "lake")
    before = outcome(lake)
    with pytest.raises(Refused, match=told):
        run(LOCAL, lake, pipeline=pipeline)
    assert outcome(lake) == before
