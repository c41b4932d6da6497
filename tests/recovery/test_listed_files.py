"""A source of another kind passes the same tests as a Delta table: the interface is sufficient. Backfill = stream =
restored from a snapshot = crashed anywhere, and all equal the same events in a Delta table. Both sources name the very
same files: the list has a line for each version of the table.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.lake import DAY0, LOCAL, Lake, assert_same_windows
from tests.listed_files import ListedFiles
from tests.recovery import arrivals
from tests.recovery.arrivals import (
    STEPS,
    copy_of,
    crash_after,
    differences,
    outcome,
    rows_of,
    run,
    source_of,
)
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, read_snapshot
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.run.backfill import backfill
from tidegate.pipelines.run.intervals import cut, parse_slice
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.sources.delta.log import SourceLog

pytestmark = pytest.mark.recovery


_STALE = "'stale': True"

LISTED = replace(arrivals.PIPELINE, source=ListedFiles("events.list", timestamp="at"))
"""The pipeline of the recovery tests, over a list instead of a table."""


def listed(lake: Lake) -> Lake:
    """Write the list of a lake's source table: a line for each version, with the files that it added."""
    log = SourceLog(warehouse_of(lake.config), lake.path("events"))
    commits = {commit.version: commit for commit in log.unread(-1)}
    lines = [
        {"time": log.time_of(version), "files": [f"events/{file.path}" for file in commits[version].files]}
        if version in commits
        else {"time": log.time_of(version), "files": []}
        for version in range(log.head + 1)
    ]
    Path(lake.path("events.list")).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return lake


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with the same events in a table and in a list; no pipeline has run yet."""
    return listed(source_of(tmp_path_factory.mktemp("source") / "lake", commits=3))


@pytest.fixture(scope="module")
def by_table(source: Lake, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Tables after a stream over the Delta table."""
    lake = copy_of(source, tmp_path_factory.mktemp("by_table") / "lake")
    run(LOCAL, lake)
    left = without_position(outcome(lake))
    assert all(left[table] for table in ("results", "late", "rejects", "epochs", "state")), "something of everything"
    return left


def without_position(left: dict[str, list[str]]) -> dict[str, list[str]]:
    """Leave out the positions, because each source has its own fields there."""
    return {name: rows for name, rows in left.items() if name != "position"}


@pytest.fixture
def lake(source: Lake, tmp_path: Path) -> Lake:
    return copy_of(source, tmp_path / "lake")


@pytest.mark.first(1)
@pytest.mark.parametrize("step", STEPS)
def test_a_stream_over_a_list_leaves_what_it_leaves_over_a_table_and_a_crash_changes_nothing(
    lake: Lake, by_table: dict[str, list[str]], step: str
) -> None:
    """Epochs with versions and counts, results, late rows, rejects and state are the same, row by row."""
    crash_after(LOCAL, lake, step, epoch=4, pipeline=LISTED)
    run(LOCAL, lake, pipeline=LISTED)
    assert differences(without_position(outcome(lake, LISTED)), by_table) == {}


@pytest.mark.long
def test_a_stream_restored_from_any_snapshot_has_the_same_windows(lake: Lake, by_table: dict[str, list[str]]) -> None:
    run(LOCAL, lake, pipeline=LISTED)
    expected = rows_of(lake, LISTED)
    tables = lake.tables(LISTED)
    for entry in list_snapshots(tables)[1::3]:
        snapshot = read_snapshot(tables, entry.version)
        assert snapshot is not None
        restore(tables, snapshot, lake.clock())
        run(LOCAL, lake, pipeline=LISTED)
        again = {name: [row for row in rows if _STALE not in row] for name, rows in rows_of(lake, LISTED).items()}
        assert differences(without_position(again), without_position(expected)) == {}, entry.version


@pytest.mark.first(1)
@pytest.mark.parametrize("length", [None, "2h"])
def test_a_backfill_and_then_a_stream_have_the_windows_of_the_table(lake: Lake, length: str | None) -> None:
    """The stream reads the rows after the backfill's frontier, and a second backfill finds nothing to do."""
    table, end = replace(arrivals.PIPELINE, name="by_table"), DAY0 + timedelta(hours=4)
    for pipeline in (LISTED, table):
        with lake.driver(LOCAL, pipeline) as driver:
            spans = list(cut(DAY0 - timedelta(hours=8), end, None if length is None else parse_slice(length)))
            assert [done.state for done in backfill(driver, spans)] == ["done"] * len(spans)
            assert {done.state for done in backfill(driver, spans)} == {"unchanged"}
        run(LOCAL, lake, pipeline=pipeline, limits=EpochLimits())
    assert len(lake.latest(LISTED)) > 0
    assert_same_windows(lake.latest(LISTED), lake.latest(table))
    assert without_position(rows_of(lake, LISTED)) == without_position(rows_of(lake, table))
