"""`tidegate quality`: severity decides how it ends, and every check is kept."""

from __future__ import annotations

import fcntl
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import great_expectations as gx
import great_expectations.expectations as gxe
import pytest
from jinja2 import Environment

from tests.expectations.quality_lake import pane, session_lake
from tests.expectations.test_failed_expectation import project
from tidegate.expectations import docs
from tidegate.expectations.pinned import pin
from tidegate.expectations.run import run_suites
from tidegate.expectations.suites import suites
from tidegate.pipelines.airflow.lineage import check_facets
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL
from tidegate.pipelines.observe.inspect.overview import docs_page
from tidegate.pipelines.project.cli import run
from tidegate.pipelines.storage.artifacts import ArtifactsInFolder
from tidegate.pipelines.storage.warehouse import arrow_schema


def check(folder: Path) -> int:
    return run(["quality", "sessions", "--config", str(folder / "tidegate.toml"), "--json"])


def test_good_tables_pass_and_every_check_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert check(tmp_path) == 0
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


def test_a_check_that_passes_says_so_in_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project(session_lake(), tmp_path, "")
    assert run(["quality", "sessions", "--config", str(tmp_path / "tidegate.toml")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("sessions, epoch 2: 3 windows became final, passed; ")
    assert "expectations hold" in first
    assert second.startswith("Data Docs: ")


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
    rule = gxe.ExpectTableRowCountToBeBetween(min_value=1000, severity="info")
    own = gx.ExpectationSuite(name="own", expectations=[rule])
    run = run_suites(suites(pinned, own)[:1], pinned, tables, ArtifactsInFolder(tmp_path))
    (found,) = run.failed
    assert (found.severity, found.observed) == ("info", "3")
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
        assert run_suites(suites(pinned, own), pinned, tables, ArtifactsInFolder(tmp_path)).state == "passed"


def test_only_the_newest_pages_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "KEPT", 2)
    project(session_lake(), tmp_path, "")
    for _ in range(3):
        assert check(tmp_path) == 0
    folder = tmp_path / ".work" / "quality" / "sessions"
    assert len(list(folder.glob("check-*.html"))) == 2
    config = tmp_path / "tidegate.toml"
    assert docs_page(config, "sessions", "index.html") == (folder / "index.html").read_bytes()
    for page in ("../../../tidegate.toml", "checks.json", "lock", "check-000002-ffffffffffff.html"):
        assert docs_page(config, "sessions", page) is None


def test_an_epoch_without_a_snapshot_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project(session_lake(), tmp_path, "")
    assert run(["quality", "sessions", "--config", str(tmp_path / "tidegate.toml"), "--epoch", "7"]) == 2
    assert "--epoch 7" in capsys.readouterr().err
