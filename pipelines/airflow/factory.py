"""The DAGs of one pipeline, built from tidegate.toml alone, without importing a pipeline or Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from airflow.sdk import (
    DAG,
    Asset,
    AssetOrTimeSchedule,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    TriggerRule,
    chain,
)

from tidegate.pipelines.airflow import params
from tidegate.pipelines.airflow.alarms import Alarm
from tidegate.pipelines.airflow.assets import (
    FAILED,
    SnapshotEvents,
    WindowEvents,
    snapshot_asset,
    source_assets,
)
from tidegate.pipelines.airflow.documents import DOCUMENTS, commands
from tidegate.pipelines.airflow.operator import TidegateOperator
from tidegate.pipelines.airflow.params import (
    AVAILABLE_NOW,
    BY_ITSELF,
    CONTINUOUS,
    LATEST,
    backfill_arguments,
    check_arguments,
    maintenance_savepoint_arguments,
    quality_arguments,
    reopen_arguments,
    restart_arguments,
    savepoint_arguments,
    stream_arguments,
    streams_arguments,
)
from tidegate.pipelines.airflow.sensors import SnapshotSensor
from tidegate.pipelines.airflow.tasks import (
    HELD,
    FailedStreams,
    HeldPartitions,
    ReadStatus,
    StaleNote,
    StopStream,
    WatermarkWatch,
)
from tidegate.pipelines.definition.config import Config, PipelineEntry
from tidegate.pipelines.definition.names import listed
from tidegate.pipelines.errors import UsageError

_OWN = {
    "default_args": ("pre_execute",),
    "dag_args": (
        *("dag_id", "schedule", "start_date", "end_date", "catchup", "params", "default_args", "max_active_runs"),
        *("description", "doc_md"),
    ),
    "operator_args": (
        *("task_id", "arguments", "config", "pipeline", "shown_as", "events", "only_if", "skip_if_held", "outlets"),
        *("inlets", "trigger_rule", "depends_on_past", "dag", "pre_execute", "post_execute"),
    ),
}
"""Names that Tidegate sets itself, by argument of `project_dags`."""


@dataclass(frozen=True, slots=True)
class DagOptions:
    """The options that code passes for all DAGs of a project, in addition to tidegate.toml; see `project_dags`."""

    prefix: str = ""
    default_args: Mapping[str, Any] = field(default_factory=dict)
    dag_args: Mapping[str, Any] = field(default_factory=dict)
    operator_args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.prefix and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,99}", self.prefix):
            raise UsageError(
                f"prefix={self.prefix!r}: give letters, digits, _ and -, beginning with a letter, such as team_a_"
            )
        for argument, own in _OWN.items():
            if taken := sorted(set(own) & set(getattr(self, argument))):
                raise UsageError(
                    f"{argument}: {listed(taken)} is set by Tidegate: leave it out. Schedules, start and end are in "
                    "tidegate.toml, and default_args is a separate argument"
                )


_A_YEAR = 366 * 24 * 3600.0
_POLL_SECONDS = 5.0

_VERIFY_BUDGET = 0.02
"""Share of the epochs' own computing time that task `verify` may take."""


@dataclass(frozen=True)
class PipelineDags:
    """The DAGs of one pipeline, each built by a method, from its entry in tidegate.toml and options from code."""

    config: Config
    name: str
    entry: PipelineEntry
    options: DagOptions

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of DAGs, which are the names of their methods. Some kinds need a schedule or a limit."""
        entry = self.entry
        by_setting = {
            "full_check": entry.full_check_schedule,
            "late": entry.reopen_schedule,
            "maintenance": entry.maintenance_schedule,
            "watch": entry.max_lag_minutes,
        }
        given = [kind for kind, setting in by_setting.items() if setting is not None]
        return ["backfill", "stream", "restart", "quality", *given]

    @property
    def full_name(self) -> str:
        """Return the pipeline's name in Airflow, which is the prefix of its DAG ids and asset names."""
        return f"{self.options.prefix}{self.name}"

    def backfill(self) -> DAG:
        """Runs one interval of event time after another, and checks the windows that became final."""
        with self._dag(
            "backfill",
            schedule=CronDataIntervalTimetable(self.entry.schedule, timezone=self.entry.timezone),
            # Airflow also starts a run at the end date, but `end` in tidegate.toml is exclusive.
            end_date=None if self.entry.end is None else self.entry.end - timedelta(microseconds=1),
            catchup=self.entry.catchup,
            max_active_runs=2,
            params=params.backfill(),
        ) as dag:
            windows = self._tidegate(
                "windows",
                backfill_arguments(self.name),
                pool=self._pool,
                depends_on_past=True,
                inlets=self._sources,
                post_execute=StaleNote(**self._pipeline, prefix=self.options.prefix),
            )
            # After several epochs the last one is checked: it covers the windows that became final in the others.
            windows >> self._quality("ti.xcom_pull(task_ids='windows')['epoch']")
        return dag

    def stream(self) -> DAG:
        """Runs the stream: on a schedule or for commits until all data is read, or as one long task."""
        with self._dag(
            "stream",
            schedule=self._stream_schedule,
            # A manually triggered run waits for the scheduled run inside its command.
            max_active_runs=2,
            params=params.stream(self._mode),
        ) as dag:
            # A run that takes longer than its schedule also reads the commits of the next run, which may be skipped.
            self._stream(stream_arguments(self.name), skip_if_held=f"{{{{ {BY_ITSELF} }}}}")
        return dag

    def streams(self, group: str, pipelines: Sequence[str]) -> DAG:
        """Runs the streams of a group in one command, with the schedule and settings of the first stream."""
        names = {name: f"{self.options.prefix}{name}" for name in pipelines}
        events = SnapshotEvents(str(self.config.file), names)
        of_mode = params.stream(self._mode)
        with self._dag(
            "streams",
            name=f"{self.options.prefix}{group}",
            members=pipelines,
            schedule=None if self._is_continuous else self._every_tick,
            max_active_runs=2,
            params={name: of_mode[name] for name in ("mode", "interval")},
        ) as dag:
            outlets = [*map(events.asset, names)]
            arguments = streams_arguments(pipelines)
            streams = self._tidegate("streams", arguments, pool=self._pool, events=events, outlets=outlets)
            held = f"{{{{ {BY_ITSELF} }}}}"
            streams >> FailedStreams(task_id=FAILED, streams=streams.task_id, skip_if_held=held, retries=0)
        return dag

    def restart(self) -> DAG:
        """Starts the stream from a snapshot by hand, after checking the code and stopping the old stream."""
        with self._dag(
            "restart",
            schedule=None,
            # A restart begins while the stream of the previous restart, which it stops, is still running.
            max_active_runs=2,
            params=params.restart(self._mode),
        ) as dag:
            before = ReadStatus(task_id="before", **self._pipeline)
            # Code that can't continue is refused while the old stream is still running.
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
                take_over="{{ params.take_over }}",
                retries=0,
                trigger_rule=TriggerRule.NONE_FAILED,
                **self._pipeline,
            )
            stream = self._stream(restart_arguments(self.name, before.task_id))
            first_epoch = SnapshotSensor(
                task_id="first_epoch",
                newer_than="{{ ti.xcom_pull(task_ids='stop')['epoch'] }}",
                only_if=f"{{{{ params.mode == '{CONTINUOUS}' }}}}",
                driver="stream",
                poke_interval=_POLL_SECONDS,
                # A source may stay empty for a long time. The end of the stream ends the wait.
                timeout=_A_YEAR,
                **self._pipeline,
            )
            before >> check >> savepoint >> stop >> [stream, first_epoch]
        return dag

    def _stream(self, arguments: list[str], **options: Any) -> TidegateOperator:
        return self._tidegate(
            "stream",
            arguments,
            pool=self._pool,
            inlets=self._sources,
            outlets=[snapshot_asset(self.full_name)],
            events=SnapshotEvents(str(self.config.file), {self.name: self.full_name}),
            **options,
        )

    def quality(self) -> DAG:
        """Checks a snapshot: the newest one after every run of the stream, or one of any epoch by hand."""
        assets = [snapshot_asset(self.full_name)]
        # A continuous stream may run for months, and the asset changes only when it ends.
        schedule = AssetOrTimeSchedule(timetable=self._every_tick, assets=assets) if self._is_continuous else assets
        with self._dag("quality", schedule=schedule, max_active_runs=1, params=params.quality()) as dag:
            self._quality("params.epoch")
            if sample := self.entry.verify_sample:
                # This is separate from the check: a run whose check fails must fail, regardless of the last task in a
                # chain.
                given = ["--budget", f"{_VERIFY_BUDGET}", "--sample", f"{sample}"]
                self._tidegate("verify", ["verify", self.name, *given])
        return dag

    def full_check(self) -> DAG:
        """Checks every window and reads every file, which the checks between epochs don't do."""
        with self._dag("full_check", schedule=self._at(self.entry.full_check_schedule), max_active_runs=1) as dag:
            # It notifies no readers, because the checks of epochs do.
            self._tidegate("quality", ["quality", "check", self.name, "--all", "--report"])
        return dag

    def maintenance(self) -> DAG:
        """Creates a savepoint, merges small files, and removes files that are no longer needed."""
        keep = self.entry.maintenance_savepoints
        with self._dag("maintenance", schedule=self._at(self.entry.maintenance_schedule), max_active_runs=1) as dag:
            # A continuous stream holds the lease, and maintains its tables itself.
            steps = [
                self._tidegate(each, ["tables", each, self.name], skip_if_held="{{ dag_run.run_type == 'scheduled' }}")
                for each in ("optimize", "vacuum")
            ]
            if keep:
                steps.insert(0, self._tidegate("savepoint", maintenance_savepoint_arguments(self.name, keep)))
            chain(*steps)
        return dag

    def late(self) -> DAG:
        """Adds late rows to their windows, and checks the windows that it corrected."""
        with self._dag(
            "late",
            schedule=self._at(self.entry.reopen_schedule),
            max_active_runs=1,
            params=params.late(),
        ) as dag:
            reopen = self._tidegate(
                "reopen",
                reopen_arguments(self.name),
                pool=self._pool,
                # A backfill may be running. The next run reopens these rows too.
                skip_if_held="{{ dag_run.run_type == 'scheduled' }}",
            )
            epoch = "ti.xcom_pull(task_ids='reopen')['epoch']"
            reopen >> self._quality(epoch, only_if=f"{{{{ {epoch} is not none }}}}")
        return dag

    def watch(self) -> DAG:
        """Fails when the watermark is more than `max_lag_minutes` behind the clock."""
        limit = self.entry.max_lag_minutes or 0.0
        with self._dag(
            "watch",
            schedule=self._every_tick,
            max_active_runs=1,
            params=params.watch(limit),
        ) as dag:
            WatermarkWatch(task_id="watermark", max_lag=timedelta(minutes=limit), retries=0, **self._pipeline)
        return dag

    @property
    def _mode(self) -> str:
        """Return the default of Param `mode`."""
        return CONTINUOUS if self._is_continuous else AVAILABLE_NOW

    @property
    def _is_continuous(self) -> bool:
        return self.entry.stream_mode == CONTINUOUS

    @property
    def _every_tick(self) -> CronTriggerTimetable:
        return self._at(self.entry.stream_schedule)

    def _at(self, schedule: str | None) -> CronTriggerTimetable:
        """Return the ticks of the pipeline's schedule, which must be set."""
        assert schedule is not None
        return CronTriggerTimetable(schedule, timezone=self.entry.timezone)

    @property
    def _sources(self) -> list[Asset]:
        """Return the assets of the pipeline's sources, which are the roots of Airflow's asset graph."""
        return source_assets(self.name, self.entry.source_assets)

    @property
    def _stream_schedule(self) -> CronTriggerTimetable | AssetOrTimeSchedule | list[Asset] | None:
        if self._is_continuous or self.config.group_of(self.name) is not None:
            return None
        if self.entry.stream_mode == "schedule":
            return self._every_tick
        # Parsing most projects does not need this import.
        from tidegate.pipelines.airflow.commits import commits_asset

        commits = [commits_asset(str(self.config.file), self.name, self.options.prefix)]
        if "stream_schedule" not in self.entry.model_fields_set:
            return commits
        return AssetOrTimeSchedule(timetable=self._every_tick, assets=commits)

    @property
    def _pipeline(self) -> dict[str, Any]:
        """Return the arguments of a task that reads the pipeline's newest snapshot."""
        return {"config": str(self.config.file), "pipeline": self.name}

    @property
    def _pool(self) -> str:
        """Return the pool of a run that drives the pipeline."""
        theirs: str = self.options.default_args.get("pool", self.entry.pool)
        return self.entry.pool if "pool" in self.entry.model_fields_set else theirs

    def _default_args(self, kind: str, names: Iterable[str], members: Sequence[str]) -> dict[str, Any]:
        """Return the default arguments of a DAG's tasks: those from code, from tidegate.toml, and Tidegate's own."""
        in_file, theirs = self.entry.default_args, self.options.default_args
        given = theirs.get("on_failure_callback") or []
        alarm = Alarm(str(self.config.file), self._owners(members), self.options.prefix)
        own: dict[str, Any] = {
            "pre_execute": params.KnownParams(tuple(names), self._params_of_other_dags(kind)),
            "on_failure_callback": [alarm, *([given] if callable(given) else given)],
        }
        if kind in ("stream", "streams", "restart") and self._is_continuous:
            own["execution_timeout"] = None
        return {**in_file.arguments, **theirs, **in_file.written, **own}

    def _owners(self, members: Sequence[str] = ()) -> dict[str, str]:
        """Return, by pipeline of a DAG, the owner who gets its alarms."""
        theirs = {**self.options.default_args, **self.options.operator_args}.get("owner")
        entries = {name: self.config.entry(name) for name in members} or {self.name: self.entry}
        return {
            name: entry.default_args.written.get("owner", theirs or entry.default_args.owner)
            for name, entry in entries.items()
        }

    def _params_of_other_dags(self, kind: str) -> tuple[tuple[str, str], ...]:
        """Return the Params that users may expect in a DAG of this kind although another DAG has them, with its id."""
        restart = set(params.restart(self._mode)) - set(params.stream(self._mode))
        return tuple((name, f"{self.full_name}__restart") for name in sorted(restart)) if kind == "stream" else ()

    def _dag(self, kind: str, *, name: str = "", members: Sequence[str] = (), **options: Any) -> DAG:
        theirs = dict(self.options.dag_args)
        tags = ["tidegate", self.full_name, kind, *self.entry.tags, *theirs.pop("tags", ())]
        named = {"name": name or self.full_name, "pipeline": ", ".join(members) or self.name}
        named |= {"limit": f"{self.entry.max_lag_minutes}", **commands(self.name)}
        line, page = DOCUMENTS[kind]
        shared: dict[str, Any] = {
            "start_date": self.entry.start,
            "catchup": False,
            # A run of a paused DAG waits, so one that only starts by hand is not paused: nothing starts it by itself.
            "is_paused_upon_creation": options["schedule"] is not None,
            # Code from an older version of a bundle can't continue the state of newer code.
            "rerun_with_latest_version": True,
            **theirs,
            "dag_id": f"{name or self.full_name}__{kind}",
            "tags": list(dict.fromkeys(tags)),
            "default_args": self._default_args(kind, options.get("params", ()), members),
            "description": line.format(**named),
            "doc_md": page.format(**named),
        }
        return DAG(**shared | options)

    def _quality(self, epoch: str, **options: Any) -> TidegateOperator:
        results = f"{self.config.warehouse_uri.rstrip('/')}/{self.name}/results"
        events = WindowEvents(self.full_name, self.entry.asset_partitions, hold=self.entry.hold, table=results)
        check = self._tidegate(
            "quality",
            quality_arguments(self.name, epoch),
            outlets=[events.asset, events.alias],
            events=events,
            **options,
        )
        if events.hold == "partitions":
            check >> HeldPartitions(task_id=HELD, check=check.task_id, retries=0, **self._pipeline)
        return check

    def _tidegate(self, task_id: str, arguments: list[str], **options: Any) -> TidegateOperator:
        return TidegateOperator(
            task_id=task_id,
            arguments=arguments,
            config=str(self.config.file),
            pipeline=self.name,
            shown_as=self.full_name,
            **{**options, **self.options.operator_args},
        )
