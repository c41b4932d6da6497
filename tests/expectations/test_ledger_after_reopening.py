"""Reopened late rows count among the elements of windows, and every correction is counted."""

from __future__ import annotations

import random
import warnings
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.expectations.broken import broken_by_rules
from tests.expectations.test_from_the_last_proof import checked
from tests.lake import Clock, at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.pipelines.correct.arrivals import NOW, Arrivals
from tidegate.expectations.ledger import ELEMENTS
from tidegate.expectations.pinned import Pinned, pin
from tidegate.pipelines import Pipeline
from tidegate.pipelines.correct.request import Selection
from tidegate.pipelines.definition import epochs
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import prune
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.windowing import Count, CountTrigger, TumblingEventTimeWindows, Windows
from tidegate.windowing.errors import LostElementsWarning
from tidegate.windowing.time import to_millis


def broken(by_hand: ByHand, epoch: int | None = None) -> pd.DataFrame:
    rows = pin(by_hand.tables, by_hand.pipeline, epoch).ledger
    return rows[rows["counted"] != rows["found"]]


@pytest.fixture(params=[hourly_pipeline, session_pipeline])
def arrivals(request: pytest.FixtureRequest, tmp_path: Path) -> Arrivals:
    """Late rows of two users at 10:20 and 10:50, which connect sessions of half an hour."""
    made = Arrivals(ByHand(tmp_path, request.param()))
    made.commit(("ann", at("10:10"), 1), ("zoe", at("10:10"), 1), ("ann", at("16:00"), 1), watermark=at("14:00"))
    made.commit(*((user, at(time), 1) for user in ("ann", "zoe") for time in ("10:20", "10:45")), watermark=at("15:00"))
    return made


@pytest.mark.first(1)
def test_nothing_is_missing_or_too_many_until_somebody_deletes_a_correction(arrivals: Arrivals) -> None:
    ledger = pin(arrivals.by_hand.tables, arrivals.by_hand.pipeline).ledger
    assert "elements in windows" in set(ledger["what"])
    assert len(broken(arrivals.by_hand)) == 0
    made = arrivals.reopen()
    assert made is not None
    assert made.counters["reopened"] == 4
    assert len(broken(arrivals.by_hand)) == 0
    assert broken_by_rules(pin(arrivals.by_hand.tables, arrivals.by_hand.pipeline)) == set()
    assert len(broken(arrivals.by_hand, epoch=2)) == 0
    prune(arrivals.by_hand.tables, NOW + 1, NOW)
    assert len(broken(arrivals.by_hand)) == 0, "rows that were pruned are not missed"
    arrivals.by_hand.tables.open("results").delete("timing = 'late'")
    assert "fired_late" in set(broken(arrivals.by_hand)["what"])


@pytest.mark.first(1)
def test_a_session_that_is_cut_by_a_selection_is_taken_in_as_a_whole(arrivals: Arrivals) -> None:
    arrivals.reopen(Selection(start=to_millis(at("10:30"))))
    assert len(broken(arrivals.by_hand)) == 0
    reopened = {row["at"].minute for row in arrivals.by_hand.rows("late").to_pylist() if row["reopened"]}
    assert reopened == (set() if arrivals.by_hand.pipeline.name == "hours" else {20, 45})


def test_hours_keep_late_rows_of_other_windows_apart(tmp_path: Path) -> None:
    arrivals = Arrivals(ByHand(tmp_path, hourly_pipeline(allowed_lateness=timedelta(minutes=5))))
    arrivals.commit(("ann", at("10:10"), 1), watermark=at("14:00"))
    arrivals.commit(("ann", at("10:20"), 1), ("ann", at("12:20"), 1), watermark=at("14:00"))
    arrivals.reopen(Selection(end=to_millis(at("11:00"))))
    assert len(broken(arrivals.by_hand)) == 0
    arrivals.reopen()
    assert len(broken(arrivals.by_hand)) == 0


LATENESS = {"none": timedelta(0), "an hour": timedelta(hours=1)}


def in_hundreds(lateness: timedelta, of: int = 3) -> Pipeline:
    """Windows that fire for every so many elements and never at their end: the remainder is lost, as intended."""
    hours = TumblingEventTimeWindows.of(timedelta(hours=1))
    aggregate = {"events": Count()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LostElementsWarning)
        return hourly_pipeline(
            compute=Windows(hours, trigger=CountTrigger.of(of), allowed_lateness=lateness, aggregate=aggregate)
        )


def run(by_hand: ByHand, first: int, last: int, seed: int) -> None:
    draw = random.Random(seed)
    for hour in range(first, last):
        rows = [
            (draw.choice(("ann", "bob", "eve")), at(f"{hour}:00") + timedelta(minutes=draw.randint(-90, 59)), 1)
            for _ in range(10)
        ]
        by_hand.epoch(*rows, watermark=at(f"{hour}:30"))


def of_elements(pinned: Pinned) -> pd.DataFrame:
    rows = pinned.ledger
    return rows[rows["what"] == ELEMENTS]


@pytest.mark.first(1)
@pytest.mark.parametrize("lateness", LATENESS)
def test_what_windows_took_is_shown_or_open_or_was_never_emitted(lateness: str, tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, in_hundreds(LATENESS[lateness]))
    for first, last in ((10, 13), (13, 16)):
        run(by_hand, first, last, first)
        pinned, state = checked(by_hand)
        assert state == "passed"
        found = of_elements(pinned)
        assert len(found)
        assert (found["counted"] == found["found"]).all()
    assert pinned.scope.proof is not None, "the second goes on from the first"
    assert sum(by_hand.rows("epochs")["never_emitted"].to_pylist()) > 0


@pytest.mark.first(1)
@pytest.mark.parametrize("pipeline", [in_hundreds(timedelta(0)), hourly_pipeline()], ids=["lossy", "default"])
def test_elements_that_are_said_to_be_lost_and_are_not_are_found(pipeline: Pipeline, tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, pipeline)
    run(by_hand, 10, 12, 1)
    rows = by_hand.rows(epochs.NAME).to_pylist()
    rows[1]["never_emitted"] += 1
    rows[1]["shards"][0]["never_emitted"] += 1
    planted = pa.Table.from_pylist(rows, schema=by_hand.rows(epochs.NAME).schema)
    write_deltalake(by_hand.tables.path(epochs.NAME), planted, mode="overwrite")
    found = of_elements(pin(by_hand.tables, by_hand.pipeline))
    assert (found["found"] - found["counted"]).sum() == 1


LATER = 2_000_000_000_000


@pytest.fixture
def by_hand(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> ByHand:
    def fill(made: ByHand) -> None:
        made.epoch(("ann", at("10:00"), 1), ("zoe", at("10:00"), 1), watermark=at("11:00"))
        made.epoch(("ann", at("10:00"), 1), ("zoe", at("10:00"), 1), ("ann", at("12:00"), 1), watermark=at("12:00"))

    made = ByHand(tmp_path, templates=tmp_path_factory.getbasetemp() / "templates")
    made.filled("two late rows", fill)
    return made


def test_pruned_late_rows_are_not_missed_and_results_are_still_counted(by_hand: ByHand) -> None:
    prune(by_hand.tables, LATER, LATER)
    assert len(broken(by_hand)) == 0
    by_hand.tables.open("results").delete("user = 'ann'")
    assert set(broken(by_hand)["what"]) == {"fired_on_time", "elements in windows"}


def test_a_row_that_somebody_deleted_after_a_key_was_forgotten_is_missed(by_hand: ByHand) -> None:
    with Lease(by_hand.tables, "forget", Clock()):
        forget(by_hand.tables, by_hand.pipeline, [("zoe",)], LATER)
    assert len(broken(by_hand)) == 0, "a forgotten key is not missed"
    by_hand.epoch(("ann", at("13:00"), 1), watermark=at("14:00"))
    assert len(broken(by_hand)) == 0
    by_hand.tables.open("results").delete("epoch = 4")
    assert set(broken(by_hand)["what"]) == {"fired_on_time"}


@pytest.mark.first(1)
@pytest.mark.parametrize("targets", [("1",), ("2",), ("1", "2"), ("2", "1", "3")], ids="-".join)
def test_a_restore_over_a_prune_leaves_counts_that_add_up(by_hand: ByHand, targets: tuple[str, ...]) -> None:
    """The late rows of the second epoch were pruned; whichever lineage the head is on, they are not missing."""
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("12:00"))
    prune(by_hand.tables, LATER, LATER)
    for target in targets:
        restore(by_hand.tables, find_snapshot(by_hand.tables, target), LATER)
        assert len(broken(by_hand)) == 0
    by_hand.epoch(("ann", at("13:00"), 1), ("ann", at("10:00"), 1), watermark=at("14:00"))
    assert len(broken(by_hand)) == 0
    by_hand.tables.open("late").delete()
    assert set(broken(by_hand)["what"]) == {"late"}, "rows of after the prune are missed"


def test_an_older_epoch_does_not_miss_what_was_pruned_since(by_hand: ByHand) -> None:
    by_hand.epoch(("ann", at("13:00"), 1), watermark=at("13:00"))
    prune(by_hand.tables, LATER, LATER)
    by_hand.epoch(("ann", at("14:00"), 1), watermark=at("14:00"))
    for epoch in (2, 3, 5):
        assert len(broken(by_hand, epoch)) == 0, f"epoch {epoch}"
