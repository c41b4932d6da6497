"""A driver with executors on Kubernetes: what it requests from the API, and that the pods' processes run real epochs.
The driver is started with the variables, arguments and tidegate.toml of deployment/kubernetes/executors. The API is a
stand-in that enforces the driver's Role, and starts the process of each pod on its own loopback address.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest
from deltalake import write_deltalake

from tests import flights_oracle
from tests.deployment.kubernetes_api import KubernetesApi, Request, serving
from tests.deployment.manifests import FOLDER, ROOT, TEMPLATE, Workload, faults, named, of_form, unsafe, workloads
from tests.deployment.native import free_port
from tests.store.server import KEY, S3Server, running_server
from tests.store.server import SECRET as STORE_SECRET
from tests.waiting import wait_until
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.config import Config, load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.examples.flights.source import FIRST_DAY, SCHEMA, arrivals, load_flights, read_flights
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import read_table

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

DOCUMENTS = of_form("executors")
NAMESPACE, POD = "tidegate", "aircraft-duty-0"
SPARK_SECRET = "a-secret-of-driver-and-executors-0123456789"
PIPELINE = "aircraft_duty"
DAYS = 2
BACKFILL = ("backfill", PIPELINE, "--start", "2013-01-01", "--end", "2013-01-03", "--slice", "1d")
SECONDS = 300.0
DELETE = Request("", "pods", "delete")
"""An executor that died is removed; when a driver ends, all its executors are removed together."""
PATIENT = """
"spark.kubernetes.driver.requestTimeout" = 60000
"spark.scheduler.maxRegisteredResourcesWaitingTime" = "240s"
"""


@dataclass
class Place:
    """Everything that a driver of the manifests needs: an API, a store, and the files of its pod.

    Args:
        api: the API.
        config: the project.
        folder: folder of all files.
    """

    api: KubernetesApi
    config: Config
    folder: Path

    def environment(self, workload: Workload) -> dict[str, str]:
        """Return the variables of a driver's container, as Kubernetes would set them."""
        fields = {"metadata.name": POD, "metadata.namespace": NAMESPACE, "status.podIP": "127.0.0.1"}
        values = {
            name: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for name, each in workload.variables.items()
        }
        return {
            **{name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ},
            **values,
            # Delta's jars are here; in the image they are elsewhere.
            "HOME": os.environ["HOME"],
            "SPARK_LOCAL_DIRS": str(self.folder / "spark"),
            "KUBECONFIG": "/dev/null",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": STORE_SECRET,
            "TIDEGATE_CONFIG": str(self.config.file),
            "PYTHONPATH": str(ROOT),
        }

    def command(self, workload: Workload, *arguments: str) -> subprocess.Popen[str]:
        """Start a command with the variables of a driver's container."""
        return subprocess.Popen(
            [sys.executable, "-m", "tidegate", *arguments],
            env=self.environment(workload),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )

    def run(self, workload: Workload, *arguments: str) -> tuple[int, str]:
        """Return the exit code of a command and its output."""
        process = self.command(workload, *arguments)
        try:
            told, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        return process.returncode, told

    def logs(self) -> str:
        """Return the output of Spark and of the pods' processes."""
        files = [*(self.config.work_folder / "logs").glob("spark-*.log"), *(self.folder / "pods").glob("*.log")]
        return "\n".join(f"{file.name}:\n{file.read_text()}" for file in files)

    @property
    def tables(self) -> PipelineTables:
        """Return the pipeline's tables."""
        return PipelineTables(warehouse_of(self.config), PIPELINE)

    @property
    def epoch(self) -> int:
        """Return the newest epoch; 0 before the first."""
        head = read_snapshot(self.tables)
        return 0 if head is None else head.manifest.epoch


def project(folder: Path, api: str, store: S3Server) -> Config:
    """The project of the manifests, with this machine's addresses and paths, and smaller processes."""
    text = (FOLDER / "executors" / "tidegate.toml").read_text()
    for there, here in (
        ("k8s://https://kubernetes.default.svc", f"k8s://{api}"),
        ('work = "/scratch"', f'work = "{folder}/work"'),
        ("/opt/tidegate/executor.yaml", f"{folder}/executor.yaml"),
        ("/etc/tidegate/spark/secret", f"{folder}/secret"),
        # A machine that is busy with other tests is slow.
        ("[spark]\n", f"[spark]\n{PATIENT}"),
        ("[storage_options]", f'[storage_options]\naws_endpoint_url = "{store.endpoint}"\naws_allow_http = "true"'),
        ('"spark.driver.port" = 7078', f'"spark.driver.port" = {free_port()}'),
        ('"spark.blockManager.port" = 7079', f'"spark.blockManager.port" = {free_port()}'),
        ('"spark.executor.memory" = "2g"', '"spark.executor.memory" = "512m"'),
        ('"spark.driver.memory" = "2g"', '"spark.driver.memory" = "1g"'),
    ):
        assert there in text, there
        text = text.replace(there, here)
    (folder / "executor.yaml").write_text(TEMPLATE.read_text())
    (folder / "secret").write_text(SPARK_SECRET)
    (folder / "tidegate.toml").write_text(text)
    return load_config(folder / "tidegate.toml")


@contextmanager
def place(folder: Path, program: Path = ROOT / "deployment" / "spark", days: int = DAYS) -> Iterator[Place]:
    """Start a store with the flights of some days, and an API that knows the driver's pod and its Role."""
    (folder / "pods").mkdir(parents=True)
    role = named("Role", "tidegate-driver", DOCUMENTS)["rules"]
    programs = {"/opt/tidegate/deployment/spark": str(program)}
    api = KubernetesApi(NAMESPACE, role, lambda pod: unsafe(pod["spec"]), folder / "pods", programs)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    api.put("pods", {"metadata": {"name": POD}, "spec": {"containers": [{"name": "tidegate"}]}, "status": ready})
    with pytest.MonkeyPatch.context() as environment, running_server() as store, serving(api) as url:
        environment.setenv("AWS_ACCESS_KEY_ID", KEY)
        environment.setenv("AWS_SECRET_ACCESS_KEY", STORE_SECRET)
        store.make_bucket("lake")
        config = project(folder, url, store)
        warehouse = warehouse_of(config)
        load_flights(warehouse.path("flights"), days, warehouse.options)
        yield Place(api, config, folder)


def driver(component: str) -> Workload:
    """Return the stream or the backfill of the manifests."""
    (workload,) = [
        each
        for each in workloads(DOCUMENTS)
        if each.labels["app.kubernetes.io/component"] == component and each.variables.keys() >= {"POD_IP"}
    ]
    return workload


@pytest.fixture(scope="module")
def backfilled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A completed backfill of two days."""
    with place(tmp_path_factory.mktemp("kubernetes") / "backfill") as here:
        code, told = here.run(driver("backfill"), *BACKFILL)
        assert code == 0, told + here.logs()[-10_000:]
        yield here


def test_a_backfill_in_executors_gives_the_windows_of_plain_python(backfilled: Place) -> None:
    assert backfilled.epoch == DAYS
    end = pd.Timestamp(FIRST_DAY, tz="UTC") + timedelta(days=DAYS)
    flights = read_flights()
    due = flights["departed_at"].fillna(flights["scheduled_at"])
    found = results.latest(read_table(backfilled.tables.warehouse, backfilled.tables.open(results.NAME)), ("tailnum",))
    expected = flights_oracle.duty_sessions(flights.loc[due < end, SCHEMA.names], end)
    flights_oracle.assert_equal(found.to_pandas()[expected.columns.tolist()], expected, ["tailnum", "window_start"])
    worked = [log.name for log in (backfilled.folder / "pods").glob("*.log") if "Finished task" in log.read_text()]
    assert len(worked) == 2, "both executors had tasks, and the driver has none"


def test_the_api_refused_nothing_and_the_role_has_no_verb_too_many(backfilled: Place) -> None:
    """Every request and every pod was allowed, and every verb of the Role was used, here or by the stream."""
    assert backfilled.api.refused == []
    rules = named("Role", "tidegate-driver", DOCUMENTS)["rules"]
    allowed = {
        Request(group, name, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for name in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed - set(backfilled.api.asked) == {DELETE}


def test_the_pods_are_those_of_the_template_and_of_tidegate_toml(backfilled: Place) -> None:
    assert len(backfilled.api.created) == 2
    assert [faults(pod) for pod in backfilled.api.created] == [[], []]
    for pod in backfilled.api.created:
        (container,) = pod["spec"]["containers"]
        assert container["image"] == driver("backfill").container["image"]
        assert [*container["command"], *container["args"]] == [
            "tini",
            "--",
            "/opt/tidegate/deployment/spark",
            "executor",
        ]
        assert pod["spec"]["serviceAccountName"] == "tidegate-executor"
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "executor"
        assert pod["metadata"]["ownerReferences"][0]["name"] == POD, "they go with the driver's pod"
        assert container["resources"]["limits"] == {"cpu": "2", "memory": "2560Mi"}
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_the_secret_is_in_no_pod_no_config_map_and_no_log(backfilled: Place) -> None:
    mounts = [each["mountPath"] for each in backfilled.api.created[0]["spec"]["containers"][0]["volumeMounts"]]
    assert "/etc/tidegate/spark" in mounts
    seen = json.dumps(backfilled.api.history) + backfilled.logs()
    assert "spark.authenticate=true" in seen
    for secret in (SPARK_SECRET, STORE_SECRET):
        assert secret not in seen


def test_nothing_of_a_driver_that_ended_is_left(backfilled: Place) -> None:
    assert list(backfilled.api.objects) == [("pods", POD)]
    wait_until(lambda: not backfilled.api.running, "the end of the executors")


def test_a_stream_whose_executor_dies_goes_on_with_another_and_ends_by_sigterm(tmp_path: Path) -> None:
    stream = driver("stream")
    with place(tmp_path / "stream", days=1) as here:
        probe = stream.container["livenessProbe"]["exec"]["command"][1:]
        assert here.run(stream, *probe)[0] == 1, "no stream has begun"
        process = here.command(stream, *stream.container["args"][1:-1], "1s")
        try:
            wait_until(lambda: here.epoch >= 1, "the first epoch", SECONDS)
            assert here.run(stream, *probe)[0] == 0
            first = here.api.running[0]
            first.process.kill()
            wait_until(lambda: len(here.api.created) == 3 and len(here.api.running) == 2, "another executor", SECONDS)
            epoch = here.epoch
            _, records = list(arrivals(read_flights(), 2))[1]
            warehouse = here.tables.warehouse
            options = warehouse.options
            write_deltalake(warehouse.path("flights"), records, mode="append", storage_options=options)
            wait_until(lambda: here.epoch > epoch, "an epoch without the executor that died", SECONDS)
            process.send_signal(signal.SIGTERM)
            told, _ = process.communicate(timeout=60)
            assert process.returncode == 0, told
            assert "ended after a whole epoch" in told
        except AssertionError as error:
            error.add_note(here.logs()[-10_000:])
            raise
        finally:
            process.kill()
        assert list(here.api.objects) == [("pods", POD)]
        assert here.run(stream, *probe)[0] == 1, "it has ended"
        assert here.api.refused == []
        assert DELETE in here.api.asked


def test_an_executor_with_another_secret_is_not_let_in(tmp_path: Path) -> None:
    """As if its pod mounted another Secret at the same path."""
    other = tmp_path / "other"
    other.write_text("the-secret-of-somebody-else-0123456789")
    program = tmp_path / "program"
    program.write_text(
        "#!/usr/bin/env bash\n"
        f'for name in ${{!SPARK_JAVA_OPT_*}}; do export "$name=${{!name/%secret.file=*/secret.file={other}}}"; done\n'
        f'exec {ROOT}/deployment/spark "$@"\n'
    )
    program.chmod(0o755)
    with place(tmp_path / "secret", program) as here:
        code, told = here.run(driver("backfill"), *BACKFILL)
        assert (code, here.epoch) == (1, 0), told
        assert "they ended before they could work" in told
        assert "Authentication failed" in here.logs()
        assert SPARK_SECRET not in here.logs()
