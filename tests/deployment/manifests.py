"""The manifests of deployment/kubernetes, and the rules that they and the pods of a driver must follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "deployment" / "kubernetes"
FORMS = ("local", "executors")
"""Folders that are applied; each contains `base`."""
TEMPLATE = FOLDER / "executors" / "executor.yaml"

Document = dict[str, Any]

_VERSIONS = ("1.32", "1.37")
"""Oldest and newest version of Kubernetes whose schemas the manifests fit."""

_NO_ROOT = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def documents(*files: Path) -> Iterator[Document]:
    """Yield the documents in the files, except kustomize's own."""
    for file in files:
        for document in yaml.safe_load_all(file.read_text()):
            if document["kind"] != "Kustomization":
                yield document


def of_form(form: str) -> list[Document]:
    """Return the documents that a form applies, and its Jobs, which are created separately."""
    return list(documents(*sorted(FOLDER.glob("base/*.yaml")), *sorted(FOLDER.glob(f"{form}/*.yaml"))))


def named(kind: str, name: str, documents: list[Document]) -> Document:
    """Return a document."""
    (document,) = [each for each in documents if (each["kind"], each["metadata"].get("name")) == (kind, name)]
    return document


def faults(document: Document) -> list[str]:
    """Return the reasons why a document does not fit the schemas of Kubernetes."""
    reasons = []
    for version in _VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            reasons.append(f"{version}: {error.message}")
    return reasons


@dataclass(frozen=True)
class Workload:
    """A pod that a document describes.

    Args:
        kind: kind of the document.
        name: name of the document, or the beginning of its names.
        labels: labels of the pod.
        pod: its spec.
        rest: spec of the document without the pod.
    """

    kind: str
    name: str
    labels: dict[str, str]
    pod: Document
    rest: Document

    @property
    def container(self) -> Document:
        """Return its only container."""
        (container,) = self.pod["containers"]
        return dict(container)

    @property
    def variables(self) -> dict[str, Document]:
        """Return the variables of the container by name."""
        return {each["name"]: each for each in self.container.get("env", [])}


def workloads(documents: list[Document]) -> Iterator[Workload]:
    """Yield the pods of documents."""
    for document in documents:
        metadata, spec = document["metadata"], document.get("spec", {})
        if document["kind"] == "CronJob":
            spec = {**spec, **spec["jobTemplate"]["spec"]}
        if document["kind"] in ("Deployment", "Job", "CronJob"):
            name = metadata.get("name") or metadata["generateName"]
            template = spec["template"]
            yield Workload(document["kind"], name, template["metadata"]["labels"], template["spec"], spec)


def unsafe(pod: Document) -> list[str]:
    """Return how a pod violates the restricted pod security standard, or our own stricter rules."""
    reasons = []
    context = pod.get("securityContext", {})
    if not context.get("runAsNonRoot") or context.get("runAsUser") in (0, None):
        reasons.append("it may run as root")
    if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
        reasons.append("it has no seccomp profile")
    if any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
        reasons.append("it shares a namespace of the host")
    if pod.get("enableServiceLinks") is not False:
        reasons.append("it gets variables of all services")
    kinds = {kind for volume in pod.get("volumes", []) for kind in volume if kind != "name"}
    if kinds - {"configMap", "secret", "emptyDir", "projected", "downwardAPI"}:
        reasons.append(f"it has volumes {sorted(kinds)}")
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        if container.get("securityContext") != _NO_ROOT:
            reasons.append(f"container {container['name']} may gain rights, or write into its image")
        bounds = container.get("resources", {})
        reasons += [
            f"container {container['name']} has no {bound}"
            for bound in ("requests", "limits")
            if not {"cpu", "memory"} <= bounds.get(bound, {}).keys()
        ]
    return reasons
