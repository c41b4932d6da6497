"""The DAGs of a project: made from tidegate.toml alone, without importing a pipeline or Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import (
    DAG,
    Asset,
    AssetOrTimeSchedule,
    BaseOperatorLink,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    TriggerRule,
)

from tidegate.pipelines.airflow import params
from tidegate.pipelines.airflow.alarms import Alarm, AlarmEnds
from tidegate.pipelines.airflow.assets import (
    SnapshotEvent,
    WindowEvents,
    snapshot_asset,
    source_assets,
)
from tidegate.pipelines.airflow.bundles import check_outside_bundles
from tidegate.pipelines.airflow.documents import DOCUMENTS
from tidegate.pipelines.airflow.operator import TidegateOperator
from tidegate.pipelines.airflow.params import (
    BY_ITSELF,
    CONTINUOUS,
    LATEST,
    backfill_arguments,
    check_arguments,
    quality_arguments,
    reopen_arguments,
    savepoint_arguments,
    stream_arguments,
)
from tidegate.pipelines.airflow.report_link import DocsLink, PageLink, ReportLink
from tidegate.pipelines.airflow.sensors import SnapshotSensor
from tidegate.pipelines.airflow.tasks import HELD, HeldPartitions, ReadStatus, StaleNote, StopStream, WatermarkWatch
from tidegate.pipelines.config import Config, PipelineEntry, load_config
from tidegate.pipelines.errors import UsageError

_A_YEAR = 366 * 24 * 3600.0
_LOOK_SECONDS = 5.0


def project_dags(config_file: str | Path | None = None) -> dict[str, DAG]:
    """Return the DAGs of every pipeline in tidegate.toml by id, to put into the globals of a DAG file.

    Args:
        config_file: tidegate.toml, best named relative to the DAG file: Airflow's processes run in folders of
            their own. None finds it as the command line does.

    Raises:
        UsageError: the file is missing or faulty; Airflow shows it as an import error.

    Example:
        >>> from pathlib import Path
        >>> from tidegate.pipelines.airflow import project_dags
        >>> globals().update(project_dags(Path(__file__).parent.parent / "tidegate.toml"))
    """
    file = None if config_file is None else Path(config_file)
    try:
        config = load_config(file)
    except UsageError as error:
        if file is not None and (file.is_absolute() or file.exists()):
            raise
        raise UsageError(
            f"{error}. In a DAG file name it from that file: "
            'project_dags(Path(__file__).parent.parent / "tidegate.toml")'
        ) from error
    check_outside_bundles(config)
    dags = [dag for name, entry in config.pipelines.items() for dag in PipelineDags(config, name, entry).all()]
    return {dag.dag_id: dag for dag in dags}


@dataclass(frozen=True)
class PipelineDags:
    """The DAGs of one pipeline, each made by a method.

    Args:
        config: the project.
        name: name of the pipeline.
        entry: its entry in tidegate.toml.
    """

    config: Config
    name: str
    entry: PipelineEntry

    def all(self) -> list[DAG]:
        """Return every DAG; those of late rows and of full checks only with a schedule, the watch only with a limit."""
        watches = [] if self.entry.max_lag_minutes is None else [self.watch(self.entry.max_lag_minutes)]
        reopens = [] if self.entry.reopen_schedule is None else [self.late(self.entry.reopen_schedule)]
        full = [] if self.entry.full_check_schedule is None else [self.full_check(self.entry.full_check_schedule)]
        return [self.backfill(), self.stream(), self.quality(), *full, *reopens, *watches]

    def backfill(self) -> DAG:
        """Runs one interval of event time after the other, and checks the windows that became final."""
        with self._dag(
            "backfill",
            schedule=CronDataIntervalTimetable(self.entry.schedule, timezone="UTC"),
            # Airflow starts a run at its end date too; ours is not included.
            end_date=None if self.entry.end is None else self.entry.end - timedelta(microseconds=1),
            catchup=self.entry.catchup,
            max_active_runs=2,
            params=params.backfill(),
        ) as dag:
            windows = self._tidegate(
                "windows",
                backfill_arguments(self.name),
                pool=self.entry.pool,
                depends_on_past=True,
                inlets=self._sources,
                note=StaleNote(**self._pipeline),
            )
            # After several epochs the last one is checked: it includes windows that became final in the others.
            windows >> self._quality("ti.xcom_pull(task_ids='windows')['epoch']")
        return dag

    def stream(self) -> DAG:
        """Runs the stream: on a schedule or for commits as far as there is data, or as one long task."""
        with self._dag(
            "stream",
            schedule=self._stream_schedule,
            # A restart begins while the stream that it stops is still running.
            max_active_runs=2,
            params=params.stream(self.entry.stream_mode),
        ) as dag:
            before = ReadStatus(task_id="before", **self._pipeline)
            # Code that can't go on is refused while the old stream is still running.
            check = self._tidegate(
                "check",
                check_arguments(self.name),
                only_if="{{ ti.xcom_pull(task_ids='before')['epoch'] > 0 and "
                f"(params.take_over or params.restore != '{LATEST}') }}}}",
            )
            savepoint = self._tidegate(
                "savepoint",
                savepoint_arguments(self.name),
                only_if="{{ params.savepoint is not none }}",
                trigger_rule=TriggerRule.NONE_FAILED,
            )
            stop = StopStream(
                task_id="stop",
                only_if="{{ params.take_over }}",
                retries=0,
                trigger_rule=TriggerRule.NONE_FAILED,
                **self._pipeline,
            )
            # The old stream made epochs until here; they must not count as the new stream's first epoch.
            after_stop = ReadStatus(task_id="after_stop", trigger_rule=TriggerRule.NONE_FAILED, **self._pipeline)
            stream = self._tidegate(
                "stream",
                stream_arguments(self.name, before.task_id),
                pool=self.entry.pool,
                inlets=self._sources,
                outlets=[snapshot_asset(self.name)],
                event=SnapshotEvent(**self._pipeline),
                # A run that takes longer than its schedule also reads the commits of the next run, which may skip.
                skip_if_held=f"{{{{ {BY_ITSELF} }}}}",
                trigger_rule=TriggerRule.NONE_FAILED,
            )
            first_epoch = SnapshotSensor(
                task_id="first_epoch",
                newer_than=f"{{{{ ti.xcom_pull(task_ids='{after_stop.task_id}')['epoch'] }}}}",
                only_if=f"{{{{ params.mode == '{CONTINUOUS}' }}}}",
                driver="stream",
                poke_interval=_LOOK_SECONDS,
                # A source may stay empty for long; the end of the stream ends the waiting.
                timeout=_A_YEAR,
                trigger_rule=TriggerRule.NONE_FAILED,
                **self._pipeline,
            )
            before >> check >> savepoint >> stop >> after_stop >> [stream, first_epoch]
        return dag

    def quality(self) -> DAG:
        """Checks a snapshot: after every run of the stream the newest, by hand that of any epoch."""
        assets = [snapshot_asset(self.name)]
        # A continuous stream may not end for months, and only its end changes the asset.
        schedule = AssetOrTimeSchedule(timetable=self._every_tick, assets=assets) if self._is_continuous else assets
        with self._dag("quality", schedule=schedule, max_active_runs=1, params=params.quality()) as dag:
            self._quality("params.epoch")
        return dag

    def full_check(self, schedule: str) -> DAG:
        """Checks every window and reads every file, which the checks between two epochs leave out."""
        with self._dag("full_check", schedule=CronTriggerTimetable(schedule, timezone="UTC"), max_active_runs=1) as dag:
            # It tells readers nothing, because the checks of the epochs do.
            self._tidegate("quality", ["quality", self.name, "--all", "--report"], links=[ReportLink(), DocsLink()])
        return dag

    def late(self, schedule: str) -> DAG:
        """Takes late rows into their windows, and checks the windows that it corrected."""
        with self._dag(
            "late",
            schedule=CronTriggerTimetable(schedule, timezone="UTC"),
            max_active_runs=1,
            params=params.late(),
        ) as dag:
            reopen = self._tidegate(
                "reopen",
                reopen_arguments(self.name),
                pool=self.entry.pool,
                # A backfill may be at work; the next run reopens these rows too.
                skip_if_held="{{ dag_run.run_type == 'scheduled' }}",
            )
            epoch = "ti.xcom_pull(task_ids='reopen')['epoch']"
            reopen >> self._quality(epoch, only_if=f"{{{{ {epoch} is not none }}}}")
        return dag

    def watch(self, limit: float) -> DAG:
        """Fails when the watermark lies more than `limit` minutes behind the clock."""
        with self._dag(
            "watch",
            schedule=self._every_tick,
            max_active_runs=1,
            params=params.watch(limit),
        ) as dag:
            WatermarkWatch(task_id="watermark", max_lag=timedelta(minutes=limit), retries=0, **self._pipeline)
        return dag

    @property
    def _is_continuous(self) -> bool:
        return self.entry.stream_mode == CONTINUOUS

    @property
    def _every_tick(self) -> CronTriggerTimetable:
        return CronTriggerTimetable(self.entry.stream_schedule, timezone="UTC")

    @property
    def _sources(self) -> list[Asset]:
        """Return the assets at which Airflow's graph of assets begins."""
        return source_assets(self.name, self.entry.source_assets)

    @property
    def _stream_schedule(self) -> CronTriggerTimetable | AssetOrTimeSchedule | list[Asset] | None:
        if self._is_continuous:
            return None
        if self.entry.stream_on == "schedule":
            return self._every_tick
        # Most projects parse without it.
        from tidegate.pipelines.airflow.commits import commits_asset

        commits = [commits_asset(str(self.config.file), self.name, self.entry.look_seconds)]
        if self.entry.stream_on == "commits":
            return commits
        return AssetOrTimeSchedule(timetable=self._every_tick, assets=commits)

    @property
    def _pipeline(self) -> dict[str, Any]:
        """Return the arguments of a task that reads the pipeline's newest snapshot."""
        return {"config": str(self.config.file), "pipeline": self.name}

    def _longest(self, kind: str) -> timedelta | None:
        """Return the longest time of a task in a DAG of this kind; None for no limit."""
        minutes = self.entry.max_minutes
        is_endless = kind == "stream" and self._is_continuous
        return None if minutes is None or is_endless else timedelta(minutes=minutes)

    def _dag(self, kind: str, **options: Any) -> DAG:
        shared: dict[str, Any] = {
            "dag_id": f"{self.name}__{kind}",
            "start_date": self.entry.start,
            "catchup": False,
            "is_paused_upon_creation": True,
            "tags": ["tidegate", self.name, kind, *self.entry.tags],
            "default_args": {
                "retries": self.entry.retries,
                "retry_delay": timedelta(seconds=self.entry.retry_delay_seconds),
                "execution_timeout": self._longest(kind),
                "owner": self.entry.owner,
                "on_failure_callback": Alarm(**self._pipeline),
                "on_success_callback": AlarmEnds(**self._pipeline),
                "pre_execute": params.known_params(options.get("params", ())),
            },
            **DOCUMENTS[kind].about(self.name, self.entry.max_lag_minutes),
        }
        return DAG(**shared | options)

    def _quality(self, epoch: str, **options: Any) -> TidegateOperator:
        events = WindowEvents(self.name, self.entry.asset_partitions, hold=self.entry.hold)
        check = self._tidegate(
            "quality",
            quality_arguments(self.name, epoch),
            outlets=[events.asset, *([] if events.unit == "none" else [events.alias])],
            windows=events,
            links=[ReportLink(), DocsLink()],
            **options,
        )
        if events.hold == "partitions":
            check >> HeldPartitions(task_id=HELD, check=check.task_id, retries=0, **self._pipeline)
        return check

    def _tidegate(
        self, task_id: str, arguments: list[str], *, links: Sequence[BaseOperatorLink] = (), **options: Any
    ) -> TidegateOperator:
        return TidegateOperator(
            task_id=task_id,
            arguments=arguments,
            config=str(self.config.file),
            runs=str(self.config.work_folder / "runs"),
            pipeline=self.name,
            links=[*links, PageLink()],
            **options,
        )
