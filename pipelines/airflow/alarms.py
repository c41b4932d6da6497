"""Alarms: one when an incident begins and one when it ends, written to the project's journal and sent to `on_failure`.

An incident begins when a task finally fails, and ends when the task succeeds. In between, further failures of the task
for the same reason raise no alarm. Open incidents are kept among the artifacts, in one file per pipeline.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from tidegate.pipelines.airflow.command import without_airflow
from tidegate.pipelines.airflow.connections import environment_of
from tidegate.pipelines.airflow.operator import CommandFailed
from tidegate.pipelines.airflow.report_link import docs_url, report_url, run_url
from tidegate.pipelines.airflow.tasks import HELD, StreamsFailed
from tidegate.pipelines.definition.config import Config, Notifier, load_config
from tidegate.pipelines.definition.config.opened import artifacts_of
from tidegate.pipelines.errors import LEASE_HELD, OTHER, QUALITY, REFUSED, USAGE, Refused, TidegateError, UsageError
from tidegate.pipelines.storage.artifacts import ALARMS, incidents_in, incidents_name, read_incidents
from tidegate.pipelines.storage.credentials import masked

_SIGNALS = 128
"""Added to a signal's number, this gives the exit code of a command that the signal ended."""

_ON_FAILURE = "tidegate.pipelines.definition.on_failure"
_ON_FAILURE_SECONDS = 300.0
"""Timeout of the project's `on_failure`."""

MEANINGS = {
    OTHER: "an unexpected error; the retries failed too",
    USAGE: "the request is not valid: a wrong option, an unknown pipeline, or an error in tidegate.toml",
    REFUSED: "the tables or the source are not in a state that allows the run",
    LEASE_HELD: "another driver is running the pipeline",
    QUALITY: "a critical expectation failed; the asset, or its partitions with failing windows, was held back",
}

_BY_SIGNAL = "the task was ended, the process was killed, or the system ran out of memory; the retries failed too"

_OF_CHECK = (
    *("suite", "expectation", "columns", "limits", "description", "severity"),
    *("rows", "failing", "observed", "examples"),
)
"""Fields of a failed expectation in an alarm."""

_log = logging.getLogger(__name__)


def task_state(dag: str, run: str, task: str) -> str | None:
    """Return the state of a task in Airflow, or None if it can't be determined."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    # The DAG processor, which reports tasks whose worker died, has no access to it.
    with suppress(Exception):
        states = RuntimeTaskInstance.get_task_states(dag_id=dag, run_ids=[run], task_ids=[task])
        return str(states[run][task])
    return None


@dataclass(frozen=True, slots=True)
class _Callback:
    """A callback of a pipeline's tasks.

    Args:
        config: path of tidegate.toml.
        pipeline: its name.
        prefix: beginning of the ids of its DAGs.
        owner: who the alarm is for; None for the owner in tidegate.toml.
    """

    config: str
    pipeline: str
    prefix: str = ""
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Alarm(_Callback):
    """A failure callback of a pipeline's tasks; `state_of` returns the state of a task in Airflow."""

    state_of: Callable[[str, str, str], str | None] = task_state

    def __call__(self, context: Any) -> None:
        """Log the failed task of a context; if this begins an incident, record it and call the project's `on_failure`.

        Raises:
            TidegateError: `on_failure` failed, or did not end in time.
        """
        instance = context["ti"]
        if self._is_marked(context):
            _log.warning("no alarm: the task or its run was marked by hand")
            return
        config = load_config(Path(self.config))
        alarm = describe(context, config, self.pipeline, self.prefix, self.owner)
        _log.error("alarm: %s", json.dumps(alarm))
        place, what = incident_of(instance), what_failed(alarm)
        with _incidents(config, self.pipeline) as incidents:
            open_one, tried = incidents.get(place), [alarm["run"], alarm["try"]]
            incidents[place] = {"since": alarm["at"], "what": what, "tried": tried}
            # Airflow may also lose the worker of an attempt that has already failed. Then it has no exit code.
            is_reported = open_one is not None and open_one.get("tried") == tried and alarm["exit_code"] is None
            if open_one is not None and (is_reported or open_one["what"] == what):
                incidents[place] = open_one
                _log.warning("no alarm: this incident is open since %s", open_one["since"])
                return
        raise_alarm(config, self.pipeline, alarm, context)

    def _is_marked(self, context: Any) -> bool:
        """Return True if somebody marked the task or its run by hand while it ran: Airflow then ends its command."""
        instance, code = context["ti"], getattr(context.get("exception"), "exit_code", None)
        if code is None or code <= _SIGNALS:
            return False
        state = self.state_of(instance.dag_id, instance.run_id, instance.task_id)
        return state in ("failed", "success", "skipped")


@dataclass(frozen=True, slots=True)
class AlarmEnds(_Callback):
    """A success callback of a pipeline's tasks: it ends the incident that a failure of the task began, if any."""

    def __call__(self, context: Any) -> None:
        """Record the end of an incident among the alarms, and call the project's `on_failure` with it.

        Raises:
            TidegateError: `on_failure` failed, or did not end in time.
        """
        config, place = load_config(Path(self.config)), incident_of(context["ti"])
        if place not in open_incidents(config, self.pipeline):
            return
        with _incidents(config, self.pipeline) as incidents:
            ended = incidents.pop(place, None)
        if ended is not None:
            alarm = describe(context, config, self.pipeline, self.prefix, self.owner)
            alarm |= {"status": "ended", "since": ended["since"], "severity": "info"}
            raise_alarm(config, self.pipeline, alarm, context)


@dataclass(frozen=True, slots=True)
class GroupAlarm:
    """Failure callback of a group's tasks: it raises an alarm for each failed pipeline, and ends the others' incidents.

    If the command failed as a whole, each pipeline has its own alarm, because owners and notifiers differ. `owners` has
    the owner of each pipeline.
    """

    config: str
    owners: Mapping[str, str]
    prefix: str = ""

    def __call__(self, context: Any) -> None:
        """Raise the alarms of a failed task."""
        # The context of a task whose worker died has no exception.
        error = context.get("exception")
        failed = error.failed if isinstance(error, StreamsFailed) else None
        for name, owner in self.owners.items():
            alarm = Alarm(self.config, name, self.prefix, owner)
            if failed is None:
                alarm(context)
            elif name not in failed:
                AlarmEnds(self.config, name, self.prefix, owner)(context)
            else:
                message = str(failed[name]["message"])
                of_one = CommandFailed(f"{name}: {message}", failed[name]["exit_code"], message)
                alarm({**context, "exception": of_one})


def raise_alarm(config: Config, pipeline: str, alarm: dict[str, Any], context: Any) -> None:
    """Record an alarm, and call the project's `on_failure` and notifiers, each even if another one fails.

    Raises:
        TidegateError: one of them failed; the message names it.
    """
    artifacts_of(config).add_line(ALARMS, json.dumps(alarm), datetime.fromisoformat(alarm["at"]))
    entry, failed = config.entry(pipeline), []
    calls = [partial(_notify, config, pipeline, each, alarm, context) for each in entry.notifiers]
    if entry.on_failure is not None:
        calls.insert(0, partial(call_on_failure, config, pipeline, alarm))
    for call in calls:
        try:
            call()
        except TidegateError as error:
            failed.append(str(error))
    if failed:
        raise TidegateError("; ".join(failed))


def _notify(config: Config, pipeline: str, notifier: Notifier, alarm: dict[str, Any], context: Any) -> None:
    """Call a notifier with the context of the task. In its templates, `tidegate` is the alarm.

    It runs in Airflow's own process: notifiers read Airflow's connections.
    """
    field = f"pipelines.{pipeline}.notifiers"
    notify: Any = config.load(notifier.notifier, field)
    try:
        notify(**notifier.arguments)({**context, "tidegate": alarm})
    except Exception as error:  # Notifiers are other people's code, and their errors have many types.
        raise TidegateError(masked(f"{field}: {notifier.notifier}: {type(error).__name__}: {error}")) from error


async def deadline_missed(
    context: Mapping[str, Any],
    config: str,
    pipelines: Sequence[str],
    prefix: str = "",
    owners: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise the alarm of each pipeline whose run missed its deadline; Airflow's triggerer calls it once per run.

    The context is the run and its deadline, as Airflow passes them. `pipelines` are those of the run, and `owners` has
    the recipient of each pipeline's alarm.
    """
    # Notifiers and `on_failure` may take minutes, and the triggerer's event loop is shared by all triggers.
    for pipeline in pipelines:
        await asyncio.to_thread(_miss_deadline, context, config, pipeline, prefix, owners.get(pipeline))


def _miss_deadline(context: Mapping[str, Any], config: str, pipeline: str, prefix: str, owner: str | None) -> None:
    run, settings = context["dag_run"], load_config(Path(config))
    dag, name = run["dag_id"], run["dag_run_id"]
    instance = SimpleNamespace(dag_id=dag, run_id=name, task_id="deadline", try_number=1)
    at = context["deadline"]["deadline_time"]
    # No command ended, so there is no exit code.
    error = TimeoutError(f"run {name} of {dag} had not ended by its deadline, {at}: it is still running, or waiting")
    given = {"ti": instance, "exception": error, "dag_run": run}
    alarm = describe(given, settings, pipeline, prefix, owner)
    _log.error("alarm: %s", json.dumps(alarm))
    raise_alarm(settings, pipeline, alarm, given)


def incident_of(instance: Any) -> str:
    """Return the name of the incident that a task's failure belongs to.

    Each run of a stream, a check or a watch also does what the previous run left undone. A run of an interval does not.
    """
    place = f"{instance.dag_id}/{instance.task_id}"
    is_interval = instance.dag_id.endswith("__backfill") and instance.task_id not in ("quality", HELD)
    return f"{place}/{instance.run_id}" if is_interval else place


def what_failed(alarm: dict[str, Any]) -> list[str]:
    """Return what distinguishes one incident of a task from another: the exit code and the failed expectations."""
    checks = [f"{check['suite']}: {check['expectation']} {check['columns'] or ''}" for check in alarm["failed"]]
    return [str(alarm["exit_code"]), *sorted(checks)]


def open_incidents(config: Config, pipeline: str) -> dict[str, Any]:
    """Return the open incidents of a pipeline by name, each with the time of its first failure.

    A damaged file counts as empty, so that new alarms can still be raised; the next incident replaces it.
    """
    try:
        return read_incidents(artifacts_of(config), pipeline)
    except Refused as error:
        _log.warning("%s", error)
        return {}


@contextmanager
def _incidents(config: Config, pipeline: str) -> Iterator[dict[str, Any]]:
    """Yield the open incidents of a pipeline for modification."""
    incidents = open_incidents(config, pipeline)
    before = dict(incidents)
    try:
        yield incidents
    finally:
        came = {name: value for name, value in incidents.items() if before.get(name) != value}
        went = before.keys() - incidents.keys()

        def change(content: bytes | None) -> bytes:
            try:
                present = incidents_in(content, pipeline)
            except Refused:
                present = {}
            return json.dumps({name: at for name, at in present.items() if name not in went} | came).encode()

        if came or went:
            artifacts_of(config).change(incidents_name(pipeline), change)


def meaning(exit_code: int | None) -> str | None:
    """Return the meaning of an exit code, or None if there is no code or its meaning is unknown."""
    if exit_code is None:
        return None
    number = exit_code - _SIGNALS
    if number in set(signal.Signals):
        return f"ended by {signal.Signals(number).name}: {_BY_SIGNAL}"
    return MEANINGS.get(exit_code)


def describe(context: Any, config: Config, pipeline: str, prefix: str = "", owner: str | None = None) -> dict[str, Any]:
    """Return the alarm of a failed task as plain values: who receives it, where to look, and what happened."""
    instance, error = context["ti"], context.get("exception")
    code = getattr(error, "exit_code", None)
    task = getattr(instance, "task", None)
    result = getattr(task, "result", None)
    checks = (result.get("checks") if isinstance(result, dict) else None) or ()
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": "began",
        # Wrong results are critical; a watermark that is too far behind is a warning.
        "severity": "critical" if code == QUALITY else "warning" if instance.task_id == "watermark" else "error",
        "owner": owner or config.entry(pipeline).owner,
        # Two projects in one Airflow may have a pipeline of the same name.
        "pipeline": f"{prefix}{pipeline}",
        "project": str(config.file),
        "name": pipeline,
        "run_url": run_url(instance.dag_id, instance.run_id),
        "log_url": getattr(instance, "log_url", None),
        "report_url": report_url(result),
        "docs_url": docs_url(result),
        "failed": [{name: check.get(name) for name in _OF_CHECK} for check in checks if not check["success"]],
        "dag": instance.dag_id,
        "run": instance.run_id,
        "task": instance.task_id,
        "try": instance.try_number,
        "exit_code": code,
        "meaning": meaning(code),
        # A command gives its own reason. For any other task, the error is the reason.
        "reason": getattr(error, "reason", None) or (str(error) if error is not None else None),
        "message": str(error) if error is not None else None,
    }


def call_on_failure(config: Config, pipeline: str, alarm: dict[str, Any]) -> None:
    """Call the project's `on_failure` in a separate process, because this one has Airflow's secrets in its environment.

    Raises:
        TidegateError: the function failed, or did not end in time.
    """
    variables: dict[str, str | None] = dict(without_airflow(os.environ))
    # The function is also called if the connection no longer exists.
    with suppress(UsageError):
        variables |= environment_of(str(config.file))
    failed = f"on_failure of {pipeline}"
    try:
        done = subprocess.run(
            [sys.executable, "-m", _ON_FAILURE, str(config.file), pipeline],
            input=json.dumps(alarm),
            env={name: value for name, value in variables.items() if value is not None},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_ON_FAILURE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TidegateError(f"{failed} did not end within {_ON_FAILURE_SECONDS:.0f} s") from None
    if done.stdout.strip():
        _log.info("%s: %s", failed, done.stdout.strip())
    if done.returncode:
        raise TidegateError(f"{failed} failed: {done.stdout.strip().splitlines()[-1:] or done.returncode}")
