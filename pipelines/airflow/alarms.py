"""What happens when a task has failed for good: one line in the alarms file, and whoever the project names hears it."""

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

_SIGNALS = 128
"""The exit code of a command that a signal ended is this and the signal's number."""

FILE_NAME = "alarms.jsonl"

MEANINGS = {
    OTHER: "something unexpected; its retries did not help",
    USAGE: "what was asked for can't be: a bad option, an unknown pipeline, a faulty tidegate.toml",
    REFUSED: "the tables or the source are not as the run needs them",
    LEASE_HELD: "another driver is at work on the pipeline",
    QUALITY: "a critical expectation does not hold; the asset was held back",
}

_BY_SIGNAL = "with its task, by hand, or by a system short of memory; its retries did not help"

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
        """Tell about the failed task of a context."""
        told = describe(context, self.pipeline)
        _log.error("alarm: %s", json.dumps(told))
        config = load_config(Path(self.config))
        note(config, told)
        if (path := config.entry(self.pipeline).on_failure) is not None:
            hear = config.load(path, f"pipelines.{self.pipeline}.on_failure")
            hear(told)  # type: ignore[operator]


def meaning(exit_code: int | None) -> str | None:
    """What an exit code says; None where there is none, or it is nobody's."""
    if exit_code is None:
        return None
    number = exit_code - _SIGNALS
    if number in set(signal.Signals):
        return f"ended by {signal.Signals(number).name}: {_BY_SIGNAL}"
    return MEANINGS.get(exit_code)


def describe(context: Any, pipeline: str) -> dict[str, Any]:
    """What a failure callback is told, as plain values."""
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
        # Of a command what it said itself; of any other task its error.
        "reason": getattr(error, "reason", None) or (str(error) if error is not None else None),
        "message": str(error) if error is not None else None,
    }


def note(config: Config, told: dict[str, Any]) -> Path:
    """Add an alarm to the alarms file of a project; the file."""
    file = config.work_folder / FILE_NAME
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps(told) + "\n")
    return file
