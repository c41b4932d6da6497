"""Several streams in one process: each has its lease, and a failing one does not stop the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tests.lake import Lake, at
from tidegate import Project
from tidegate.pipelines.errors import LEASE_HELD, REFUSED, Refused, TidegateError, UsageError
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease, read_lease, request_stop
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.project.cli import run
from tidegate.pipelines.project.progress import Teller
from tidegate.pipelines.project.stream import StreamOptions, stream
from tidegate.pipelines.run.stopping import StopRequest

NAMES = ("sessions", "hours", "lost")
CODE = """
from tests.lake import DeltaSource, hourly_pipeline, session_pipeline

sessions, hours = session_pipeline(), hourly_pipeline()
lost = session_pipeline(name="lost", source=DeltaSource("nothing_there", timestamp="at"))
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two pipelines with a source, and one whose source does not exist."""
    (tmp_path / "together.py").write_text(CODE)
    entries = "".join(f'[pipelines.{name}]\nobject = "together:{name}"\nstart = 2024-03-01\n' for name in NAMES)
    (tmp_path / "tidegate.toml").write_text(f'engine = "local"\n{entries}')
    Lake(tmp_path).append(("ann", at("10:00"), 1), ("bob", at("13:00"), 2))
    return Project(tmp_path / "tidegate.toml")


def tables(project: Project, name: str) -> PipelineTables:
    return PipelineTables.of(project.config, name)


def epoch(project: Project, name: str) -> int:
    snapshot = read_snapshot(tables(project, name))
    return 0 if snapshot is None else snapshot.manifest.epoch


def test_one_that_fails_stops_no_other_and_the_error_names_it(project: Project) -> None:
    answer = project.stream([NAMES[2], *NAMES[:2]])
    assert [each["pipeline"] for each in answer.epochs] == ["sessions", "hours"]
    assert list(answer.failed) == ["lost"]
    assert (epoch(project, "sessions"), epoch(project, "hours"), epoch(project, "lost")) == (1, 1, 0)
    with pytest.raises(Refused, match=r"lost: .*nothing_there"):
        answer.require()
    assert project.stream(["sessions", "hours"]).require().failed == {}


def test_failures_of_several_kinds_end_with_exit_code_1(project: Project) -> None:
    with Lease(tables(project, "hours"), "the test", system_clock):
        answer = project.stream(list(NAMES))
    assert {name: error.exit_code for name, error in answer.failed.items()} == {"hours": LEASE_HELD, "lost": REFUSED}
    with pytest.raises(TidegateError) as failed:
        answer.require()
    assert failed.value.exit_code == 1


def test_the_command_prints_one_document_and_its_exit_code_says_that_one_failed(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(project.config.file)
    assert run(["stream", *NAMES, "--available-now", "--json", "--config", config]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert [each["pipeline"] for each in answer["epochs"]] == ["sessions", "hours"]
    assert answer["failed"]["lost"]["exit_code"] == 3
    assert answer["exit_code"] == 3
    assert run(["stream", "sessions", "hours", "--available-now", "--restore", "1", "--config", config]) == 2
    assert "work only with a single pipeline" in capsys.readouterr().err


def test_a_name_that_stands_twice_or_is_unknown_is_refused_before_any_starts(project: Project) -> None:
    with pytest.raises(UsageError, match="sessions is named twice"):
        project.stream(["sessions", "sessions"])
    with pytest.raises(UsageError, match="unknown pipeline 'hour'"):
        project.stream(["sessions", "hour"])
    assert epoch(project, "sessions") == 0


def is_driven(project: Project, name: str) -> bool:
    row = read_lease(tables(project, name))
    return row is not None and row.is_alive(system_clock())


class Turns(StopRequest):
    """Time that passes only in waits, and what happens meanwhile.

    Args:
        project: the streams' project.
        held: the lease of `hours`, which somebody else holds at first.
    """

    def __init__(self, project: Project, held: Lease) -> None:
        super().__init__()
        self.project, self.held, self.now = project, held, 0.0
        self.seen: list[str] = []

    def wait(self, seconds: float) -> None:
        self.now += max(seconds, 0.01)
        sessions, hours = (epoch(self.project, name) for name in NAMES[:2])
        if "released" not in self.seen and self.now >= 30:
            assert (sessions, hours) == (1, 0), "the others go on while one can't start"
            self.held.__exit__(None, None, None)
            self.seen.append("released")
        if "fed" not in self.seen and hours == 1:
            assert self.now >= 60, "it is retried after a minute"
            Lake(self.project.config.root).append(("ann", at("20:00"), 1))
            self.seen.append("fed")
        if "asked" not in self.seen and (sessions, hours) == (2, 2):
            assert request_stop(tables(self.project, "sessions"), system_clock()) is not None
            self.seen.append("asked")
        if "asked" in self.seen and not is_driven(self.project, "sessions"):
            assert is_driven(self.project, "hours"), "`tidegate driver stop` of one leaves the others alone"
            self.seen.append("stopped")
            self.make()
        assert self.now < 500, self.seen


def test_continuous_streams_go_on_beside_one_that_fails_is_tried_again_or_is_stopped(project: Project) -> None:
    held = Lease(tables(project, "hours"), "the test", system_clock)
    held.__enter__()
    turns, said = Turns(project, held), list[str]()
    options = StreamOptions(every=timedelta(seconds=5))
    answer = stream(
        project.config,
        NAMES,
        options,
        turns,
        lambda name: Teller(name, lambda progress: said.append(progress.text)),
        lambda: turns.now,
    )
    assert turns.seen == ["released", "fed", "asked", "stopped"]
    assert answer.pipelines == NAMES
    assert list(answer.failed) == ["lost"], "a retry can't mend it; the others ended well"
    assert any(line.startswith("hours failed") and "retried in 60 s" in line for line in said)
    assert all(any(line.startswith(f"{name}: epoch ") for line in said) for name in NAMES[:2])
    assert not any(line.startswith("epoch ") for line in said)
    assert not is_driven(project, "hours")


@pytest.mark.long
@pytest.mark.spark
def test_with_spark_they_have_one_driver(project: Project) -> None:
    file, logs = project.config.file, project.config.root / "applications"
    logs.mkdir()
    log_events = f'"spark.eventLog.enabled" = "true"\n"spark.eventLog.dir" = "{logs.as_uri()}"\n'
    settings = file.read_text().replace('engine = "local"', 'engine = "spark"')
    file.write_text(f'{settings}\n[spark]\n"spark.master" = "local[2]"\n"spark.driver.memory" = "1g"\n{log_events}')
    command = [sys.executable, "-m", "tidegate", "stream", *NAMES, "--available-now", "--json", "--config", str(file)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == REFUSED, done.stderr[-3000:]
    answer = json.loads(done.stdout)
    assert [each["pipeline"] for each in answer["epochs"]] == ["sessions", "hours"]
    assert list(answer["failed"]) == ["lost"]
    assert (epoch(project, "sessions"), epoch(project, "hours")) == (1, 1)
    assert len(list(logs.iterdir())) == 1, "one Spark application"
