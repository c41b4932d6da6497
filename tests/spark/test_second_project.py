"""A separate project uses the command line and the DAGs of the installed package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.lake import Lake, at
from tests.recovery.test_listed_files import listed

pytestmark = [pytest.mark.long, pytest.mark.spark]


ROOT = Path(__file__).parent.parent.parent

PIPELINE = '''"""Clicks per user, by the hour."""

from datetime import timedelta

from pipelines.listed_files import ListedFiles
from tidegate import Count, Pipeline, TumblingEventTimeWindows, WatermarkStrategy, Windows
from windowing import HOUR

clicks = Pipeline(
    name="clicks",
    source=ListedFiles("events.list", timestamp="at"),
    key=("user",),
    watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(minutes=5)),
    compute=Windows(TumblingEventTimeWindows.of(HOUR), aggregate={"clicks": Count()}),
)
'''

TOML = """
[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "1g"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"

[pipelines.clicks]
object = "pipelines.hourly:clicks"
start = 2024-03-01
"""

DAG = """from pathlib import Path

from tidegate.pipelines.airflow import project_dags

globals().update(project_dags(Path(__file__).parent.parent / "tidegate.toml"))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment that has the wheel and no checkout; other packages are those of this one."""
    folder = tmp_path_factory.mktemp("environment")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "wheels")]
    subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=True)
    (wheel,) = (folder / "wheels").iterdir()
    venv.create(folder / "env")
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    # A path in a .pth file is searched, but no .pth file in it is read, so the editable install is not used.
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    return str(folder / "env" / "bin" / "python")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("pipelines", "windowing", "expectations", "dags"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "windowing" / "__init__.py").write_text("from datetime import timedelta\n\nHOUR = timedelta(hours=1)\n")
    (tmp_path / "pipelines" / "hourly.py").write_text(PIPELINE)
    shutil.copy(ROOT / "tests" / "listed_files.py", tmp_path / "pipelines")
    (tmp_path / "dags" / "all.py").write_text(DAG)
    (tmp_path / "tidegate.toml").write_text(TOML)
    return tmp_path


def run(python: str, project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [python, *arguments],
        cwd=project,
        env={**environment, "AIRFLOW_HOME": str(project / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_wheel_owns_one_name(python: str, project: Path) -> None:
    parts = "import tidegate, tidegate.windowing, pipelines; print(tidegate.__file__, pipelines.__file__)"
    ours, theirs = run(python, project, "-c", parts).stdout.split()
    assert Path(ours).is_relative_to(Path(python).parent.parent)
    assert Path(theirs).is_relative_to(project)
    installed = {folder.name for folder in Path(ours).parent.parent.iterdir() if folder.is_dir()}
    assert {name for name in installed if not name.endswith(".dist-info")} == {"tidegate"}
    assert {file.parent.name for file in Path(ours).parent.rglob("py.typed")} >= {
        "tidegate",
        "windowing",
        "pipelines",
        "expectations",
    }


def test_it_runs_a_backfill_over_a_source_of_its_own_and_reads_it(python: str, project: Path) -> None:
    lake = Lake(project)
    lake.append(("ann", at("10:05"), 1), ("ann", at("10:55"), 1), ("bob", at("23:59"), 1), (None, at("11:00"), 1))
    listed(lake)

    def tidegate(*arguments: str) -> Any:
        return answer(run(python, project, "-m", "tidegate", *arguments, "--json"))

    steps = [step["does"] for step in tidegate("explain", "clicks")["steps"]]
    assert steps[1].startswith("read the files of events.list: key user")
    (backfilled,) = tidegate("backfill", "clicks", "--start", "2024-03-01", "--end", "2024-03-02")["runs"]
    assert backfilled["counters"] | {"events_in": 4, "on_time": 3, "rejected": 1} == backfilled["counters"]
    (snapshot,) = tidegate("snapshots", "list", "clicks")
    assert snapshot["epoch"] == 1
    assert sorted((row["user"], row["clicks"]) for row in tidegate("results", "clicks")) == [("ann", 2), ("bob", 1)]


def test_airflow_loads_its_dags_from_its_own_folder(python: str, project: Path) -> None:
    load = """
from airflow.dag_processing.dagbag import DagBag
dags = DagBag("dags", bundle_name="dags")
print(dags.import_errors, sorted(dags.dags))
"""
    loaded = run(python, project, "-c", load)
    names = [f"clicks__{kind}" for kind in ("backfill", "quality", "restart", "stream")]
    assert f"{{}} {names}" in loaded.stdout, loaded.stderr
