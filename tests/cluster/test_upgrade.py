"""The image before the last commit that changed it is replaced with that of the working tree, on the same volumes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.cluster.bases import ROOT
from tests.cluster.duty import assert_as_without_faults, begin_next_day, run_next_day
from tests.cluster.running import STAYING, Cluster

pytestmark = [pytest.mark.containers, pytest.mark.long, pytest.mark.timeout(3600), pytest.mark.usefixtures("flights")]

IMAGE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["airflow-init"]["image"]
NEWER = "localhost/tidegate-tests/newer"


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=True).stdout


@pytest.fixture
def older(cluster: Cluster, tmp_path: Path) -> str:
    """Name of the image before the last commit that changed it."""
    context = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    changed = _git("rev-list", "-1", "HEAD", "--", "Dockerfile", *context).decode().strip()
    name, source = f"localhost/tidegate-tests/before:{changed}", tmp_path / "source"
    if cluster.engine.has_image(name):
        return name
    source.mkdir()
    tar = _git("archive", f"{changed}^")
    subprocess.run(["tar", "-x", "-C", str(source)], input=tar, check=True)
    cluster.engine.run("build", "--tag", name, str(source))
    return name


def _id_of(cluster: Cluster, image: str) -> str:
    return cluster.engine.run("image", "inspect", "--format", "{{.Id}}", image).stdout.strip().removeprefix("sha256:")


def _images(cluster: Cluster) -> set[str]:
    """Return the ids of the images of Airflow's and Spark's containers."""
    services = [name for name in STAYING if name not in ("postgres", "store")]
    return {str(cluster.inspect(name)["Image"]).removeprefix("sha256:") for name in services}


def test_a_run_with_the_newer_image_continues_what_the_older_one_began(cluster: Cluster, older: str) -> None:
    cluster.engine.run("tag", IMAGE, NEWER)
    try:
        cluster.engine.run("tag", older, IMAGE)
        cluster.up()
        assert _images(cluster) == {_id_of(cluster, older)}
        assert run_next_day(cluster)["state"] == "success"
        assert_as_without_faults(cluster)
        unfinished = begin_next_day(cluster)
    finally:
        cluster.engine.run("tag", NEWER, IMAGE)
        # First the scheduler, whose container has the driver: the client may come to it after the run has ended.
        cluster.compose("up", "-d", "--no-build", "--no-deps", "airflow-scheduler")
        cluster.up()
    assert _images(cluster) == {_id_of(cluster, NEWER)}
    ended, started = unfinished.ended(), cluster.inspect("airflow-scheduler")["State"]["StartedAt"]
    assert ended["state"] == "success"
    assert pd.Timestamp(ended["end_date"]) > pd.Timestamp(started), "begun with one image, and ended with the other"
    assert_as_without_faults(cluster)
