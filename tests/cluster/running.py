"""The cluster of docker-compose.yml, started for real: its services, Airflow's API, and what its tables contain."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pandas as pd

from tests.cluster.bases import ROOT
from tests.cluster.engine import HERE, Engine
from tests.waiting import wait_until
from tidegate.pipelines.examples.flights.source import FIRST_DAY

PROJECT = "tidegate-test"
STAYING = (
    "postgres",
    "store",
    "airflow-api-server",
    "airflow-scheduler",
    "airflow-dag-processor",
    "airflow-triggerer",
    "spark-master",
    "spark-worker-1",
    "spark-worker-2",
)
WORKERS = ("spark-worker-1", "spark-worker-2")
START_SECONDS = 600.0
RUN_SECONDS = 600.0
READ_RESULTS = """
import sys
from pathlib import Path

from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import read_table

tables = PipelineTables(warehouse_of(load_config(Path("tidegate.toml"))), sys.argv[1])
found = read_table(tables.warehouse, tables.open(results.NAME))
frame = results.latest(found, sys.argv[2].split(",")).to_pandas()
print(frame.to_json(orient="records", date_format="iso", date_unit="ms"))
"""
HAS_TASKS = """
import psutil

print(any("pyspark.daemon" in (process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])))
"""


def new_secrets() -> dict[str, str]:
    """Return the variables of .env, with secrets of their own."""
    done = subprocess.run([ROOT / "deployment" / "secrets"], capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


@dataclass
class Cluster:
    """The services of one compose project.

    Args:
        engine: the container engine.
        folder: folder of the project's .env, and of the disk of its tables.
        port: port of Airflow's page on this machine.
    """

    engine: Engine
    folder: Path
    port: int
    env: dict[str, str] = field(default_factory=dict)
    _token: str | None = field(default=None, init=False)

    # --- services ----------------------------------------------------------------------------

    def write_env(self, **changed: str) -> None:
        """Write .env with changed values."""
        self.env |= changed
        (self.folder / "env").write_text("".join(f"{name}={value}\n" for name, value in self.env.items()))

    def compose(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the compose client on docker-compose.yml with the sizes of the tests, and return its output."""
        files = ("-f", str(ROOT / "docker-compose.yml"), "-f", str(HERE / "override.yml"))
        project = ("-p", PROJECT, "--env-file", str(self.folder / "env"))
        clean = {name: value for name, value in os.environ.items() if name not in self.env}
        done = subprocess.run(
            [*self.engine.compose, *project, *files, *arguments],
            env={**clean, **self.engine.environment},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, f"compose {arguments}: {done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return done

    def up(self) -> None:
        """Start everything with the values of .env, and wait until it is healthy."""
        # The secret that signs logins may be another one.
        self._token = None
        self.compose("up", "-d", "--no-build")
        self.wait_for_health()

    def down(self, *, volumes: bool = False) -> None:
        self.compose("down", *(["--volumes"] if volumes else []))

    def id_of(self, service: str) -> str:
        """Return the id of a service's container, or an empty text if there is none."""
        labels = (f"project={PROJECT}", f"service={service}")
        filters = [word for label in labels for word in ("--filter", f"label=com.docker.compose.{label}")]
        return self.engine.run("ps", "--all", "--quiet", "--no-trunc", *filters).stdout.strip()

    def inspect(self, service: str) -> dict[str, Any]:
        """Return what the engine says about a service's container."""
        found: dict[str, Any] = json.loads(self.engine.run("inspect", self.id_of(service)).stdout)[0]
        return found

    def health(self, *services: str) -> dict[str, str]:
        """Return the state of health of services, or of all that stay."""
        found = {}
        for name in services or STAYING:
            container = self.id_of(name)
            state = json.loads(self.engine.run("inspect", container).stdout)[0]["State"] if container else {}
            health = state.get("Health") or state.get("Healthcheck") or {}
            found[name] = health.get("Status", "") if state.get("Status") == "running" else str(state.get("Status"))
        return found

    def wait_for_health(self, *services: str) -> None:
        """Wait until services, or all that stay, are healthy."""

        def all_healthy() -> bool:
            return set(self.health(*services).values()) == {"healthy"}

        try:
            wait_until(all_healthy, "health of all services", START_SECONDS, between_looks=3)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.health(*services)}") from error

    def exec(self, service: str, *command: str, check: bool = True, user: str | None = None) -> str:
        """Run a command in a service's container, and return its output."""
        as_user = ["--user", user] if user else []
        done = self.engine.run("exec", *as_user, self.id_of(service), *command, check=check)
        return done.stdout + ("" if check else done.stderr)

    def python(self, service: str, code: str, *arguments: str, check: bool = True) -> str:
        """Run Python code in a service's container."""
        return self.exec(service, "python", "-c", code, *arguments, check=check)

    def crash(self, service: str) -> None:
        """Kill the first process of a container from outside, and wait until the engine has started it again."""
        before = self.inspect(service)["State"]
        os.kill(before["Pid"], 9)

        def is_again() -> bool:
            state = self.inspect(service)["State"]
            return bool(state["Running"]) and state["Pid"] not in (0, before["Pid"])

        wait_until(is_again, f"the restart of {service}", 120)

    # --- Airflow's API, as in EmbeddedAirflow ------------------------------------------------

    @property
    def url(self) -> str:
        """Address of Airflow's page."""
        return f"http://localhost:{self.port}"

    def password(self, user: str = "admin") -> str:
        """Return a user's password, as the pages tell to read it."""
        found = self.exec("airflow-api-server", "cat", "/opt/airflow/passwords/passwords.json")
        return str(json.loads(found)[user])

    def token(self, user: str = "admin") -> str:
        login = {"username": user, "password": self.password(user)}
        answer = httpx.post(f"{self.url}/auth/token", json=login, timeout=60).raise_for_status()
        return str(answer.json()["access_token"])

    def call(self, method: str, path: str, **options: Any) -> Any:
        """Call Airflow's API (v2) as the administrator, and return its answer."""
        self._token = self._token or self.token()
        headers = {"Authorization": f"Bearer {self._token}", **options.pop("headers", {})}
        answer = httpx.request(method, f"{self.url}/api/v2/{path}", headers=headers, timeout=120, **options)
        assert not answer.is_error, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        return answer.json() if answer.content else None

    def asked(self, method: str, path: str, **options: Any) -> Any:
        """Call Airflow's API, and return None if it does not answer, as while one of its services is away."""
        try:
            return self.call(method, path, **options)
        except (AssertionError, httpx.HTTPError):
            return None

    def runs_of(self, dag: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", f"dags/{dag}/dagRuns", params={"limit": 100})["dag_runs"]
        return found

    def tasks_of(self, dag: str, run: str) -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = self.call("GET", f"dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return tasks

    def unpause(self, dag: str, *, paused: bool = False) -> None:
        self.call("PATCH", f"dags/{dag}", json={"is_paused": paused})

    def begin(self, dag: str, **conf: Any) -> str:
        """Trigger a run with these Params, and return its id."""
        self.unpause(dag)
        made = self.call("POST", f"dags/{dag}/dagRuns", json={"logical_date": None, "conf": conf})
        return str(made["dag_run_id"])

    def begin_day(self, pipeline: str, number: int) -> str:
        """Trigger the backfill of a day, counted from the first one, and return the run's id."""
        start = datetime.combine(FIRST_DAY, datetime.min.time(), UTC) + timedelta(days=number)
        interval = {"interval_start": start.isoformat(), "interval_end": (start + timedelta(days=1)).isoformat()}
        return self.begin(f"{pipeline}__backfill", **interval)

    def end_of(self, dag: str, run: str, patience: float = RUN_SECONDS) -> dict[str, Any]:
        """Wait until a run has ended, whatever answers meanwhile, and return it."""

        def ended() -> dict[str, Any] | None:
            found = self.asked("GET", f"dags/{dag}/dagRuns/{run}")
            return found if found and found["state"] in ("success", "failed") else None

        found: dict[str, Any] = wait_until(ended, f"the end of run {run} of {dag}", patience, between_looks=2)
        return found

    def log_of(self, dag: str, run: str, task: str) -> str:
        """Return the log of a task's last try as Airflow's page shows it: asked of the host that ran the task."""
        number = next(each["try_number"] for each in self.tasks_of(dag, run) if each["task_id"] == task)
        path = f"dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/{number}"
        return json.dumps(self.call("GET", path, headers={"Accept": "application/json"})["content"])

    # --- tables ------------------------------------------------------------------------------

    def tidegate(self, *arguments: str, check: bool = True) -> str:
        """Run a command of Tidegate where drivers run."""
        return self.exec("airflow-scheduler", "tidegate", *arguments, check=check)

    def results(self, pipeline: str, *key: str) -> pd.DataFrame:
        """Return the newest pane of each window, read inside the cluster."""
        rows = self.python("airflow-scheduler", READ_RESULTS, pipeline, ",".join(key))
        found = pd.DataFrame(json.loads(rows.strip().splitlines()[-1]))
        for name in ("window_start", "window_end"):
            found[name] = pd.to_datetime(found[name], utc=True)
        return found

    def wait_for_tasks(self) -> None:
        """Wait until executors work on tasks: only then a worker has Python's daemon."""
        wait_until(
            lambda: any("True" in self.python(name, HAS_TASKS, check=False) for name in WORKERS),
            "tasks on a worker",
            RUN_SECONDS,
            between_looks=0.5,
        )
