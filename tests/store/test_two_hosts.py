"""Commands on hosts that share no disk: one host runs a command, and another one follows it, ends it, or takes over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog

from tests.dags.test_operator import Store, stand_in
from tests.store.hosts import AWAY, TASK, in_airflow, lease_of, operator, project
from tests.store.proxy import Fault, Plan, Proxy
from tests.waiting import wait_until
from tidegate.pipelines.airflow.elsewhere import Hosts
from tidegate.pipelines.airflow.operator import CommandRefused, TidegateOperator
from tidegate.pipelines.airflow.process import FAILED, LOST, RUNNING, SUCCEEDED, ProcessHandle
from tidegate.pipelines.airflow.run_files import PART, CopyOfRun, FolderOfRun
from tidegate.pipelines.airflow.supervisor import Copying
from tidegate.pipelines.ledger.host import system_clock, this_host
from tidegate.pipelines.ledger.lease import TIME_TO_LIVE, Lease, read_lease
from tidegate.pipelines.storage.artifacts import ArtifactsInStore


@pytest.fixture(params=["store", "mount"])
def sharing(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The project on this host; its artifacts are in the bucket, or in a folder that the hosts share."""
    if request.param == "store":
        file: Path = request.getfixturevalue("here")
        return file
    (tmp_path / "tidegate.toml").write_text('artifacts = "mount"\n')
    return tmp_path / "tidegate.toml"


class FarRun:
    """A run on another host, written by hand: what its supervisor copies, without its processes."""

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
            lambda: far.files.write("driven.json", b'{"since": 1}'),
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
    assert run.files.driven() == '{"since": 1}'
    assert heard == ["first", "second", "third", "x" * PART, "y" * PART, "without an end"]
    assert json.loads(run.files.result() or "") == {"epoch": 3}
    assert next(steps, None) is None
    assert len(far.copy.artifacts.names(far.copy.place)) == 6, "three parts, the state, the result and the note"


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


@contextmanager
def held_far_away(config: Path, process: int, clock: Callable[[], int]) -> Iterator[Lease]:
    """The lease of the pipeline, held by a process on the other host."""
    lease = Lease(lease_of(config), "stream", clock)
    lease.row = replace(lease.row, host=AWAY, process=process)
    with lease:
        yield lease


@pytest.mark.long
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
        planted.setattr("tidegate.pipelines.ledger.host.system_clock", lambda: now[0])
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
    """Airflow ends it as soon as its worker, which was cut off, can reach it again."""
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


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    return stand_in(tmp_path)


@pytest.mark.parametrize("has_handle", [True, False])
@pytest.mark.parametrize("code", [0, 3])
def test_the_task_on_another_worker_takes_the_outcome_of_the_command_that_the_first_one_started(
    code: int, has_handle: bool, here: Path, interpreter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the first worker died before Airflow had the handle: the files of the earlier try say where it runs."""
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


@pytest.mark.parametrize(
    "noted",
    [
        b"cut",
        b"{}",
        b'{"exit_code": null, "log_size": 0, "handle": {"newer": 1}}',
        "another place",
        "a process of this host",
    ],
    ids=str,
)
def test_a_note_that_no_supervisor_of_ours_wrote_is_passed_over(noted: bytes | str, here: Path, tmp_path: Path) -> None:
    """Whoever may write to the artifacts could name a process of this host, which the task would then kill when it
    ends.
    """
    far = FarRun(here, tmp_path / "away")
    far.copying.beat()
    hosts = Hosts.of(str(here), "visits")
    assert hosts.running_try(TASK) is not None
    handle = far.handle.to_dict()
    if noted == "another place":
        handle["place"] = "runs/of/another/task/1"
    elif noted == "a process of this host":
        this = psutil.Process()
        handle |= {"host": this_host(), "pid": this.pid, "started": this.create_time(), "folder": str(tmp_path)}
    content = noted if isinstance(noted, bytes) else json.dumps({"exit_code": None, "log_size": 0, "handle": handle})
    assert hosts.artifacts is not None
    hosts.artifacts.write(f"{far.copy.place}/state.json", content if isinstance(content, bytes) else content.encode())
    assert hosts.running_try(TASK) is None


def test_a_run_of_this_host_is_found_by_its_supervisor(here: Path, interpreter: str) -> None:
    """Its worker died before Airflow had the handle."""
    task = operator(here, interpreter, "stream", "wait")
    task._try = 1
    run = task._run_of(task.submit_job(in_airflow(1)))
    try:
        found = wait_until(lambda: Hosts.of(str(here), "visits").running_try(TASK), "its first sign of life")
        assert found.handle == run.handle
    finally:
        run.stop()


@pytest.mark.long
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
