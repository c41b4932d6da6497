"""A continuous stream reopens late rows itself, at the times of its schedule."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.by_hand import ByHand
from tests.pipelines.looping import Waits
from tidegate.pipelines import Pipeline
from tidegate.pipelines.epoch import plan
from tidegate.pipelines.errors import LeaseHeld, Refused
from tidegate.pipelines.ledger.manifest import Manifest, PartitionWatermark
from tidegate.pipelines.run import stream as stream_module
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import Count, CountTrigger, TumblingEventTimeWindows, Windows

PIPELINE = hourly_pipeline()

HOUR = 3_600_000


@pytest.fixture
def late(tmp_path: Path) -> Lake:
    """Hours of ann, and a row that arrives after its hour had closed. The clock is a minute past a full hour."""
    lake = Lake(tmp_path)
    for text, value in (("10:10", 1), ("14:00", 2), ("10:20", 10)):
        lake.append(("ann", at(text), value))
    lake.clock.now += 2 * HOUR - lake.clock.now % HOUR + 60_000
    return lake


def run(
    lake: Lake,
    happens: Callable[[int], None],
    until: int,
    pipeline: Pipeline = PIPELINE,
    schedule: str | None = "0 * * * *",
) -> list[Manifest]:
    """A stream that polls its source every second; `happens` is called at each poll."""
    waits, made = Waits(happens), list[Manifest]()
    with lake.driver(LOCAL, pipeline) as driver:
        stream = Stream(driver, made.append, reopen_schedule=schedule, pause=waits.pause, timer=waits.timer)
        stream.run_continuously(timedelta(seconds=1), lambda: waits.now > until)
    return made


def ticking(lake: Lake, *numbers: int) -> Callable[[int], None]:
    """Let an hour pass at these polls."""

    def happens(number: int) -> None:
        lake.clock.now += HOUR if number in numbers else 1000

    return happens


def totals(lake: Lake) -> dict[str, int]:
    return {f"{row['window_start']:%H:%M}": row["total"] for row in lake.final(PIPELINE).to_pylist()}


def test_a_stream_reopens_late_rows_at_a_tick_and_goes_on(late: Lake) -> None:
    tick = ticking(late, 3)

    def happens(number: int) -> None:
        tick(number)
        if number == 3:
            assert totals(late) == {"10:00": 1}, "nothing is reopened before the tick"
        if number == 5:
            late.append(("ann", at("16:00"), 4))

    kinds = [manifest.kind for manifest in run(late, happens, until=8)]
    assert [kind for kind in kinds if kind != "clock"] == ["stream", "reopen", "stream"]
    assert totals(late) == {"10:00": 11, "14:00": 2}


@pytest.mark.parametrize("schedule", [None, "0 0 1 1 *"])
def test_without_a_tick_late_rows_wait(late: Lake, schedule: str | None) -> None:
    late.clock.now += 40 * 24 * HOUR  # The next new year is not within the test's hours.
    made = run(late, ticking(late, 3), until=6, schedule=schedule)
    assert "reopen" not in [manifest.kind for manifest in made]
    assert totals(late) == {"10:00": 1}


def test_a_tick_without_late_rows_makes_no_epoch(late: Lake) -> None:
    kinds = [manifest.kind for manifest in run(late, ticking(late, 3, 5, 7), until=9)]
    assert kinds.count("reopen") == 1


def test_a_refusal_is_logged_and_the_stream_goes_on(late: Lake, caplog: pytest.LogCaptureFixture) -> None:
    windows = Windows(
        TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"total": Count()}, trigger=CountTrigger(1)
    )
    counted = hourly_pipeline(compute=windows)
    tick = ticking(late, 3)

    def happens(number: int) -> None:
        tick(number)
        if number == 5:
            late.append(("ann", at("16:00"), 4))

    with caplog.at_level(logging.WARNING):
        made = run(late, happens, until=8, pipeline=counted)
    assert [manifest.kind for manifest in made if manifest.kind != "clock"] == ["stream", "stream"]
    assert "late rows can't be reopened on schedule: late rows of pipeline 'hours' can't be reopened" in caplog.text


def test_a_stream_whose_lease_went_to_another_driver_ends(late: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*given: Any) -> tuple[None, int]:
        raise LeaseHeld("lost")

    monkeypatch.setattr(stream_module, "reopen_possible", lost)
    with pytest.raises(LeaseHeld, match="lost"):
        run(late, ticking(late, 3), until=6)


def test_a_run_over_what_is_available_now_leaves_late_rows_to_the_command(late: Lake) -> None:
    made = list[Manifest]()
    with late.driver(LOCAL, PIPELINE) as driver:
        stream = Stream(driver, made.append, reopen_schedule="* * * * *")
        stream.run_available()
        late.clock.now += HOUR
        stream.run_available()
    assert "reopen" not in [manifest.kind for manifest in made]


def test_a_column_of_too_many_source_partitions_is_refused_before_anything_is_computed(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MOST_PARTITIONS", 3)
    by_hand.pipeline = hourly_pipeline(watermark_by="user")
    four = {f"user{number}": PartitionWatermark(watermark=0) for number in range(4)}
    told = r"makes 4 source partitions, but a pipeline may have at most 3: .* remove watermark_by"
    with pytest.raises(Refused, match=told):
        by_hand.planned([], at("10:00"), partitions=four)
    by_hand.planned([], at("10:00"), partitions=dict(list(four.items())[:3]))
