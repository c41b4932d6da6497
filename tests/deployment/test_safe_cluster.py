"""A standalone cluster as deployment/ starts it: without the secret, a client that can reach it can't do anything. It
listens on an address that other machines can reach, if there is one.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.deployment.native import ROOT, SparkCluster
from tidegate.pipelines.engine.spark.session import SECRET

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

DRIVER = """
import sys
from pathlib import Path

import psutil

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.engine.spark.session import start_session, stop_session

folder, master, host, is_safe = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "safe"
settings = {
    "spark.master": master,
    "spark.driver.host": host,
    "spark.driver.bindAddress": host,
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.cores.max": 2,
    **({} if is_safe else {"spark.authenticate": False}),
}
session = start_session(Config(root=folder, spark=settings), "try")
rows = session.range(1000, numPartitions=4).repartition(3).mapInArrow(lambda parts: parts, "id long").count()
lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
print("rows", rows, "jvms", sum("org.apache.spark" in line for line in lines))
secret = sys.stdin.readline().strip()
print("shown", sum(secret in line for line in lines))
for name in ("spark.network.crypto.enabled", "spark.network.crypto.cipher", "spark.io.encryption.enabled"):
    print(name, session.conf.get(name))
stop_session(session)
"""


def address() -> str:
    """An address of this machine that others can reach; loopback if it has none."""
    found = [
        each.address for names in psutil.net_if_addrs().values() for each in names if each.family == socket.AF_INET
    ]
    return next((each for each in found if not each.startswith("127.")), "127.0.0.1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("safe") / "spark", host=address()) as spark:
        yield spark


def driver(cluster: SparkCluster, folder: Path, secret: str | None, how: str = "safe") -> tuple[int, str]:
    """Run a small job as a driver with a secret, and return its exit code and all its output."""
    environment = {name: text for name, text in os.environ.items() if name != SECRET}
    environment |= {"PYTHONPATH": str(ROOT), **({} if secret is None else {SECRET: secret})}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(folder), cluster.master, cluster.host, how],
        input=cluster.secret,
        capture_output=True,
        text=True,
        env=environment,
        timeout=400,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr + "".join(file.read_text() for file in folder.rglob("*.log"))


def test_port_6066_runs_nothing_and_the_pages_are_not_for_others(cluster: SparkCluster) -> None:
    listening = {
        (each.laddr.ip.removeprefix("::ffff:"), each.laddr.port)
        for process in cluster.processes
        for each in process.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }
    assert (cluster.host, cluster.port) in listening
    assert 6066 not in {port for _, port in listening}
    assert {ip for ip, port in listening if port == cluster.page_port} == {"127.0.0.1"}
    for host in {cluster.host, "127.0.0.1"}:
        request = urllib.request.Request(f"http://{host}:6066/v1/submissions/create", b"{}", method="POST")
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(request, timeout=5)


def test_a_driver_with_the_secret_works_over_encrypted_connections_and_shows_it_nowhere(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    code, told = driver(cluster, tmp_path, cluster.secret)
    assert code == 0, told
    assert "rows 1000 jvms" in told
    assert "shown 0" in told, "no command line of any process has the secret"
    assert "spark.network.crypto.enabled true" in told
    assert "spark.io.encryption.enabled true" in told
    left = [file for folder in (tmp_path, cluster.folder) for file in folder.rglob("*") if file.is_file()]
    assert [file for file in left if cluster.secret.encode() in file.read_bytes()] == []


def test_without_the_secret_a_driver_does_not_start_and_with_a_wrong_one_the_master_refuses_it(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    code, told = driver(cluster, tmp_path / "none", None)
    assert code != 0
    assert f"set {SECRET} to the secret of the cluster" in told
    for secret, how in (("a wrong secret", "safe"), (None, "open")):
        code, told = driver(cluster, tmp_path / how, secret, how)
        assert code != 0
        assert "rows" not in told
        assert "All masters are unresponsive" in told or "Authentication failed" in told, told[-3000:]
    assert cluster.state()["completedapps"] == [] or len(cluster.state()["completedapps"]) == 1
