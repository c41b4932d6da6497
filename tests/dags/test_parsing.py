"""Parsing the DAG folder is cheap, and imports nothing of Spark, the windows or the expectations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BUDGET_SECONDS = 0.5

PARSE = """
import json, sys, time
import airflow.sdk
from airflow.sdk import DAG, Asset, BaseOperator, BaseSensorOperator, Param, CronDataIntervalTimetable
began = time.process_time()
import runpy
found = runpy.run_path(sys.argv[1])
seconds = time.process_time() - began
tops = sorted({".".join(name.split(".")[: 2 if name.startswith("tidegate.") else 1]) for name in sys.modules})
print(json.dumps({"seconds": seconds, "dags": sorted(n for n, v in found.items() if isinstance(v, DAG)), "tops": tops}))
"""


def parse() -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(ROOT / "dags" / "tidegate_dags.py")],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    parsed: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return parsed


def test_parsing_the_dag_folder_is_cheap_and_imports_no_engine() -> None:
    parsed = parse()
    for _ in range(2):
        # Other processes share the machine, and each is one more chance.
        parsed = parsed if parsed["seconds"] < BUDGET_SECONDS else parse()  # type: ignore[operator]
    assert parsed["seconds"] < BUDGET_SECONDS  # type: ignore[operator]
    assert not {"pyspark", "tidegate.windowing", "great_expectations", "deltalake", "pandas"} & set(parsed["tops"])  # type: ignore[call-overload]
    assert {"aircraft_duty__backfill", "aircraft_duty__stream", "aircraft_duty__quality"} <= set(parsed["dags"])  # type: ignore[call-overload]
