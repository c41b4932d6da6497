"""A real Airflow for one project, embedded: its own home folder, SQLite, free ports, a real scheduler.

It is for the demo and for tests. Everything it starts ends with it, including runs of `tidegate`.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import psutil

from tidegate.pipelines.errors import TidegateError

if TYPE_CHECKING:
    import httpx

USER = "admin"
_STARTUP_SECONDS = 600.0
_POLL_SECONDS = 0.5
_COLLISION_SECONDS = 20.0
_DATABASE_ERROR = "Database error"
_COMMANDS_END_WITHIN = 30.0
_ANSWER_SECONDS = 120.0
"""Timeout of a call in seconds: on a busy machine, the first calls wait for half a minute."""
# Log servers would listen on every address of the machine. Airflow's page reads the log files instead.
_OPTIONS = dict.fromkeys(("scheduler", "triggerer", "celery worker"), ("--skip-serve-logs",))


@dataclass
class EmbeddedAirflow:
    """Airflow's processes, and a client of their API.

    Args:
        home: AIRFLOW_HOME, used by nothing else.
        dags: folder of DAG files.
        slots: number of tasks that may run at once.
        triggerer: True to start a triggerer, for deferrable tasks.
        settings: further environment variables of Airflow.
    """

    home: Path
    dags: Path
    slots: int = 2
    triggerer: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    port: int = field(init=False)
    password: str = field(init=False)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)
    _client: httpx.Client | None = field(default=None, init=False)

    def __enter__(self) -> EmbeddedAirflow:
        try:
            self.start()
            self.start_component("scheduler")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Return the address of Airflow's page."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Create the database, start all processes except the scheduler, and wait until the API answers.

        Raises:
            TidegateError: a process ended, or the API did not answer in time; the message names the log.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        self.port, self.password = free_port(), secrets.token_urlsafe(12)
        passwords = self.home / "passwords.json"
        passwords.touch(mode=0o600)
        passwords.write_text(json.dumps({USER: self.password}))
        migrated = subprocess.run(
            [*_airflow(), "db", "migrate"], env=self.environment(), capture_output=True, text=True, check=False
        )
        if migrated.returncode:
            raise TidegateError(f"Airflow's database can't be created: {migrated.stderr.strip().splitlines()[-1:]}")
        for component in ("api-server", "dag-processor", *(["triggerer"] if self.triggerer else [])):
            self.start_component(component)
        self._wait_for("Airflow's API", self.is_up)

    def start_component(self, component: str) -> None:
        """Start one of Airflow's processes, such as `scheduler` or `celery worker`, in its own session."""
        arguments = [*component.split(), *_OPTIONS.get(component, ())]
        if component == "api-server":
            arguments += ["--port", str(self.port)]
        with (self.home / f"{component}.log").open("ab") as log:
            self._processes[component] = subprocess.Popen(
                [*_airflow(), *arguments],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill_component(self, component: str) -> None:
        """Kill one of Airflow's processes and its children, as in a crash."""
        _end([self._processes.pop(component)], signal.SIGKILL)

    def restart_ended(self) -> list[str]:
        """Restart the processes of Airflow that have ended, as a supervisor would, and return their names."""
        ended = [component for component, started in self._processes.items() if started.poll() is not None]
        for component in ended:
            self.start_component(component)
        return ended

    def kill_worker(self, task_instance: str) -> None:
        """Kill the executor's process that runs a task instance, and the task.

        Its command has its own session, and ends because the task has.

        Raises:
            TidegateError: no worker runs it.
        """
        scheduler = psutil.Process(self._processes["scheduler"].pid)
        # The executor writes the instance's id into the title of the process.
        busy = [worker for worker in scheduler.children() if task_instance in " ".join(worker.cmdline())]
        if not busy:
            raise TidegateError(f"no worker runs task instance {task_instance}")
        session = {member.pid for member in _session(scheduler.pid)}
        for member in [member for worker in busy for member in (worker, *worker.children(recursive=True))]:
            if member.pid in session:
                _signal(member, signal.SIGKILL)

    def stop(self) -> None:
        """End all processes. The commands of tasks end with them."""
        if self._client is not None:
            self._client.close()
            self._client = None
        below = [child for started in self._processes.values() for child in _below(started.pid)]
        _end(list(self._processes.values()), signal.SIGTERM)
        self._processes.clear()
        _, left = psutil.wait_procs(below, timeout=_COMMANDS_END_WITHIN)
        for process in left:
            _signal(process, signal.SIGKILL)

    def environment(self) -> dict[str, str]:
        """The environment of Airflow's processes."""
        return {
            **os.environ,
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": str(self.slots),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "SCARF_ANALYTICS": "false",
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.settings,
        }

    # --- API ---------------------------------------------------------------------------------

    def call(self, method: str, path: str, **options: Any) -> Any:
        """Call Airflow's API (v2), and return its answer.

        SQLite has one writer at a time. If two collide, Airflow rolls back and answers with a database error, and the
        call is retried for some seconds.

        Raises:
            TidegateError: Airflow answers with an error; the message has its text.
        """
        deadline = time.monotonic() + _COLLISION_SECONDS
        answer = self._authorised().request(method, f"/api/v2/{path}", **options)
        while answer.is_server_error and _DATABASE_ERROR in answer.text and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            answer = self._authorised().request(method, f"/api/v2/{path}", **options)
        if answer.is_error:
            raise TidegateError(f"Airflow answered {answer.status_code} to {method} {path}: {answer.text[:500]}")
        return answer.json() if answer.content else None

    def is_up(self) -> bool:
        """Return True if the API answers and reaches its database."""
        import httpx

        try:
            answer = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=5)
        except httpx.TransportError:
            return False
        return answer.is_success and bool(answer.json()["metadatabase"]["status"] == "healthy")

    def wait_for_dags(self, names: list[str]) -> None:
        """Wait until Airflow has parsed these DAGs.

        Raises:
            TidegateError: a DAG file can't be imported, or the DAGs don't appear in time.
        """

        def are_parsed() -> bool:
            errors = self.call("GET", "importErrors")["import_errors"]
            if errors:
                raise TidegateError(
                    f"a DAG file can't be imported: {errors[0]['stack_trace'].strip().splitlines()[-1]}"
                )
            return set(names) <= {dag["dag_id"] for dag in self.call("GET", "dags", params={"limit": 100})["dags"]}

        self._wait_for(f"DAGs {names}", are_parsed)

    def create_backfill(self, dag: str, first: datetime, last: datetime, max_active_runs: int = 2) -> int:
        """Create runs for every logical date from `first` to `last`, both inclusive, and return the backfill's id.

        Call this before the scheduler is started. With SQLite, their writes collide and the backfill is retried.
        """
        self.call("PATCH", f"dags/{dag}", json={"is_paused": False})
        request = {
            "dag_id": dag,
            "from_date": first.isoformat(),
            "to_date": last.isoformat(),
            # Runs depend on past runs, so existing runs can't be skipped, which is the default.
            "reprocess_behavior": "failed",
            "max_active_runs": max_active_runs,
        }
        created: list[int] = []

        def create() -> bool:
            answer = self._authorised().post("/api/v2/backfills", json=request)
            if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
                self.cancel_backfills(dag)
                return False
            if answer.is_error:
                raise TidegateError(f"Airflow can't create a backfill of {dag}: {answer.text[:500]}")
            created.append(int(answer.json()["id"]))
            return True

        self._wait_for(f"the backfill of {dag}", create)
        return created[0]

    def cancel_backfills(self, dag: str) -> None:
        """Cancel the unfinished backfills that a collision left behind."""
        for left in self.call("GET", "backfills", params={"dag_id": dag})["backfills"]:
            if left["completed_at"] is None:
                self.call("PUT", f"backfills/{left['id']}/cancel")

    def runs_of(self, dag: str) -> list[dict[str, Any]]:
        """Return the runs of a DAG by logical date."""
        answer = self.call("GET", f"dags/{dag}/dagRuns", params={"limit": 400, "order_by": "logical_date"})
        runs: list[dict[str, Any]] = answer["dag_runs"]
        return runs

    def tasks_of(self, dag: str, run: str) -> list[dict[str, Any]]:
        """Return the task instances of a run."""
        tasks: list[dict[str, Any]] = self.call("GET", f"dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return tasks

    def _authorised(self) -> httpx.Client:
        if self._client is None:
            import httpx

            token = httpx.post(
                f"{self.url}/auth/token", json={"username": USER, "password": self.password}, timeout=30
            ).raise_for_status()
            headers = {"Authorization": f"Bearer {token.json()['access_token']}"}
            self._client = httpx.Client(base_url=self.url, headers=headers, timeout=_ANSWER_SECONDS)
        return self._client

    def _wait_for(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _STARTUP_SECONDS
        while not ready():
            for component, started in self._processes.items():
                if started.poll() is not None:
                    raise TidegateError(f"Airflow's {component} ended; see {self.home / f'{component}.log'}")
            if time.monotonic() > deadline:
                raise TidegateError(
                    f"{what} did not appear within {_STARTUP_SECONDS:.0f} s; see the logs in {self.home}"
                )
            time.sleep(_POLL_SECONDS)


def _airflow() -> list[str]:
    return [sys.executable, "-m", "airflow"]


def free_port() -> int:
    """Return a free port on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(started: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    """Signal every process of these sessions, and kill those that are still alive after ten seconds."""
    group = [member for leader in started for member in _session(leader.pid)]
    for member in group:
        _signal(member, number)
    _, left = psutil.wait_procs(group, timeout=10)
    for member in left:
        _signal(member, signal.SIGKILL)
    psutil.wait_procs(left, timeout=10)
    for leader in started:
        leader.wait()


def _below(process: int) -> list[psutil.Process]:
    """Return all processes that a process started, directly or not."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process).children(recursive=True)
    return []


def _session(leader: int) -> list[psutil.Process]:
    """Return the processes of a session, by the id of its first process."""
    processes = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == leader:
                processes.append(process)
    return processes


def _signal(process: psutil.Process, number: int) -> None:
    """Signal a process that may already have ended."""
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
