"""Commands on hosts that share no disk: one host runs a command, another one follows it, ends it, or takes over."""

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
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from tests.airflow.dag_runs import wait_until
from tests.dags.test_operator import FAKE, Store, context
from tests.store.proxy import Fault, Plan, Proxy
from tests.store.server import S3Server, options_of
from tidegate.pipelines.airflow.copying import Copying
from tidegate.pipelines.airflow.elsewhere import Hosts
from tidegate.pipelines.airflow.operator import CommandFailed, CommandRefused, TidegateOperator
from tidegate.pipelines.airflow.process import FAILED, LOST, RUNNING, SUCCEEDED, ProcessHandle, Run
from tidegate.pipelines.airflow.run_files import PART, CopyOfRun, FolderOfRun
from tidegate.pipelines.config import load_config
from tidegate.pipelines.reopen.selection import Selection
from tidegate.pipelines.run.driver import system_clock
from tidegate.pipelines.run.lease import TIME_TO_LIVE, Lease, LeaseRow, read_lease
from tidegate.pipelines.run.requests import Answer, answer_to, ask, forget_request, serve
from tidegate.pipelines.run.stopping import stop_driver
from tidegate.pipelines.storage import warehouse_of
from tidegate.pipelines.stores.artifacts import ArtifactsInStore
from tidegate.pipelines.tables.pipeline_tables import REQUESTS, PipelineTables

ROOT = Path(__file__).parents[2]
TASK = "visits__stream/manual__1/stream"
AWAY = "away"


def project(folder: Path, bucket: str, endpoint: str) -> Path:
    """A host's own copy of the project, all of whose shared things are in a bucket; its tidegate.toml."""
    folder.mkdir()
    options = "".join(f'{key} = "{value}"\n' for key, value in options_of(endpoint).items())
    text = f'warehouse = "s3://{bucket}/wh"\n[pipelines.visits]\nobject = "a:b"\nstart = 2024-03-01\n'
    (folder / "tidegate.toml").write_text(f"{text}[storage_options]\n{options}")
    return folder / "tidegate.toml"


@pytest.fixture
def here(tmp_path: Path, bucket: str, server: S3Server) -> Path:
    """The project on this host."""
    return project(tmp_path / "here", bucket, server.endpoint)


@pytest.fixture(params=["store", "mount"])
def sharing(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The project on this host; its artifacts are in the bucket, or in a folder that the hosts share."""
    if request.param == "store":
        file: Path = request.getfixturevalue("here")
        return file
    (tmp_path / "tidegate.toml").write_text('artifacts = "mount"\n')
    return tmp_path / "tidegate.toml"


class FarRun:
    """A run on another host, written by hand: its supervisor's copying without its processes."""

    def __init__(self, config: Path, folder: Path, number: int = 1, ends: Callable[[], None] = lambda: None) -> None:
        self.files = FolderOfRun(folder)
        folder.mkdir(parents=True)
        self.files.log.touch()
        hosts = Hosts.of(str(config), "visits")
        copy = hosts.copy_of(f"{TASK}/{number}")
        assert copy is not None
        self.copy: CopyOfRun = copy
        self.handle = ProcessHandle(AWAY, 11, 1_000.0, "/nowhere/else", copy.place)
        about = {"handle": self.handle.to_dict(), "process": 12, "process_started": 1_000.5}
        self.told: list[str] = []
        self.copying = Copying(self.files, copy, about, ends, self.told.append)
        self.run = hosts.run_of(self.handle)

    def write(self, text: str) -> None:
        with self.files.log.open("a") as log:
            log.write(text)

    def end(self, code: int, result: Any = None) -> None:
        if result is not None:
            (self.files.folder / "result.json").write_text(json.dumps(result))
        self.copying.beat(code)


def test_a_run_on_another_host_is_followed_line_by_line_to_its_outcome(sharing: Path, tmp_path: Path) -> None:
    far = FarRun(sharing, tmp_path / "away")
    steps: Iterator[Callable[[], None]] = iter(
        (
            lambda: far.write("first\nsecond\nthi"),
            lambda: far.write("rd\n"),
            lambda: far.write("x" * PART + "\n" + "y" * PART + "\nwithout an end"),
            lambda: far.end(0, {"epoch": 3}),
        )
    )

    def pause(seconds: float) -> None:
        next(steps)()
        if far.copy.state().exit_code is None:
            far.copying.beat()

    heard: list[str] = []
    far.copying.beat()
    run = replace(far.run, pause=pause)
    assert run.follow(heard.append) == SUCCEEDED
    assert heard == ["first", "second", "third", "x" * PART, "y" * PART, "without an end"]
    assert json.loads(run.files.result() or "") == {"epoch": 3}
    assert next(steps, None) is None
    assert len(far.copy.artifacts.names(far.copy.place)) == 5, "three parts, the state and the result"


def test_the_reason_of_a_failure_comes_over_the_border_of_two_parts(here: Path, tmp_path: Path) -> None:
    far = FarRun(here, tmp_path / "away")
    far.write("z" * (PART - 9) + "\ntidegate: the disk\nis full\n")
    far.end(1)
    assert (far.run.status(), far.run.exit_code(), far.run.reason()) == (FAILED, 1, "the disk is full")
    assert "runs/" + TASK in far.run.files.log_address


def test_a_copy_takes_few_requests(bucket: str, proxy: Proxy, tmp_path: Path) -> None:
    far = FarRun(project(tmp_path / "here", bucket, proxy.endpoint), tmp_path / "away")
    far.copying.beat()
    proxy.requests()
    far.copying.beat()
    assert proxy.counted() == {"PUT": 1, "HEAD": 1}, "the sign of life, and a look for a request to end"
    far.write("a line\n")
    far.copying.beat()
    assert proxy.counted() == {"PUT": 2, "HEAD": 1}
    assert far.run.is_alive()
    assert proxy.counted() == {"GET": 1}


def test_a_store_that_fails_for_a_while_costs_no_line_and_is_told_once(
    bucket: str, proxy: Proxy, tmp_path: Path
) -> None:
    far = FarRun(project(tmp_path / "here", bucket, proxy.endpoint), tmp_path / "away")
    quick = {**far.copying.copy.artifacts.options, "max_retries": "0"}  # type: ignore[attr-defined]
    far.copying.copy = CopyOfRun(ArtifactsInStore(f"s3://{bucket}/wh/_tidegate/artifacts", quick), far.copy.place)
    far.write("one\n")
    proxy.set(Plan(fault=Fault.SLOW_DOWN, times=1000))
    for _ in range(2):
        far.copying.beat()
    assert len(far.told) == 1
    assert far.told[0].startswith("other hosts can't follow this run: can't write s3://")
    proxy.set(Plan())
    far.write("two\n")
    far.end(0)
    heard: list[str] = []
    assert far.run.follow(heard.append) == SUCCEEDED
    assert heard == ["one", "two"]


def lease_of(config: Path) -> PipelineTables:
    return PipelineTables(warehouse_of(load_config(config)), "visits")


@contextmanager
def held_far_away(config: Path, process: int, clock: Callable[[], int]) -> Iterator[Lease]:
    """The lease of the pipeline, held by a process on the other host."""
    lease = Lease(lease_of(config), "stream", clock)
    lease.row = replace(lease.row, host=AWAY, process=process)
    with lease:
        yield lease


def test_a_run_without_signs_of_life_runs_as_long_as_it_holds_the_lease(here: Path, tmp_path: Path) -> None:
    """Its supervisor may have been killed, or may have lost the right to write."""
    far = FarRun(here, tmp_path / "away")
    far.copying.beat()
    beat = far.copy.state().beat_at
    assert beat is not None
    assert replace(far.run, clock=lambda: beat + 59).status() == RUNNING
    late = replace(far.run, clock=lambda: beat + 61)
    assert late.status() == LOST
    with held_far_away(here, 13, system_clock):
        assert late.status() == LOST, "another run of that host"
    now = [system_clock()]
    with held_far_away(here, 12, lambda: now[0]) as lease, pytest.MonkeyPatch.context() as planted:
        planted.setattr("tidegate.pipelines.run.driver.system_clock", lambda: now[0])
        assert late.status() == RUNNING
        assert not late.is_supervised()
        now[0] += TIME_TO_LIVE + 1
        assert late.status() == LOST, "the lease ran out with its host"
        lease.renew()
        Hosts.of(str(here), "visits").end(late, 1)
        row = read_lease(lease_of(here))
        assert row is not None
        assert row.stop_requested, "nobody supervises it, so it is asked by its lease"


def test_a_request_to_end_comes_to_the_supervisor_through_the_store_unless_a_later_try_follows(
    here: Path, tmp_path: Path
) -> None:
    ended: list[str] = []
    far = FarRun(here, tmp_path / "away", ends=lambda: ended.append("asked"))
    far.copying.beat()
    hosts = Hosts.of(str(here), "visits")
    far.run.files.claim(2)
    hosts.end(far.run, 1)
    far.copying.beat()
    assert ended == [], "Airflow gave try 1 up, and try 2 follows the command"
    hosts.end(far.run, 2)
    far.copying.beat()
    assert ended == ["asked"]
    assert far.run.is_ending()


def test_a_task_that_airflow_gave_up_ends_no_command_of_its_host_that_a_task_on_another_host_follows(
    here: Path, interpreter: str
) -> None:
    """Airflow ends it as soon as its worker, which was cut off, reaches it again."""
    task = operator(here, interpreter, "stream", "wait")
    task._try = 1
    run = task._run_of(task.submit_job(in_airflow(1)))
    try:
        wait_until(run.is_alive, "the command")
        copy = task.hosts.copy_of(f"{TASK}/1")
        assert copy is not None
        copy.claim(2)
        task.on_kill()
        assert not run.is_ending()
        copy.claim(1)
        task.on_kill()
        assert run.is_ending()
    finally:
        run.stop()


def test_a_request_to_reopen_comes_to_a_stream_on_another_host(here: Path, tmp_path: Path, bucket: str) -> None:
    """The request and its answer are in the warehouse, and each host has its own copy of the project."""
    shutil.copytree(here.parent, tmp_path / "there")
    asking, streaming = lease_of(here), lease_of(tmp_path / "there" / "tidegate.toml")
    request = ask(asking, Selection(key=("ann",)))
    asked: list[Selection] = []

    def reopen(selection: Selection) -> tuple[None, int]:
        asked.append(selection)
        return None, 0

    serve(streaming, reopen)
    assert asked == [Selection(key=("ann",))]
    assert answer_to(asking, request) == Answer()
    forget_request(asking, request)
    assert asking.warehouse.names(asking.path(REQUESTS)) == {}


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    """An interpreter that stands for the command."""
    file = tmp_path / "python"
    file.write_text(FAKE.format(python=sys.executable))
    file.chmod(0o755)
    return str(file)


def operator(config: Path, interpreter: str, *arguments: str) -> TidegateOperator:
    return TidegateOperator(
        task_id="stream",
        arguments=list(arguments),
        config=str(config),
        runs=str(config.parent / ".work" / "runs"),
        pipeline="visits",
        python=interpreter,
    )


def in_airflow(tries: int, store: Store | None = None) -> Any:
    instance = SimpleNamespace(
        dag_id="visits__stream", run_id="manual__1", task_id="stream", try_number=tries, stats_tags={}
    )
    return {**context(tries, store), "ti": instance}


@pytest.mark.parametrize("has_handle", [True, False])
@pytest.mark.parametrize("code", [0, 3])
def test_the_task_on_another_worker_takes_the_outcome_of_the_command_that_the_first_one_started(
    code: int, has_handle: bool, here: Path, interpreter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the first worker died before Airflow had the handle: the files of the earlier try say where it runs."""
    far = FarRun(here, tmp_path / "away")
    far.write("working far away\n")
    far.copying.beat()

    def pause(seconds: float) -> None:
        far.write("tidegate: no such epoch\n" if code else "done\n")
        far.end(code, {"epoch": 9})

    of_hosts = Hosts.run_of
    monkeypatch.setattr(Hosts, "run_of", lambda hosts, handle: replace(of_hosts(hosts, handle), pause=pause))
    store = Store({TidegateOperator.external_id_key: far.handle.to_dict()} if has_handle else {})
    task = operator(here, interpreter, "stream", "visits")
    with structlog.testing.capture_logs() as logged:
        if code:
            with pytest.raises(CommandRefused, match=r"no such epoch; see s3://.*/log-000000\.txt"):
                task.execute(in_airflow(2, store))
        else:
            assert task.execute(in_airflow(2, store)) == {"epoch": 9}
    assert "working far away" in str(logged)
    assert far.copy.claimed_by() == 2
    assert not (here.parent / ".work" / "runs").exists(), "no second process"


def test_the_task_on_another_worker_starts_its_own_command_once_the_first_host_is_gone(
    here: Path, interpreter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = FarRun(here, tmp_path / "away")
    far.copying.beat()
    of_hosts, beat = Hosts.run_of, far.copy.state().beat_at
    assert beat is not None
    monkeypatch.setattr(
        Hosts, "run_of", lambda hosts, handle: replace(of_hosts(hosts, handle), clock=lambda: beat + 61)
    )
    store = Store({TidegateOperator.external_id_key: far.handle.to_dict()})
    task = operator(here, interpreter, "stream", "visits")
    assert task.execute(in_airflow(2, store))["epoch"] == 7
    copy = Hosts.of(str(here), "visits").copy_of(f"{TASK}/2")
    assert copy is not None
    assert (copy.state().exit_code, json.loads(copy.result() or "")["epoch"]) == (0, 7)
    assert b"working on stream visits" in copy.read_log(0), "a third host could have followed it"


# --- hosts of their own: names, process ids and folders apart, and the server between them --------------------


def unshared() -> list[str]:
    """The command that gives a process a host name and process ids of its own; without the right to it, a skip."""
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
    """A host whose worker has started a command as a try of the task, and died; the host, and the run from here."""
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
                planted.setattr("tidegate.pipelines.run.driver.system_clock", lambda: until)
                assert task.execute(in_airflow(2, store))["epoch"] == 7, "its own command"


def end_supervisor(machine: subprocess.Popen[str]) -> None:
    """Kill the supervisor on a host, and nothing else."""
    import psutil

    below = psutil.Process(machine.pid).children(recursive=True)
    (supervisor,) = [process for process in below if "tidegate.pipelines.airflow.supervisor" in process.cmdline()]
    supervisor.kill()
