"""A command that finds nothing to do answers without Spark; one that finds work starts it once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.lake import Lake, at
from tests.pipelines.cli.project import Project
from tests.recovery.without_spark import NoSpark, standing_in
from tidegate.pipelines.spark import session

STREAM = ("stream", "sessions", "--available-now")
DAY = ("backfill", "sessions", "--start", "2024-03-01", "--end", "2024-03-02")
PIPELINES = {
    "plain": "session_pipeline()",
    "with SQL": "session_pipeline(where='value > 0')",
    "corrects": (
        "session_pipeline(source=__import__('tidegate').DeltaSource('events', timestamp='at', changes='correct'))"
    ),
}


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the sessions that commands start; no JVM runs."""
    names: list[str] = []

    def start(config: object, name: str) -> NoSpark:
        names.append(name)
        return NoSpark()

    monkeypatch.setattr(session, "start_session", start)
    monkeypatch.setattr(session, "stop_session", lambda session: None)
    # The settings of this environment's Spark don't count, nor does a session of other tests.
    monkeypatch.setattr("tidegate.pipelines.spark.jvm.is_running", lambda: False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with standing_in(NoSpark()):
        yield names
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=list(PIPELINES))
@pytest.mark.parametrize(
    ("first", "again"),
    [
        (STREAM, STREAM),
        (STREAM, (*STREAM, "--restore", "latest")),
        ((*STREAM, "--end-of-input"), (*STREAM, "--end-of-input")),
        (STREAM, ("late", "reopen", "sessions")),
        (STREAM, ("late", "reopen", "sessions", "--key", "bob")),
        (STREAM, ("restore", "sessions", "latest")),
        (DAY, DAY),
        (DAY, (*DAY, "--and-following")),
        ((*DAY, "--end-of-input"), ("backfill", "sessions", "--end-of-input")),
        (DAY, ("late", "reopen", "sessions")),
    ],
    ids=lambda words: " ".join(words),
)
def test_without_work_no_session_starts(
    project: Project, tmp_path: Path, starts: list[str], pipeline: str, first: tuple[str, ...], again: tuple[str, ...]
) -> None:
    lake = Lake(tmp_path)
    lake.append(("ann", at("10:00"), 1), ("bob", at("14:00"), 1))
    project.rewrite(pipeline)
    project.data(*first)
    assert len(starts) == 1, "the first command has work"
    runs = project.data("runs", "sessions")
    project.data(*again)
    assert (len(starts), project.data("runs", "sessions")) == (1, runs)


def test_what_came_since_starts_one(project: Project, tmp_path: Path, starts: list[str]) -> None:
    lake = Lake(tmp_path)
    lake.append(("ann", at("10:00"), 1))
    project.data(*STREAM)
    lake.append(("bob", at("14:00"), 1))
    assert len(project.data(*STREAM)["epochs"]) == 1
    assert len(starts) == 2


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
    project.data(*STREAM)
    assert len(starts) == 2


def test_a_day_whose_windows_were_corrected_is_not_called_unchanged(
    project: Project, tmp_path: Path, starts: list[str]
) -> None:
    lake = Lake(tmp_path)
    lake.append(("ann", at("10:00"), 1))
    project.rewrite(PIPELINES["corrects"])
    project.data(*DAY)
    DeltaTable(lake.path("events")).update({"value": "7"})
    code, told = project.tidegate(*DAY)
    assert (code, "2024-03-01  not run again; epoch 2 corrected windows" in told) == (0, True), told
    assert "unchanged" not in told
    assert "2024-03-01  unchanged  epoch" in project.tidegate(*DAY)[1]
