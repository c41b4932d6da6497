"""Two hosts, each with its own Airflow scheduler, share one Postgres and one object store but no disk. The second host
has its own name, process ids and folders. Both run the tasks that they schedule (LocalExecutor).
"""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.dag_runs import begin, end_of
from tests.deployment.native import ROOT, Postgres, postgres_programs
from tests.running_airflow import QUICK_TO_NOTICE, SELDOM_PARSED
from tests.store.hosts import AWAY, driving, lease_of, project, unshared
from tests.store.server import running_server
from tests.waiting import wait_until
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow
from tidegate.pipelines.ledger.host import this_host
from tidegate.pipelines.ledger.lease import Holder
from tidegate.pipelines.run.stopping import stop_driver

pytestmark = [pytest.mark.airflow, pytest.mark.long, pytest.mark.timeout(1800)]

DAG = "visits__stream"

DAG_FILE = f"""from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from tidegate.pipelines.airflow.operator import TidegateOperator

ROOT = Path(__file__).parent.parent

with DAG("{DAG}", schedule=None):
    TidegateOperator(
        task_id="stream",
        arguments=["stream", "visits"],
        config=str(ROOT / "tidegate.toml"),
        pipeline="visits",
        command=str(ROOT / "tidegate"),
        retries=5,
        retry_delay=timedelta(seconds=1),
    )
"""

STAND_IN = f"""#!/bin/sh
# Called as `tidegate stream visits --output FILE`. It holds the lease until it is asked to end.
exec {sys.executable} -m tests.store.host_driver "$2" "$3" "$4"
"""

NAMED = """import os, socket, sys
socket.sethostname(sys.argv[1])
os.execv(sys.argv[2], sys.argv[2:])
"""


def host_folder(folder: Path, endpoint: str) -> Path:
    """Create the folders of a host (its copy of the project, and its DAGs), and return the project's tidegate.toml."""
    config = project(folder, "two-hosts", endpoint)
    (folder / "tidegate").write_text(STAND_IN)
    (folder / "tidegate").chmod(0o755)
    (folder / "dags").mkdir()
    (folder / "dags" / "visits.py").write_text(DAG_FILE)
    return config


@dataclass(frozen=True)
class Hosts:
    """Both hosts.

    Args:
        airflow: API, DAG processor and scheduler of this host.
        here: tidegate.toml of this host.
        there: that of the other one.
    """

    airflow: EmbeddedAirflow
    here: Path
    there: Path

    @contextmanager
    def other_scheduler(self) -> Iterator[subprocess.Popen[bytes]]:
        """The scheduler of the other host, which is killed with all its processes at the end of the body."""
        folder = self.there.parent
        environment = {
            **self.airflow.environment(),
            "AIRFLOW_HOME": str(folder / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        }
        words = [sys.executable, "-c", NAMED, AWAY, sys.executable, "-m", "airflow", "scheduler", "--skip-serve-logs"]
        with (folder / "scheduler.log").open("ab") as log:
            process = subprocess.Popen([*unshared(), *words], env=environment, stdout=log, stderr=log, cwd=folder)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def task(self, run: str) -> dict[str, Any]:
        (found,) = self.airflow.tasks_of(DAG, run)
        return found

    def stop_and_end(self, run: str) -> Any:
        """Ask the driver to stop, and return the result of its task."""
        assert stop_driver(self.here, "visits", 120) is not None
        assert end_of(self.airflow, DAG, run)["state"] == "success"
        path = f"dags/{DAG}/dagRuns/{run}/taskInstances/stream/xcomEntries/return_value"
        return self.airflow.call("GET", path, params={"deserialize": "false"})["value"]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    unshared()
    postgres_programs()
    folder = tmp_path_factory.mktemp("hosts")
    with running_server() as server, Postgres() as postgres:
        server.make_bucket("two-hosts")
        here, there = (host_folder(folder / name, server.endpoint) for name in ("here", "there"))
        with EmbeddedAirflow(
            home=here.parent / "airflow",
            dags=here.parent / "dags",
            settings={
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": postgres.url,
                "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
                "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
                "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(os.urandom(32)).decode(),
                "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
                **QUICK_TO_NOTICE,
                **SELDOM_PARSED,
            },
        ) as airflow:
            airflow.wait_for_dags([DAG])
            yield Hosts(airflow, here, there)
    shutil.rmtree(folder, ignore_errors=True)


def driver_on(hosts: Hosts, is_here: bool) -> Holder:
    """Return the running driver, once there is one on this host or on the other one."""

    def found() -> Holder | None:
        row = driving(hosts.here)
        return row if row is not None and (row.host == this_host()) == is_here else None

    row: Holder = wait_until(found, f"a driver {'here' if is_here else 'on the other host'}")
    return row


def test_a_task_starts_again_on_the_host_that_is_left_whether_the_other_one_lost_its_scheduler_or_died(
    hosts: Hosts,
) -> None:
    first = begin(hosts.airflow, DAG)
    row = driver_on(hosts, is_here=True)
    with hosts.other_scheduler() as other:
        # The tasks of this host die with its scheduler, and so do their commands.
        hosts.airflow.kill_component("scheduler")
        again = driver_on(hosts, is_here=False)
        assert again.acquired_at >= row.acquired_at
        task = hosts.task(first)
        assert (task["try_number"] > 1, task["hostname"]) == (True, AWAY)
        assert hosts.stop_and_end(first)["driver"].startswith(AWAY)

        second = begin(hosts.airflow, DAG)
        away = driver_on(hosts, is_here=False)
        other.kill()
        other.wait()
    hosts.airflow.start_component("scheduler")
    again = driver_on(hosts, is_here=True)
    assert again.acquired_at >= away.acquired_at
    assert hosts.task(second)["try_number"] > 1
    assert hosts.stop_and_end(second)["driver"] == this_host()
    lease = driving(hosts.here)
    assert lease is None, lease_of(hosts.here)
