"""What docker-compose.yml promises about safety, tried from inside the containers."""

from __future__ import annotations

import json

import pytest

from tests.cluster.running import STAYING, Cluster

pytestmark = [pytest.mark.containers, pytest.mark.long, pytest.mark.timeout(3600)]

SPARK = ("spark-master", "spark-worker-1", "spark-worker-2")
CONNECT = """
import socket, sys

try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
    print("reached")
except OSError as error:
    print("not reached:", error)
"""


@pytest.mark.parametrize("service", STAYING)
def test_a_container_cannot_write_into_its_image(service: str, cluster: Cluster) -> None:
    for folder in ("/", "/usr/local/bin", "/etc"):
        assert "Read-only file system" in cluster.exec(service, "touch", f"{folder}/new", check=False, user="0")


@pytest.mark.parametrize("service", STAYING)
def test_a_process_is_not_root_has_no_capability_and_can_gain_none(service: str, cluster: Cluster) -> None:
    lines = cluster.exec(service, "cat", "/proc/1/status").splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    assert "0" not in status["Uid"] + status["Gid"]
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind][0], 16) == 0, kind
    assert status["NoNewPrivs"] == ["1"]


@pytest.mark.parametrize("service", SPARK)
def test_processes_of_spark_do_not_reach_postgres_or_airflow(service: str, cluster: Cluster) -> None:
    networks = {
        name: cluster.inspect(name)["NetworkSettings"]["Networks"] for name in ("postgres", "airflow-api-server")
    }
    for other, port in (("postgres", 5432), ("airflow-api-server", 8080)):
        addresses = [network["IPAddress"] for network in networks[other].values()]
        for host in (other, *addresses):
            assert cluster.python(service, CONNECT, host, str(port)).startswith("not reached"), (host, port)
    assert cluster.python(service, CONNECT, "store", "7070") == "reached\n", "the check itself works"


@pytest.mark.parametrize("service", SPARK)
def test_processes_of_spark_have_the_secret_of_spark_and_no_other(service: str, cluster: Cluster) -> None:
    environments = cluster.exec(
        service, "sh", "-c", "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'", check=False
    )
    secrets = {name for name in cluster.env if cluster.env[name] in environments and len(cluster.env[name]) > 10}
    assert secrets == {"SPARK_AUTH_SECRET"}


def test_the_user_of_the_store_administers_nothing(cluster: Cluster) -> None:
    def asked(key: str, secret: str, *request: str) -> str:
        login = ("--access", cluster.env[key], "--secret", cluster.env[secret])
        address = ("--endpoint-url", "http://localhost:7070", "--region", "us-east-1")
        return cluster.exec("store", "versitygw", "admin", *login, *address, *request, check=False)

    user, root = ("STORE_ACCESS_KEY", "STORE_SECRET_KEY"), ("STORE_ROOT_ACCESS_KEY", "STORE_ROOT_SECRET_KEY")
    assert cluster.env["STORE_ACCESS_KEY"] in asked(*root, "list-users")
    more = ("create-user", "--access", "more", "--secret", "more", "--role", "admin")
    for request in (("list-users",), more):
        assert "AccessDenied" in asked(*user, *request), request
    assert "more" not in asked(*root, "list-users")


def test_only_the_port_of_airflows_page_is_open_and_only_on_this_machine(cluster: Cluster) -> None:
    published = {}
    for service in STAYING:
        ports = cluster.inspect(service)["HostConfig"]["PortBindings"] or {}
        if bindings := [(each["HostIp"], each["HostPort"]) for found in ports.values() for each in found or []]:
            published[service] = bindings
    assert published == {"airflow-api-server": [("127.0.0.1", str(cluster.port))]}


def test_each_container_has_its_limits(cluster: Cluster) -> None:
    """As the engine applied them, not as the file has them."""
    for service in STAYING:
        host = cluster.inspect(service)["HostConfig"]
        assert host["Memory"] > 0, service
        assert host["PidsLimit"] > 0, service
        assert host["NanoCpus"] > 0 or host["CpuQuota"] > 0, service
        log = json.dumps(host["LogConfig"])
        assert "json-file" in log or "k8s-file" in log, (service, log)
