"""Elements that no pane ever showed are part of what windows took: the ledger adds them up, and misses none."""

from __future__ import annotations

import random
import warnings
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.expectations.test_from_the_last_proof import checked
from tests.lake import at, hourly_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.expectations.ledger import ELEMENTS
from tidegate.expectations.pinned import Pinned, pin
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition import epochs
from tidegate.windowing import Count, CountTrigger, TumblingEventTimeWindows, Windows
from tidegate.windowing.errors import LostElementsWarning

LATENESS = {"none": timedelta(0), "an hour": timedelta(hours=1)}


def in_hundreds(lateness: timedelta, of: int = 3) -> Pipeline:
    """Windows that fire for every so many elements and never at their end: the rest is lost, as was meant."""
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


@pytest.mark.parametrize("lateness", LATENESS)
def test_what_windows_took_is_shown_or_open_or_was_never_emitted(lateness: str, tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, in_hundreds(LATENESS[lateness]))
    for first, last in ((10, 14), (14, 18)):
        run(by_hand, first, last, first)
        pinned, state = checked(by_hand)
        assert state == "passed"
        found = of_elements(pinned)
        assert len(found)
        assert (found["counted"] == found["found"]).all()
    assert pinned.scope.proof is not None, "the second goes on from the first"
    assert sum(by_hand.rows("epochs")["never_emitted"].to_pylist()) > 0


@pytest.mark.parametrize("pipeline", [in_hundreds(timedelta(0)), hourly_pipeline()], ids=["lossy", "default"])
def test_elements_that_are_said_to_be_lost_and_are_not_are_found(pipeline: Pipeline, tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, pipeline)
    run(by_hand, 10, 14, 1)
    rows = by_hand.rows(epochs.NAME).to_pylist()
    rows[1]["never_emitted"] += 1
    rows[1]["shards"][0]["never_emitted"] += 1
    planted = pa.Table.from_pylist(rows, schema=by_hand.rows(epochs.NAME).schema)
    write_deltalake(by_hand.tables.path(epochs.NAME), planted, mode="overwrite")
    found = of_elements(pin(by_hand.tables, by_hand.pipeline))
    assert (found["found"] - found["counted"]).sum() == 1
