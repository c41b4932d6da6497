"""The transcript runner must not ignore anything that it does not read."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.transcripts.__main__ import main
from tests.transcripts.case import Options
from tests.transcripts.runner import KINDS, run_case

FOLDER = Path(__file__).parents[2] / "conformance"
CASES: list[dict[str, Any]] = [
    case for file in sorted(FOLDER.glob("*.json")) for case in json.loads(file.read_text(encoding="utf-8"))["cases"]
]
PASSING = {case["kind"]: case for case in reversed(CASES) if "expect_error" not in case}
STEPPED = {kind: case for kind, case in PASSING.items() if case.get("steps") or case.get("checks")}

# Kinds without a visible case, written after FORMAT.md.
STAGGER = {
    "id": "stagger",
    "source": "WindowStaggerTest#testWindowStagger",
    "kind": "stagger",
    "checks": [
        {"stagger": "aligned", "processing_time": 500, "size": 5000, "offset": 0},
        {"stagger": "natural", "processing_time": 5500, "size": 5000, "offset": 500},
        {"stagger": "random", "processing_time": 0, "size": 5000, "at_least": 0, "less_than": 5000},
    ],
}
INTERSECTS = {
    "id": "intersects",
    "source": "derived:TimeWindow",
    "kind": "intersects",
    "checks": [
        {"a": [0, 2], "b": [2, 4], "intersects": True, "cover": [0, 4]},
        {"a": [0, 2], "b": [3, 4], "intersects": False},
    ],
}
OTHERS = [STAGGER, INTERSECTS]
UNUSED_FIELDS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "format_cases.json").read_text())["cases"]


def failure(case: dict[str, Any]) -> str:
    outcome = run_case(case, Options())
    assert outcome.state == "failed"
    return outcome.text


def changed(case: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return copy.deepcopy(case) | fields


def test_every_kind_of_the_format_has_a_runner() -> None:
    assert {case["kind"] for case in CASES} | {"stagger", "intersects"} == set(KINDS)


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case["kind"])
def test_kinds_without_a_visible_case_pass(case: dict[str, Any]) -> None:
    assert run_case(case, Options()).state == "passed"


@pytest.mark.parametrize("options", [Options(), Options(restore_every_step=True), Options("row", True, 3)])
@pytest.mark.parametrize("case", UNUSED_FIELDS, ids=lambda case: case["id"])
def test_fields_of_the_format_that_no_visible_case_uses_are_read(case: dict[str, Any], options: Options) -> None:
    outcome = run_case(case, options)
    assert outcome.state == "passed", outcome.text


def test_an_unknown_kind_fails() -> None:
    assert "unknown kind 'columns'" in failure({"id": "x", "kind": "columns"})


@pytest.mark.parametrize("case", [*PASSING.values(), *OTHERS], ids=lambda case: case["kind"])
def test_an_unknown_field_of_a_case_fails(case: dict[str, Any]) -> None:
    assert "unknown fields ['surprise']" in failure(changed(case, surprise=1))


@pytest.mark.parametrize("case", [*STEPPED.values(), *OTHERS], ids=lambda case: case["kind"])
def test_an_unknown_field_of_a_step_or_check_fails(case: dict[str, Any]) -> None:
    broken = changed(case)
    broken["steps" if "steps" in case else "checks"][0]["surprise"] = 1
    assert "surprise" in failure(broken)


@pytest.mark.parametrize("kind", sorted(kind for kind, case in STEPPED.items() if "steps" in case))
def test_an_unknown_step_fails(kind: str) -> None:
    broken = changed(STEPPED[kind])
    broken["steps"] = [{"surprise": 1}]
    assert failure(broken)


@pytest.mark.parametrize("at", ["build", 0, 999])
@pytest.mark.parametrize(
    "kind", sorted(set(PASSING) - {"merge_windows", "window_start", "spark_key_groups", "intersects"})
)
def test_an_expected_error_that_does_not_come_fails(kind: str, at: str | int) -> None:
    assert failure(changed(PASSING[kind], expect_error={"at": at, "error": "illegal_argument"}))


def test_another_error_than_the_expected_one_fails() -> None:
    case = next(case for case in CASES if case.get("expect_error", {}).get("error") == "missing_timestamp")
    broken = changed(case, expect_error=case["expect_error"] | {"error": "illegal_state"})
    assert "expected illegal_state, came MissingTimestamp" in failure(broken)


WRONG = {
    "assign": ("checks", 0, "windows", [[0, 1]]),
    "evictor": ("kept", None, None, [99]),
    "generator": ("steps", -1, "periodic", 99),
    "idleness_timer": ("steps", 0, "check", True),
    "interval_join": ("expect", 0, "value", [99, 99]),
    "keyed_co_process": ("expect", 0, "watermark", 99),
    "keyed_process": ("expect", 0, "ts", 99),
    "merge_windows": ("merges", 0, "result", [0, 99]),
    "valve": ("steps", 0, "out", [99]),
    "watermark_output": ("out", None, None, [99]),
    "window_start": ("checks", 0, "start", 99),
    "spark_key_groups": ("checks", 0, "xxhash64", 99),
}


@pytest.mark.parametrize("kind", sorted(WRONG))
def test_a_wrong_expectation_fails(kind: str) -> None:
    field, index, name, value = WRONG[kind]
    broken = changed(PASSING[kind])
    if index is None:
        broken[field] = value
    else:
        broken[field][index][name] = value
    assert "expected" in failure(broken)


@pytest.mark.parametrize("kind", ["keyed_process", "keyed_co_process", "interval_join", "window_operator"])
def test_an_output_expected_after_no_step_fails(kind: str) -> None:
    broken = changed(PASSING[kind])
    broken["expect"] = [*broken["expect"], {"after_step": 999, "value": 1, "ts": 1}]
    assert "came 999" in failure(broken)


@pytest.mark.parametrize("kind", ["keyed_process", "keyed_co_process"])
def test_order_within_a_step_counts(kind: str) -> None:
    case = next(
        case
        for case in CASES
        if case["kind"] == kind and len({output["after_step"] for output in case["expect"]}) < len(case["expect"])
    )
    broken = changed(case)
    broken["expect"].reverse()
    assert failure(broken)


def test_the_contents_of_windows_can_be_counted_listed_and_told_apart() -> None:
    case = {
        "id": "contents",
        "source": "derived",
        "kind": "window_operator",
        "operator": {
            "assigner": {"type": "tumbling", "time": "event", "size": 10, "offset": 0},
            "trigger": None,
            "evictor": None,
            "allowed_lateness": 0,
            "late_output": False,
            "function": "collect",
        },
        "steps": [
            {"element": {"key": "a", "value": 1, "ts": 15}},
            {"element": {"key": "a", "value": 2, "ts": 3}},
            {"element": {"key": "a", "value": 3, "ts": 4}},
        ],
        "expect": [],
    }
    held = [{"key": "a", "window": [0, 10], "values": [2, 3]}, {"key": "a", "window": [10, 20], "values": [1]}]
    for contents in (2, [2, 3, 1], held):
        assert run_case(changed(case, probes=[{"after_step": 2, "contents": contents}]), Options()).state == "passed"
    for contents in (1, [1, 2, 3], held[:1]):
        assert "contents after step 2" in failure(changed(case, probes=[{"after_step": 2, "contents": contents}]))


def test_the_command_line_says_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cases.json"
    file.write_text(json.dumps({"cases": [STAGGER, changed(INTERSECTS, surprise=1)]}))
    assert main([str(file)]) == 1
    out = capsys.readouterr().out
    assert "FAILED intersects: " in out
    assert "1 passed, 1 failed, 0 skipped" in out
    assert main([str(file), "--only", "stagger"]) == 0
    assert main([str(file), "--only", "nothing"]) == 1


def test_the_former_name_of_the_runner_is_the_same_command(tmp_path: Path) -> None:
    file = tmp_path / "cases.json"
    file.write_text(json.dumps({"cases": [STAGGER, changed(INTERSECTS, surprise=1)]}))
    command = [sys.executable, "-m", "tidegate.windowing.testing.transcripts", str(file)]
    done = subprocess.run(command, cwd=FOLDER.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "1 passed, 1 failed, 0 skipped" in done.stdout


def test_no_part_of_the_runner_is_in_the_wheel() -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel")
    files = [file.distribution_path for file in wheel.WheelBuilder(str(FOLDER.parents[1])).recurse_included_files()]
    assert any(file.endswith("windowing/testing/harness.py") for file in files)
    assert [file for file in files if "transcripts" in file] == []
