"""The processes of docker-compose.yml without containers: Postgres, and Spark's standalone cluster."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
PATIENCE_SECONDS = 90.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(found: Callable[[], Any], what: str, patience: float = PATIENCE_SECONDS) -> Any:
    """What comes in time."""
    deadline = time.monotonic() + patience
    while not (value := found()):
        assert time.monotonic() < deadline, f"{what} did not come in time"
        time.sleep(0.5)
    return value


def postgres_programs() -> Path:
    """The folder of Postgres's programs; without them the test is skipped, but fails in CI, which installs them."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        raise missing.Exception("no Postgres here: apt-get install postgresql")
    return found[-1].parent


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A Postgres of its own with a database `airflow`; the URL for SQLAlchemy."""
    programs = postgres_programs()
    # initdb refuses to run as root.
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    data, port, password = folder / "data", free_port(), secrets.token_hex(12)
    folder.mkdir()
    (folder / "password").write_text(password)
    if as_user:
        for path in (folder, folder / "password"):
            shutil.chown(path, "postgres", "postgres")
        for above in folder.parents:
            if above.stat().st_uid == 0 and not above.stat().st_mode & 0o001:
                above.chmod(above.stat().st_mode | 0o011)
    options = ["-U", "airflow", "-A", "scram-sha-256", "--pwfile", str(folder / "password"), "-D", str(data)]
    subprocess.run([*as_user, str(programs / "initdb"), *options], check=True, capture_output=True, cwd=folder)
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [
                *as_user,
                str(programs / "postgres"),
                "-D",
                str(data),
                "-p",
                str(port),
                "-h",
                "127.0.0.1",
                "-k",
                str(folder),
            ],
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
        )
    try:
        address = f"airflow:{password}@127.0.0.1:{port}"
        ready = [str(programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(port), "-U", "airflow"]
        wait_until(lambda: subprocess.run(ready, capture_output=True, check=False).returncode == 0, "Postgres")
        make = [str(programs / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "airflow", "airflow"]
        subprocess.run(make, check=True, env={**os.environ, "PGPASSWORD": password})
        yield f"postgresql+psycopg2://{address}/airflow"
    finally:
        # Postgres's "fast" shutdown: it does not wait until everybody has left.
        server.send_signal(signal.SIGINT)
        server.wait(30)


@contextmanager
def spark_cluster(folder: Path, workers: int = 2) -> Iterator[tuple[str, str]]:
    """A standalone master and its workers, as the containers start them; the master's URL and its page."""
    folder.mkdir()
    port, page = free_port(), free_port()
    environment = {
        **os.environ,
        # As in the image, where the environment's programs come first.
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> None:
        with (folder / f"{name}.log").open("w") as log:
            command = [str(ROOT / "deployment" / "spark"), *arguments]
            started.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True)
            )

    def alive() -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except OSError:
            return -1

    master = f"spark://127.0.0.1:{port}"
    try:
        start("master", "master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page))
        wait_until(lambda: alive() >= 0, "Spark's master")
        for number in range(workers):
            options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", str(free_port())]
            start(f"worker-{number}", "worker", *options, master)
        wait_until(lambda: alive() == workers, "Spark's workers")
        yield master, f"http://127.0.0.1:{page}"
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)
