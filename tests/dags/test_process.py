"""A supervised command: ended kindly, then by force, and followed or given up from another host."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until
from tidegate.pipelines.airflow import process
from tidegate.pipelines.airflow.process import FAILED, LOST, RUNNING, ProcessHandle, Run
from tidegate.pipelines.airflow.run_files import FolderOfRun, name_of_task

COMMAND = """
import signal, subprocess, sys, time
from pathlib import Path

child = '''
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *ignored: Path("child-was-asked").touch())
Path("child-works").touch()
while True:
    time.sleep(600)
'''
signal.signal(signal.SIGTERM, (lambda *ignored: sys.exit(0)) if "kind" in sys.argv else signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", child])
while True:
    time.sleep(600)
"""
"""A driver with a process of its own, as Spark has one; neither ends by itself."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent.parent))
    return tmp_path


def at_work(folder: Path, *how: str, grace: float = 0.5) -> ProcessHandle:
    """The command, once both of its processes are at work."""
    handle = process.start([sys.executable, "-c", COMMAND, *how], folder / "run", grace=grace)
    wait_until(lambda: (folder / "child-works").exists(), "the command at work")
    return handle


def elsewhere(handle: ProcessHandle) -> ProcessHandle:
    """The same command, looked at from another host."""
    return replace(handle, host="another")


@pytest.mark.parametrize("how", ["kind", "deaf"])
def test_a_command_is_ended_with_all_that_it_started_even_if_nobody_waits_for_it(how: str, folder: Path) -> None:
    handle = at_work(folder, how)
    session = process.members(handle)
    assert len(session) == 3
    Run(handle).end()
    wait_until(lambda: Run(handle).status() == FAILED, "its end")
    assert Run(handle).exit_code() == 143
    assert not [member for member in session if member.is_running() and member.status() != "zombie"]


def test_a_command_runs_on_when_the_clock_is_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes the time of its boot from the clock, and psutil the start of a process from that."""
    handle, booted = at_work(folder, "kind"), psutil.boot_time()
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: booted + 30)
    assert Run(handle).status() == RUNNING
    assert not Run(replace(handle, folder=str(folder / "other"))).is_alive(), "its number belongs to another run"
    Run(handle).end()
    wait_until(lambda: Run(handle).status() == FAILED, "its end")


def test_only_the_command_is_asked_so_that_it_can_end_its_epoch_with_the_processes_that_it_has(folder: Path) -> None:
    handle = at_work(folder, "deaf")
    Run(handle).stop()
    assert not (folder / "child-was-asked").exists()


def test_a_command_is_ended_from_another_host_by_its_folder(folder: Path) -> None:
    handle = at_work(folder, "kind")
    assert Run(elsewhere(handle)).status() == RUNNING
    Run(elsewhere(handle)).end()
    wait_until(lambda: Run(elsewhere(handle)).status() == FAILED, "its end")
    assert Run(handle).exit_code() == 143


def test_a_command_whose_host_gives_no_sign_of_life_is_lost_after_a_minute(folder: Path) -> None:
    handle = at_work(folder, "kind")
    Run(handle).stop()
    FolderOfRun(folder / "run").exit_file.unlink()
    beat = FolderOfRun(folder / "run").heartbeat.stat().st_mtime
    assert Run(elsewhere(handle), clock=lambda: beat + 59).is_alive()
    assert not Run(elsewhere(handle), clock=lambda: beat + 61).is_alive()


def test_a_command_that_never_gave_a_sign_of_life_is_lost_a_minute_after_its_start(tmp_path: Path) -> None:
    handle = ProcessHandle("another", 1, started=1000.0, folder=str(tmp_path))
    assert Run(handle, clock=lambda: 1059.0).is_alive()
    assert not Run(handle, clock=lambda: 1061.0).is_alive()
    assert Run(handle).status() == LOST


def test_what_an_earlier_run_left_in_the_folder_is_not_taken_for_its_own(folder: Path) -> None:
    (folder / "run").mkdir()
    for left in ("exit", "end", "result.json"):
        (folder / "run" / left).write_text("0")
    handle = at_work(folder, "kind")
    try:
        assert Run(handle).status() == RUNNING
        assert Run(handle).exit_code() is None
        assert Run(handle).files.result() is None
    finally:
        Run(handle).stop()


HOSTILE = [
    "..",
    ".",
    "...",
    "a/../../b",
    "/etc",
    "",
    " ",
    "a\0b",
    "a\nb",
    "k" * 300,
    "ä" * 200,
    "a\\b",
    "../..",
    "{id}",
    "<b>",
]


def test_a_run_has_a_folder_of_its_own_whatever_its_id(tmp_path: Path) -> None:
    folders = [tmp_path / name_of_task("hours__stream", run_id, "run") for run_id in HOSTILE]
    for folder in folders:
        folder.mkdir(parents=True)
        assert folder.resolve().relative_to(tmp_path.resolve()).parts[0] == "hours__stream"
        assert len(folder.resolve().relative_to(tmp_path.resolve()).parts) == 3
    assert len(set(folders)) == len(HOSTILE)


def test_ids_of_airflow_stay_readable() -> None:
    named = name_of_task("hours__stream", "scheduled__2024-03-01T00:00:00+00:00", "run")
    assert named == "hours__stream/scheduled__2024-03-01T00_00_00_00_00/run"
