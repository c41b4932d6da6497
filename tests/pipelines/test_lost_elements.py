"""A pipeline says when it is made what it would lose or ignore, and table epochs counts what no pane showed."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.definition import epochs
from tidegate.pipelines.definition.counters import OF_TASKS
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import (
    AfterCount,
    AfterWatermark,
    Count,
    CountTrigger,
    IntervalJoin,
    Repeatedly,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.errors import IllegalArgument, LostElementsWarning
from tidegate.windowing.triggers import AfterAny, Trigger

SOURCE = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("n", pa.int64())])
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()


def pipeline(trigger: Trigger | None, lateness: int = 0, **fields: Any) -> Pipeline:
    windows = Windows(TumblingEventTimeWindows.of(10), trigger, allowed_lateness=lateness, aggregate={"n": Count()})
    given: dict[str, Any] = {"watermark": MONOTONOUS, "compute": windows, **fields}
    return Pipeline(name="p", source=DeltaSource("events", timestamp="at", unit="ms"), key=("user",), **given)


@pytest.mark.parametrize(
    ("trigger", "lateness"), [(AfterCount(1), 0), (AfterWatermark(late=None), 5), (CountTrigger.of(3), 0)]
)
def test_a_trigger_that_may_lose_elements_is_told_when_the_pipeline_is_made(trigger: Trigger, lateness: int) -> None:
    with pytest.warns(LostElementsWarning, match=r"pipeline 'p': windows with .* may lose elements"):
        pipeline(trigger, lateness)


@pytest.mark.parametrize(
    "trigger",
    [
        None,
        AfterWatermark(early=AfterCount(5)),
        Repeatedly(AfterAny.of(AfterCount(5), AfterWatermark())),
    ],
)
def test_the_triggers_that_the_warning_advises_are_silent(trigger: Trigger | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipeline(trigger, lateness=5)


def test_who_means_it_can_silence_the_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=LostElementsWarning)
        pipeline(AfterCount(1))


@pytest.mark.filterwarnings("ignore::tidegate.windowing.errors.LostElementsWarning")
@pytest.mark.parametrize("parallelism", [1, 3])
def test_what_no_pane_shows_is_counted_in_the_epoch_in_which_its_window_goes(parallelism: int) -> None:
    source = SOURCE.set(1, pa.field("at", pa.int64()))
    harness = PipelineHarness(pipeline(AfterCount(2)), source)
    harness.commit([{"user": user, "at": 1, "n": 0} for user in "aab"], at=1)
    harness.run(parallelism)
    assert harness.counters["never_emitted"] == 0
    harness.commit([{"user": user, "at": 2, "n": 0} for user in "aab"] + [{"user": "c", "at": 50, "n": 0}], at=2)
    harness.run(parallelism)
    # Of ann's four elements the pane shows two; bob's two make one pane.
    assert harness.counters["never_emitted"] == 2
    assert harness.counters["on_time"] == 7
    assert "never_emitted" in epochs.SCHEMA.names
    assert "never_emitted" in OF_TASKS


def test_what_a_pipeline_would_ignore_of_a_watermark_strategy_is_refused() -> None:
    timed = MONOTONOUS.with_timestamp_assigner(lambda element, timestamp: 0)
    aligned = MONOTONOUS.with_watermark_alignment("group", timedelta(seconds=1))
    for strategy, way_out in ((timed, "the column source.timestamp"), (aligned, "commit by commit: leave it out")):
        with pytest.raises(IllegalArgument, match=rf"^watermark = .*{way_out}"):
            pipeline(None, watermark=strategy)
        with pytest.raises(IllegalArgument, match=rf"^right.watermark = .*{way_out}"):
            pipeline(
                None,
                compute=IntervalJoin.between(-1, 1),
                right=Input(source=DeltaSource("others", timestamp="at"), watermark=strategy),
            )
