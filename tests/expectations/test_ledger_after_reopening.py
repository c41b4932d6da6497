"""Late rows that were reopened count among the elements of windows, and every correction is counted."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest

from tests.expectations.broken import broken_by_rules
from tests.lake import at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.pipelines.epoch.arrivals import NOW, Arrivals
from tidegate.expectations.pinned import pin
from tidegate.pipelines.epoch.recompute_plan import Selection
from tidegate.pipelines.ledger.snapshots.prune import prune
from tidegate.windowing.time import to_millis


def broken(arrivals: Arrivals, epoch: int | None = None) -> pd.DataFrame:
    rows = pin(arrivals.by_hand.tables, arrivals.by_hand.pipeline, epoch).ledger
    assert "elements in windows" in set(rows["what"])
    return rows[rows["counted"] != rows["found"]]


@pytest.fixture(params=[hourly_pipeline, session_pipeline])
def arrivals(request: pytest.FixtureRequest, tmp_path: Path) -> Arrivals:
    """Late rows of two users at 10:20 and 10:50, which sessions of half an hour join."""
    made = Arrivals(ByHand(tmp_path, request.param()))
    made.commit(("ann", at("10:10"), 1), ("zoe", at("10:10"), 1), ("ann", at("16:00"), 1), watermark=at("14:00"))
    made.commit(*((user, at(time), 1) for user in ("ann", "zoe") for time in ("10:20", "10:45")), watermark=at("15:00"))
    return made


def test_nothing_is_missing_or_too_many(arrivals: Arrivals) -> None:
    assert len(broken(arrivals)) == 0
    made = arrivals.reopen()
    assert made is not None
    assert made.counters["reopened"] == 4
    assert len(broken(arrivals)) == 0
    assert broken_by_rules(pin(arrivals.by_hand.tables, arrivals.by_hand.pipeline)) == set()
    assert len(broken(arrivals, epoch=2)) == 0


def test_a_session_that_is_cut_by_a_selection_is_taken_in_as_a_whole(arrivals: Arrivals) -> None:
    arrivals.reopen(Selection(start=to_millis(at("10:30"))))
    assert len(broken(arrivals)) == 0
    reopened = {row["at"].minute for row in arrivals.by_hand.rows("late").to_pylist() if row["reopened"]}
    assert reopened == (set() if arrivals.by_hand.pipeline.name == "hours" else {20, 45})


def test_a_correction_that_somebody_deleted_is_missed_and_rows_that_were_pruned_are_not(arrivals: Arrivals) -> None:
    arrivals.reopen()
    prune(arrivals.by_hand.tables, NOW + 1, NOW)
    assert len(broken(arrivals)) == 0
    arrivals.by_hand.tables.open("results").delete("timing = 'late'")
    assert "fired_late" in set(broken(arrivals)["what"])


def test_hours_keep_late_rows_of_other_windows_apart(tmp_path: Path) -> None:
    arrivals = Arrivals(ByHand(tmp_path, hourly_pipeline(allowed_lateness=timedelta(minutes=5))))
    arrivals.commit(("ann", at("10:10"), 1), watermark=at("14:00"))
    arrivals.commit(("ann", at("10:20"), 1), ("ann", at("12:20"), 1), watermark=at("14:00"))
    arrivals.reopen(Selection(end=to_millis(at("11:00"))))
    assert len(broken(arrivals)) == 0
    arrivals.reopen()
    assert len(broken(arrivals)) == 0
