"""The processes of docker-compose.yml without containers: Postgres and Spark's standalone cluster."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.waiting import wait_until
from tidegate.pipelines.engine.spark.session import SECRET

ROOT = Path(__file__).parent.parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def postgres_programs() -> Path:
    """Folder of initdb and related programs. Without them the test is skipped, but fails in CI, which installs them."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        raise missing.Exception("no Postgres here: apt-get install postgresql")
    return found[-1].parent


@dataclass
class Postgres:
    """A separate Postgres with a database `airflow`, in a folder that its user can enter whatever pytest does. pytest
    closes its folders to other users at the start of each run, and a restarted server needs access to its own.
    """

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="postgres-")), init=False)
    port: int = field(default_factory=free_port)
    password: str = field(default_factory=lambda: secrets.token_hex(12))
    _server: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """For SQLAlchemy."""
        return f"postgresql+psycopg2://airflow:{self.password}@127.0.0.1:{self.port}/airflow"

    @property
    def environment(self) -> dict[str, str]:
        """Return the address and password for Postgres's own programs, which come first on the path."""
        path = os.pathsep.join((str(postgres_programs()), os.environ["PATH"]))
        return {**self._secret, "PATH": path, "PGHOST": "127.0.0.1", "PGPORT": str(self.port)}

    def __enter__(self) -> Postgres:
        (self.folder / "password").write_text(self.password)
        if self._as_user:
            for path in (self.folder, self.folder / "password"):
                shutil.chown(path, "postgres", "postgres")
        options = ["-U", "airflow", "-A", "scram-sha-256", "--pwfile", str(self.folder / "password")]
        self._run("initdb", *options, "-D", str(self.folder / "data"))
        self.start()
        return self

    def __exit__(self, *ignored: object) -> None:
        if self._server is not None:
            self.stop()
        shutil.rmtree(self.folder)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = ["-D", str(self.folder / "data"), "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.folder)]
        with (self.folder / "log").open("a") as log:
            self._server = subprocess.Popen(
                [*self._as_user, str(postgres_programs() / "postgres"), *options],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        wait_until(lambda: self._answers("pg_isready"), "Postgres")
        if not self._answers("psql", "airflow", "-c", "SELECT 1"):
            self._run("createdb", *self._address, "airflow", environment=self._secret)

    def stop(self) -> None:
        """Postgres's "fast" shutdown doesn't wait until all clients have disconnected."""
        assert self._server is not None
        self._server.send_signal(signal.SIGINT)
        self._server.wait(30)
        self._server = None

    @property
    def _as_user(self) -> list[str]:
        # initdb refuses to run as root.
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []

    @property
    def _address(self) -> list[str]:
        return ["-h", "127.0.0.1", "-p", str(self.port), "-U", "airflow"]

    @property
    def _secret(self) -> dict[str, str]:
        return {**os.environ, "PGPASSWORD": self.password}

    def _answers(self, program: str, *arguments: str) -> bool:
        command = [str(postgres_programs() / program), *self._address, *arguments]
        return subprocess.run(command, capture_output=True, check=False, env=self._secret).returncode == 0

    def _run(self, program: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        command = [*self._as_user, str(postgres_programs() / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, env=environment)


@dataclass
class SparkCluster:
    """A standalone master and its workers, started as the containers start them.

    Args:
        folder: a new folder, for logs and the workers' files.
        workers: number of workers, each with one core.
        host: address at which its processes reach each other.
        secret: secret of these processes, and of drivers.
    """

    folder: Path
    workers: int = 2
    host: str = "127.0.0.1"
    secret: str = field(default_factory=lambda: secrets.token_hex(16))
    port: int = field(default_factory=free_port)
    page_port: int = field(default_factory=free_port)
    _started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)

    @property
    def master(self) -> str:
        """Its URL."""
        return f"spark://{self.host}:{self.port}"

    def state(self) -> dict[str, Any]:
        """Return the content of the master's page: workers, and applications that run or have ended."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.page_port}/json/", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def __enter__(self) -> SparkCluster:
        self.folder.mkdir()
        self._start(
            "master", "master", "--host", self.host, "--port", str(self.port), "--webui-port", str(self.page_port)
        )
        wait_until(lambda: self._alive() >= 0, "Spark's master")
        for number in range(self.workers):
            options = ["--host", self.host, "--cores", "1", "--memory", "1g", "--webui-port", str(free_port())]
            self._start(f"worker-{number}", "worker", *options, self.master)
        wait_until(lambda: self._alive() == self.workers, "Spark's workers")
        return self

    def __exit__(self, *ignored: object) -> None:
        for process in reversed(self._started.values()):
            process.terminate()
        for process in self._started.values():
            process.wait(30)

    @property
    def at_work(self) -> list[int]:
        """Return the workers whose executors have begun one of our tasks; only those have Python."""
        return [number for number in range(self.workers) if any(map(_is_python_task, self._below(number)))]

    def _below(self, number: int) -> list[psutil.Process]:
        return psutil.Process(self._started[f"worker-{number}"].pid).children(recursive=True)

    @property
    def processes(self) -> list[psutil.Process]:
        """Return the processes of the cluster, including those that they started."""
        started = [psutil.Process(process.pid) for process in self._started.values()]
        return [*started, *(below for process in started for below in process.children(recursive=True))]

    def kill_worker(self, number: int) -> None:
        """Kill a worker and its executors together, as if its machine were lost."""
        below, started = self._below(number), self._started.pop(f"worker-{number}")
        for process in (started, *below):
            process.kill()
        started.wait()

    def _start(self, name: str, *arguments: str) -> None:
        environment = {
            **os.environ,
            # As in the image, the environment's programs come first.
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            SECRET: self.secret,
            "SPARK_WORKER_DIR": str(self.folder / "work"),
        }
        with (self.folder / f"{name}.log").open("w") as log:
            self._started[name] = subprocess.Popen(
                [str(ROOT / "deployment" / "spark"), *arguments],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def _alive(self) -> int:
        try:
            return int(self.state()["aliveworkers"])
        except OSError:
            return -1


def _is_python_task(process: psutil.Process) -> bool:
    try:
        return "pyspark.daemon" in process.cmdline()
    except psutil.NoSuchProcess:
        return False
