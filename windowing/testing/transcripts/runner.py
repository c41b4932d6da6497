"""Runs one case: its kind picks who reads it, and anything unexpected is a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from windowing.testing.transcripts.case import Mismatch, Options, Skipped
from windowing.testing.transcripts.windows import run_window_operator

KINDS: dict[str, Callable[[dict[str, Any], Options], None]] = {
    "window_operator": run_window_operator,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case went; `text` says why it failed or was skipped."""

    STATES: ClassVar[tuple[str, ...]] = ("passed", "failed", "skipped")

    id: str
    state: str
    text: str = ""


def run_case(case: dict[str, Any], options: Options) -> Outcome:
    """Run a case. A kind or field that the runner does not know is a failure, never a skip."""
    name = str(case.get("id", "case without id"))
    run = KINDS.get(case.get("kind", ""))
    if run is None:
        return Outcome(name, "failed", f"unknown kind {case.get('kind')!r}; the runner knows {sorted(KINDS)}")
    try:
        run(case, options)
    except Skipped as reason:
        return Outcome(name, "skipped", str(reason))
    except Mismatch as mismatch:
        return Outcome(name, "failed", str(mismatch))
    except Exception as error:  # a case that crashes the operator is a failed case, with its reason
        return Outcome(name, "failed", f"{type(error).__name__}: {error}")
    return Outcome(name, "passed")
