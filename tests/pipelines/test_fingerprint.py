from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import EVENTS, hourly_pipeline, session_pipeline
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.definition.fingerprint import describe, fingerprint
from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.sources.delta.description import DeltaSource
from tidegate.windowing import (
    Accumulation,
    ApproxCountDistinct,
    ContinuousEventTimeTrigger,
    Count,
    EventTimeSessionWindows,
    First,
    GapColumn,
    Last,
    Max,
    Mean,
    Min,
    PurgingTrigger,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    Windows,
)

SESSIONS = session_pipeline()


def of(pipeline: Pipeline) -> str:
    return bind(pipeline, EVENTS, EVENTS).fingerprint


@pytest.mark.parametrize(
    "other",
    [
        hourly_pipeline(name="sessions"),
        session_pipeline(gap=timedelta(minutes=31)),
        session_pipeline(allowed_lateness=timedelta(minutes=1)),
        session_pipeline(where="value > 0"),
        session_pipeline(columns={"user": "upper(user)"}),
        session_pipeline(null_keys="keep"),
        session_pipeline(source=DeltaSource("events", timestamp="value", unit="ms")),
        session_pipeline(source=DeltaSource("events", timestamp="value", unit="s")),
        session_pipeline(max_ahead=timedelta(hours=2)),
        session_pipeline(
            compute=Windows(
                EventTimeSessionWindows.with_gap(timedelta(minutes=30)),
                aggregate={"events": Count(), "total": Max("value")},
            )
        ),
    ],
)
def test_whatever_could_change_a_result_changes_it(other: Pipeline) -> None:
    assert of(other) != of(SESSIONS)


def test_another_zone_of_a_wall_clock_time_changes_it() -> None:
    schema = EVENTS.set(1, pa.field("at", pa.timestamp("us")))
    zones = ("Europe/Berlin", "Europe/Athens")
    pipelines = [session_pipeline(source=DeltaSource("events", timestamp="at", zone=zone)) for zone in zones]
    assert len({bind(pipeline, schema, schema).fingerprint for pipeline in pipelines}) == 2


@pytest.mark.parametrize(
    "change", [{"parallelism": 5}, {"checkpoint_interval": timedelta(minutes=9)}, {"name": "other"}]
)
def test_what_can_not_change_a_result_leaves_it(change: dict[str, Any]) -> None:
    assert of(replace(SESSIONS, **change)) == of(SESSIONS)


def scaled(factor: int) -> Callable[[int], int]:
    return lambda value: value * factor


def test_a_function_counts_by_its_code_its_constants_and_what_it_closes_over() -> None:
    assert fingerprint(lambda a: a + 1) == fingerprint(lambda a: a + 1)
    assert fingerprint(lambda a: a + 1) != fingerprint(lambda a: a + 2)
    assert fingerprint(lambda a: a.upper()) != fingerprint(lambda a: a.lower())
    assert fingerprint(scaled(2)) == fingerprint(scaled(2))
    assert fingerprint(scaled(2)) != fingerprint(scaled(3))


def test_the_order_of_aggregates_is_the_order_of_result_columns_and_counts() -> None:
    one, other = {"a": Count(), "b": Sum("value")}, {"b": Sum("value"), "a": Count()}
    assert fingerprint(one) != fingerprint(other)


MINUTE = timedelta(minutes=1)
LIBRARY_ONLY = {
    "sessions": session_pipeline(allowed_lateness=MINUTE),
    "hours": hourly_pipeline(where="value > 0", columns={"user": "upper(user)"}, null_keys="keep"),
    "every aggregate": hourly_pipeline(
        compute=Windows(
            SlidingEventTimeWindows.of(60 * MINUTE, 7 * MINUTE, offset=MINUTE),
            aggregate={
                "events": Count(),
                "total": Sum("value"),
                "mean": Mean("value"),
                "first": First("value"),
                "last": Last("value"),
                "smallest": Min("value"),
                "largest": Max("value"),
                "distinct": ApproxCountDistinct("value"),
            },
            accumulation=Accumulation.RETRACTING,
        )
    ),
    "a trigger": hourly_pipeline(
        compute=Windows(
            TumblingEventTimeWindows.of(60 * MINUTE),
            PurgingTrigger.of(ContinuousEventTimeTrigger.of(10 * MINUTE)),
            aggregate={"events": Count()},
        )
    ),
    "gaps of a column": session_pipeline(
        compute=Windows(EventTimeSessionWindows.with_dynamic_gap(GapColumn("value")), aggregate={"events": Count()})
    ),
}


@pytest.mark.parametrize(
    ("name", "digits"),
    [
        ("sessions", "55130d1702dd895e"),
        ("hours", "d2e4174f6837599c"),
        ("every aggregate", "350dec8fb18bce51"),
        ("a trigger", "404eb6cfad2b3073"),
        ("gaps of a column", "ec5952c2ebba672d"),
    ],
)
def test_a_pipeline_without_code_of_its_own_has_the_fingerprint_that_its_snapshots_have(name: str, digits: str) -> None:
    """With a different one, every interval of every backfill would run again after an upgrade."""
    # Set explicitly, because the default was a day when these were recorded: another limit computes something else.
    assert of(replace(LIBRARY_ONLY[name], max_ahead=timedelta(days=1))) == digits


def test_a_younger_field_of_an_input_leaves_fingerprints_as_they_were() -> None:
    source = DeltaSource("payments", timestamp="at")
    assert "watermark_from" not in str(describe(Input(source=source)))
    assert describe(Input(source=source)) != describe(Input(source=source, watermark_from="all"))
