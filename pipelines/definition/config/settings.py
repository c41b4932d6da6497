"""The settings of tidegate.toml, checked when the file is read: the warehouse, Spark's settings and the pipelines."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Set
from datetime import UTC, date, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from tidegate.pipelines.definition.config.cron import check_cron
from tidegate.pipelines.definition.imports import explain_import, similar
from tidegate.pipelines.definition.names import check_address, check_name, listed
from tidegate.pipelines.errors import TidegateError, UsageError

FILE_NAME = "tidegate.toml"
RESERVED = "_tidegate"
"""Folder of the warehouse for files that belong to no single pipeline. No pipeline can have this name."""

ANY_START = datetime.min.replace(tzinfo=UTC)
"""Default `start` of a pipeline: its backfill may begin at any time."""

IN_CODE = "Project(pipelines=[...])"
"""The `object` of a pipeline that was passed as a value in code."""

_NO_MOMENT = "give a date or date-time, such as 2024-03-01 or 2024-03-01T06:00:00Z"


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError('give the name of a time zone, such as "Europe/Berlin"') from None
    return value


def _function(value: str) -> str:
    module, _, name = value.partition(":")
    if not (name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ValueError('write it as "package.module:name"')
    return value


def _moment(value: object) -> object:
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(_NO_MOMENT) from None
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise ValueError(_NO_MOMENT)
    return value


def _address(value: object) -> object:
    """Return `host:port`. A port alone means the loopback interface."""
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    host, _, port = text.rpartition(":")
    if "/" in host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError('give a port, such as 9464, or an address, such as "0.0.0.0:9464"')
    return f"{host or '127.0.0.1'}:{port}"


def _collector(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("give the address of the collector, such as http://localhost:4318")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the address has a user or password: give credentials in OTEL_EXPORTER_OTLP_HEADERS")
    return value.rstrip("/")


def _folder(value: str) -> str:
    if not value.strip() or "://" in value:
        raise ValueError('give a folder on this host, such as "metrics" or "/var/lib/tidegate"; not a URI')
    return value


# Editors treat a TOML date as a string, and don't accept one without a time as a date-time.
Moment = Annotated[datetime, BeforeValidator(_moment), WithJsonSchema({"type": "string"})]
"""A TOML date or date-time. Without a zone, it is in the pipeline's `timezone`."""


Cron: TypeAlias = Annotated[str, AfterValidator(check_cron)]
"""A cron expression, or a preset such as `@daily`."""


Place: TypeAlias = Annotated[str, AfterValidator(check_address)]
"""A folder, or a URI in an object store."""


Folder: TypeAlias = Annotated[str, AfterValidator(_folder)]
"""A folder on this host."""


EngineName: TypeAlias = Literal["spark", "local"]
"""Name of an engine."""

PartitionUnit: TypeAlias = Literal["hour", "day", "month"]
"""Length of a partition of event time."""


class TomlTable(BaseModel):
    """A table of tidegate.toml: an unknown key is an error, and errors don't show values."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Notifier(BaseModel):
    """An Airflow notifier, called once for each failed task; the other keys are its arguments."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)

    notifier: Annotated[str, AfterValidator(_function)]
    """Import path of the class: `package.module:name`."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the class."""
        return dict(self.model_extra or {})


class SourceAsset(TomlTable):
    """An Airflow asset whose name differs from its URI."""

    name: str
    uri: str


class TaskArguments(BaseModel):
    """The table `default_args` of a pipeline: arguments of its tasks, which Airflow's operators check.

    Only arguments that Tidegate reads itself are fields. TOML has no durations, so they are numbers of seconds.
    """

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)

    owner: str = "airflow"
    """Owner of the tasks, and of the pipeline in alarms."""
    retries: int = Field(default=1, ge=0)
    """Number of retries of a task whose failure may be temporary."""
    retry_delay: float = Field(default=30, ge=0)
    """Seconds before a retry."""
    execution_timeout: float | None = Field(default=None, gt=0)
    """Seconds after which an attempt of a task is ended; None for no limit. Continuous streams have no limit."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments with their defaults, as Airflow takes them."""
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        durations = {name: timedelta(seconds=given[name]) for name in _DURATIONS & given.keys()}
        return given | durations

    @property
    def written(self) -> dict[str, Any]:
        """Return the arguments that the file sets, as Airflow takes them."""
        return {name: value for name, value in self.arguments.items() if name in self.model_fields_set}

    @model_validator(mode="after")
    def _leaves_what_tidegate_sets(self) -> TaskArguments:
        if taken := sorted(_SET_BY_TIDEGATE & self.model_fields_set):
            raise ValueError(
                f"{listed(taken)} is set by Tidegate: leave it out. `pool` and `notifiers` are settings of the pipeline"
            )
        return self


_DURATIONS = {"retry_delay", "execution_timeout"}
_SET_BY_TIDEGATE = {"pre_execute", "on_failure_callback", "pool"}


class WindowsTable(TomlTable):
    """The table `[pipelines.NAME.windows]` of tidegate.toml: table `windows`, one row for each window with a result."""

    enabled: bool = True
    """False if the pipeline has no such table."""
    partition_by: Literal["day", "month", "none"] = "none"
    """Partitions of the table, by the start of the windows in UTC."""
    early: bool = False
    """True includes early (speculative) panes: a window is listed as soon as it has fired."""


class Suites(TomlTable):
    """The table `[pipelines.NAME.suites]` of tidegate.toml: expectation suites.

    Each names an ExpectationSuite, `package.module:name`, that checks rows added since the previous check.
    """

    final: Annotated[str, AfterValidator(_function)] | None = None
    """Suite for the windows that became final, or whose final result changed."""
    windows: Annotated[str, AfterValidator(_function)] | None = None
    """Suite for the rows of table `windows` that are new or changed, before and after their windows become final."""
    late: Annotated[str, AfterValidator(_function)] | None = None
    """Suite for new rows of table `late`."""
    rejects: Annotated[str, AfterValidator(_function)] | None = None
    """Suite for new rows of table `rejects`."""
    source: Annotated[str, AfterValidator(_function)] | None = None
    """Suite for the source rows that the epochs read."""


class PipelineEntry(TomlTable):
    """One `[pipelines.NAME]` of tidegate.toml."""

    object: str
    """Import path of the Pipeline value: `package.module:name`."""
    start: Moment
    """First event time of the backfill. An interval before it is a usage error."""
    end: Moment | None = None
    """End of the event time, for a data set that is complete; None for no end."""
    catchup: bool = True
    """True lets Airflow schedule every interval since `start`, in order; if False, you create the backfill yourself."""
    schedule: Cron = "0 0 * * *"
    """Cron expression of the backfill. The data interval between two ticks is the slice."""
    stream_schedule: Cron = "*/15 * * * *"
    """Cron expression of the scheduled stream."""
    stream_mode: Literal["schedule", "commits", "continuous"] = "schedule"
    """`schedule` for runs that start on `stream_schedule`, read all available data and end; `commits` for runs that new
    commits of the source start, and `stream_schedule` if it is set; `continuous` for one long run, started by hand.
    """
    reopen_schedule: Cron | None = None
    """Cron expression of the DAG that reopens late rows; None for no such DAG."""
    full_check_schedule: Cron | None = None
    """Cron expression of the DAG that checks every window and reads every file; None for no such DAG."""
    verify_sample: float = Field(default=0, ge=0, le=1)
    """Share of the keys whose windows task `verify` of the quality DAG recomputes, for as many epochs as 2 % of the
    epochs' own computing time allows; 0 for no such task.
    """
    maintenance_schedule: Cron | None = None
    """Cron expression of the DAG that optimizes and vacuums the tables; None for no such DAG."""
    maintenance_savepoints: int = Field(default=0, ge=0)
    """Number of savepoints that the maintenance DAG keeps; each run makes a new one. 0 for none."""
    max_lag_minutes: float | None = Field(default=None, gt=0)
    """Lag of the watermark behind the clock above which the watch DAG fails. None for no watch DAG."""
    timezone: Annotated[str, AfterValidator(_zone)] = "UTC"
    """Time zone of the pipeline's calendar: of the cron expressions, the days of slices and of partitions in events,
    and of times without a zone in `start`, `end` and the options `--start` and `--end`.
    """
    default_args: TaskArguments = TaskArguments()
    """Arguments of the tasks in Airflow: `owner`, `queue`, `retries`, `retry_delay`, `execution_timeout`,
    `executor_config` and others of its operators.
    """
    notifiers: tuple[Notifier, ...] = ()
    """Airflow notifiers, called once for each failed task."""
    pool: str = "default_pool"
    """Airflow pool in which its Spark runs occupy a slot."""
    suites: Suites = Suites()
    """Expectation suites for the final windows and for other rows."""
    asset_partitions: PartitionUnit | Literal["none"] = "day"
    """Partitions that asset events of final windows name, by the start of the windows in `timezone`."""
    hold: Literal["asset", "partitions"] = "asset"
    """Events that a failed check holds back: all of them, or those of partitions with windows that fail the pipeline's
    own suite.
    """
    source_assets: tuple[str | SourceAsset, ...] = ()
    """Airflow assets of the source, as named by the DAGs that fill it: a URI, or a table with name and uri."""
    retain_snapshots: int = Field(default=10, ge=1)
    """Number of newest snapshots that a cleanup always keeps."""
    retain_days: int = Field(default=7, ge=0)
    """Snapshots up to this many days old are also kept; for a stream, one for each hour."""
    retain_log_hours: int = Field(default=6, ge=0)
    """Hours for which old versions of the published tables stay readable, at most `retain_days`."""
    retain_history_days: int = Field(default=90, ge=1)
    """Minimum number of days that rows of tables `epochs` and `quality` are kept. Rows of retained snapshots, of the
    newest check and of the newest check that passed always stay.
    """
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Port for the pipeline's metrics instead of the one in `[metrics]`, for several pipelines on one host."""
    tags: tuple[str, ...] = ()
    """Additional tags of the pipeline's DAGs in Airflow."""
    windows: WindowsTable = WindowsTable()
    """Table `windows`, which has one row for each current window."""

    @property
    def clock(self) -> tzinfo:
        """The time zone that `timezone` names."""
        return UTC if self.timezone == "UTC" else ZoneInfo(self.timezone)

    @model_validator(mode="after")
    def _begins_in_its_zone(self) -> PipelineEntry:
        for name in ("start", "end"):
            moment = getattr(self, name)
            if moment is not None and moment.tzinfo is None:
                # The model is frozen for its users; a default zone depends on both fields.
                object.__setattr__(self, name, moment.replace(tzinfo=self.clock))
        return self

    @model_validator(mode="after")
    def _holds_what_events_name(self) -> PipelineEntry:
        if self.hold == "partitions" and self.asset_partitions == "none":
            raise ValueError(
                'hold "partitions" needs partitioned events: give asset_partitions "hour", "day" or "month"'
            )
        return self


class MetricsSettings(TomlTable):
    """The table `[metrics]` of tidegate.toml. Nothing is measured or sent unless one of the first three keys is set."""

    prometheus: Annotated[str, BeforeValidator(_address), WithJsonSchema({"type": ["integer", "string"]})] | None = None
    """Address at which a run serves its metrics to Prometheus: a port of this host's loopback, or `host:port`."""
    otlp: Annotated[str, AfterValidator(_collector)] | None = None
    """Address of an OpenTelemetry collector to which a run sends its metrics over HTTP; `/v1/metrics` is appended."""
    textfile: Folder | None = None
    """Folder to which a run writes its metrics for node_exporter; a relative path is relative to the file's folder."""
    every_seconds: float = Field(default=15, ge=1)
    """Seconds between two exports to the collector, and between two writes of the file."""

    @property
    def are_on(self) -> bool:
        """Return True if a run collects any metrics."""
        return not (self.prometheus is None and self.otlp is None and self.textfile is None)


class Config(TomlTable):
    """The contents of tidegate.toml."""

    warehouse: Place = "warehouse"
    """Folder or URI of all tables; a relative path is relative to the file's folder."""
    work: Folder = ".work"
    """Folder on this host for logs and temporary files; relative as above."""
    artifacts: Place | None = None
    """Folder or URI for files besides tables that all hosts must see: run reports, Data Docs, alarms. None means
    `_tidegate/artifacts` in the warehouse if that is a URI, and otherwise the work folder.
    """
    retain_work_days: int = Field(default=30, ge=0)
    """Days since the last write after which logs, alarms and reports are removed; 0 keeps all."""
    storage_options: dict[str, str] = Field(default={}, repr=False)
    """Options of the object store, with the names that deltalake uses."""
    connection: str | None = None
    """Airflow connection with the credentials of the object store, such as `aws_default`."""
    engine: EngineName = "spark"
    """What runs the tasks of epochs: `spark`, or `local` for processes on this machine, without Java."""
    spark: dict[str, str | int | bool] = Field(default={}, repr=False)
    """Spark settings; they take precedence over those that Tidegate sets."""
    metrics: MetricsSettings = MetricsSettings()
    """Where runs export their metrics; nowhere by default."""
    pipelines: dict[Annotated[str, AfterValidator(check_name)], PipelineEntry] = {}
    stream_groups: dict[Annotated[str, AfterValidator(check_name)], tuple[str, ...]] = {}
    """Pipelines, by group, whose streams run in one process, under one DAG with the settings of the group's first
    pipeline."""
    root: Path = Field(default=Path(), exclude=True)
    """The folder of the file."""
    file_name: str = Field(default=FILE_NAME, exclude=True)
    """The file's name in `root`."""
    values: dict[str, Any] = Field(default={}, exclude=True, repr=False)
    """Pipelines that were passed as values in code, by name. The others are imported from their `object`."""
    session: Any = Field(default=None, exclude=True, repr=False)
    """A running Spark session for the engine `spark`; None starts one."""
    processes: Any = Field(default=None, exclude=True, repr=False)
    """Processes of the engine `local` that a run leaves to the next one; None if each run ends its own."""
    faulty: dict[str, str] = Field(default={}, exclude=True, repr=False)
    """Pipelines whose entry in the file is faulty, with the faults."""

    @model_validator(mode="after")
    def _groups_what_there_is(self) -> Config:
        seen: dict[str, str] = {}
        for group, names in self.stream_groups.items():
            for name in names:
                if name not in self.pipelines and name not in self.faulty:
                    raise ValueError(
                        f"stream_groups.{group}: unknown pipeline {name!r}; there are {listed(sorted(self.pipelines))}"
                    )
                if name in seen:
                    raise ValueError(f"stream_groups.{group}: {name!r} is already in group {seen[name]!r}")
                seen[name] = group
            if len(names) < 2:
                raise ValueError(f"stream_groups.{group}: a group has at least two pipelines")
        return self

    def group_of(self, pipeline: str) -> str | None:
        """Return the group that runs the stream of a pipeline, or None if it is in none."""
        return next((group for group, names in self.stream_groups.items() if pipeline in names), None)

    @property
    def file(self) -> Path:
        """Return the path of the file."""
        return self.root / self.file_name

    @property
    def warehouse_uri(self) -> str:
        """Return the warehouse as an absolute path or URI."""
        return self.place(self.warehouse)

    def place(self, given: str) -> str:
        """Return a folder or URI that a user names as an absolute path or URI; it is relative to the file's folder."""
        if given.startswith("file://"):
            return unquote(urlsplit(given).path)
        return given if "://" in given else str((self.root / given).absolute())

    @property
    def work_folder(self) -> Path:
        """Return the work folder as an absolute path."""
        return (self.root / self.work).absolute()

    @property
    def artifacts_uri(self) -> str:
        """Return the place of the artifacts as an absolute path or URI."""
        if self.artifacts is not None:
            return self.place(self.artifacts)
        if "://" in self.warehouse_uri:
            return f"{self.warehouse_uri.rstrip('/')}/{RESERVED}/artifacts"
        return str(self.work_folder)

    @property
    def shares_work(self) -> bool:
        """Return True if the artifacts are in the work folder, which all hosts must then see."""
        return self.artifacts_uri == str(self.work_folder)

    def make_folders(self) -> None:
        """Create the work folder, and the warehouse if it is a folder.

        Raises:
            UsageError: a folder can't be created; the error names the setting.
        """
        for setting, folder in (("warehouse", self.warehouse_uri), ("work", str(self.work_folder))):
            if "://" in folder:
                continue
            try:
                Path(folder).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(
                    f"folder {folder} can't be created: {error.strerror}. Set `{setting}` in {self.file_name}"
                ) from error

    @property
    def names(self) -> str:
        """Return the names of the pipelines as a clause of a message."""
        if self.values:
            return f"Project(pipelines=[...]) has {listed(sorted(self.pipelines))}"
        if not self.declared:
            return f"{self.file} has no pipeline; add one as [pipelines.NAME]"
        return f"{self.file} has {listed(sorted(self.declared))}"

    @property
    def declared(self) -> Set[str]:
        """Return the names of all pipelines, including those whose entry is faulty."""
        return self.pipelines.keys() | self.faulty.keys()

    def entry(self, name: str) -> PipelineEntry:
        """Return the entry of a pipeline.

        Raises:
            UsageError: there is no pipeline with that name, or its entry is faulty.
        """
        if name in self.faulty:
            raise UsageError(f"{self.file}: {self.faulty[name]}")
        if name not in self.pipelines:
            raise UsageError(f"unknown pipeline {name!r}: {self.names}")
        return self.pipelines[name]

    def check_entries(self) -> None:
        """Refuse a file with a faulty entry, for callers that need all pipelines.

        Raises:
            UsageError: the message names every error.
        """
        if self.faulty:
            raise UsageError(f"{self.file}: {'; '.join(self.faulty.values())}")

    def load(self, path: str, field: str) -> object:
        """Import `package.module:name`, with the project's folder on the path.

        Raises:
            UsageError: it can't be imported; the error names the field.
        """
        module, _, attribute = path.partition(":")
        if not attribute:
            raise UsageError(f"{field} = {path!r}: write it as package.module:name")
        if str(self.root) not in sys.path:
            sys.path.insert(0, str(self.root))
        try:
            imported = importlib.import_module(module)
        except Exception as error:
            message = f"{field} = {path!r}: {explain_import(error, module, self.root)}"
            # A file or service that a module reads may be available later, so an OSError is retried.
            raise (TidegateError if isinstance(error, OSError) else UsageError)(message) from error
        if not hasattr(imported, attribute):
            raise UsageError(f"{field} = {path!r}: module {module} has no {attribute!r}{similar(imported, attribute)}")
        return getattr(imported, attribute)
