"""Windows are checked by the code of their epoch: gap, size, offset and lateness may change between epochs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import write_deltalake

from tests.expectations.broken import broken_in
from tests.lake import LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.expectations.pinned import pin
from tidegate.expectations.run import run_suites
from tidegate.expectations.suites import suites
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition import epochs
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.storage.artifacts import ArtifactsInFolder
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing import (
    Count,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    Windows,
)


def minutes(number: int) -> timedelta:
    return timedelta(minutes=number)


def _sessions(draw: random.Random) -> object:
    return EventTimeSessionWindows.with_gap(minutes(draw.choice([5, 30, 60])))


def _hours(draw: random.Random) -> object:
    return TumblingEventTimeWindows.of(minutes(draw.choice([30, 60])), minutes(draw.choice([0, 15])))


def _sliding(draw: random.Random) -> object:
    slide = draw.choice([10, 20])
    return SlidingEventTimeWindows.of(
        minutes(slide * draw.choice([1, 3])), minutes(slide), minutes(draw.choice([0, 5]))
    )


KINDS = {"sessions": _sessions, "hours": _hours, "sliding": _sliding}


def code(assigner: object, lateness: int = 0) -> Pipeline:
    compute = Windows(assigner, aggregate={"events": Count()}, allowed_lateness=minutes(lateness))  # type: ignore[arg-type]
    return replace(session_pipeline(), compute=compute)


def lived(folder: Path, kind: Callable[[random.Random], object], seed: int, check: Callable[[ByHand], None]) -> ByHand:
    """A pipeline of five epochs, each by a code of its own."""
    draw = random.Random(seed)
    hand = ByHand(folder)
    for hour in range(8, 13):
        hand.pipeline = code(kind(draw), draw.choice([0, 30]))
        texts = [f"{hour + draw.choice([0, 0, 1]):02}:{draw.randrange(60):02}" for _ in range(6)]
        rows = [(draw.choice(["ann", "bob"]), at(text), 1) for text in texts]
        hand.epoch(*rows, watermark=at(f"{hour + 1:02}:{draw.randrange(60):02}"))
        check(hand)
    return hand


@pytest.mark.first(1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_windows_of_before_a_change_break_nothing(kind: str, seed: int, tmp_path: Path) -> None:
    def check(hand: ByHand) -> None:
        assert broken_in(hand.tables, hand.pipeline) == set()

    lived(tmp_path, KINDS[kind], seed, check)


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", KINDS)
def test_checks_that_go_on_from_each_other_pass(kind: str, tmp_path: Path) -> None:
    def check(hand: ByHand) -> None:
        pinned = pin(hand.tables, hand.pipeline)
        run = run_suites(suites(pinned), pinned, hand.tables, ArtifactsInFolder(tmp_path / "docs"))
        assert not run.is_critical, [row.message for row in run.failed]

    lived(tmp_path, KINDS[kind], 7, check)


def test_a_window_does_not_fit_a_later_code(tmp_path: Path) -> None:
    hand = ByHand(tmp_path, code(TumblingEventTimeWindows.of(minutes(60))))
    hand.epoch(("ann", at("10:10"), 1), watermark=at("12:00"))
    hand.pipeline = code(TumblingEventTimeWindows.of(minutes(30)))
    hand.epoch(("ann", at("12:10"), 1), watermark=at("14:00"))
    rows = hand.rows("results").to_pylist()
    early = next(row for row in rows if row["epoch"] == 1)
    early["window_end"] = early["window_start"] + minutes(30)
    planted = hand.rows("results").from_pylist(rows, schema=hand.rows("results").schema)
    write_deltalake(hand.tables.path("results"), planted, mode="overwrite")
    assert ("final windows", "expect_windows_to_be_aligned") in broken_in(hand.tables, hand.pipeline)


def test_a_retraction_repeats_the_lateness_of_the_code_that_emitted_its_pane(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.append(("ann", at("10:10"), 1), ("ann", at("14:00"), 1))
    lake.stream(LOCAL, hourly_pipeline())
    lake.append(("ann", at("10:20"), 1))
    later = hourly_pipeline(allowed_lateness=minutes(30))
    lake.stream(LOCAL, later)
    lake.reopen(LOCAL, later)
    waits = [
        row["final_at"] - row["window_end"] for row in lake.rows(later, "results").to_pylist() if row["epoch"] == 3
    ]
    assert len({*waits}) == 2
    assert broken_in(lake.tables(later), later) == set()


def test_epochs_of_an_older_version_count_as_those_of_the_next_that_kept_its_shape(tmp_path: Path) -> None:
    hand = ByHand(tmp_path, code(TumblingEventTimeWindows.of(minutes(60))))
    for hour in ("10", "12"):
        hand.epoch(("ann", at(f"{hour}:10"), 1), watermark=at(f"{hour}:59"))
    hand.pipeline = code(TumblingEventTimeWindows.of(minutes(30)))
    hand.epoch(("ann", at("14:10"), 1), watermark=at("16:00"))
    old = read_table(hand.warehouse, hand.tables.open("epochs")).to_pylist()
    for row in old:
        row[epochs.SHAPE] = None if row["epoch"] == 1 else row[epochs.SHAPE]
    schema = read_table(hand.warehouse, hand.tables.open("epochs")).schema
    write_deltalake(hand.tables.path("epochs"), hand.rows("epochs").from_pylist(old, schema=schema), mode="overwrite")
    assert not [each for each in broken_in(hand.tables, hand.pipeline) if each[0] == "final windows"]


def test_a_manifest_without_a_shape_is_read(tmp_path: Path) -> None:
    hand = ByHand(tmp_path)
    hand.epoch(("ann", at("10:10"), 1), watermark=at("12:00"))
    manifest = hand.head().manifest
    assert manifest.shape is not None
    text = manifest.model_copy(update={"shape": None}).model_dump_json()
    assert "shape" not in text
    assert Manifest.parse(text).shape is None
