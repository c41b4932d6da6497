"""The memory in use at one time is bounded for all windows and keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.transcripts.case import Options
from tests.transcripts.runner import run_case
from tidegate.windowing.aggregates import AggregateColumns, Count, Sum
from tidegate.windowing.assigners import (
    CumulateEventTimeWindows,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from tidegate.windowing.assigners.base import WindowAssigner
from tidegate.windowing.columnar import ColumnarOperator, run_in_passes
from tidegate.windowing.compute import Windows
from tidegate.windowing.epochs import Elements, EpochOutcome, Timeline
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.window.snapshot import state_schema
from tidegate.windowing.panes import PanePolicy

INPUT = pa.schema([("value", pa.int64())])

KEY = KeySchema.of(key=pa.int64())

PANES = PanePolicy(retract_merged=True, coalesce_late=True)

EVENTS = 120

HOT_KEY = Elements(
    timestamps=np.arange(EVENTS),
    commits=np.zeros(EVENTS, np.int64),
    keys={"key": pa.array([7] * EVENTS)},
    columns={"value": pa.array(range(EVENTS))},
)


@pytest.mark.parametrize(
    ("assigner", "lateness", "windows_of_an_element"),
    [
        (TumblingEventTimeWindows(60), 0, 1),
        (EventTimeSessionWindows(10), 0, 1),
        (SlidingEventTimeWindows(60, 6), 1, 10),
        (SlidingEventTimeWindows(60, 7), 0, 9),
        (SlidingEventTimeWindows(60, 90), 0, 1),
        (SlidingEventTimeWindows(150, 1), 1, 150),
        # In a slice each element occurs once.
        (SlidingEventTimeWindows(150, 1), 0, 1),
        (CumulateEventTimeWindows(60, 6), 0, 10),
    ],
    ids=str,
)
def test_a_pass_takes_fewer_elements_where_each_has_many_windows(
    monkeypatch: pytest.MonkeyPatch, assigner: WindowAssigner, lateness: int, windows_of_an_element: int
) -> None:
    taken: list[int] = []
    run = ColumnarOperator.run

    def counted(operator: ColumnarOperator, elements: Elements, *rest: Any) -> EpochOutcome:
        taken.append(len(elements))
        return run(operator, elements, *rest)

    monkeypatch.setattr(ColumnarOperator, "run", counted)
    aggregate = AggregateColumns.of({"events": Count(), "total": Sum("value")}, INPUT)
    windows = Windows(assigner, allowed_lateness=lateness, aggregate=aggregate)
    schema = state_schema(windows, KEY, None, PANES)
    operator, empty = ColumnarOperator(windows, schema, PANES, 16), schema.to_table([], 16)
    timeline = Timeline.of_commits(-(2**63), [(EVENTS // 2, True)])

    came = run_in_passes(operator, HOT_KEY, empty, timeline, rows=100)
    assert sum(taken) == EVENTS
    assert max(taken) == max(1, 100 // windows_of_an_element)
    whole = run(operator, HOT_KEY, empty, timeline)
    assert came.panes.equals(whole.panes)
    assert came.state.sort_by("window_start").equals(whole.state.sort_by("window_start"))


FOLDER = Path(__file__).parents[2] / "conformance"

CASES: list[tuple[dict[str, Any], Options]] = [
    (case, Options("columnar", restore_every_step=restored))
    for name, restored in (("windows.json", True), ("random_windows.json", False))
    for case in json.loads((FOLDER / name).read_text(encoding="utf-8"))["cases"]
    if case["kind"] == "window_operator"
]
"""Random cases have many steps; each of them takes the state as rows, also without a restore."""


@pytest.mark.slow
def test_every_case_whose_windows_have_an_array_form_holds_over_arrays() -> None:
    outcomes = [run_case(case, options) for case, options in CASES]
    assert [outcome.text for outcome in outcomes if outcome.state == "failed"] == []
    assert {outcome.text.partition(": ")[0] for outcome in outcomes if outcome.state == "skipped"} == {"by design"}
    assert sum(outcome.state == "passed" for outcome in outcomes) == 46
