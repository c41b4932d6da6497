"""`tidegate list`: all pipelines of a project with their mode, watermark, lag and last check, without an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from tests.lake import DAY0, LOCAL, Lake, at, session_pipeline
from tests.pipelines.project.cli.project import Project
from tidegate.pipelines.definition.config import Config, PipelineEntry, load_config
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.observe.inspect.status import PipelineStatus
from tidegate.pipelines.project import listing
from tidegate.pipelines.project.listing import list_pipelines

NEVER = {"mode": None, "watermark": None, "lag_seconds": None, "last_check": None, "ended": None, "error": None}


@pytest.fixture
def project(lake: Lake, capsys: pytest.CaptureFixture[str]) -> Project:
    project = Project.make(lake.folder, capsys)
    with (lake.folder / "tidegate.toml").open("a") as file:
        file.write('\n[pipelines.hours]\nobject = "nowhere:hours"\nstart = 2024-03-01\n')
    return project


def test_before_the_first_epoch_all_is_null_and_no_pipeline_is_imported(project: Project) -> None:
    assert project.data("list") == [{"pipeline": "hours", **NEVER}, {"pipeline": "sessions", **NEVER}]
    code, told = project.tidegate("list")
    assert (code, told.count("never run")) == (0, 2)


def test_a_backfill_and_the_stream_after_it(project: Project, lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1))
    lake.backfill(LOCAL, session_pipeline(), DAY0, DAY0 + timedelta(days=1))
    hours, sessions = project.data("list")
    assert hours == {"pipeline": "hours", **NEVER}
    assert (sessions["mode"], sessions["last_check"]) == ("backfill", None)
    # Event time ends with the interval, less the out-of-orderness of an hour.
    watermark = datetime.fromisoformat(sessions["watermark"])
    assert DAY0 < watermark <= DAY0 + timedelta(days=1)
    assert sessions["lag_seconds"] == pytest.approx((datetime.now(UTC) - watermark).total_seconds(), abs=600)
    lake.append(("ann", at("06:00", day=1), 1))
    lake.stream(LOCAL, session_pipeline())
    assert (project.data("list")[1]["mode"], project.data("list")[1]["ended"]) == ("stream", False)
    lake.project(session_pipeline()).stream("sessions", end_of_input=True)
    assert (project.data("list")[1]["watermark"], project.data("list")[1]["ended"]) == (None, True)
    assert "end of input" in project.tidegate("list")[1]


def test_the_lag_is_that_of_the_moment_and_the_check_is_the_newest(project: Project, lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1))
    (manifest,) = lake.stream(LOCAL, session_pipeline())
    tables = lake.tables(session_pipeline())
    for state in (True, False):
        quality.append(tables, [_outcome(manifest, state)])
    now = datetime.fromtimestamp(manifest.watermark / 1000, UTC) + timedelta(hours=3)
    listed = list_pipelines(lake.config.model_copy(update={"pipelines": _entries(project)}), now).pipelines[1]
    assert listed.lag_seconds == pytest.approx(3 * 3600)
    assert listed.last_check is not None
    assert (listed.last_check.state, listed.last_check.epoch) == ("failed", manifest.epoch)
    assert project.data("list")[1]["last_check"]["state"] == "failed"
    assert "failed, epoch 1, 2024-03-02T12:00:00Z" in project.tidegate("list")[1]


def _outcome(manifest: Manifest, success: bool) -> quality.QualityRow:
    moment, rule = datetime(2024, 3, 2, 12, tzinfo=UTC), ("invariants", "e", "", "critical")
    return quality.QualityRow(str(success), moment, manifest.timeline, manifest.epoch, *rule, success, "", 1, 1, 1)


def _entries(project: Project) -> dict[str, PipelineEntry]:
    return load_config(project.folder / "tidegate.toml").pipelines


def test_after_the_end_of_the_input_there_is_no_watermark_and_no_lag(project: Project, lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1))
    assert project.tidegate("stream", "sessions", "--available-now", "--end-of-input")[0] == 0
    sessions = project.data("list")[1]
    assert (sessions["mode"], sessions["watermark"], sessions["lag_seconds"]) == ("stream", None, None)


def test_tables_that_can_not_be_read_do_not_hide_the_others(project: Project, lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1))
    lake.stream(LOCAL, session_pipeline())
    folder = lake.folder / "warehouse" / "hours" / "state"
    (folder / "_delta_log").mkdir(parents=True)
    (folder / "_delta_log" / f"{0:020}.json").write_text("{}")
    hours, sessions = project.data("list")
    assert hours["error"]
    assert sessions["mode"] == "stream"
    assert sessions["error"] is None
    assert "can't be read" in project.tidegate("list")[1]


def test_tables_that_this_user_may_not_read_do_not_hide_the_others(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def status_of(config: Config, name: str) -> PipelineStatus:
        if name == "sessions":
            raise PermissionError(13, "Permission denied")
        return status(config, name)

    status = listing.status_of
    monkeypatch.setattr(listing, "status_of", status_of)
    hours, sessions = project.data("list")
    assert hours == {"pipeline": "hours", **NEVER}
    assert "This user has no permission there" in sessions["error"]


def test_a_faulty_entry_is_listed_with_its_error(project: Project) -> None:
    with (project.folder / "tidegate.toml").open("a") as file:
        file.write('\n[pipelines.days]\nobject = "nowhere:days"\n')
    days, hours, _ = project.data("list")
    assert (days["pipeline"], hours) == ("days", {"pipeline": "hours", **NEVER})
    assert "pipelines.days.start: required field is missing" in days["error"]
    assert "pipelines.days.start" in project.tidegate("list")[1]


def test_it_starts_no_engine(project: Project) -> None:
    code = (
        "import sys; from tidegate.pipelines.project.cli import run; code = run(['list', '--json']); "
        "assert not {'pyspark', 'loky'} & set(sys.modules); raise SystemExit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=project.folder, capture_output=True, text=True, check=True)
    assert [row["pipeline"] for row in json.loads(done.stdout)] == ["hours", "sessions"]
