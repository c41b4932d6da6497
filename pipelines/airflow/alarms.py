"""Alarms: a task that failed for good adds a line to the alarms of the project and calls the project's `on_failure`."""

from __future__ import annotations

import json
import logging
import signal
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidegate.pipelines.config import Config, load_config
from tidegate.pipelines.errors import LEASE_HELD, OTHER, QUALITY, REFUSED, USAGE
from tidegate.pipelines.stores.artifacts import artifacts_of

_SIGNALS = 128
"""A command that a signal ended has this number plus the signal's number as its exit code."""

JOURNAL = "alarms"
"""Name of the alarms among the artifacts: in a folder file `alarms.jsonl`, in an object store an object for each."""

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
        """Log the failed task of a context, note it among the alarms, and call the project's `on_failure`."""
        alarm = describe(context, self.pipeline)
        _log.error("alarm: %s", json.dumps(alarm))
        config = load_config(Path(self.config))
        note(config, alarm)
        if (path := config.entry(self.pipeline).on_failure) is not None:
            on_failure = config.load(path, f"pipelines.{self.pipeline}.on_failure")
            on_failure(alarm)  # type: ignore[operator]


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
    return artifacts_of(config).add_line(JOURNAL, json.dumps(alarm), datetime.fromisoformat(alarm["at"]))
