"""The command `quality` loads no library that a check doesn't use, and a suite can still use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.expectations.quality_lake import hour_lake
from tests.expectations.test_failed_expectation import project

ROOT = Path(__file__).parent.parent.parent

SUITE = """
import atexit
import json
import sys
from pathlib import Path

import great_expectations as gx
import great_expectations.expectations as gxe
import sqlalchemy


def write_loaded():
    Path(__file__).with_name("loaded.json").write_text(json.dumps(sorted(sys.modules)))


atexit.register(write_loaded)
suite = gx.ExpectationSuite(name="own", expectations=[
    gxe.ExpectColumnValuesToBeBetween(column="events", min_value=1),
    gxe.ExpectColumnValuesToBeInSet(column="user", value_set=["nobody"], severity="warning"),
    gxe.ExpectColumnKLDivergenceToBeLessThan(
        column="user", partition_object={"values": ["a", "b"], "weights": [0.5, 0.5]}, threshold=9.0
    ),
    gxe.UnexpectedRowsExpectation(unexpected_rows_query="SELECT * FROM {batch} WHERE events < 1"),
])
"""


def checked(folder: Path, suite: str) -> tuple[dict[str, bool], set[str]]:
    """Check the hours with a suite in a process of its own, and return the outcomes and the modules it had loaded."""
    project(hour_lake(), folder, suite)
    command = [sys.executable, "-m", "tidegate", "quality", "hours", "--json"]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    outcomes = {check["expectation"]: check["success"] for check in json.loads(done.stdout)["checks"]}
    return outcomes, set(json.loads((folder / "loaded.json").read_text()))


@pytest.mark.long
def test_a_check_needs_no_spark_and_loads_statistics_for_a_suite_that_uses_them(tmp_path: Path) -> None:
    outcomes, loaded = checked(tmp_path, SUITE)
    assert outcomes["expect_column_kl_divergence_to_be_less_than"] is True
    assert outcomes["expect_column_values_to_be_in_set"] is False
    assert outcomes["unexpected_rows_expectation"] is True
    assert not {"pyspark", "altair.vegalite"} & loaded
    assert {"scipy.stats._stats_py", "sqlalchemy"} <= loaded


@pytest.mark.long
def test_a_check_without_statistics_loads_none(tmp_path: Path) -> None:
    plain = "\n".join(line for line in SUITE.splitlines() if "sqlalchemy" not in line)
    without = plain[: plain.index("    gxe.ExpectColumnKL")] + "])\n"
    _, loaded = checked(tmp_path, without)
    assert not {"pyspark", "sqlalchemy", "altair.vegalite", "scipy.stats._stats_py"} & loaded
