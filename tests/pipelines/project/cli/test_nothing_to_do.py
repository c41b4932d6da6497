"""A command that finds nothing to do answers without Spark; one that finds work starts Spark once."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.lake import Lake, at
from tests.pipelines.project.cli.project import CORRECTING, Project
from tidegate.pipelines.engine.spark import session
from tidegate.pipelines.errors import UsageError

STREAM = ("stream", "sessions", "--available-now")
DAY = ("backfill", "sessions", "--start", "2024-03-01", "--end", "2024-03-02")
PIPELINES = {"plain": "session_pipeline()", "with SQL": "session_pipeline(where='value > 0')", "corrects": CORRECTING}


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the sessions that commands would start; the first session of a command ends it."""
    names: list[str] = []

    def start(config: object, name: str) -> None:
        names.append(name)
        raise UsageError("Spark would start")

    monkeypatch.setattr(session, "start_session", start)
    # The settings of this environment's Spark don't count, nor does a session of other tests.
    monkeypatch.setattr("tidegate.pipelines.engine.spark.jvm.is_running", lambda: False)
    return names


def on_spark(project: Project) -> None:
    """From here on, commands run on Spark."""
    file = project.folder / "tidegate.toml"
    file.write_text(file.read_text().replace('engine = "local"', 'engine = "spark"'))


REOPEN = ("late", "reopen", "sessions")
RESTORE = ("restore", "sessions", "latest")
AFTER: dict[str, tuple[tuple[str, ...], list[tuple[str, ...]]]] = {
    "stream": (STREAM, [STREAM, (*STREAM, "--restore", "latest"), REOPEN, (*REOPEN, "--key", "bob"), RESTORE]),
    "stream, end of input": ((*STREAM, "--end-of-input"), [(*STREAM, "--end-of-input")]),
    "backfill": (DAY, [DAY, (*DAY, "--and-following"), REOPEN]),
    "backfill, end of input": ((*DAY, "--end-of-input"), [("backfill", "sessions", "--end-of-input")]),
}
"""A first command, and those that find nothing to do after it."""


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("pipeline", "after"),
    # Each first command with the plain pipeline, then the others.
    sorted(product(PIPELINES, AFTER), key=lambda case: case[0] != "plain" and [*AFTER].index(case[1])),
)
def test_without_work_no_session_starts(
    project: Project, tmp_path: Path, starts: list[str], pipeline: str, after: str
) -> None:
    first, others = AFTER[after]
    lake = Lake(tmp_path)
    lake.append(("ann", at("10:00"), 1), ("bob", at("14:00"), 1))
    project.rewrite(PIPELINES[pipeline])
    project.data(*first)
    runs = project.data("runs", "sessions")
    on_spark(project)
    for other in others:
        project.data(*other)
        assert (starts, project.data("runs", "sessions")) == ([], runs), other


def test_what_came_since_starts_one(project: Project, tmp_path: Path, starts: list[str]) -> None:
    lake = Lake(tmp_path)
    lake.append(("ann", at("10:00"), 1))
    project.data(*STREAM)
    lake.append(("bob", at("14:00"), 1))
    on_spark(project)
    code, told = project.tidegate(*STREAM)
    assert (code, "Spark would start" in told, len(starts)) == (2, True, 1)


def test_settings_from_other_places_are_asked_of_a_session(
    project: Project, tmp_path: Path, starts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    lake.append(("ann", at("10:00"), 1))
    project.rewrite(PIPELINES["with SQL"])
    project.data(*STREAM)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.sql.ansi.enabled false\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    on_spark(project)
    project.tidegate(*STREAM)
    assert len(starts) == 1
