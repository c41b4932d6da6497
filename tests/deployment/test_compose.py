"""docker-compose.yml is valid, contains no secret, and runs nothing as root."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.engine.spark.session import protection

ROOT = Path(__file__).parent.parent.parent
SECRETS = {
    "POSTGRES_PASSWORD": "pass-one",
    "AIRFLOW_JWT_SECRET": "jwt-two",
    "AIRFLOW_FERNET_KEY": "fernet-three",
    "SPARK_AUTH_SECRET": "spark-four",
    "AIRFLOW_API_SECRET_KEY": "api-five",
    "STORE_ACCESS_KEY": "access-six",
    "STORE_SECRET_KEY": "secret-seven",
    "STORE_ROOT_ACCESS_KEY": "root-eight",
    "STORE_ROOT_SECRET_KEY": "root-nine",
}


@pytest.fixture(scope="module")
def compose() -> list[str]:
    """Whichever client is installed. Without one the test is skipped, but fails in CI, which installs it."""
    docker = shutil.which("docker")
    if docker and not subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        return [docker, "compose"]
    if found := shutil.which("docker-compose"):
        return [found]
    missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
    raise missing.Exception("no compose client here: apt-get install docker-compose-v2")


def configured(compose: list[str], folder: Path, secrets: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Return the client's output for the file with these secrets."""
    env_file = folder / "env"
    env_file.write_text("".join(f"{name}={value}\n" for name, value in secrets.items()))
    clean = {name: value for name, value in os.environ.items() if name not in SECRETS}
    return subprocess.run(
        [*compose, "--env-file", str(env_file), "-f", str(ROOT / "docker-compose.yml"), "config"],
        capture_output=True,
        text=True,
        check=False,
        env=clean,
    )


@pytest.fixture(scope="module")
def project(compose: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = configured(compose, tmp_path_factory.mktemp("compose"), SECRETS)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    return found


@pytest.fixture(scope="module")
def services(project: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = project["services"]
    return found


def test_the_cluster_has_all_its_processes(services: dict[str, Any]) -> None:
    airflow = {f"airflow-{name}" for name in ("init", "api-server", "scheduler", "dag-processor", "triggerer")}
    assert set(services) == airflow | {
        "postgres",
        "store",
        "store-init",
        "spark-master",
        "spark-worker-1",
        "spark-worker-2",
    }


def test_every_process_that_stays_is_watched_and_started_again(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if name not in ("airflow-init", "store-init"):
            assert service["healthcheck"]["test"], name
            assert service["restart"] == "unless-stopped", name


def test_no_two_containers_share_a_disk_and_only_the_store_has_the_tables(services: dict[str, Any]) -> None:
    users: dict[str, list[str]] = {}
    for name, service in services.items():
        for volume in service.get("volumes", []):
            users.setdefault(str(volume).split(":")[0], []).append(name)
    assert {volume: names for volume, names in users.items() if len(names) > 1} == {}
    assert users["lake"] == ["store"]
    config = load_config(ROOT / "deployment" / "tidegate.toml")
    assert (config.warehouse_uri, config.shares_work) == ("s3://lake/warehouse", False)
    assert config.storage_options["aws_endpoint_url"] == "http://store:7070", "the service and the port of the store"
    assert "7070" in (ROOT / "deployment" / "store" / "Dockerfile").read_text()


def test_only_airflow_has_the_keys_of_the_stores_user_and_only_the_store_those_of_its_administrator(
    services: dict[str, Any],
) -> None:
    """Executors get them from the driver, together with their work."""

    def holders(secret: str) -> set[str]:
        return {name for name, service in services.items() if secret in service.get("environment", {}).values()}

    assert holders("secret-seven") == {name for name in services if name.startswith("airflow")} | {"store-init"}
    assert holders("root-nine") == holders("root-eight") == {"store", "store-init"}


def test_the_user_of_the_store_owns_the_bucket_and_administers_nothing(tmp_path: Path) -> None:
    """With a program in place of the store: the user is created, or gets its new secret, before it gets the bucket."""
    program = tmp_path / "versitygw"
    keys = "--access user-a --secret user-s --role user"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "USER_ACCESS_KEY_ID": "user-a"}
    for exists in (False, True):
        program.write_text(f'#!/bin/sh\necho "$@"\n[ "$2" != create-user ] || exit {int(exists)}\n')
        program.chmod(0o755)
        script = ROOT / "deployment" / "store" / "make-user"
        done = subprocess.run(
            [script],
            env={**environment, "USER_SECRET_ACCESS_KEY": "user-s"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines() == [
            f"admin create-user {keys}",
            *([f"admin update-user {keys}"] if exists else []),
            "admin change-bucket-owner --bucket lake --owner user-a",
        ]
    assert '"--iam-dir", "/users"' in (ROOT / "deployment" / "store" / "Dockerfile").read_text()


def test_no_container_writes_into_its_image_or_can_gain_rights(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_what_may_become_large_is_in_a_volume_and_not_in_memory(services: dict[str, Any]) -> None:
    """A tmpfs counts towards the container's memory."""
    drivers = {"airflow-scheduler", "spark-worker-1", "spark-worker-2"}
    mounted = {name: [str(volume).split(":")[1] for volume in services[name]["volumes"]] for name in drivers}
    assert all("/scratch" in targets for targets in mounted.values())
    for name in drivers:
        assert services[name]["environment"]["SPARK_LOCAL_DIRS"] == "/scratch"
    logs = ("airflow-scheduler", "airflow-dag-processor", "airflow-triggerer")
    assert all(any("/opt/airflow/logs" in str(volume) for volume in services[name]["volumes"]) for name in logs)


def test_logs_of_tasks_are_served_by_a_host_that_the_page_can_name(services: dict[str, Any]) -> None:
    for name in ("airflow-scheduler", "airflow-triggerer"):
        assert services[name]["hostname"] == name
        assert services[name]["environment"]["AIRFLOW__API__SECRET_KEY"] == "api-five"
    assert services["airflow-api-server"]["environment"]["AIRFLOW__API__SECRET_KEY"] == "api-five"


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({}, "http://localhost:8080"),
        ({"AIRFLOW_URL": "https://airflow.example.com"}, "https://airflow.example.com"),
    ],
)
def test_links_in_alarms_begin_with_the_address_of_the_page(
    compose: list[str], tmp_path: Path, given: dict[str, str], address: str
) -> None:
    done = configured(compose, tmp_path, SECRETS | given)
    services = yaml.safe_load(done.stdout)["services"]
    for name in ("airflow-scheduler", "airflow-triggerer", "airflow-api-server"):
        assert services[name]["environment"]["AIRFLOW__API__BASE_URL"] == address


def test_every_process_has_limits(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert {"mem_limit", "cpus", "pids_limit"} <= service.keys(), name
        assert {"max-size", "max-file"} <= service["logging"]["options"].keys(), f"the log of {name} only grows"


def test_the_script_of_backups_is_in_the_container_of_the_database(services: dict[str, Any]) -> None:
    assert any(str(ROOT / "deployment" / "database") in str(volume) for volume in services["postgres"]["volumes"])
    assert os.access(ROOT / "deployment" / "database", os.X_OK)


def test_every_image_has_its_version(services: dict[str, Any]) -> None:
    """The images built here are based on others, which their own files name."""
    pulled = {service["image"] for service in services.values() if "build" not in service}
    for file in ("Dockerfile", "deployment/store/Dockerfile"):
        pulled.update(re.findall(r"^FROM (\S+)", (ROOT / file).read_text(), re.MULTILINE))
    assert len(pulled) == 3
    for image in pulled:
        assert re.search(r":v?\d+\.\d+", image), f"{image} names no version but the newest of its day"


def test_the_store_keeps_a_condition_for_writers_at_the_same_moment() -> None:
    """Versions of versitygw before 1.8 check for an object and then write it, so commits would be lost."""
    version = re.search(r"versitygw:v(\d+)\.(\d+)", (ROOT / "deployment" / "store" / "Dockerfile").read_text())
    assert version is not None
    assert (int(version[1]), int(version[2])) >= (1, 8)


@pytest.mark.first(1)
@pytest.mark.parametrize("missing", SECRETS)
def test_without_a_secret_nothing_starts(missing: str, compose: list[str], tmp_path: Path) -> None:
    done = configured(compose, tmp_path, {name: value for name, value in SECRETS.items() if name != missing})
    assert done.returncode != 0
    assert ".env.example" in done.stderr


def test_the_script_draws_a_new_value_for_each_secret(compose: list[str], tmp_path: Path) -> None:
    def drawn() -> dict[str, str]:
        done = subprocess.run([ROOT / "deployment" / "secrets"], capture_output=True, text=True, check=True)
        return dict(re.findall(r"^([A-Z_]+)=(.*)$", done.stdout, re.MULTILINE))

    first, second = drawn(), drawn()
    for name in SECRETS:
        assert len(first[name]) >= 44, name
        assert first[name] != second[name], name
    assert len({first[name] for name in SECRETS}) == len(SECRETS)
    assert len(base64.urlsafe_b64decode(first["AIRFLOW_FERNET_KEY"])) == 32
    assert configured(compose, tmp_path, first).returncode == 0


def test_no_file_holds_a_secret() -> None:
    example = (ROOT / ".env.example").read_text()
    for name in SECRETS:
        assert re.search(rf"^{name}=$", example, re.MULTILINE), f"{name} has no value in .env.example"
    text = (ROOT / "docker-compose.yml").read_text()
    for name in SECRETS:
        assert set(re.findall(rf"\$\{{{name}[^}}]*\}}", text)) == {f"${{{name}:?fill in .env, see .env.example}}"}
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_nothing_runs_as_root(services: dict[str, Any]) -> None:
    for file in ("Dockerfile", "deployment/store/Dockerfile"):
        users = re.findall(r"^USER (\S+)", (ROOT / file).read_text(), re.MULTILINE)
        assert users
        assert users[-1].partition(":")[0] not in ("root", "0")
    assert services["postgres"]["user"] == "postgres"
    assert not any(service.get("privileged") or service.get("user") in ("root", "0") for service in services.values())


def test_only_airflows_page_is_published_and_only_on_this_machine(services: dict[str, Any]) -> None:
    ports = {name: service["ports"] for name, service in services.items() if service.get("ports")}
    assert set(ports) == {"airflow-api-server"}
    assert "127.0.0.1" in str(ports["airflow-api-server"])


def test_processes_that_run_pipelines_have_none_of_airflows_secrets_and_do_not_reach_its_database(
    services: dict[str, Any],
) -> None:
    spark = [service for name, service in services.items() if name.startswith("spark-")]
    assert len(spark) == 3
    for service in spark:
        assert set(service["environment"]) == {"_SPARK_AUTH_SECRET", "SPARK_LOCAL_DIRS", "SPARK_WORKER_DIR"}
        assert set(service["networks"]) == {"spark"}
    for name in ("postgres", "airflow-init", "airflow-api-server", "airflow-dag-processor", "airflow-triggerer"):
        assert set(services[name]["networks"]) == {"airflow"}, name
        assert "spark-four" not in str(services[name]), name
    assert set(services["airflow-scheduler"]["networks"]) == {"airflow", "spark"}


def test_the_network_of_spark_has_no_way_out(project: dict[str, Any]) -> None:
    """Some engines route between the networks of a machine."""
    assert project["networks"]["spark"]["internal"] is True


def test_tasks_start_when_the_api_server_answers_and_wait_for_it_later(services: dict[str, Any]) -> None:
    """A machine that starts again starts all containers together."""
    scheduler = services["airflow-scheduler"]
    assert scheduler["depends_on"]["airflow-api-server"]["condition"] == "service_healthy"
    assert int(scheduler["environment"]["AIRFLOW__WORKERS__EXECUTION_API_RETRIES"]) >= 10


def test_temporary_folders_are_set_as_every_engine_takes_them(services: dict[str, Any]) -> None:
    """Podman refuses owners, gives a tmpfs the mode of the folder in the image, and splits the words of a list."""
    for name, service in services.items():
        mounts = service.get("tmpfs", [])
        assert "uid=" not in str(mounts), name
        test = service.get("healthcheck", {}).get("test", [])
        is_text = isinstance(test, str) or test[:1] == ["CMD-SHELL"]
        assert is_text or not any(" " in word for word in test), name
    assert "chmod 1777 /opt/airflow" in (ROOT / "Dockerfile").read_text()


def test_the_scheduler_answers_health_checks_to_its_own_container_only(services: dict[str, Any]) -> None:
    health = services["airflow-scheduler"]["environment"]["AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_HOST"]
    assert health == "127.0.0.1"


def test_sparks_processes_ask_for_the_secret_and_take_nothing_at_port_6066() -> None:
    lines = (ROOT / "deployment" / "spark.conf").read_text().splitlines()
    settings = dict(line.split() for line in lines if not line.startswith("#"))
    assert settings["spark.authenticate"] == settings["spark.network.crypto.enabled"] == "true"
    assert settings["spark.master.rest.enabled"] == settings["spark.ui.killEnabled"] == "false"
    drivers = protection({"spark.master": "spark://there:7077", "spark.authenticate.secret": "s"}, "tidegate.toml")
    both = settings.keys() & drivers.keys()
    assert {name: settings[name] for name in both} == {name: str(drivers[name]).lower() for name in both} | {
        "spark.network.crypto.cipher": drivers["spark.network.crypto.cipher"]
    }
    assert len(both) == len(drivers)


def test_a_process_of_spark_starts_with_the_secret_only_and_at_the_address_that_others_reach(tmp_path: Path) -> None:
    """With a Spark that only shows how it is called."""
    (tmp_path / "bin").mkdir()
    for name, script in (("spark-class", 'echo "$SPARK_LOCAL_IP $@"'), ("python", f"echo {tmp_path}")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    def called(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join((str(tmp_path / "bin"), os.environ["PATH"]))
        command = [str(ROOT / "deployment" / "spark"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env={"PATH": path, **environment}, check=False)

    refused = called("master")
    assert (refused.returncode, "set _SPARK_AUTH_SECRET" in refused.stderr) == (2, True)
    settings = f"--properties-file {ROOT / 'deployment' / 'spark.conf'}"
    worker = called("worker", "--cores", "2", "spark://m:7077", _SPARK_AUTH_SECRET="hush").stdout
    assert worker.startswith(f"127.0.0.1 org.apache.spark.deploy.worker.Worker {settings} --host ")
    assert worker.endswith(" --cores 2 spark://m:7077\n")
    master = called("master", "--host", "here", _SPARK_AUTH_SECRET="hush", SPARK_LOCAL_IP="10.0.0.1").stdout
    assert master == f"10.0.0.1 org.apache.spark.deploy.master.Master {settings} --host here\n"
    assert "hush" not in worker + master


def test_the_image_has_what_runs_and_no_tools_of_tests() -> None:
    def locked(*names: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, ROOT / "deployment" / "locked", *names], capture_output=True, text=True, check=True
        )
        assert done.stdout.count("--hash=sha256:") >= len(re.findall("^[a-z]", done.stdout, re.MULTILINE))
        entries = [Requirement(line) for line in re.findall(r"^([a-z0-9.-]+==.*?) \\$", done.stdout, re.MULTILINE)]
        # Some packages have one version for this Python and another for newer ones.
        return {entry.name for entry in entries if entry.marker is None or entry.marker.evaluate()}

    image = locked("all")
    tools = {"pytest", "hypothesis", "mypy", "ruff", "playwright", "pre-commit", "codespell", "sphinx", "uv", "duckdb"}
    assert image & tools == set()
    assert locked("uv", "hatchling") >= {"uv", "hatchling", "packaging"}
    # Everything that one of these packages requires here is in the same set.
    for name in sorted(image):
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        for text in requires:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert canonicalize_name(requirement.name) in image, f"{name} needs {requirement.name}"


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert source.split("/")[0] in kept, source


def test_the_image_copies_all_that_the_wheel_is_built_from() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    linked = [path.resolve().name for path in (ROOT / "tidegate").iterdir() if path.is_symlink()]
    wanted = {*build["packages"], *linked, *(place.split("/")[0] for place in build.get("force-include", {}))}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert wanted - {source for sources in copied for source in sources.split()} == set()
