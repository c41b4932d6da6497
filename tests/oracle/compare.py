"""Random scenarios, run by another system and by us, and what is known about the differences. differences.json has each
scenario that ever differed and is not fixed, with the rule that explains it. What was fixed is a conformance case
(tests/conformance/oracle.json).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.oracle import beam, draws, flink
from tests.transcripts.case import Options
from tests.transcripts.runner import Outcome, run_case

DIFFERENCES = Path(__file__).with_name("differences.json")

SHARES = {"window_operator": 0.5, "keyed_process": 0.15, "keyed_co_process": 0.15, "interval_join": 0.2}
"""Share of each kind in the scenarios."""

Line = tuple[str, list[str]]
"""The figures of one kind of scenario, and the differences that no rule explains."""


def known() -> dict[str, dict[str, Any]]:
    """Return the scenarios that differ by a rule, by their ids."""
    return {entry["case"]["id"]: entry for entry in json.loads(DIFFERENCES.read_text())["differences"]}


def rules() -> dict[str, str]:
    """Return the rules that explain differences, by their names."""
    found: dict[str, str] = json.loads(DIFFERENCES.read_text())["rules"]
    return found


def with_flink(first: int, scenarios: int) -> Iterator[Line]:
    """Run scenarios with Flink, and yield a line for each kind."""
    seeds = {kind: range(first, first + round(share * scenarios)) for kind, share in SHARES.items()}
    answered = flink.answers([draws.case(kind, seed) for kind, of_kind in seeds.items() for seed in of_kind])
    explained = known()
    for kind in SHARES:
        cases = [case for case in answered if case["kind"] == kind]
        counts: Counter[str] = Counter()
        faults = []
        for case in cases:
            counts["steps"] += len(case["steps"])
            counts["records"] += len(case["expect"])
            counts["refused"] += "expect_error" in case
            for operator in ("row", "columnar") if kind == "window_operator" else ("row",):
                outcome = outcome_of(case, operator)
                counts[f"{operator} {outcome.state}"] += 1
                if outcome.state == "failed":
                    rule = explained.get(case["id"], {}).get("rule")
                    counts[f"explained: {rule}"] += rule is not None
                    faults += [] if rule else [f"{operator}, {outcome.id}: {outcome.text}\n  {json.dumps(case)}"]
        yield f"{kind}: {len(cases)} scenarios, {_shown(counts)}", faults


def with_beam(first: int, scenarios: int) -> Iterator[Line]:
    """Run scenarios with Beam, and yield one line."""
    drawn = [beam.scenario(seed) for seed in range(first, first + scenarios)]
    counts: Counter[str] = Counter()
    faults = []
    for scenario, panes in zip(drawn, beam.answers(drawn), strict=True):
        counts["steps"] += len(scenario["steps"])
        counts["panes"] += sum(map(len, panes))
        what, rule = beam.difference(scenario, panes)
        counts["equal"] += not what
        counts[f"explained: {rule}"] += bool(rule)
        faults += [f"{scenario['id']}: {what}\n  {json.dumps(scenario)}"] if what and not rule else []
    yield f"triggers of Beam: {scenarios} scenarios, {_shown(counts)}", faults


def _shown(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def outcome_of(case: dict[str, Any], operator: str = "row") -> Outcome:
    """Run a scenario with one of our operators, and compare it with the answer of the other system."""
    if operator == "columnar" and "restore_watermark" in case.get("tags", ()):
        return Outcome(case["id"], "skipped", "the columnar operator runs epochs, whose watermark is in the snapshot")
    error = case.get("expect_error")
    # The other system's error messages are only for people to read.
    told = case if error is None else case | {"expect_error": {"at": error["at"], "error": error["error"]}}
    return run_case(told, Options(operator=operator))
