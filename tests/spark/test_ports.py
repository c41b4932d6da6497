"""The ports of a session in local mode: no other machine can reach them."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

import psutil

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
