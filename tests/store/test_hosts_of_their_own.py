"""Commands on a host with its own name, process ids and folders, and only the store between it and this one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from tests.dags.test_operator import Store, stand_in
from tests.store.hosts import AWAY, TASK, in_airflow, lease_of, operator, project
from tests.store.server import S3Server
from tests.waiting import wait_until
from tidegate.pipelines.airflow.elsewhere import Hosts
from tidegate.pipelines.airflow.operator import CommandFailed, TidegateOperator
from tidegate.pipelines.airflow.process import LOST, RUNNING, ProcessHandle, Run
from tidegate.pipelines.airflow.run_files import CopyOfRun
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import TIME_TO_LIVE, LeaseRow, read_lease
from tidegate.pipelines.run.stopping import stop_driver

ROOT = Path(__file__).parents[2]


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    return stand_in(tmp_path)


def unshared() -> list[str]:
    """The command that gives a process its own host name and process ids. Without the right to do so, the test is
    skipped.
    """
    command = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid():
        command[1:1] = ["--user", "--map-root-user"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this machine lets nobody make namespaces")
    return command


@contextmanager
def host(config: Path, number: int, *command: str) -> Iterator[tuple[subprocess.Popen[str], Run]]:
    """A host whose worker started a command as a try of the task, and died; return the host, and the run as seen from
    here.
    """
    environment = {
        **os.environ,
        "HOME": str(config.parent),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    words = [
        sys.executable,
        "-m",
        "tests.store.host_process",
        AWAY,
        str(config),
        "visits",
        f"{TASK}/{number}",
        *command,
    ]
    with (config.parent / "host.log").open("w") as log:
        process = subprocess.Popen(
            [*unshared(), *words], stdout=subprocess.PIPE, stderr=log, text=True, cwd=config.parent, env=environment
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, (config.parent / "host.log").read_text()
        yield process, Hosts.of(str(config), "visits").run_of(ProcessHandle(**json.loads(line)))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def seen_from_here(config: Path, run: Run) -> Run:
    return Hosts.of(str(config), "visits").run_of(run.handle)


def finding(config: Path) -> Run | None:
    return Hosts.of(str(config), "visits").running_try(TASK)


ENDS_WHEN_TOLD = """
import pathlib, sys, time
print("begun far away", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.1)
pathlib.Path(sys.argv[sys.argv.index("--output") + 1]).write_text('{"epoch": 5}')
print("ended far away", flush=True)
"""


@pytest.mark.long
def test_a_command_on_a_host_of_its_own_is_found_and_followed_after_its_worker_was_killed(
    here: Path, bucket: str, server: S3Server, tmp_path: Path, interpreter: str
) -> None:
    there, go = project(tmp_path / "there", bucket, server.endpoint), tmp_path / "go"
    with host(there, 1, "-c", ENDS_WHEN_TOLD, str(go)) as (_, run):
        assert run.handle.host.startswith(f"{AWAY} pid:["), "its process ids mean nothing here"
        found = wait_until(lambda: finding(here), "its first sign of life")
        assert found.handle == run.handle
        task = operator(here, interpreter, "stream", "visits")
        follow = Run.follow

        def follow_and_go(self: Run, tell: Callable[[str], None]) -> str:
            go.touch()
            return follow(self, tell)

        with pytest.MonkeyPatch.context() as planted, structlog.testing.capture_logs() as logged:
            planted.setattr(Run, "follow", follow_and_go)
            planted.setattr(CopyOfRun, "pause", property(lambda copy: 0.2))
            assert task.execute(in_airflow(2)) == {"epoch": 5}
        assert "begun far away" in str(logged)
        assert "ended far away" in str(logged)
    assert not (here.parent / ".work").exists()


def driving(config: Path) -> LeaseRow | None:
    row = read_lease(lease_of(config))
    return row if row is not None and row.is_alive(system_clock()) else None


def driver(config: Path) -> Sequence[str]:
    return ("-m", "tests.store.host_driver", "visits")


@pytest.mark.long
@pytest.mark.parametrize("way", ["task is killed", "stop is asked for", "supervisor is killed", "host dies"])
def test_a_driver_on_a_host_of_its_own_is_ended_or_taken_over_from_another(
    way: str, here: Path, bucket: str, server: S3Server, tmp_path: Path, interpreter: str
) -> None:
    there = project(tmp_path / "there", bucket, server.endpoint)
    with host(there, 1, *driver(there)) as (machine, run):
        row = wait_until(lambda: driving(here), "the driver at work", 60)
        assert row.host == run.handle.host
        found = wait_until(lambda: finding(here), "its first sign of life", 60)
        task = operator(here, interpreter, "stream", "visits")
        store = Store({TidegateOperator.external_id_key: run.handle.to_dict()})
        if way == "task is killed":
            task._run_of(run.handle.to_dict())
            task.on_kill()
            with pytest.raises(CommandFailed) as failed:
                task.poll_until_complete(run.handle.to_dict(), in_airflow(1))
            assert failed.value.exit_code == 128 + signal.SIGTERM
            assert driving(here) is None
        elif way == "stop is asked for":
            stopped = stop_driver(here, "visits", 60)
            assert stopped is not None
            assert AWAY in stopped
            assert task.execute(in_airflow(2, store))["driver"] == row.host
        elif way == "supervisor is killed":
            end_supervisor(machine)
            beat = found.files.state().beat_at
            lost = replace(seen_from_here(here, run), clock=lambda: beat + 61)
            assert lost.status() == RUNNING, "the command drives on, and says so by its lease"
            Hosts.of(str(here), "visits").end(lost, 1)
            wait_until(lambda: driving(here) is None, "its end", 60)
            assert lost.status() == LOST
        else:
            machine.kill()
            machine.wait()
            assert seen_from_here(here, run).status() == RUNNING, "nobody can tell yet"
            beat, until = found.files.state().beat_at, row.expires_at + TIME_TO_LIVE
            with pytest.MonkeyPatch.context() as planted:
                of_hosts = Hosts.run_of
                planted.setattr(
                    Hosts, "run_of", lambda hosts, handle: replace(of_hosts(hosts, handle), clock=lambda: beat + 130)
                )
                planted.setattr("tidegate.pipelines.ledger.host.system_clock", lambda: until)
                assert task.execute(in_airflow(2, store))["epoch"] == 7, "its own command"


def end_supervisor(machine: subprocess.Popen[str]) -> None:
    """Kill only the supervisor on a host."""
    import psutil

    below = psutil.Process(machine.pid).children(recursive=True)
    (supervisor,) = [process for process in below if "tidegate.pipelines.airflow.supervisor" in process.cmdline()]
    supervisor.kill()
