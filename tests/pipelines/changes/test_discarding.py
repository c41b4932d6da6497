"""Corrections of windows that put out only what is new, and keep apart what they have put out."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.expectations.broken import broken_in
from tests.lake import Lake, at, hourly_pipeline
from tests.pipelines.looping import available
from tidegate.pipelines import DeltaSource
from tidegate.windowing import Accumulation, Count, EventTimeSessionWindows, Sum, TumblingEventTimeWindows, Windows
from tidegate.windowing.assigners import WindowAssigner

HOUR = timedelta(hours=1)
SUMS: dict[str, Any] = {"aggregate": {"events": Count(), "total": Sum("value")}}


@pytest.mark.parametrize(
    "assigner",
    [TumblingEventTimeWindows.of(HOUR), EventTimeSessionWindows.with_gap(HOUR / 2)],
    ids=["hours", "sessions"],
)
def test_a_discarding_window_that_is_open_for_late_rows_is_corrected(tmp_path: Path, assigner: WindowAssigner) -> None:
    lake = Lake(tmp_path)
    compute = Windows(assigner, allowed_lateness=9 * HOUR, accumulation=Accumulation.DISCARDING, **SUMS)
    pipeline = hourly_pipeline(source=DeltaSource("events", timestamp="at", changes="correct"), compute=compute)
    lake.append(("ann", at("10:00"), 1), ("ann", at("10:20"), 2), ("bob", at("10:30"), 4))
    lake.append(("cem", at("14:00"), 5))
    available(lake, pipeline)

    def totals() -> dict[str, int]:
        """Total of all panes that stand, by user."""
        rows = lake.rows(pipeline, "results").to_pylist()
        sums: dict[str, int] = {}
        for row in rows:
            sums[row["user"]] = sums.get(row["user"], 0) + (1 if row["op"] == "+" else -1) * row["total"]
        return sums

    table = DeltaTable(lake.path("events"))
    table.update({"user": "'dan'"}, predicate="value = 1")
    available(lake, pipeline)
    assert totals() == {"ann": 2, "bob": 4, "dan": 1}, "dan has a window that is open and has fired"
    lake.append(("dan", at("10:05"), 10), ("ann", at("10:10"), 20))
    available(lake, pipeline)
    assert totals() == {"ann": 22, "bob": 4, "dan": 11}
    DeltaTable(lake.path("events")).delete("value = 10 or user = 'bob'")
    lake.append(("bob", at("10:31"), 7))
    available(lake, pipeline)
    assert totals() == {"ann": 22, "bob": 7, "dan": 1}
    lake.append(("cem", at("23:59"), 5))
    available(lake, pipeline)
    assert totals() == {"ann": 22, "bob": 7, "dan": 1, "cem": 5}
    assert broken_in(lake.tables(pipeline), pipeline) == set()
