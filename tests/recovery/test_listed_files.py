"""A source of another kind goes through the same proofs as a Delta table: the seam holds.

Backfill = stream = restored from a snapshot = killed anywhere, and all equal the same events in a Delta table. Both
sources name the very same files: the list has a line for each version of the table.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.lake import DAY0, LOCAL, Lake, assert_same_windows
from tests.listed_files import ListedFiles
from tests.pipelines.standing import check_windows
from tests.recovery import arrivals
from tests.recovery.arrivals import (
    FILE_BY_FILE,
    STEPS,
    copy_of,
    crash_after,
    differences,
    outcome,
    rows_of,
    run,
    source_of,
)
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, read_snapshot
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.run.backfill import backfill
from tidegate.pipelines.run.intervals import cut, parse_slice
from tidegate.pipelines.run.next_commits import EpochLimits
from tidegate.pipelines.run.stream import Stream
from tidegate.pipelines.sources.delta.log import SourceLog

pytestmark = pytest.mark.recovery

ROOT = Path(__file__).parents[2]

_STALE = "'stale': True"

LISTED = replace(arrivals.PIPELINE, source=ListedFiles("events.list", timestamp="at"))
"""The pipeline of the recovery tests, over a list in place of a table."""


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
    """A lake with the same events in a table and in a list; no pipeline has run."""
    return listed(source_of(tmp_path_factory.mktemp("source") / "lake", commits=3))


@pytest.fixture(scope="module")
def by_table(source: Lake, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Tables after a stream over the Delta table."""
    lake = copy_of(source, tmp_path_factory.mktemp("by_table") / "lake")
    run(LOCAL, lake)
    return without_position(outcome(lake))


def without_position(left: dict[str, list[str]]) -> dict[str, list[str]]:
    """Leave out the positions: each source has fields of its own there."""
    return {name: rows for name, rows in left.items() if name != "position"}


def assert_as_by_table(lake: Lake, by_table: dict[str, list[str]]) -> None:
    assert differences(without_position(outcome(lake, LISTED)), by_table) == {}


@pytest.fixture
def lake(source: Lake, tmp_path: Path) -> Lake:
    return copy_of(source, tmp_path / "lake")


def test_the_events_have_something_of_everything(by_table: dict[str, list[str]]) -> None:
    assert all(by_table[table] for table in ("results", "late", "rejects", "epochs", "state"))


def test_a_stream_over_a_list_leaves_what_it_leaves_over_a_table(lake: Lake, by_table: dict[str, list[str]]) -> None:
    """Epochs, with versions and counts, results, late rows, rejects and state: row for row."""
    run(LOCAL, lake, pipeline=LISTED)
    assert_as_by_table(lake, by_table)


LONG = pytest.mark.long
KILLED_AFTER = ("planned", "operated", "committed", "published late")


@pytest.mark.first(1)
@pytest.mark.parametrize("step", [pytest.param(step, marks=LONG if step in KILLED_AFTER else ()) for step in STEPS])
def test_a_crash_after_any_step_changes_nothing(lake: Lake, by_table: dict[str, list[str]], step: str) -> None:
    crash_after(LOCAL, lake, step, epoch=4, pipeline=LISTED)
    run(LOCAL, lake, pipeline=LISTED)
    assert_as_by_table(lake, by_table)


@pytest.mark.long
@pytest.mark.parametrize("step", ["published windows", *KILLED_AFTER])
def test_a_process_killed_by_a_signal_loses_and_doubles_nothing(
    lake: Lake, by_table: dict[str, list[str]], step: str
) -> None:
    """kill -9 for real, on a process of its own. Table windows has each window once, too."""
    epoch = "4" if step == "published windows" else "3"
    arguments = (str(lake.folder), step, epoch, str(lake.clock.now))
    command = [sys.executable, "-m", "tests.recovery.test_listed_files", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    run(LOCAL, lake, pipeline=LISTED)
    assert_as_by_table(lake, by_table)
    check_windows(lake.tables(LISTED))


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
    """The stream takes the rows from the backfill's frontier on, and a second backfill finds nothing to do."""
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


def test_a_stream_has_the_windows_of_one_backfill(lake: Lake) -> None:
    """The events are in order, so that none is late for the stream."""
    path = Path(lake.path("events.list"))
    path.write_text(path.read_text().splitlines(keepends=True)[0] + path.read_text().splitlines(keepends=True)[1])
    once = replace(LISTED, name="once")
    run(LOCAL, lake, pipeline=LISTED)
    lake.backfill(LOCAL, once, DAY0 - timedelta(hours=8), DAY0 + timedelta(hours=1))
    assert len(lake.final(once)) > 0
    assert_same_windows(lake.final(LISTED), lake.final(once))


def filled(lake: Lake, tell: Callable[[str], None] = lambda step: None) -> None:
    """Backfill twelve hours of the list in three intervals."""
    spans = list(cut(DAY0 - timedelta(hours=8), DAY0 + timedelta(hours=4), parse_slice("4h")))
    with lake.driver(LOCAL, LISTED, tell) as driver:
        list(backfill(driver, spans))


@pytest.fixture(scope="module")
def undisturbed(source: Lake, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Tables after a backfill that nothing disturbed."""
    lake = copy_of(source, tmp_path_factory.mktemp("undisturbed") / "lake")
    filled(lake)
    return outcome(lake, LISTED)


def main(folder: str, step: str, epoch: int, clock: int) -> None:
    """Stream, and end this process by a signal that nothing can catch after a step of an epoch."""
    from tests.lake import Clock

    planned: list[str] = []

    def tell(done: str) -> None:
        if done == "planned":
            planned.append(done)
        if done == step and len(planned) == epoch:
            os.kill(os.getpid(), signal.SIGKILL)

    with Lake(Path(folder), Clock(clock)).driver(LOCAL, LISTED, tell) as driver:
        driver.windows = WindowsTable()
        Stream(driver, lambda manifest: None, FILE_BY_FILE).run_available()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
