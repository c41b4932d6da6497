"""Every case of every transcript: without restores, restored after each step, and restored at another parallelism."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.transcripts.case import Options
from tests.transcripts.runner import run_case

CASES: list[dict[str, Any]] = [
    case
    for file in sorted(Path(__file__).parent.glob("*.json"))
    for case in json.loads(file.read_text(encoding="utf-8"))["cases"]
]
MODES = {
    "straight": Options(),
    "restore_every_step": Options(restore_every_step=True),
    "rescale_to_3": Options(restore_every_step=True, rescale=3),
}


# A restore at another parallelism is one at the same, and more.
@pytest.mark.parametrize(
    "mode", ["straight", "rescale_to_3", pytest.param("restore_every_step", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_case_holds(case: dict[str, Any], mode: str) -> None:
    outcome = run_case(case, MODES[mode])
    assert outcome.state == "passed", outcome.text


def test_case_ids_are_unique() -> None:
    ids = [case["id"] for case in CASES]
    assert len(set(ids)) == len(ids)
