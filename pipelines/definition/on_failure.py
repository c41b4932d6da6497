"""Calls the function that a project names as `on_failure`, in a process of its own.

`python -m tidegate.pipelines.definition.on_failure CONFIG PIPELINE` reads the alarm as JSON from standard input. An
Airflow task starts it, because the project's code must not run in a process with Airflow's secrets.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.errors import UsageError


def call_on_failure(config_file: Path, pipeline: str, alarm: Mapping[str, Any]) -> None:
    """Call the function with an alarm.

    Raises:
        UsageError: it can't be imported, or it is not a function.
    """
    config = load_config(config_file)
    path = config.entry(pipeline).on_failure
    if path is None:
        return
    field = f"pipelines.{pipeline}.on_failure"
    on_failure = config.load(path, field)
    if not callable(on_failure):
        raise UsageError(f"{field} = {path!r}: it is a {type(on_failure).__name__}, not a function")
    on_failure(dict(alarm))


if __name__ == "__main__":
    call_on_failure(Path(sys.argv[1]), sys.argv[2], json.load(sys.stdin))
