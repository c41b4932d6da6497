"""deployment/kubernetes: its files match the schemas and each other, and no pod has more rights than it needs."""

from __future__ import annotations

import copy
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deployment.manifests import (
    FOLDER,
    FORMS,
    ROOT,
    TEMPLATE,
    Document,
    Workload,
    documents,
    faults,
    named,
    of_form,
    unsafe,
    workloads,
)
from tests.docs.test_guide import fault
from tidegate.pipelines.definition.config import Config, load_config
from tidegate.pipelines.engine.spark.session import LOG_ENVIRONMENT, protection
from tidegate.pipelines.errors import QUALITY, REFUSED, USAGE

FILES = sorted(FOLDER.glob("*/*.yaml"))
BY_FORM = {form: of_form(form) for form in FORMS}
(EXECUTOR,) = documents(TEMPLATE)
WORKLOADS = {form: list(workloads(BY_FORM[form])) for form in FORMS}
ALL = [pytest.param(each, id=f"{form}-{each.name}") for form in FORMS for each in WORKLOADS[form]]
DRIVERS = ("stream", "backfill")


def config(form: str) -> Config:
    return load_config(FOLDER / form / "tidegate.toml")


def stream(form: str) -> Workload:
    (found,) = [each for each in WORKLOADS[form] if each.labels["app.kubernetes.io/component"] == "stream"]
    return found


def backfill(form: str) -> Workload:
    (found,) = [each for each in WORKLOADS[form] if each.labels["app.kubernetes.io/component"] == "backfill"]
    return found


def fits(labels: dict[str, str], selector: Document) -> bool:
    """Return True if labels match a selector."""
    by_list = {each["key"]: each["values"] for each in selector.get("matchExpressions", [])}
    by_value = {key: [value] for key, value in selector.get("matchLabels", {}).items()}
    return all(labels.get(key) in values for key, values in (by_list | by_value).items())


def commands(workload: Workload) -> list[list[str]]:
    """Return the commands that a container, its probes and its hooks run."""
    container = workload.container
    probes = [container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe") if name in container]
    hooks = list(container.get("lifecycle", {}).values())
    # A shell runs several commands one after the other.
    args = container["args"]
    run = [words.split() for words in re.findall(r"tidegate [\w ]+", args[2])] if args[0] == "sh" else [args]
    return [*run, *(each["exec"]["command"] for each in (*probes, *hooks))]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_file_fits_the_schemas_of_kubernetes(file: Any) -> None:
    assert [(each["kind"], faults(each)) for each in documents(file) if faults(each)] == []


@pytest.mark.parametrize("form", ["base", *FORMS])
def test_a_form_applies_each_of_its_files_but_jobs_and_templates(form: str) -> None:
    listed = yaml.safe_load((FOLDER / form / "kustomization.yaml").read_text())
    generated = [name for each in listed.get("configMapGenerator", []) for name in each["files"]]
    created = {file.name for file in (FOLDER / form).glob("*.yaml") if "generateName: " in file.read_text()}
    files = {file.name for file in (FOLDER / form).iterdir()} - {"kustomization.yaml"} - created
    assert {name for name in (*listed["resources"], *generated) if name != "../base"} == files
    assert ("../base" in listed["resources"]) == (form in FORMS)


@pytest.mark.parametrize("workload", ALL)
def test_no_pod_may_do_more_than_the_restricted_standard_lets_it(workload: Workload) -> None:
    assert unsafe(workload.pod) == []
    writable = {mount["mountPath"] for mount in workload.container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/scratch", "/tmp"}


def test_no_executor_may_either() -> None:
    """Spark adds the resources."""
    assert unsafe(EXECUTOR["spec"]) == ["container executor has no requests", "container executor has no limits"]
    (container,) = EXECUTOR["spec"]["containers"]
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert container["workingDir"] in writable, "an executor writes there what the driver sends"


def test_no_task_pod_of_airflow_may_either_and_its_container_has_the_name_that_airflow_asks_for() -> None:
    (pod,) = documents(FOLDER / "airflow" / "worker.yaml")
    assert unsafe(pod["spec"]) == []
    (container,) = pod["spec"]["containers"]
    assert container["name"] == "base"
    assert "command" not in container, "the image's first program stays"
    assert container["image"] == stream("local").container["image"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > 60, "a command that is to end gets 20 seconds"


@pytest.mark.parametrize(
    ("loosen", "reason"),
    [
        (lambda pod: pod["securityContext"].pop("runAsNonRoot"), "may run as root"),
        (lambda pod: pod["securityContext"].update(runAsUser=0), "may run as root"),
        (lambda pod: pod["securityContext"].pop("seccompProfile"), "no seccomp profile"),
        (lambda pod: pod["containers"][0]["securityContext"].pop("capabilities"), "may gain rights"),
        (lambda pod: pod["containers"][0]["securityContext"].pop("readOnlyRootFilesystem"), "write into its image"),
        (lambda pod: pod["volumes"].append({"name": "all", "hostPath": {"path": "/"}}), "hostPath"),
        (lambda pod: pod.update(hostNetwork=True), "namespace of the host"),
        (lambda pod: pod["containers"][0]["resources"].pop("limits"), "no limits"),
        (lambda pod: pod.pop("enableServiceLinks"), "variables of all services"),
    ],
)
def test_a_right_too_many_is_noticed(loosen: Callable[[Document], object], reason: str) -> None:
    pod = copy.deepcopy(stream("local").pod)
    loosen(pod)
    assert any(reason in each for each in unsafe(pod)), unsafe(pod)


@pytest.mark.parametrize("form", FORMS)
def test_only_drivers_with_executors_get_a_token_of_the_api(form: str) -> None:
    with_token = {
        each.labels["app.kubernetes.io/component"]
        for each in WORKLOADS[form]
        if each.pod.get("automountServiceAccountToken") is not False
    }
    assert with_token == (set(DRIVERS) if form == "executors" else set())
    accounts = {each["metadata"]["name"]: each for each in BY_FORM[form] if each["kind"] == "ServiceAccount"}
    assert {each.pod["serviceAccountName"] for each in WORKLOADS[form]} <= accounts.keys()
    assert {each["automountServiceAccountToken"] for each in accounts.values()} == {False}
    assert EXECUTOR["spec"]["automountServiceAccountToken"] is False


def test_the_role_of_drivers_reads_no_secret_and_is_bound_to_drivers_alone() -> None:
    rules = named("Role", "tidegate-driver", BY_FORM["executors"])["rules"]
    assert {name for rule in rules for name in rule["resources"]} == {"pods", "configmaps"}
    assert not [rule for rule in rules if "*" in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])]
    binding = named("RoleBinding", "tidegate-driver", BY_FORM["executors"])
    assert [(each["kind"], each["name"]) for each in binding["subjects"]] == [("ServiceAccount", "tidegate-driver")]


@pytest.mark.parametrize("form", FORMS)
def test_a_second_stream_never_begins_before_the_first_has_ended(form: str) -> None:
    for each in (stream(form), backfill(form)):
        assert (each.rest.get("parallelism", 1), each.rest["podReplacementPolicy"]) == (1, "Failed")


@pytest.mark.parametrize("form", FORMS)
def test_a_stream_goes_on_after_each_end_but_with_an_exit_code_that_stays(form: str) -> None:
    """A pod ends with 0 on an eviction, and with 1 or a signal on a crash. As for every other Job, 2, 3 and 5 fail
    it.
    """
    each = stream(form)
    assert (each.kind, each.pod["restartPolicy"]) == ("Job", "Never")
    assert min(each.rest["completions"], each.rest["backoffLimit"]) >= 1_000_000
    assert "activeDeadlineSeconds" not in each.rest
    assert each.container["args"][:2] == ["tidegate", "stream"]


@pytest.mark.parametrize("form", FORMS)
def test_tables_that_no_stream_maintains_are_maintained(form: str, tmp_path: Path) -> None:
    (each,) = [each for each in WORKLOADS[form] if each.labels["app.kubernetes.io/component"] == "maintenance"]
    assert [command[1:3] for command in commands(each)] == [["tables", "optimize"], ["tables", "vacuum"]]
    program = tmp_path / "tidegate"
    for code, ends in ((0, 0), (3, 3), (4, 0), (1, 1)):
        program.write_text(f"#!/bin/sh\necho $2\nexit {code}\n")
        program.chmod(0o755)
        path = f"{tmp_path}:{os.environ['PATH']}"
        done = subprocess.run(each.container["args"], env={"PATH": path}, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.split()) == (ends, ["optimize", "vacuum"] if code == 0 else ["optimize"])


@pytest.mark.parametrize("form", FORMS)
def test_what_starts_spark_has_its_log_where_the_pod_has_its_own(form: str) -> None:
    assert {each.variables[LOG_ENVIRONMENT]["value"] for each in (stream(form), backfill(form))} == {"stderr"}


@pytest.mark.parametrize("workload", ALL)
def test_each_command_is_one_that_tidegate_takes_for_a_pipeline_of_the_project(workload: Workload) -> None:
    for command in commands(workload):
        assert command[0] == "tidegate"
        assert fault(shlex.join(command)) is None, command
        assert "aircraft_duty" in command
    assert all("aircraft_duty" in config(form).pipelines for form in FORMS)


@pytest.mark.parametrize("form", FORMS)
def test_the_probes_ask_if_the_stream_lives_and_leave_it_time_to_begin(form: str) -> None:
    container = stream(form).container
    within = {}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        command = container[name]["exec"]["command"]
        assert command[:4] == ["tidegate", "driver", "alive", container["args"][2]]
        within[name] = int(command[-1]) if "--within" in command else 3600
        assert container[name]["timeoutSeconds"] >= 5, "an interpreter starts"
    assert within["readinessProbe"] < within["livenessProbe"], "not ready long before it is ended"
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] >= 300
    assert "livenessProbe" not in backfill(form).container, "an interval may take hours"


@pytest.mark.parametrize("form", FORMS)
def test_a_backfill_ends_after_its_interval_within_the_time_that_kubernetes_leaves_it(form: str) -> None:
    pod = backfill(form).pod
    command = backfill(form).container["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:4] == ["tidegate", "driver", "stop", backfill(form).container["args"][2]]
    assert int(command[-1]) < pod["terminationGracePeriodSeconds"]
    assert stream(form).pod["terminationGracePeriodSeconds"] >= 60, "it ends after its epoch, by SIGTERM"


JOBS = [
    pytest.param(each, id=f"{form}-{each.name}")
    for form in FORMS
    for each in WORKLOADS[form]
    if "podFailurePolicy" in each.rest
]


@pytest.mark.parametrize("workload", JOBS)
def test_a_job_is_not_tried_again_after_an_exit_code_that_stays(workload: Workload) -> None:
    rules = {rule["action"]: rule for rule in workload.rest["podFailurePolicy"]["rules"]}
    assert rules["FailJob"]["onExitCodes"]["values"] == [USAGE, REFUSED, QUALITY]
    assert rules["FailJob"]["onExitCodes"]["containerName"] == workload.container["name"]


@pytest.mark.parametrize("form", FORMS)
def test_every_pod_has_one_image_which_the_executors_have_too(form: str) -> None:
    images = {each.container["image"] for each in WORKLOADS[form]}
    if form == "executors":
        images.add(str(config(form).spark["spark.kubernetes.container.image"]))
    assert len(images) == 1
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    built = {service["image"] for service in services.values() if service.get("build") == "."}
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert built == images == {f"registry.example.com/tidegate:{version}"}


def test_the_image_suits() -> None:
    """The id of its user, its first program, and the script that starts an executor."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    users = re.findall(r"^USER (.*)$", dockerfile, re.MULTILINE)
    pods = [each.pod for form in FORMS for each in WORKLOADS[form]]
    pods += [each["spec"] for each in (EXECUTOR, *documents(FOLDER / "airflow" / "worker.yaml"))]
    assert {str(pod["securityContext"]["runAsUser"]) for pod in pods} == set(users)
    assert f"--uid {users[0]} tidegate" in dockerfile
    assert 'ENTRYPOINT ["tini", "--"]' in dockerfile
    assert not [each.name for form in FORMS for each in WORKLOADS[form] if "command" in each.container]
    assert EXECUTOR["spec"]["containers"][0]["command"] == ["tini", "--", "/opt/tidegate/deployment/spark"]
    assert "WORKDIR /opt/tidegate" in dockerfile
    assert os.access(ROOT / "deployment" / "spark", os.X_OK)
    project = {mount["mountPath"] for mount in stream("local").container["volumeMounts"] if mount["name"] == "project"}
    assert project == {"/opt/tidegate/tidegate.toml"}
    assert "TIDEGATE_CONFIG=/opt/tidegate/tidegate.toml" in dockerfile


@pytest.mark.parametrize("workload", ALL)
def test_the_volumes_are_those_that_the_form_makes_and_secrets_that_the_page_creates(workload: Workload) -> None:
    mounted = {mount["name"] for mount in workload.container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in workload.pod["volumes"]}
    maps = {volume["configMap"]["name"] for volume in workload.pod["volumes"] if "configMap" in volume}
    assert maps == {"tidegate-project"}
    secrets = {volume["secret"]["secretName"] for volume in workload.pod["volumes"] if "secret" in volume}
    secrets |= {each["secretRef"]["name"] for each in workload.container["envFrom"]}
    page = (ROOT / "docs" / "operations" / "kubernetes.md").read_text()
    assert secrets <= set(re.findall(r"create secret generic (\S+)", page))


def test_spark_gets_its_variables_and_files_from_the_pod() -> None:
    settings = config("executors").spark
    driver = stream("executors")
    named_variables = set(re.findall(r"\$\{env:(\w+)\}", (FOLDER / "executors" / "tidegate.toml").read_text()))
    assert named_variables <= driver.variables.keys()
    assert driver.variables == backfill("executors").variables
    mounts = {mount["mountPath"] for mount in driver.container["volumeMounts"]}
    assert settings["spark.kubernetes.executor.podTemplateFile"] in mounts
    folder = str(settings["spark.authenticate.secret.file"]).rpartition("/")[0]
    assert folder in mounts
    assert folder in {mount["mountPath"] for mount in EXECUTOR["spec"]["containers"][0]["volumeMounts"]}
    accounts = {each["metadata"]["name"] for each in BY_FORM["executors"] if each["kind"] == "ServiceAccount"}
    assert settings["spark.kubernetes.authenticate.executor.serviceAccountName"] in accounts
    assert settings["spark.kubernetes.executor.podTemplateContainerName"] == EXECUTOR["spec"]["containers"][0]["name"]
    cores = int(settings["spark.executor.instances"]) * int(settings["spark.executor.cores"])
    assert settings["spark.default.parallelism"] == cores


def test_the_connections_of_executors_are_protected_by_default() -> None:
    settings = protection(config("executors").spark, "tidegate.toml")
    assert settings["spark.authenticate"] is True
    assert settings["spark.network.crypto.cipher"] == "AES/GCM/NoPadding"
    assert settings["spark.io.encryption.enabled"] is True
    assert protection({"spark.master": "k8s://https://here", "spark.authenticate": False}, "tidegate.toml") == {}


def test_the_network_lets_executors_and_drivers_call_each_other_and_nobody_else() -> None:
    settings = config("executors").spark
    driver_port, block_port = int(settings["spark.driver.port"]), int(settings["spark.blockManager.port"])
    assert [port["containerPort"] for port in stream("executors").container["ports"]] == [driver_port, block_port]
    policies = [each["spec"] for each in BY_FORM["executors"] if each["kind"] == "NetworkPolicy"]
    pods = [each.labels for each in WORKLOADS["executors"]] + [EXECUTOR["metadata"]["labels"]]
    calls = set()
    for labels in pods:
        assert any(fits(labels, policy["podSelector"]) for policy in policies), labels
        for policy in policies:
            if not fits(labels, policy["podSelector"]):
                continue
            for rule in policy.get("ingress", []):
                callers = [each for each in pods if any(fits(each, peer["podSelector"]) for peer in rule["from"])]
                calls |= {
                    (caller["app.kubernetes.io/component"], labels["app.kubernetes.io/component"], port["port"])
                    for caller in callers
                    for port in rule["ports"]
                }
    drivers = {("executor", kind, port) for kind in DRIVERS for port in (driver_port, block_port)}
    executors = {(kind, "executor", block_port) for kind in (*DRIVERS, "executor")}
    assert calls == drivers | executors


@pytest.mark.parametrize("form", FORMS)
def test_the_memory_of_a_pod_holds_the_jvm_and_its_python(form: str) -> None:
    """docs/operations/sizes.md: 0.2 GB for the command, 0.5 GB in addition to the heap, and 0.2 GB for each Python
    worker, one per core.
    """
    settings = config(form).spark
    cores = int(re.sub(r"\D", "", str(settings["spark.master"])) or 0) if form == "local" else 0
    heap = float(str(settings["spark.driver.memory"]).removesuffix("g"))
    for each in (stream(form), backfill(form)):
        limit = float(each.container["resources"]["limits"]["memory"].removesuffix("Gi"))
        assert limit >= heap + 0.7 + 0.2 * cores
        assert each.container["resources"]["requests"]["memory"] == each.container["resources"]["limits"]["memory"]


def test_no_file_holds_a_secret() -> None:
    kinds = {each["kind"] for form in FORMS for each in BY_FORM[form]}
    assert "Secret" not in kinds
    assert all(config(form).storage_options.keys() <= {"aws_region"} for form in FORMS)
