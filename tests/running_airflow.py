"""One real Airflow for all tests of a run, over a project whose tables are there already. Needs no Spark to start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.airflow.embedded import EmbeddedAirflow
from tests.dags.project import write_project

ROOT = Path(__file__).parent.parent

DAG_FILE = """from pathlib import Path

from pipelines.airflow import project_dags

globals().update(project_dags(Path(__file__).parent.parent / "tidegate.toml"))
"""


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedAirflow]:
    """Airflow with a scheduler, a triggerer and the DAGs of pipeline `sessions`, whose tables hold two epochs."""
    folder = tmp_path_factory.mktemp("project")
    config = write_project(folder, max_lag_minutes="90", catchup="false")
    (folder / "dags").mkdir()
    (folder / "dags" / "tidegate_dags.py").write_text(DAG_FILE)
    with EmbeddedAirflow(
        home=folder / "airflow",
        dags=folder / "dags",
        runs=folder / ".work" / "runs",
        triggerer=True,
        # The pipeline itself is one of the tests' modules.
        settings={
            "TIDEGATE_CONFIG": str(config),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        },
    ) as running:
        running.wait_for_dags([f"sessions__{kind}" for kind in ("backfill", "stream", "quality", "watch")])
        yield running
