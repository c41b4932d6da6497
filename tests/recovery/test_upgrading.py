"""Tables that tidegate 0.1 wrote are read and continued: `tables_of_0_1.py` says how they were created. The expected
outcome is that of the same commits run by this code alone.
"""

from __future__ import annotations

import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.expectations.broken import broken_by_rules
from tests.lake import LOCAL, Clock, Lake
from tests.recovery.arrivals import copy_of, run
from tests.recovery.tables_of_0_1 import COMMITS, HOURS, NEXT, SAVEPOINT, SESSIONS
from tidegate.expectations.pinned import pin
from tidegate.pipelines import Pipeline
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, published_by
from tidegate.pipelines.ledger.snapshots.recovery import recover
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.windowing.time import to_millis

pytestmark = pytest.mark.recovery

TABLES = Path(__file__).with_name("tables_of_0_1.tar.xz")
LATER = to_millis(datetime(2026, 11, 23, tzinfo=UTC))
"""After the tables were created, so that every lease has expired."""

BOTH = pytest.mark.parametrize("pipeline", [HOURS, SESSIONS], ids=lambda pipeline: pipeline.name)
LONG_FOR_HOURS = pytest.mark.parametrize(
    "pipeline", [pytest.param(HOURS, marks=pytest.mark.long), SESSIONS], ids=lambda pipeline: pipeline.name
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """The project as 0.1 left it."""
    with tarfile.open(TABLES) as packed:
        packed.extractall(tmp_path, filter="data")
    return Lake(tmp_path, Clock(LATER))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The same commits, all of them run by this code."""
    lake = Lake(tmp_path_factory.mktemp("fresh"))
    for rows in COMMITS:
        lake.append(*rows)
    go_on(lake, HOURS, SESSIONS)
    return lake


def go_on(lake: Lake, *pipelines: Pipeline) -> None:
    """Stream to the end, including what comes after the upgrade."""
    for rows in NEXT:
        lake.append(*rows)
    for pipeline in pipelines:
        run(LOCAL, lake, pipeline=pipeline)


def contents(lake: Lake, pipeline: Pipeline) -> dict[str, list[str]]:
    """Return final windows, and rows that are in no window, without what identifies the run."""
    of_run = ("epoch", "timeline", "emitted_at", "watermark", "stale", "reopened", "rejected_at", "pane", "timing")
    tables = {
        "final": lake.final(pipeline),
        "late": lake.rows(pipeline, "late"),
        "rejects": lake.rows(pipeline, "rejects"),
    }
    return {
        name: sorted(
            str({column: row[column] for column in rows.column_names if column not in of_run})
            for row in rows.to_pylist()
        )
        for name, rows in tables.items()
    }


def assert_good(lake: Lake, fresh: Lake, pipeline: Pipeline) -> None:
    assert contents(lake, pipeline) == contents(fresh, pipeline)
    assert broken_by_rules(pin(lake.tables(pipeline), pipeline)) == set()


@LONG_FOR_HOURS
def test_a_stream_goes_on(lake: Lake, fresh: Lake, pipeline: Pipeline) -> None:
    go_on(lake, pipeline)
    assert_good(lake, fresh, pipeline)


@BOTH
def test_an_epoch_that_was_not_published_is_published_and_all_rules_hold(lake: Lake, pipeline: Pipeline) -> None:
    head = recover(lake.tables(pipeline))
    assert head is not None
    assert published_by(lake.tables(pipeline).warehouse, head.handle) is None, "0.1 did not say what its tables hold"
    assert sorted(lake.rows(pipeline, "epochs")["epoch"].to_pylist()) == [*range(1, len(COMMITS) + 1)]
    assert broken_by_rules(pin(lake.tables(pipeline), pipeline)) == set()


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("target", "goes_on_first"),
    [("1", True), ("3", False), (f"savepoint:{SAVEPOINT}", True)],
    ids=["old snapshot", "its newest", "savepoint"],
)
@LONG_FOR_HOURS
def test_its_snapshots_and_savepoints_are_restored(
    lake: Lake, fresh: Lake, pipeline: Pipeline, target: str, goes_on_first: bool
) -> None:
    if goes_on_first:
        go_on(lake, pipeline)
    tables = lake.tables(pipeline)
    restore(tables, find_snapshot(tables, target), lake.clock())
    run(LOCAL, lake, pipeline=pipeline)
    if not goes_on_first:
        go_on(lake, pipeline)
    assert_good(lake, fresh, pipeline)


def contents_of_files(folder: Path) -> dict[str, bytes]:
    """Return each file below a folder, without the lease, which ends with its driver."""
    files = (file for file in folder.rglob("*") if file.is_file() and "lease" not in file.parts)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.long
@LONG_FOR_HOURS
def test_its_late_rows_are_reopened(lake: Lake, fresh: Lake, tmp_path: Path, pipeline: Pipeline) -> None:
    assert lake.reopen(LOCAL, pipeline) is not None
    assert broken_by_rules(pin(lake.tables(pipeline), pipeline)) == set()
    go_on(lake, pipeline)
    lake.reopen(LOCAL, pipeline)
    fresh = copy_of(fresh, tmp_path / "fresh")
    fresh.reopen(LOCAL, pipeline)
    assert_good(lake, fresh, pipeline)


@pytest.mark.long
@LONG_FOR_HOURS
def test_it_is_cleaned_up_and_a_key_is_forgotten(lake: Lake, pipeline: Pipeline) -> None:
    tables = lake.tables(pipeline)
    with Lease(tables, "vacuum", lake.clock):
        vacuum(tables, Retention(2, 0), lake.clock())
    assert len(list_snapshots(tables)) == 2
    with Lease(tables, "forget", lake.clock):
        forget(tables, pipeline, [["ann"]], lake.clock())
    go_on(lake, pipeline)
    assert {row["user"] for row in lake.rows(pipeline, "results").to_pylist() if row["total"] < 5} <= {"bob", "cid"}
    assert broken_by_rules(pin(tables, pipeline)) == set()


@LONG_FOR_HOURS
def test_the_first_run_of_a_project_adds_table_windows_and_everything_verifies(lake: Lake, pipeline: Pipeline) -> None:
    project = lake.project(pipeline)
    project.stream(pipeline.name)
    shown = project.results(pipeline.name, view="latest").rows
    windows = project.results(pipeline.name, view="windows").rows
    assert windows.num_rows == shown.num_rows > 0
    assert project.verify(pipeline.name, sample="all").faults == ()
    assert project.quality(pipeline.name).success


@LONG_FOR_HOURS
def test_before_its_first_run_a_pipeline_can_be_verified_and_reported(lake: Lake, pipeline: Pipeline) -> None:
    project = lake.project(pipeline)
    if pipeline is SESSIONS:
        # The commands read published epochs only.
        project.restore(pipeline.name, 3)
    assert project.verify(pipeline.name, sample="all").faults == ()
    assert Path(project.report(pipeline.name).file).exists()


@LONG_FOR_HOURS
def test_an_epoch_of_a_command_before_the_first_run_verifies(lake: Lake, pipeline: Pipeline) -> None:
    project = lake.project(pipeline)
    project.restore(pipeline.name, 2)
    project.stream(pipeline.name)
    assert project.verify(pipeline.name, sample="all").faults == ()
