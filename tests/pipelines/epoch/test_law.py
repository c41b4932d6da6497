"""The law of late data: a stream, then `late reopen` of everything, has the windows of a backfill in event order."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.lake import DAY0, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.pipelines.epoch.arrivals import Arrivals
from tidegate.pipelines import Pipeline
from tidegate.windowing import (
    Accumulation,
    Count,
    EventTimeTrigger,
    Max,
    PurgingTrigger,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    Windows,
)

pytestmark = pytest.mark.slow

MINUTE = timedelta(minutes=1)
SUMS: dict[str, Any] = {"aggregate": {"events": Count(), "total": Sum("value"), "largest": Max("value")}}
TUMBLING = TumblingEventTimeWindows.of(60 * MINUTE)


def sliding(size: int, slide: int, **options: Any) -> Pipeline:
    assigner = SlidingEventTimeWindows.of(size * MINUTE, slide * MINUTE)
    return hourly_pipeline(compute=Windows(assigner, **SUMS, **options))


PIPELINES = {
    "tumbling": hourly_pipeline(),
    "tumbling with lateness": hourly_pipeline(allowed_lateness=30 * MINUTE),
    "tumbling, purging": hourly_pipeline(compute=Windows(TUMBLING, PurgingTrigger.of(EventTimeTrigger()), **SUMS)),
    "tumbling, discarding": hourly_pipeline(compute=Windows(TUMBLING, accumulation=Accumulation.DISCARDING, **SUMS)),
    "tumbling, retracting": hourly_pipeline(
        compute=Windows(TUMBLING, allowed_lateness=20 * MINUTE, accumulation=Accumulation.RETRACTING, **SUMS)
    ),
    "sliding": sliding(60, 20),
    "sliding, a size that is no multiple": sliding(50, 20, allowed_lateness=15 * MINUTE),
    "sliding with gaps": sliding(20, 30),
    "sessions": session_pipeline(),
    "sessions with lateness": session_pipeline(allowed_lateness=40 * MINUTE),
    "sessions, discarding": session_pipeline(
        compute=Windows(session_pipeline().compute.assigner, accumulation=Accumulation.DISCARDING, **SUMS)
    ),
}


def arrive(arrivals: Arrivals, seed: int, commits: int = 8, begin: int = 0, users: int = 4) -> None:
    """Commits of an hour each, of events that may be hours behind event time."""
    draw = random.Random(seed)
    for number in range(begin, begin + commits):
        now = 60 * (number + 1)
        minutes = [max(0, now - int(draw.expovariate(1 / 45))) for _ in range(12)]
        rows = [(f"user{draw.randrange(users)}", DAY0 + minute * MINUTE, draw.randrange(100)) for minute in minutes]
        arrivals.commit(*rows, watermark=DAY0 + (now - 20) * MINUTE)


@pytest.mark.first(4)
@pytest.mark.parametrize("name", PIPELINES)
def test_a_stream_and_then_everything_reopened_is_the_backfill(tmp_path: Path, name: str) -> None:
    arrivals = Arrivals(ByHand(tmp_path, PIPELINES[name]))
    arrive(arrivals, seed=1, commits=6)
    assert arrivals.final() != arrivals.in_event_order(), "the data must have late rows"
    assert arrivals.reopen() is not None
    assert arrivals.final() == arrivals.in_event_order()


@pytest.mark.parametrize("name", ["tumbling with lateness", "sliding", "sessions", "sessions with lateness"])
def test_a_stream_that_is_reopened_on_its_way_goes_on_and_ends_as_the_backfill(tmp_path: Path, name: str) -> None:
    arrivals = Arrivals(ByHand(tmp_path, PIPELINES[name]))
    for part in range(3):
        arrive(arrivals, seed=part, commits=3, begin=3 * part)
        arrivals.reopen()
        assert arrivals.final() == arrivals.in_event_order()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", PIPELINES)
def test_the_law_holds_on_many_streams_that_are_reopened_on_their_way(tmp_path: Path, name: str, seed: int) -> None:
    arrivals = Arrivals(ByHand(tmp_path, PIPELINES[name]))
    for part in range(3):
        arrive(arrivals, seed=100 * seed + part, commits=3, begin=3 * part)
        arrivals.reopen()
        assert arrivals.final() == arrivals.in_event_order()
        assert arrivals.reopen() is None


@pytest.mark.parametrize("name", ["tumbling", "sliding", "sessions"])
def test_what_was_reopened_is_not_reopened_again(tmp_path: Path, name: str) -> None:
    arrivals = Arrivals(ByHand(tmp_path, PIPELINES[name]))
    arrive(arrivals, seed=5, commits=5)
    assert arrivals.reopen() is not None
    assert arrivals.reopen() is None
