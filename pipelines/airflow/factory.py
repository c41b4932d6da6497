"""The DAGs of a project: made from tidegate.toml alone, without importing a pipeline or Spark."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, Param

from pipelines.airflow.operator import TidegateOperator
from pipelines.config import Config, PipelineEntry, load_config


def project_dags(config_file: str | Path | None = None) -> dict[str, DAG]:
    """The DAGs of every pipeline in tidegate.toml, by id: put them into the globals of a DAG file.

    Args:
        config_file: tidegate.toml; None finds it as the command line does.

    Example:
        >>> from pipelines.airflow import project_dags
        >>> globals().update(project_dags())
    """
    config = load_config(None if config_file is None else Path(config_file))
    dags = [backfill_dag(config, name, entry) for name, entry in config.pipelines.items()]
    return {dag.dag_id: dag for dag in dags}


def backfill_dag(config: Config, name: str, entry: PipelineEntry) -> DAG:
    """The DAG that runs one interval of event time after the other."""
    with DAG(
        dag_id=f"{name}__backfill",
        description=f"Windows of {name}, one data interval after the other",
        doc_md=_BACKFILL_DOC.format(name=name),
        schedule=CronDataIntervalTimetable(entry.schedule, timezone="UTC"),
        start_date=entry.start,
        end_date=entry.end,
        catchup=entry.catchup,
        max_active_runs=2,
        is_paused_upon_creation=True,
        tags=["tidegate", name, *entry.tags],
        params={
            "and_following": Param(
                False,
                type="boolean",
                title="Run the following intervals again too",
                description="After a correction: later intervals were computed from this one's old windows.",
            )
        },
        default_args={"retries": entry.retries, "retry_delay": timedelta(seconds=30), "depends_on_past": True},
    ) as dag:
        windows = _tidegate(
            config,
            task_id="windows",
            arguments=[
                "backfill",
                name,
                "--start",
                "{{ data_interval_start.isoformat() }}",
                "--end",
                "{{ data_interval_end.isoformat() }}",
                "{{ '--and-following' if params.and_following else '--no-and-following' }}",
            ],
            pool=entry.pool,
        )
        if entry.suite is not None:
            quality = _tidegate(
                config,
                task_id="quality",
                arguments=["quality", name, "--epoch", "{{ ti.xcom_pull(task_ids='windows')['runs'][0]['epoch'] }}"],
                depends_on_past=False,
            )
            windows >> quality
    return dag


def _tidegate(config: Config, task_id: str, arguments: list[str], **options: Any) -> TidegateOperator:
    return TidegateOperator(
        task_id=task_id,
        arguments=arguments,
        config=str(config.file),
        runs=str(config.work_folder / "runs"),
        **options,
    )


_BACKFILL_DOC = """
### Backfill of `{name}`

Each run computes the windows of its data interval, going on from the snapshot of the run before: a
session that crosses midnight is one session. Runs go in order.

* Many intervals at once: `airflow backfill create --dag-id {name}__backfill --from-date ... --to-date ...
  --reprocess-behavior failed`
* Running an interval again changes nothing unless its rows or the code changed; then it is computed
  anew from the snapshot before it, and what comes after is marked stale until it is run again too.
"""
