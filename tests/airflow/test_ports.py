"""The ports of the embedded Airflow are on loopback, and its page wants a log-in."""

from __future__ import annotations

from ipaddress import ip_address

import httpx
import psutil
import pytest

from tidegate.pipelines.airflow.embedded import EmbeddedAirflow

pytestmark = pytest.mark.airflow


def processes_of(airflow: EmbeddedAirflow) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("AIRFLOW_HOME") == str(airflow.home):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_every_port_of_airflow_is_on_loopback_and_no_server_of_logs_runs(airflow: EmbeddedAirflow) -> None:
    processes = processes_of(airflow)
    commands = " ".join(" ".join(process.cmdline()) for process in processes)
    assert all(part in commands for part in ("scheduler", "triggerer", "dag-processor"))
    ports = {
        (each.laddr.ip.removeprefix("::ffff:"), each.laddr.port)
        for process in processes
        for each in process.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }
    assert airflow.port in {port for _, port in ports}
    assert {ip for ip, _ in ports if not ip_address(ip).is_loopback} == set()
    assert not {8793, 8794} & {port for _, port in ports}


@pytest.mark.parametrize("path", ["", "links.js", "pipelines", "pipelines/sessions", "pipelines/sessions/reports/2"])
def test_the_page_in_airflow_wants_a_log_in(airflow: EmbeddedAirflow, path: str) -> None:
    assert httpx.get(f"{airflow.url}/tidegate/{path}", timeout=30).status_code == 401
