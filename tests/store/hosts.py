"""Hosts of the tests: each has its own copy of a project, and everything shared is in a bucket."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.dags.test_operator import Store, context
from tests.store.server import options_of
from tidegate.pipelines.airflow.operator import TidegateOperator
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables

TASK = "visits__stream/manual__1/stream"
AWAY = "away"


def project(folder: Path, bucket: str, endpoint: str) -> Path:
    """Create a host's own copy of the project, with everything shared in a bucket; return its tidegate.toml."""
    folder.mkdir()
    options = "".join(f'{key} = "{value}"\n' for key, value in options_of(endpoint).items())
    text = f'warehouse = "s3://{bucket}/wh"\n[pipelines.visits]\nobject = "a:b"\nstart = 2024-03-01\n'
    (folder / "tidegate.toml").write_text(f"{text}[storage_options]\n{options}")
    return folder / "tidegate.toml"


def lease_of(config: Path) -> PipelineTables:
    return PipelineTables(warehouse_of(load_config(config)), "visits")


def operator(config: Path, interpreter: str, *arguments: str) -> TidegateOperator:
    return TidegateOperator(
        task_id="stream",
        arguments=list(arguments),
        config=str(config),
        runs=str(config.parent / ".work" / "runs"),
        pipeline="visits",
        python=interpreter,
    )


def in_airflow(tries: int, store: Store | None = None) -> Any:
    instance = SimpleNamespace(
        dag_id="visits__stream", run_id="manual__1", task_id="stream", try_number=tries, stats_tags={}
    )
    return {**context(tries, store), "ti": instance}
