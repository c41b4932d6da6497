"""One cluster for all tests of this folder: built, started, and ended with its volumes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.browser.conftest import browser, keep, page
from tests.cluster.bases import prepare
from tests.cluster.engine import Engine, missing, running_engine
from tests.cluster.pacemaker import health_checks
from tests.cluster.running import PROJECT, Cluster, new_secrets
from tests.deployment.native import free_port

__all__ = ["browser", "keep", "page"]

KEEP = os.environ.get("TIDEGATE_TEST_CLUSTER")
"""Folder of a cluster that outlives a run of tests: the next run uses it again, instead of building and starting it."""

DISK_MEGABYTES = 300
DAYS = 14
"""Number of days of flights."""


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Skipped, with what to install, on a machine that can't run containers."""
    if lacking := missing():
        pytest.skip(lacking)
    with running_engine(_folder(tmp_path_factory)) as engine:
        yield engine


def _folder(factory: pytest.TempPathFactory) -> Path:
    if KEEP is None:
        return factory.getbasetemp()
    Path(KEEP).mkdir(parents=True, exist_ok=True)
    return Path(KEEP)


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """Mount a small disk for the store's buckets, with the bucket and the owner that the store's image has."""
    if not folder.is_mount():
        folder.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m", "tmpfs", str(folder)], check=True)
        (folder / "lake").mkdir()
        for path in (folder, folder / "lake"):
            shutil.chown(path, 10001, 10001)
    yield
    if KEEP is None:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="session")
def cluster(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """All services, healthy, with secrets of their own and an empty store."""
    folder = _folder(tmp_path_factory)
    kept = folder / "kept.json"
    if kept.exists():
        found = json.loads(kept.read_text())
        cluster = Cluster(engine, folder, found["port"], found["env"])
    else:
        port = free_port()
        users = "admin:admin,vic:viewer"
        sizes = {
            "AIRFLOW_USERS": users,
            "AIRFLOW_PORT": str(port),
            "AIRFLOW_URL": f"http://localhost:{port}",
            "SPARK_SLOTS": "1",
            "LAKE": str(folder / "lake"),
        }
        cluster = Cluster(engine, folder, port, new_secrets() | sizes)
    cluster.write_env()
    with _small_disk(folder / "lake"), health_checks(engine, PROJECT):
        prepare(engine)
        if not kept.exists():
            # The other services use one of these two images.
            cluster.compose("build", "airflow-init", "store")
        cluster.up()
        try:
            yield cluster
        finally:
            if KEEP is None:
                cluster.down(volumes=True)
            else:
                kept.write_text(json.dumps({"port": cluster.port, "env": cluster.env}))


@pytest.fixture(scope="session")
def flights(cluster: Cluster) -> str:
    """Table `flights` in the store, written as the page on clusters says; returns what the command says."""
    return cluster.tidegate("flights", "--days", str(DAYS))
