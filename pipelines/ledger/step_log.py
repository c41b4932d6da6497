"""A line of JSON for each step of the protocol, in the file that `TIDEGATE_STEPS` names.

Tests compare such lines with the model in `formal/`. Without the variable, nothing is written.
"""

from __future__ import annotations

import json
import os
from contextvars import ContextVar

FILE = "TIDEGATE_STEPS"

_driver: ContextVar[str] = ContextVar("driver", default="")


def log_start(run: str, command: str) -> None:
    """Append a line for a starting driver, and name it in the lines that follow by `run`, the id of its lease."""
    _driver.set(run)
    log_step(f"started {command}")


def log_step(step: str, epoch: int = 0, of: str = "") -> None:
    """Append a line for a completed step. `of` is the table concerned, or the kind of the planned epoch."""
    if file := os.environ.get(FILE):
        line = {"driver": _driver.get(), "step": step, "epoch": epoch, "of": of}
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")
