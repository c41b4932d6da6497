"""Random scenarios give the records of Flink's operators and the panes of Beam's triggers, except for documented
rules.
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.oracle import beam, compare
from tests.oracle.__main__ import ORACLES

SCENARIOS = 2000


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("oracle", ORACLES)
def test_no_difference_is_without_a_rule(oracle: str) -> None:
    if oracle == "flink" and not (shutil.which("mvn") and shutil.which("javac")):
        pytest.skip("Flink's libraries need Maven and a Java compiler")
    assert [fault for _, faults in ORACLES[oracle](0, SCENARIOS) for fault in faults] == []


@pytest.mark.parametrize("entry", compare.known().values(), ids=list(compare.known()))
def test_a_difference_that_a_rule_explains_is_still_there(entry: dict[str, Any]) -> None:
    """What was fixed moves to the conformance cases."""
    assert entry["rule"] in compare.rules()
    assert compare.outcome_of(entry["case"]).state == "failed"


def test_a_pane_that_another_system_does_not_give_is_a_difference() -> None:
    scenario = beam.scenario(4)
    panes = beam.ours(scenario)
    assert beam.difference(scenario, panes) == ("", "")
    index = next(index for index, of_step in enumerate(panes) if of_step)
    panes[index] = [[window, [*values, -1]] for window, values in panes[index]]
    assert beam.difference(scenario, panes)[1] == ""
    assert beam.difference(scenario, panes)[0].startswith(str(scenario["steps"][index]))
