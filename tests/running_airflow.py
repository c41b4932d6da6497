"""One real Airflow for all tests of a run, over a project whose tables are there already. Needs no Spark to start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.airflow.embedded import EmbeddedAirflow
from tests.dags.project import write_project
from tests.expectations.quality_lake import hour_lake, session_lake

ROOT = Path(__file__).parent.parent

DAG_FILE = """from pathlib import Path

from pipelines.airflow import project_dags

globals().update(project_dags(Path(__file__).parent.parent / "tidegate.toml"))
"""


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedAirflow]:
    """Airflow with a scheduler, a triggerer, and the DAGs of two pipelines whose tables hold two epochs.

    Those of `sessions` are good; in `hours` a pane was planted that came twice.
    """
    folder = tmp_path_factory.mktemp("project")
    planted = hour_lake()
    planted.panes.append(dict(planted.panes[0]))
    config = write_project(folder, session_lake(), planted, max_lag_minutes="90", catchup="false")
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
        kinds = ("backfill", "stream", "quality", "watch")
        running.wait_for_dags([f"{name}__{kind}" for name in ("sessions", "hours") for kind in kinds])
        yield running
