"""Alarms: one message for each task that failed for good, sent through Airflow's notifiers.

A message names the owner, the pipeline, the task, the reason and what to do. It is also written to the log of the task
and to the journal `alarms` among the project's artifacts.
"""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from tidegate.pipelines.airflow.operator import CommandFailed
from tidegate.pipelines.airflow.report_link import docs_url, report_url, run_url
from tidegate.pipelines.airflow.tasks import StreamsFailed
from tidegate.pipelines.definition.config import Config, Notifier, load_config
from tidegate.pipelines.definition.config.opened import artifacts_of
from tidegate.pipelines.errors import LEASE_HELD, OTHER, QUALITY, REFUSED, USAGE, TidegateError
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import command, fields, with_remedies
from tidegate.pipelines.storage.artifacts import ALARMS
from tidegate.pipelines.storage.credentials import masked

if TYPE_CHECKING:
    from airflow.sdk import Context

_SIGNALS = 128
"""Added to a signal's number, this gives the exit code of a command that the signal ended."""

_WATERMARK = "watermark"
"""Task of the watch."""


class NextStep(StrEnum):
    """What somebody should do about a failed task."""

    READ_LOG = auto()
    CORRECT_REQUEST = auto()
    FOLLOW_REASON = auto()
    WAIT_FOR_DRIVER = auto()
    CORRECT_ROWS = auto()
    GIVE_MEMORY = auto()
    CHECK_STREAM = auto()


_WORDS: Mapping[NextStep, str] = {
    NextStep.READ_LOG: "Read the log, remove the cause, and clear the task.",
    NextStep.CORRECT_REQUEST: "Correct the Param, option, setting or code that the reason names, and clear the task.",
    NextStep.FOLLOW_REASON: (
        "The tables or the source do not allow the run: do what the reason says, and clear the task."
    ),
    NextStep.WAIT_FOR_DRIVER: "Another driver is running: wait for it or stop it, and clear the task.",
    NextStep.CORRECT_ROWS: (
        "Look at the failing rows in the run report or the Data Docs, and correct the source or the suite. The asset, "
        "or its partitions with failing windows, is held back until a check passes."
    ),
    NextStep.GIVE_MEMORY: (
        "{signal} ended the command: if memory ran out, give it more, or give the pool fewer slots. Clear the task."
    ),
    NextStep.CHECK_STREAM: "Check that the stream is running and that the source gets rows.",
}
_BY_EXIT_CODE = {
    OTHER: NextStep.READ_LOG,
    USAGE: NextStep.CORRECT_REQUEST,
    REFUSED: NextStep.FOLLOW_REASON,
    LEASE_HELD: NextStep.WAIT_FOR_DRIVER,
    QUALITY: NextStep.CORRECT_ROWS,
}


@dataclass(frozen=True, slots=True)
class ToDo:
    """What somebody should do about a failed task.

    Args:
        step: the kind.
        signal: name of the signal that ended the command; None if none did.
        remedies: commands that help.
    """

    step: NextStep
    signal: str | None = None
    remedies: tuple[Remedy, ...] = ()

    def words(self, file: str) -> str:
        """Return it as text, with commands for a tidegate.toml."""
        text = _WORDS[self.step].format(signal=self.signal)
        return with_remedies(text, self.remedies, lambda remedy: f"{command(remedy)} --config {file}")


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


class Alarm(BaseNotifier):
    """Failure callback of a task: it sends one message for each of its pipelines that failed.

    Args:
        config: path of tidegate.toml.
        owners: the task's pipelines, each with the owner who gets its messages.
        prefix: beginning of the ids of the pipelines' DAGs.
        state_of: returns the state of a task (DAG, run, task) in Airflow.
    """

    def __init__(
        self,
        config: str,
        owners: Mapping[str, str],
        prefix: str = "",
        state_of: Callable[[str, str, str], str | None] = task_state,
    ) -> None:
        super().__init__()
        self.config = config
        self.owners = dict(owners)
        self.prefix = prefix
        self.state_of = state_of

    def notify(self, context: Context) -> None:
        """Send the messages of a failed task.

        In a group of streams, each pipeline that failed has its own error. If the command failed as a whole, each
        pipeline has a message, because owners and notifiers differ.

        Raises:
            TidegateError: a notifier failed; the others were called.
        """
        if self._is_marked(context):
            _log.warning("no alarm: the task or its run was marked by hand")
            return
        # The context of a task whose worker died has no exception.
        error: Any = context.get("exception")
        config, problems = load_config(Path(self.config)), list[str]()
        for pipeline, owner in self.owners.items():
            given: Any = dict(context)
            if isinstance(error, StreamsFailed):
                if (own := error.failed.get(pipeline)) is None:
                    continue
                given["exception"] = CommandFailed(f"{own['message']}", own["exit_code"], f"{own['message']}")
            problems += send(config, pipeline, describe(given, config, pipeline, owner, self.prefix), given)
        if problems:
            raise TidegateError("; ".join(problems))

    def _is_marked(self, context: Any) -> bool:
        """Return True if somebody marked the task or its run by hand while it ran: Airflow then ends its command."""
        instance, code = context["ti"], getattr(context.get("exception"), "exit_code", None)
        if code is None or code <= _SIGNALS:
            return False
        return self.state_of(instance.dag_id, instance.run_id, instance.task_id) in ("failed", "success", "skipped")


def send(config: Config, pipeline: str, alarm: Mapping[str, Any], context: Any) -> list[str]:
    """Log a message, add it to the journal, and pass it to the pipeline's notifiers. Return the notifiers' errors."""
    _log.error("alarm: %s", json.dumps(alarm))
    artifacts_of(config).add_line(ALARMS, json.dumps(alarm), datetime.fromisoformat(alarm["at"]))
    failed = (_notify(config, pipeline, each, alarm, context) for each in config.entry(pipeline).notifiers)
    return [problem for problem in failed if problem is not None]


def _notify(config: Config, pipeline: str, notifier: Notifier, alarm: Mapping[str, Any], context: Any) -> str | None:
    """Call a notifier with the context of the task, and return its error. In its templates, `tidegate` is the message.

    It runs in Airflow's own process: notifiers read Airflow's connections.
    """
    field = f"pipelines.{pipeline}.notifiers"
    try:
        notify: Any = config.load(notifier.notifier, field)
        notify(**notifier.arguments)({**context, "tidegate": alarm})
    except Exception as error:  # Notifiers are other people's code, and their errors have many types.
        return masked(f"{field}: {notifier.notifier}: {type(error).__name__}: {error}")
    return None


def what_to_do(task: str, exit_code: int | None, pipeline: str) -> ToDo:
    """Return what somebody should do about a failed task of a pipeline."""
    number = (exit_code or 0) - _SIGNALS
    if task == _WATERMARK:
        return ToDo(NextStep.CHECK_STREAM, remedies=(Remedy(Act.WHY, pipeline),))
    if number in set(signal.Signals):
        return ToDo(NextStep.GIVE_MEMORY, signal.Signals(number).name)
    step = _BY_EXIT_CODE.get(OTHER if exit_code is None else exit_code, NextStep.READ_LOG)
    return ToDo(step, remedies=(Remedy(Act.STOP, pipeline),) if exit_code == LEASE_HELD else ())


def describe(context: Any, config: Config, pipeline: str, owner: str, prefix: str = "") -> dict[str, Any]:
    """Return the message about a failed task as plain values: who receives it, what failed and why, and what to do."""
    instance, error = context["ti"], context.get("exception")
    code = getattr(error, "exit_code", None)
    result = getattr(getattr(instance, "task", None), "result", None)
    checks = (result.get("checks") if isinstance(result, dict) else None) or ()
    # A command gives its own reason. For any other task, the error is the reason.
    reason = getattr(error, "reason", None) or (
        "Airflow lost the task: its process or its worker was killed" if error is None else str(error)
    )
    to_do = what_to_do(instance.task_id, code, pipeline)
    about = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        # Wrong results are critical; a watermark that is too far behind is a warning.
        "severity": "critical" if code == QUALITY else "warning" if instance.task_id == _WATERMARK else "error",
        "owner": owner,
        # Two projects in one Airflow may have a pipeline of the same name.
        "pipeline": f"{prefix}{pipeline}",
        "project": str(config.file),
        "name": pipeline,
        "dag": instance.dag_id,
        "run": instance.run_id,
        "task": instance.task_id,
        "try": instance.try_number,
        "exit_code": code,
        "reason": reason,
        "what_to_do": {
            "step": to_do.step,
            "signal": to_do.signal,
            "remedies": [fields(each) for each in to_do.remedies],
            "words": (words := to_do.words(str(config.file))),
        },
        "run_url": run_url(instance.dag_id, instance.run_id),
        "log_url": getattr(instance, "log_url", None),
        "report_url": report_url(result),
        "docs_url": docs_url(result),
        "failed": [{name: check.get(name) for name in _OF_CHECK} for check in checks if not check["success"]],
    }
    failed = f"{about['pipeline']}: task {about['task']} of {about['dag']} failed (for {owner})"
    return {**about, "text": "\n".join((failed, reason, words, about["run_url"]))}
