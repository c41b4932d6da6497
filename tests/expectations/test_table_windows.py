"""A check holds table `windows` against the panes that stand in table `results`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.lake import DAY0, Lake, hourly_pipeline
from tidegate.expectations.check import Quality
from tidegate.pipelines.definition import windows
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.storage.warehouse import active_files

NAME = "expect_table_to_have_the_windows_that_stand"
PIPELINE = hourly_pipeline(allowed_lateness=timedelta(hours=50), parallelism=1)


def run(lake: Lake, hour: int) -> None:
    late = [("ann", DAY0 + timedelta(hours=hour - 30), 50)] if hour >= 30 else []
    lake.append(("ann", DAY0 + timedelta(hours=hour), 1), ("bob", DAY0 + timedelta(hours=hour, minutes=5), 2), *late)
    lake.project(PIPELINE).stream("hours")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    for hour in (0, 10, 20, 30):
        run(lake, hour)
    return lake


def checked(lake: Lake, everything: bool = False) -> tuple[Quality, str]:
    outcome = lake.project(PIPELINE).quality("hours", all=everything)
    (check,) = [check for check in outcome.run.checks if NAME in check.expectation]
    return outcome, "" if check.success else check.message


def deleted(handle: DeltaTable) -> None:
    handle.delete("user = 'bob'")


def doubled(handle: DeltaTable) -> None:
    file = max(active_files(handle), key=lambda file: file["max.epoch"])
    path = Path(handle.table_uri.removeprefix("file://"))
    (path / "again.parquet").write_bytes((path / file["path"]).read_bytes())
    from tidegate.pipelines.ledger.tables.files import add_action, copied

    action = add_action(copied(file, "again.parquet", handle.schema().to_arrow().names))
    handle.create_write_transaction([action], "append", handle.schema())


def unreadable(handle: DeltaTable) -> None:
    for file in Path(handle.table_uri.removeprefix("file://")).glob("*.parquet"):
        file.write_bytes(b"PAR1")


@pytest.mark.first(1)
@pytest.mark.parametrize(("harm", "fault"), [(deleted, "missing"), (doubled, "stands not"), (unreadable, "unreadable")])
def test_a_table_that_somebody_changed_fails(lake: Lake, harm: Callable[[DeltaTable], None], fault: str) -> None:
    outcome, message = checked(lake, everything=True)
    assert (outcome.success, message) == (True, "")
    harm(DeltaTable(lake.path("hours/windows")))
    outcome, message = checked(lake, everything=True)
    assert not outcome.success
    assert fault in message
    lake.project(PIPELINE).windows_build("hours")
    outcome, message = checked(lake, everything=True)
    assert (outcome.success, message) == (True, "")


def test_a_check_looks_at_what_came_since_the_last_one(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(lake)[1] == ""
    compact(lake.tables(PIPELINE), windows.NAME)
    run(lake, 40)
    assert checked(lake)[1] == ""
    # The planted bug: a late pane replaces nothing.
    monkeypatch.setattr(windows, "replacing", lambda rows, key: windows.identities(rows[:0], key))
    run(lake, 50)
    assert "stands not" in checked(lake)[1]


def test_a_pipeline_without_the_table_has_no_such_check(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.append(("ann", DAY0, 1), ("ann", DAY0 + timedelta(hours=9), 1))
    settings = {"hours": {"windows": {"enabled": False}}}
    named = lake.project(PIPELINE, settings=settings)
    named.stream("hours")
    assert not [check for check in named.quality("hours").run.checks if NAME in check.expectation]
