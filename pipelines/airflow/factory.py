"""The DAGs of a project: made from tidegate.toml alone, without importing a pipeline or Spark."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, CronTriggerTimetable, TriggerRule

from pipelines.airflow import params
from pipelines.airflow.alarms import Alarm
from pipelines.airflow.assets import final_windows_asset, snapshot_asset
from pipelines.airflow.commands import (
    CONTINUOUS,
    LATEST,
    backfill_arguments,
    check_arguments,
    quality_arguments,
    savepoint_arguments,
    stream_arguments,
)
from pipelines.airflow.documents import BACKFILL, QUALITY, STREAM, WATCH
from pipelines.airflow.operator import TidegateOperator
from pipelines.airflow.sensors import SnapshotSensor
from pipelines.airflow.stale import StaleNote
from pipelines.airflow.standing_task import ReadStanding
from pipelines.airflow.stop import StopStream
from pipelines.airflow.watch import WatermarkWatch
from pipelines.config import Config, PipelineEntry, load_config

_A_YEAR = 366 * 24 * 3600.0


def project_dags(config_file: str | Path | None = None) -> dict[str, DAG]:
    """The DAGs of every pipeline in tidegate.toml, by id: put them into the globals of a DAG file.

    Args:
        config_file: tidegate.toml; None finds it as the command line does.

    Example:
        >>> from pipelines.airflow import project_dags
        >>> globals().update(project_dags())
    """
    config = load_config(None if config_file is None else Path(config_file))
    dags = [dag for name, entry in config.pipelines.items() for dag in pipeline_dags(config, name, entry)]
    return {dag.dag_id: dag for dag in dags}


def pipeline_dags(config: Config, name: str, entry: PipelineEntry) -> list[DAG]:
    """The DAGs of one pipeline; a watch only where tidegate.toml gives a limit."""
    dags = [backfill_dag(config, name, entry), stream_dag(config, name, entry), quality_dag(config, name, entry)]
    if entry.max_lag_minutes is not None:
        dags.append(watch_dag(config, name, entry))
    return dags


def backfill_dag(config: Config, name: str, entry: PipelineEntry) -> DAG:
    """The DAG that runs one interval of event time after the other, and checks the windows that became final."""
    with _dag(
        config,
        name,
        entry,
        "backfill",
        description=f"Windows of {name}, one data interval after the other",
        doc_md=BACKFILL.format(name=name),
        schedule=CronDataIntervalTimetable(entry.schedule, timezone="UTC"),
        start_date=entry.start,
        end_date=entry.end,
        catchup=entry.catchup,
        max_active_runs=2,
        params=params.backfill(),
    ) as dag:
        windows = _tidegate(
            config,
            task_id="windows",
            arguments=backfill_arguments(name),
            pool=entry.pool,
            depends_on_past=True,
            note=StaleNote(str(config.file), name),
        )
        windows >> _quality(config, name, "ti.xcom_pull(task_ids='windows')['runs'][0]['epoch']")
    return dag


def stream_dag(config: Config, name: str, entry: PipelineEntry) -> DAG:
    """The DAG that runs the stream: on a schedule as far as there is data, or as one long task."""
    is_continuous = entry.stream_mode == CONTINUOUS
    with _dag(
        config,
        name,
        entry,
        "stream",
        description=f"{name} over its source's commits, as they come",
        doc_md=STREAM.format(name=name),
        schedule=None if is_continuous else CronTriggerTimetable(entry.stream_schedule, timezone="UTC"),
        start_date=entry.start,
        catchup=False,
        # A restart begins while the stream that it stops is still running.
        max_active_runs=2,
        params=params.stream(entry.stream_mode),
    ) as dag:
        before = ReadStanding(task_id="before", pipeline=name, config=str(config.file))
        # Code that can't go on is refused while the old stream is still running.
        check = _tidegate(
            config,
            task_id="check",
            arguments=check_arguments(name),
            only_if="{{ ti.xcom_pull(task_ids='before')['epoch'] > 0 and "
            f"(params.take_over or params.restore != '{LATEST}') }}}}",
        )
        savepoint = _tidegate(
            config,
            task_id="savepoint",
            arguments=savepoint_arguments(name),
            only_if="{{ params.savepoint is not none }}",
            trigger_rule=TriggerRule.NONE_FAILED,
        )
        stop = StopStream(
            task_id="stop",
            pipeline=name,
            config=str(config.file),
            only_if="{{ params.take_over }}",
            retries=0,
            trigger_rule=TriggerRule.NONE_FAILED,
        )
        stream = _tidegate(
            config,
            task_id="stream",
            arguments=stream_arguments(name),
            pool=entry.pool,
            outlets=[snapshot_asset(name)],
            trigger_rule=TriggerRule.NONE_FAILED,
        )
        first_epoch = SnapshotSensor(
            task_id="first_epoch",
            pipeline=name,
            config=str(config.file),
            newer_than="{{ ti.xcom_pull(task_ids='before')['epoch'] }}",
            only_if=f"{{{{ params.mode == '{CONTINUOUS}' }}}}",
            timeout=_A_YEAR,
            trigger_rule=TriggerRule.NONE_FAILED,
        )
        before >> check >> savepoint >> stop >> [stream, first_epoch]
    return dag


def quality_dag(config: Config, name: str, entry: PipelineEntry) -> DAG:
    """The DAG that checks a snapshot: after every run of the stream, or of the epoch that it is asked for."""
    with _dag(
        config,
        name,
        entry,
        "quality",
        description=f"Suites and report of {name}",
        doc_md=QUALITY.format(name=name),
        schedule=[snapshot_asset(name)],
        start_date=entry.start,
        catchup=False,
        max_active_runs=1,
        params=params.quality(),
    ) as dag:
        _quality(config, name, "params.epoch")
    return dag


def watch_dag(config: Config, name: str, entry: PipelineEntry) -> DAG:
    """The DAG that fails when the watermark lies too far behind the clock."""
    with _dag(
        config,
        name,
        entry,
        "watch",
        description=f"Fails when the watermark of {name} lies too far behind",
        doc_md=WATCH.format(name=name, limit=entry.max_lag_minutes),
        schedule=CronTriggerTimetable(entry.stream_schedule, timezone="UTC"),
        start_date=entry.start,
        catchup=False,
        max_active_runs=1,
        params=params.watch(entry.max_lag_minutes or 0),
    ) as dag:
        WatermarkWatch(
            task_id="watermark",
            pipeline=name,
            config=str(config.file),
            max_lag=timedelta(minutes=entry.max_lag_minutes or 0),
            retries=0,
        )
    return dag


def _dag(config: Config, name: str, entry: PipelineEntry, kind: str, **options: Any) -> DAG:
    return DAG(
        dag_id=f"{name}__{kind}",
        is_paused_upon_creation=True,
        tags=["tidegate", name, kind, *entry.tags],
        default_args={
            "retries": entry.retries,
            "retry_delay": timedelta(seconds=30),
            "on_failure_callback": Alarm(str(config.file), name),
        },
        **options,
    )


def _quality(config: Config, name: str, epoch: str) -> TidegateOperator:
    return _tidegate(
        config, task_id="quality", arguments=quality_arguments(name, epoch), outlets=[final_windows_asset(name)]
    )


def _tidegate(config: Config, task_id: str, arguments: list[str], **options: Any) -> TidegateOperator:
    return TidegateOperator(
        task_id=task_id,
        arguments=arguments,
        config=str(config.file),
        runs=str(config.work_folder / "runs"),
        **options,
    )
