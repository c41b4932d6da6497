"""The operator that runs `tidegate` in a separate process and finds it again after a worker restart.

The job outlives the worker. On a retry, the operator follows the process that is still running, here or on another
host, and starts a new one only if there is none. Exit codes decide about retries: 2, 3 and 5 recur until somebody
changes something, so they are not retried. All other exit codes, including those of signals, are retried.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, BaseOperator, ResumableJobMixin
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, AirflowTaskTimeout

from tidegate.pipelines.airflow import process
from tidegate.pipelines.airflow.assets import GroupEvents, WindowEvents, event_extra
from tidegate.pipelines.airflow.connections import environment_of
from tidegate.pipelines.airflow.elsewhere import Hosts
from tidegate.pipelines.airflow.lineage import CommandLineage
from tidegate.pipelines.airflow.run_files import DRIVEN, RESULT, name_of_task
from tidegate.pipelines.definition.config import ENVIRONMENT, LEASE_NOTE, Config, load_config
from tidegate.pipelines.definition.names import listed
from tidegate.pipelines.errors import LEASE_HELD, QUALITY, REFUSED, USAGE, UsageError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

_STAYS = (USAGE, REFUSED, QUALITY)
_OPTION = re.compile(r"--([a-z][a-z-]*)")


class CommandFailed(AirflowException):
    """A command failed with an exit code that is worth a retry."""

    def __init__(self, message: str, exit_code: int | None, reason: str | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.reason = reason


class CommandRefused(AirflowFailException):
    """A command failed with an exit code that recurs until somebody changes something."""

    def __init__(self, message: str, exit_code: int, reason: str | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.reason = reason


class TidegateOperator(ResumableJobMixin, BaseOperator):
    """Runs one `tidegate` command. The task returns the JSON that the command writes, without its lists.

    Args:
        arguments: arguments of the command, each a template; empty ones are left out.
        config: path of tidegate.toml, best built from the path of the DAG file: Airflow's processes run in other
            folders.
        runs: folder on this host for logs and results of runs; None for `runs` in the project's work folder.
        pipeline: name of the pipeline that the command drives; its lease shows whether a command on another host is
            alive.
        shown_as: the pipeline's name on the page, which is the prefix of its DAG ids. None for `pipeline`.
        deferrable: True waits for the command in the triggerer, without a worker slot. The log is shown when the
            command has ended. The default is Airflow's `[operators] default_deferrable`.
        python: interpreter to run with; the worker's own by default.
        only_if: a template; if it renders to anything but `True`, the task is skipped.
        skip_if_held: a template; if it renders to `True`, the task is skipped while another driver holds the lease.
        event: returns the content of its assets' events from the command's result.
        windows: events of the final windows, if the command checks them, or those of a group of streams.
        announce: a template; if it renders to anything but `True`, these events are left to a later check.
        note: returns a line for the log from a successful command's result.
        links: buttons of the task; the task's log has their addresses.

    Example:
        >>> from pathlib import Path
        >>> replay = TidegateOperator(
        ...     task_id="replay",
        ...     arguments=["backfill", "aircraft_duty", "--start={{ ds }}", "--end={{ macros.ds_add(ds, 1) }}"],
        ...     config=Path(__file__).parent / "tidegate.toml",
        ...     pipeline="aircraft_duty",
        ... )
    """

    template_fields: Sequence[str] = ("arguments", "only_if", "skip_if_held", "announce", "config", "pipeline")
    ui_color = "#d6eaf0"
    external_id_key = "tidegate_process"

    def __init__(
        self,
        *,
        arguments: Sequence[str],
        config: str | Path,
        runs: str | Path | None = None,
        pipeline: str | None = None,
        shown_as: str | None = None,
        deferrable: bool | None = None,
        python: str = sys.executable,
        only_if: str = "True",
        skip_if_held: str = "False",
        event: Callable[[Any], dict[str, Any]] = event_extra,
        windows: WindowEvents | GroupEvents | None = None,
        announce: str = "True",
        note: Callable[[Any], str | None] = lambda result: None,
        links: Sequence[BaseOperatorLink] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.arguments = list(arguments)
        self.config = str(config)
        self.runs = None if runs is None else str(runs)
        self.pipeline = pipeline
        self.shown_as = shown_as or pipeline
        if deferrable is None:
            deferrable = conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = deferrable
        self.python = python
        self.only_if = only_if
        self.skip_if_held = skip_if_held
        self.event = event
        self.windows = windows
        self.announce = announce
        self.note = note
        self.operator_extra_links = tuple(links)
        self._run: process.Run | None = None
        self._try = 0
        self._hosts: Hosts | None = None

    def execute(self, context: Context) -> Any:
        """Run the command to completion."""
        if str(self.only_if) != "True":
            raise AirflowSkipException("the Params of this run don't ask for this task")
        try:
            check_file_outside_bundles(self.config)
        except UsageError as error:
            raise CommandRefused(str(error), USAGE, str(error)) from error
        self.arguments = [str(argument) for argument in self.arguments if str(argument)]
        if self.windows is not None:
            self.arguments += self.windows.arguments(context)
        self._try = context["ti"].try_number
        return self._finish(context, self.execute_resumable(context))

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """Return the result of a command that the triggerer waited for.

        Raises:
            AirflowTaskTimeout: the command was ended, because it ran longer than `execution_timeout`.
        """
        self._try = context["ti"].try_number
        self.arguments = [str(argument) for argument in self.arguments if str(argument)]
        if event["is_too_late"]:
            raise AirflowTaskTimeout(f"the command ran longer than {self.execution_timeout}, and was ended")
        return self._finish(context, self._result_of(self._run_of(event["handle"]), context))

    def _finish(self, context: Context, result: Any) -> Any:
        notes = [self.note(result)]
        if self.windows is not None and str(self.announce) != "True":
            self.windows.withhold(context)
            self.log.info("no event: this run announces nothing")
        elif self.windows is not None:
            notes.append(self.windows.tell(context, result, self.event(result)))
        else:
            for outlet in self.outlets:
                if isinstance(outlet, Asset):
                    context["outlet_events"][outlet].extra = self.event(result)
        for text in filter(None, notes):
            self.log.warning(text)
        store = context.get("task_state_store")
        if store is not None:
            # Clearing a successful task should run its command again instead of returning this process's result.
            store.delete(self.external_id_key)
        return _small(result)

    def submit_job(self, context: Context) -> dict[str, Any]:
        """Start the process and return its handle, or that of an earlier attempt still running on another host."""
        instance = context["ti"]
        task = name_of_task(instance.dag_id, instance.run_id, instance.task_id)
        if (run := self.hosts.running_try(task)) is not None:
            self.log.warning("an earlier attempt is running on %s: following it", run.handle.host)
            self._run = run
            return run.handle.to_dict()
        name = f"{task}/{instance.try_number}"
        folder = self._runs_folder / name
        command = [
            self.python,
            "-m",
            "tidegate",
            *map(str, self.arguments),
            "--output",
            str(folder / RESULT),
        ]
        self.log.info("running: tidegate %s", " ".join(map(str, self.arguments)))
        environment: dict[str, str | None] = {ENVIRONMENT: self.config, "TERM": "dumb", "COLUMNS": "160"}
        environment[LEASE_NOTE] = str(folder / DRIVEN)
        environment |= environment_of(self.config)
        handle = process.start(command, folder, environment, copy=self.hosts.copy_of(name))
        self._run = self.hosts.run_of(handle)
        self.log.info("process %s, log %s", handle.pid, handle.log)
        return handle.to_dict()

    def get_job_status(self, external_id: Any, context: Context) -> str:
        """Return the status of a process that an earlier attempt started. If it is ending, wait for its end first."""
        run = self._run_of(external_id)
        if run.is_ending():
            run.follow(lambda line: None)
        status = run.status()
        if self.is_job_succeeded(status):
            # The process ended while no task followed it. Airflow takes its result without polling, so the log is shown
            # here.
            run.follow(self.log.info)
        return status

    def is_job_active(self, status: str) -> bool:
        """Return True while the process runs."""
        return status == process.RUNNING

    def is_job_succeeded(self, status: str) -> bool:
        """Return True if the process succeeded."""
        return status == process.SUCCEEDED

    def poll_until_complete(self, external_id: Any, context: Context) -> Any:
        """Follow the log until the process ends, and return its result. A deferrable task waits in the triggerer.

        Raises:
            AirflowSkipException: another driver is running, and the task need not wait for it.
            CommandRefused: the command failed in a way that a retry can't change.
            CommandFailed: the command failed otherwise.
        """
        run = self._run_of(external_id)
        run.files.claim(self._try)
        if self.deferrable and run.is_alive():
            from tidegate.pipelines.airflow.triggers import CommandTrigger

            longest = self.execution_timeout
            ends = None if longest is None else run.clock() + longest.total_seconds()
            trigger = CommandTrigger(run.handle.to_dict(), self.config, self.pipeline, self._try, ends)
            self.defer(trigger=trigger, method_name="resume")
        return self._result_of(run, context)

    def _result_of(self, run: process.Run, context: Context) -> Any:
        ended = run.follow(self.log.info)
        for link in self.operator_extra_links:
            # Airflow may pass the instance itself as the key.
            if address := link.get_link(self, ti_key=context["ti"]):  # type: ignore[arg-type]
                self.log.info("%s: %s", link.name, address)
        if ended == process.SUCCEEDED:
            return self.result
        code, reason = run.exit_code(), _with_params(run.reason(), context.get("params"))
        command = f"tidegate {' '.join(map(str, self.arguments))} ended with exit code {code}"
        if self.windows is not None and self.windows.may_emit(self.result, code):
            # A later task (`held`, `failed`) fails instead: Airflow accepts no events from a task that fails.
            self.log.warning("%s", reason)
            return self.result
        if code == LEASE_HELD and str(self.skip_if_held) == "True":
            raise AirflowSkipException(f"{command}: skipped, since the next run does the same work ({reason})")
        message = f"{command}{f': {reason}' if reason else ''}; see {run.files.log_address}"
        if code in _STAYS:
            raise CommandRefused(message, code, reason)
        raise CommandFailed(message, code, reason)

    def get_job_result(self, external_id: Any, context: Context) -> Any:
        """Return the JSON that the command wrote."""
        self._run_of(external_id)
        return self.result

    @property
    def result(self) -> Any:
        """Return the JSON that the command wrote, even if it failed, or None while there is none."""
        content = None if self._run is None else self._run.files.result()
        result: Any = None if content is None else json.loads(content)
        # The page identifies the pipeline by the prefix of its DAGs.
        is_renamed = isinstance(result, dict) and self.shown_as != self.pipeline
        return {**result, "shown_as": self.shown_as} if is_renamed else result

    def on_kill(self) -> None:
        """End the process and its children with the task, even if they run on another host."""
        if self._run is not None:
            self.hosts.end(self._run, self._try)

    def get_openlineage_facets_on_start(self) -> Any:
        """Return the datasets that the command is about to read and write, for Airflow's OpenLineage provider."""
        return self._lineage.before(is_skipped=str(self.only_if) != "True")

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the datasets that the command read and wrote."""
        return self._lineage.after(None if self._run is None else self._run.files)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return the datasets that the command read and wrote before it failed."""
        return self.get_openlineage_facets_on_complete(task_instance)

    @property
    def _lineage(self) -> CommandLineage:
        return CommandLineage(self.arguments, self.pipeline, self.config, self.python, self.log.warning)

    @property
    def _runs_folder(self) -> Path:
        if self.runs is not None:
            return Path(self.runs)
        try:
            return load_config(Path(self.config)).work_folder / "runs"
        except UsageError as error:
            raise CommandRefused(str(error), USAGE, str(error)) from error

    @property
    def hosts(self) -> Hosts:
        """Return the runs of this task on all hosts."""
        if self._hosts is None:
            self._hosts = Hosts.of(self.config, self.pipeline)
        return self._hosts

    def _run_of(self, external_id: Any) -> process.Run:
        """Return the run of a handle in Airflow's store."""
        self._run = self.hosts.run_of(process.ProcessHandle(**external_id))
        return self._run


def _with_params(reason: str | None, params: Mapping[str, Any] | None) -> str | None:
    """Add to a message the DAG's Params that correspond to the options it names."""
    options = set(_OPTION.findall(reason or ""))
    named = [f"`{name}`" for name in params or () if name.replace("_", "-") in options]
    return f"{reason} (Params in Airflow: {listed(named)})" if named else reason


def _small(result: Any) -> Any:
    """Return a result without its lists, such as checks and epochs: Airflow's database stores it once per attempt."""
    if not isinstance(result, dict):
        return result
    return {name: _small(value) for name, value in result.items() if not isinstance(value, list)}


_PLACES = ("warehouse", "work", "artifacts", "backups")


def check_outside_bundles(config: Config) -> None:
    """Refuse paths that are relative to a tidegate.toml in Airflow's copy of a DAG bundle.

    Raises:
        UsageError: the next version of the bundle would start on an empty warehouse; the error names the settings.
    """
    from airflow.sdk.configuration import conf

    given = conf.get("dag_processor", "dag_bundle_storage_path", fallback=None)
    copies = Path(given or Path(tempfile.gettempdir(), "airflow", "dag_bundles"))
    if not config.root.resolve().is_relative_to(copies.resolve()):
        return
    places = {name: getattr(config, name) for name in _PLACES}
    relative = [
        name for name, place in places.items() if place and "://" not in place and not Path(place).is_absolute()
    ]
    if relative:
        raise UsageError(
            f"{config.file} is Airflow's copy of a version of a DAG bundle, and the next version has a different "
            f"folder: `{'`, `'.join(relative)}` can't be relative to it. Give an absolute path or a URI"
        )


def check_file_outside_bundles(config_file: str) -> None:
    """Run `check_outside_bundles` for a tidegate.toml. If it can't be read, the command itself reports that.

    Raises:
        UsageError: as in `check_outside_bundles`.
    """
    try:
        config = load_config(Path(config_file))
    except UsageError:
        return
    check_outside_bundles(config)
