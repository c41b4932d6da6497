"""The ports of the embedded Airflow are bound to loopback, and its page requires a login."""

from __future__ import annotations

from ipaddress import ip_address

import httpx
import psutil
import pytest

from tidegate.pipelines.airflow.embedded import EmbeddedAirflow

pytestmark = pytest.mark.airflow

LISTEN = psutil.CONN_LISTEN


def processes_of(airflow: EmbeddedAirflow) -> list[psutil.Process]:
    """Return Airflow's processes and their children. Their environment can't identify them, because a process title
    overwrites it.
    """
    parents = [psutil.Process(started.pid) for started in airflow._processes.values()]
    return [*parents, *(child for parent in parents for child in parent.children(recursive=True))]


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    """Return the addresses and ports that a process listens on; none if it has ended."""
    try:
        sockets = process.net_connections("tcp")
    except psutil.NoSuchProcess:
        return set()
    return {(each.laddr.ip.removeprefix("::ffff:"), each.laddr.port) for each in sockets if each.status == LISTEN}


def test_every_port_of_airflow_is_on_loopback_and_no_server_of_logs_runs(airflow: EmbeddedAirflow) -> None:
    ports = set().union(*map(listening, processes_of(airflow)))
    assert airflow.port in {port for _, port in ports}
    assert {ip for ip, _ in ports if not ip_address(ip).is_loopback} == set()
    assert not {8793, 8794} & {port for _, port in ports}


@pytest.mark.parametrize("path", ["", "links.js", "pipelines", "pipelines/sessions", "pipelines/sessions/reports/2"])
def test_the_page_in_airflow_wants_a_log_in(airflow: EmbeddedAirflow, path: str) -> None:
    assert httpx.get(f"{airflow.url}/tidegate/{path}", timeout=30).status_code == 401
