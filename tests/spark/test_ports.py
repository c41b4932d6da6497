"""The ports of a session in local mode: no other machine can reach them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tidegate.pipelines.engine.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    """Return the addresses and ports at which a process accepts connections; none for one that has ended."""
    try:
        connections = process.net_connections("tcp")
    except psutil.Error:
        return set()
    return {
        (each.laddr.ip.removeprefix("::ffff:"), each.laddr.port)
        for each in connections
        if each.status == psutil.CONN_LISTEN
    }


def test_every_port_of_spark_and_of_its_python_processes_is_on_loopback(spark: SparkSession) -> None:
    assert spark.range(10).mapInArrow(lambda parts: parts, "id long").count() == 10, "Python workers have started"
    started = jvm.process()
    assert started is not None
    of_java = psutil.Process(started.pid)
    processes = [psutil.Process(), of_java, *of_java.children(recursive=True)]
    assert len(processes) > 2, "the daemon of the workers, at least"
    ports = {process.pid: listening(process) for process in processes}
    assert len(ports[of_java.pid]) >= 2, "the driver and its blocks"
    outside = {found for all_ in ports.values() for found in all_ if not ip_address(found[0]).is_loopback}
    assert outside == set()
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.authenticate") == "true", "nor does another user of this machine"


NAMELESS = """
import sys
from pathlib import Path

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.engine.spark.session import start_session, stop_session

session = start_session(Config(root=Path(sys.argv[1]), spark={"spark.master": "local[1]"}), "nameless")
print("rows", session.range(10).count())
stop_session(session)
"""


@pytest.mark.long
@pytest.mark.spark
def test_a_session_starts_on_a_machine_whose_name_has_no_address(tmp_path: Path) -> None:
    """As in the build of an image: the resolver can't find the name of the host."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("only root can give a process another host name")
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
    named = ["unshare", "--uts", "sh", "-c", 'hostname nowhere.invalid && exec "$@"', "sh"]
    done = subprocess.run(
        [*named, sys.executable, "-c", NAMELESS, str(tmp_path)],
        env=environment | {"PYTHONPATH": str(Path(__file__).parent.parent.parent), "TIDEGATE_SPARK_LOG": "stderr"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "rows 10" in done.stdout, done.stderr[-3000:]
