"""`tidegate quality check`: severity decides the exit code, and every check is recorded. Tables that the product itself
writes break no suite: late rows, merges, rescaling and restores are not errors. A check compares table `windows` with
the valid panes in table `results`.
"""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import great_expectations as gx
import great_expectations.expectations as gxe
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from jinja2 import Environment

from tests.expectations.broken import broken_in
from tests.expectations.quality_lake import pane, session_lake
from tests.expectations.test_failed_expectation import project
from tests.lake import DAY0, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.recovery.arrivals import copy_of
from tidegate.expectations import docs
from tidegate.expectations.check import Quality
from tidegate.expectations.neighbours import NewWindows
from tidegate.expectations.pinned import pin
from tidegate.expectations.run import run_suites
from tidegate.expectations.suites import suites, windows_suite
from tidegate.pipelines import Pipeline
from tidegate.pipelines.airflow.lineage import check_facets
from tidegate.pipelines.definition import results, state, windows
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.ledger.tables.keys import key_groups
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL
from tidegate.pipelines.observe.inspect.overview import docs_page
from tidegate.pipelines.project.cli import run
from tidegate.pipelines.storage.artifacts import ArtifactsInFolder
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema
from tidegate.windowing import Count, SlidingEventTimeWindows, WatermarkStrategy, Windows


def check(folder: Path) -> int:
    return run(["quality", "check", "sessions", "--config", str(folder / "tidegate.toml"), "--json"])


def test_good_tables_pass_in_two_lines_and_every_check_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = project(session_lake(), tmp_path, "")
    assert check(tmp_path) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["quality"] == "passed"
    assert (told["since"], told["windows"]) == (None, 3), "nothing was checked before"
    assert told["versions"] == {name: tables.open(name).version() for name in ALL}
    facets = check_facets(told, arrow_schema(tables.open("results")).names)
    assert set(facets) == {"results", "epochs", "state"}
    assertions = [each for of_table in facets.values() for each in of_table["dataQualityAssertions"]["assertions"]]
    assert len(assertions) == len(told["checks"])
    assert all(each["success"] and each["severity"] in ("error", "warn") for each in assertions)
    assert run(["quality", "check", "sessions", "--config", str(tmp_path / "tidegate.toml")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("sessions, epoch 2: 3 windows became final, passed; ")
    assert "expectations hold" in first
    assert second.startswith("Data Docs: ")
    kept = quality.read(tables)
    assert len(set(kept["check_id"].to_pylist())) == 2
    assert len(kept) == 2 * len(told["checks"])
    assert set(kept["epoch"].to_pylist()) == {2}
    assert quality.state_of(quality.newest(tables)) == "passed"
    index = Path(told["docs"])
    pages = sorted(path.name for path in index.parent.glob("check-*.html"))
    assert len(pages) == 2, "Data Docs have a page of each check"
    assert all(f'href="{page}"' in index.read_text() for page in pages), "and list them"


def test_a_critical_error_ends_with_code_5_and_names_what_broke(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = session_lake()
    lake.panes.append(pane("a", "12:20", "12:55", epoch=2))
    tables = project(lake, tmp_path, "")
    assert check(tmp_path) == 5
    told = json.loads(capsys.readouterr().out)
    assert "expect_sessions_to_lie_apart" in told["message"]
    assert (told["error"], told["exit_code"], told["quality"]) == ("QualityFailed", 5, "failed"), "one document"
    assert any(not check["success"] for check in told["checks"])
    assert quality.state_of(quality.newest(tables)) == "failed"


def test_a_warning_marks_the_run_and_does_not_end_it(tmp_path: Path) -> None:
    lake = session_lake(order="arrival")
    lake.panes.append(pane("a", "12:20", "12:55", epoch=2))
    lake.epochs[1]["fired_on_time"] += 1
    lake.epochs[1]["shards"][0]["fired_on_time"] += 1
    lake.epochs[1]["shards"][0]["on_time"] += 1
    lake.epochs[1]["on_time"] += 1
    lake.epochs[1]["events_in"] += 1
    tables = project(lake, tmp_path, "")
    assert check(tmp_path) == 0
    assert quality.state_of(quality.newest(tables)) == "marked"


def test_what_is_only_recorded_neither_marks_the_run_nor_ends_it(tmp_path: Path) -> None:
    lake = session_lake()
    tables = project(lake, tmp_path, "")
    pinned = pin(tables, lake.pipeline)
    rule = gxe.ExpectColumnMaxToBeBetween(column="events", min_value=1000, severity="info")
    own = gx.ExpectationSuite(name="own", expectations=[rule])
    of_own = windows_suite("new final windows", own, NewWindows(pinned, "day"))
    run = run_suites(suites(pinned, of_own)[:1], pinned, tables, ArtifactsInFolder(tmp_path))
    (found,) = run.failed
    assert (found.severity, found.observed) == ("info", "2")
    assert (run.state, run.is_critical) == ("passed", False)
    assert quality.newest(tables)["success"].to_pylist() == [False], "and kept"


def test_two_checks_of_a_pipeline_go_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = session_lake()
    tables = project(lake, tmp_path, "")
    pinned = pin(tables, lake.pipeline)
    folder = tmp_path / "quality" / "sessions"
    folder.mkdir(parents=True)
    render, drawn = Environment.get_template, threading.Event()

    def get_template(environment: Environment, name: str, *given: Any) -> Any:
        drawn.set()
        return render(environment, name, *given)

    monkeypatch.setattr(Environment, "get_template", get_template)
    with ThreadPoolExecutor() as pool:
        with (folder / "lock").open("w") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            run = pool.submit(run_suites, suites(pinned), pinned, tables, ArtifactsInFolder(tmp_path))
            assert drawn.wait(60), "the check itself does not wait"
            assert not (folder / "index.html").exists(), "the other one is not done with the list"
        assert run.result(60).state == "passed"
    assert (folder / "index.html").exists()


def test_a_suite_may_be_used_again_in_a_process(tmp_path: Path) -> None:
    lake = session_lake()
    tables = project(lake, tmp_path, "")
    own = gx.ExpectationSuite(name="own", expectations=[gxe.ExpectTableRowCountToBeBetween(min_value=1)])
    for _ in range(2):
        pinned = pin(tables, lake.pipeline)
        of_own = windows_suite("new final windows", own, NewWindows(pinned, "hour"))
        assert run_suites(suites(pinned, of_own), pinned, tables, ArtifactsInFolder(tmp_path)).state == "passed"


def test_only_the_newest_pages_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "KEPT", 1)
    project(session_lake(), tmp_path, "")
    for _ in range(2):
        assert check(tmp_path) == 0
    folder = tmp_path / ".work" / "quality" / "sessions"
    assert len(list(folder.glob("check-*.html"))) == 1
    config = tmp_path / "tidegate.toml"
    assert docs_page(config, "sessions", "index.html") == (folder / "index.html").read_bytes()
    for page in ("../../../tidegate.toml", "checks.json", "lock", "check-000002-ffffffffffff.html"):
        assert docs_page(config, "sessions", page) is None


def test_an_epoch_without_a_snapshot_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project(session_lake(), tmp_path, "")
    assert run(["quality", "check", "sessions", "--config", str(tmp_path / "tidegate.toml"), "--epoch", "7"]) == 2
    assert "--epoch 7" in capsys.readouterr().err


NOW = 1_800_000_000_000
USERS = ("ann", "bob", "eve")


def sliding_pipeline() -> Pipeline:
    windows = Windows(
        SlidingEventTimeWindows.of(timedelta(hours=1), timedelta(minutes=20)),
        allowed_lateness=timedelta(minutes=30),
        aggregate={"events": Count()},
    )
    return hourly_pipeline("sliding", compute=windows, watermark=WatermarkStrategy.for_monotonous_timestamps())


PIPELINES: dict[str, Any] = {
    "sessions": lambda: session_pipeline(),
    "sessions that wait": lambda: session_pipeline(allowed_lateness=timedelta(hours=1)),
    "hours": lambda: hourly_pipeline(),
    "hours that wait": lambda: hourly_pipeline(allowed_lateness=timedelta(hours=2)),
    "sliding": sliding_pipeline,
}


def test_a_restore_that_lost_state_is_caught_by_its_checksums(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    for hour, by_hand.parallelism in ((10, 1), (11, 3)):
        by_hand.epoch(*((user, at(f"{hour}:10"), 1) for user in USERS), watermark=at(f"{hour}:10"))
    restore(by_hand.tables, find_snapshot(by_hand.tables, "1"), NOW)
    rows = by_hand.rows(state.NAME)
    lost = pc.and_(pc.greater_equal(rows["key_group"], 0), pc.equal(rows["user"], "ann"))
    metadata = by_hand.tables.open(state.NAME).history(1)[0]["tidegate"]
    write_deltalake(
        by_hand.tables.path(state.NAME),
        rows.filter(pc.invert(pc.fill_null(lost, False))),
        mode="overwrite",
        commit_properties=CommitProperties(custom_metadata={"tidegate": metadata}),
    )
    assert ("restored state", "expect_state_to_match_checksums") in broken_in(by_hand.tables, by_hand.pipeline)


def test_a_pane_that_changed_its_range_of_key_groups_is_caught_though_all_totals_agree(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    by_hand.epoch(*((user, at("10:00"), 1) for user in USERS), watermark=at("12:00"))
    ranges = [(shard.first, shard.last) for shard in by_hand.head().manifest.shards]
    rows = by_hand.rows(results.NAME)
    groups = key_groups(rows, ("user",), by_hand.pipeline.max_parallelism).to_pylist()
    owners = [next(number for number, (first, last) in enumerate(ranges) if first <= group <= last) for group in groups]
    assert set(owners) == {0, 1}, "users of both ranges"
    moved = rows["user"].to_pylist()
    moved[owners.index(0)] = moved[owners.index(1)]
    panes = rows.set_column(rows.schema.get_field_index("user"), rows.schema.field("user"), pa.array(moved))
    write_deltalake(by_hand.tables.path(results.NAME), panes, mode="overwrite")

    found = pin(by_hand.tables, by_hand.pipeline).ledger
    assert found["counted"].sum() == found["found"].sum()
    wrong = found[found["counted"] != found["found"]]
    assert set(zip(wrong["first_key_group"], wrong["last_key_group"], strict=True)) == set(ranges)
    assert ("ledger", "expect_column_pair_values_to_be_equal") in broken_in(by_hand.tables, by_hand.pipeline)


NAME = "expect_table_to_have_the_windows_that_stand"
PIPELINE = hourly_pipeline(allowed_lateness=timedelta(hours=50), parallelism=1)


def run_hour(lake: Lake, hour: int) -> None:
    late = [("ann", DAY0 + timedelta(hours=hour - 30), 50)] if hour >= 30 else []
    lake.append(("ann", DAY0 + timedelta(hours=hour), 1), ("bob", DAY0 + timedelta(hours=hour, minutes=5), 2), *late)
    lake.project(PIPELINE).stream("hours")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("hours"))
    for hour in (0, 10, 30):
        run_hour(lake, hour)
    return lake


@pytest.fixture
def lake(template: Lake, tmp_path: Path) -> Lake:
    """Three epochs, of which the third corrects a window of the first."""
    return copy_of(template, tmp_path / "lake")


def checked(lake: Lake, everything: bool = False) -> tuple[Quality, str]:
    outcome = lake.project(PIPELINE).quality.check("hours", all=everything)
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
    lake.project(PIPELINE).tables.rebuild_windows("hours")
    outcome, message = checked(lake, everything=True)
    assert (outcome.success, message) == (True, "")


def test_a_check_looks_at_what_came_since_the_last_one(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(lake)[1] == ""
    compact(lake.tables(PIPELINE), windows.NAME)
    run_hour(lake, 40)
    assert checked(lake)[1] == ""
    # The planted bug: a late pane replaces nothing.
    monkeypatch.setattr(windows, "replacing", lambda rows, key: windows.identities(rows[:0], key))
    run_hour(lake, 60)
    assert "stands not" in checked(lake)[1]


def test_a_pipeline_without_the_table_has_no_such_check(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.append(("ann", DAY0, 1), ("ann", DAY0 + timedelta(hours=9), 1))
    settings = {"hours": {"windows": {"enabled": False}}}
    named = lake.project(PIPELINE, settings=settings)
    named.stream("hours")
    assert not [check for check in named.quality.check("hours").run.checks if NAME in check.expectation]
