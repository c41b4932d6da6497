"""Alarms: a task that failed for good adds a line to the alarms of the project and calls the project's `on_failure`."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidegate.pipelines.airflow.connections import environment_of
from tidegate.pipelines.airflow.environment import without_airflow
from tidegate.pipelines.config import Config, load_config
from tidegate.pipelines.errors import LEASE_HELD, OTHER, QUALITY, REFUSED, USAGE, TidegateError, UsageError
from tidegate.pipelines.stores.artifacts import ALARMS, artifacts_of

_SIGNALS = 128
"""A command that a signal ended has this number plus the signal's number as its exit code."""

_ON_FAILURE = "tidegate.pipelines.definition.on_failure"
_ON_FAILURE_SECONDS = 300.0
"""Time that the project's `on_failure` has."""

MEANINGS = {
    OTHER: "an unexpected error; the retries failed too",
    USAGE: "the request is not valid: a wrong option, an unknown pipeline, or an error in tidegate.toml",
    REFUSED: "the tables or the source are not in a state in which the run can work",
    LEASE_HELD: "another driver is at work on the pipeline",
    QUALITY: "a critical expectation does not hold; the asset was held back",
}

_BY_SIGNAL = "the task was ended, somebody ended the process, or the system was short of memory; the retries failed too"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Alarm:
    """A failure callback of a pipeline's tasks.

    Args:
        config: path of tidegate.toml.
        pipeline: its name.
    """

    config: str
    pipeline: str

    def __call__(self, context: Any) -> None:
        """Log the failed task of a context, note it among the alarms, and call the project's `on_failure`.

        Raises:
            TidegateError: `on_failure` failed, or did not end in time.
        """
        alarm = describe(context, self.pipeline)
        _log.error("alarm: %s", json.dumps(alarm))
        config = load_config(Path(self.config))
        note(config, alarm)
        if config.entry(self.pipeline).on_failure is not None:
            tell_project(config, self.pipeline, alarm)


def meaning(exit_code: int | None) -> str | None:
    """Return the meaning of an exit code; None if there is no code or nobody gave it a meaning."""
    if exit_code is None:
        return None
    number = exit_code - _SIGNALS
    if number in set(signal.Signals):
        return f"ended by {signal.Signals(number).name}: {_BY_SIGNAL}"
    return MEANINGS.get(exit_code)


def describe(context: Any, pipeline: str) -> dict[str, Any]:
    """Return the alarm of a failed task as plain values: the task, its exit code, the meaning, the reason."""
    instance, error = context["ti"], context.get("exception")
    code = getattr(error, "exit_code", None)
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "pipeline": pipeline,
        "dag": instance.dag_id,
        "run": instance.run_id,
        "task": instance.task_id,
        "try": instance.try_number,
        "exit_code": code,
        "meaning": meaning(code),
        # A command gives its own reason; for any other task the error is the reason.
        "reason": getattr(error, "reason", None) or (str(error) if error is not None else None),
        "message": str(error) if error is not None else None,
    }


def note(config: Config, alarm: dict[str, Any]) -> str:
    """Add an alarm to those of a project, and return the address of the file that has it."""
    return artifacts_of(config).add_line(ALARMS, json.dumps(alarm), datetime.fromisoformat(alarm["at"]))


def tell_project(config: Config, pipeline: str, alarm: dict[str, Any]) -> None:
    """Call the project's `on_failure` in a process of its own: this one has Airflow's secrets in its environment.

    Raises:
        TidegateError: the function failed, or did not end in time.
    """
    variables: dict[str, str | None] = dict(without_airflow(os.environ))
    # The function hears of a connection that is gone, too.
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
