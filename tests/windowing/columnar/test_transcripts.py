"""The transcripts of windows hold for the columnar operator, and only what the planner leaves is skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.transcripts.case import Options
from tests.transcripts.runner import run_case

FOLDER = Path(__file__).parents[2] / "conformance"
CASES: list[dict[str, Any]] = [
    case
    for name in ("windows.json", "random_windows.json")
    for case in json.loads((FOLDER / name).read_text(encoding="utf-8"))["cases"]
    if case["kind"] == "window_operator"
]
MODES = {"straight": Options("columnar"), "restore_every_step": Options("columnar", restore_every_step=True)}

AGGREGATES = {"sum", "reduce_sum", "count"}
ASSIGNERS = {"tumbling", "sliding", "session", "dynamic_session"}
TRIGGERS = {None, "event_time"}


def is_built_in(operator: dict[str, Any]) -> bool:
    """Return True if every part of a case's windows has an array form."""
    trigger = operator["trigger"] or {"type": None}
    early = trigger["type"] == "continuous_event_time" and operator["assigner"]["type"] in {"tumbling", "sliding"}
    if trigger["type"] == "purging":
        trigger = trigger["of"]
    return (
        isinstance(operator["function"], str)
        and operator["function"] in AGGREGATES
        and operator["assigner"]["type"] in ASSIGNERS
        and operator["assigner"].get("time", "event") == "event"
        and (early or trigger["type"] in TRIGGERS)
        and operator["evictor"] is None
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_case_holds_unless_its_windows_are_no_arrays(case: dict[str, Any], mode: str) -> None:
    outcome = run_case(case, MODES[mode])
    assert outcome.state == ("passed" if is_built_in(case["operator"]) else "skipped"), outcome.text
    assert outcome.state == "passed" or outcome.text.startswith("by design: ")
