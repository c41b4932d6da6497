"""The operator that runs one `tidegate` command as a child process, and ends it with its task.

A retry runs the command again: what was committed stays, so it repeats at most one epoch. Exit codes decide about
retries: 2, 3 and 5 recur until somebody changes something, so they are not retried; all others, including those of
signals, are. This module and `command.py` import only Airflow and the standard library.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from tidegate.pipelines.airflow.command import Command, CommandOutcome
from tidegate.pipelines.airflow.report_link import DocsLink, PageLink, ReportLink, report_url
from tidegate.pipelines.definition.environment import CONFIG_FILE
from tidegate.pipelines.errors import LEASE_HELD, QUALITY, REFUSED, USAGE, UsageError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidegate.pipelines.airflow.lineage import CommandLineage

_STAYS = (USAGE, REFUSED, QUALITY)
_OPTION = re.compile(r"--([a-z][a-z-]*)")

LEASE_SECONDS = 120.0
"""For how long a retry waits for the lease: that of a dead host ends after a minute, and an earlier attempt may take 20
seconds to end.
"""
AGAIN_SECONDS = 5.0

_EVENT_FIELDS = (
    "pipeline",
    "timeline",
    "epoch",
    "snapshot_version",
    "since",
    "interval",
    "watermark",
    "counters",
    "check_id",
    "quality",
    "windows",
    "partitions",
    "report",
    "report_url",
    "docs",
)
_NAMED = ("unit", "count", "first", "last", "held")


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


class Events(Protocol):
    """Creates the asset events of a command."""

    def arguments(self, context: Context) -> list[str]:
        """Return further arguments of the command, which the events need."""

    def may_emit(self, result: Any, exit_code: int) -> bool:
        """Return True if the task succeeds although its command failed, because a later task fails instead.

        Airflow accepts no events from a task that fails.
        """

    def emit(self, context: Context, result: Any) -> str | None:
        """Pass the events to Airflow, and return a line for the log, or None."""


class TidegateOperator(BaseOperator):
    """Runs one `tidegate` command. The task returns the JSON that the command writes, without its lists.

    Args:
        arguments: arguments of the command, each a template; empty ones are left out.
        config: path of tidegate.toml, best built from the path of the DAG file: Airflow's processes run in other
            folders.
        pipeline: name of the pipeline that the command is about, for lineage and the page; None if there is none.
        shown_as: the pipeline's name on the page, which is the prefix of its DAG ids. None for `pipeline`.
        command: path of the `tidegate` executable, which may be in an environment of its own; None for the worker's.
        only_if: a template; if it renders to anything but `True`, the task is skipped.
        skip_if_held: a template; if it renders to `True`, the task is skipped while another driver holds the lease.
        events: creates the events of its assets; None gives each asset an event with the command's result.

    Example:
        >>> from pathlib import Path
        >>> replay = TidegateOperator(
        ...     task_id="replay",
        ...     arguments=["backfill", "aircraft_duty", "--start={{ ds }}", "--end={{ macros.ds_add(ds, 1) }}"],
        ...     config=Path(__file__).parent / "tidegate.toml",
        ...     pipeline="aircraft_duty",
        ... )
    """

    template_fields: Sequence[str] = ("arguments", "only_if", "skip_if_held", "config", "pipeline")
    ui_color = "#d6eaf0"

    def __init__(
        self,
        *,
        arguments: Sequence[str],
        config: str | Path,
        pipeline: str | None = None,
        shown_as: str | None = None,
        command: str | None = None,
        only_if: str = "True",
        skip_if_held: str = "False",
        events: Events | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.arguments = list(arguments)
        self.config = str(config)
        self.pipeline = pipeline
        self.shown_as = shown_as or pipeline
        self.command = command
        self.only_if = only_if
        self.skip_if_held = skip_if_held
        self.events = events
        self.operator_extra_links = (ReportLink(), DocsLink(), PageLink()) if "--report" in arguments else (PageLink(),)
        self.running: Command | None = None
        self._is_killed = False

    def execute(self, context: Context) -> Any:
        """Run the command to its end.

        Raises:
            AirflowSkipException: another driver is running, and the task need not wait for it.
            CommandRefused: the command failed in a way that a retry can't change.
            CommandFailed: the command failed otherwise.
        """
        if str(self.only_if) != "True":
            raise AirflowSkipException("the Params of this run don't ask for this task")
        self.arguments = [str(argument) for argument in self.arguments if str(argument)]
        if self.events is not None:
            self.arguments += self.events.arguments(context)
        outcome = self._run_until_free(context["ti"].try_number)
        for link in self.operator_extra_links:
            # Airflow may pass the instance itself as the key.
            if address := link.get_link(self, ti_key=context["ti"]):  # type: ignore[arg-type]
                self.log.info("%s: %s", link.name, address)
        if outcome.exit_code:
            self._check_failure(outcome, context)
        self._emit(context)
        return _small(self.result)

    def on_kill(self) -> None:
        """End the command with its task."""
        self._is_killed = True
        if self.running is not None:
            self.running.end()

    @property
    def result(self) -> Any:
        """Return the JSON that the command wrote, even if it failed, or None while there is none."""
        result: Any = None if self._outcome is None else self._outcome.result
        # The page identifies the pipeline by the prefix of its DAGs.
        is_renamed = isinstance(result, dict) and self.shown_as != self.pipeline
        return {**result, "shown_as": self.shown_as} if is_renamed else result

    def get_openlineage_facets_on_start(self) -> Any:
        """Return the datasets that the command is about to read and write, for Airflow's OpenLineage provider."""
        return self._lineage.before(is_skipped=str(self.only_if) != "True")

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the datasets that the command read and wrote."""
        return self._lineage.after(self._outcome)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return the datasets that the command read and wrote before it failed."""
        return self.get_openlineage_facets_on_complete(task_instance)

    @property
    def words(self) -> list[str]:
        """Return the executable, and the arguments that precede those of the command."""
        return [self.command] if self.command is not None else [sys.executable, "-m", "tidegate"]

    @property
    def _outcome(self) -> CommandOutcome | None:
        return None if self.running is None else self.running.outcome

    @property
    def _lineage(self) -> CommandLineage:
        from tidegate.pipelines.airflow.lineage import CommandLineage

        return CommandLineage(self.arguments, self.pipeline, self.config, self.words, self.log.warning)

    def _run_until_free(self, try_number: int) -> CommandOutcome:
        """Run the command; in a retry, run it again for a while if the earlier attempt still holds the lease."""
        until = time.monotonic() + LEASE_SECONDS
        while True:
            outcome = self._run()
            is_held = outcome.exit_code == LEASE_HELD and not self._is_killed
            if not is_held or try_number < 2 or time.monotonic() > until:
                return outcome
            self.log.warning("the lease may be that of an earlier attempt: trying again")
            time.sleep(AGAIN_SECONDS)

    def _run(self) -> CommandOutcome:
        from tidegate.pipelines.airflow.bundles import check_file_outside_bundles
        from tidegate.pipelines.airflow.connections import environment_of

        self.log.info("running: tidegate %s", " ".join(self.arguments))
        variables: dict[str, str | None] = {CONFIG_FILE: self.config, "TERM": "dumb", "COLUMNS": "160"}
        try:
            check_file_outside_bundles(self.config)
            variables |= environment_of(self.config)
            command = Command([*self.words, *self.arguments], variables, self.log.info)
            self.running = command
            return command.run()
        except UsageError as error:
            raise CommandRefused(str(error), USAGE, str(error)) from error
        except (FileNotFoundError, PermissionError) as error:
            reason = (
                f"command = {self.command!r} can't be started on this worker ({error.strerror}): give the path of the "
                "`tidegate` of an environment that the worker has"
            )
            raise CommandRefused(reason, USAGE, reason) from error

    def _check_failure(self, outcome: CommandOutcome, context: Context) -> None:
        """Raise the error of a command that failed, unless a later task fails instead."""
        code, reason = outcome.exit_code, _with_params(outcome.reason, context.get("params"))
        if self.events is not None and self.events.may_emit(self.result, code):
            self.log.warning("%s", reason)
            return
        command = f"tidegate {' '.join(self.arguments)} ended with exit code {code}"
        if code == LEASE_HELD and str(self.skip_if_held) == "True":
            raise AirflowSkipException(f"{command}: skipped, since the next run does the same work ({reason})")
        message = f"{command}{f': {reason}' if reason else ''}"
        if code in _STAYS:
            raise CommandRefused(message, code, reason)
        raise CommandFailed(message, code, reason)

    def _emit(self, context: Context) -> None:
        if self.events is not None:
            if line := self.events.emit(context, self.result):
                self.log.warning(line)
            return
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra = event_extra(self.result)


def event_extra(result: Any) -> dict[str, Any]:
    """Return the content of a final windows event: the fields it carries, from the JSON of a quality check."""
    if not isinstance(result, dict):
        return {}
    partitions = result.get("partitions")
    # The events already have the keys. Repeating all of them in each event's content would make it too large.
    named = None if partitions is None else {name: partitions[name] for name in _NAMED if name in partitions}
    values = {**result, "report_url": report_url(result), "partitions": named}
    return {name: values[name] for name in _EVENT_FIELDS if values.get(name) is not None}


def _with_params(reason: str | None, params: Mapping[str, Any] | None) -> str | None:
    """Add to a message the DAG's Params that correspond to the options it names."""
    options = set(_OPTION.findall(reason or ""))
    named = [f"`{name}`" for name in params or () if name.replace("_", "-") in options]
    return f"{reason} (Params in Airflow: {', '.join(named)})" if named else reason


def _small(result: Any) -> Any:
    """Return a result without its lists, such as checks and epochs: Airflow's database stores it once per attempt."""
    if not isinstance(result, dict):
        return result
    return {name: _small(value) for name, value in result.items() if not isinstance(value, list)}
