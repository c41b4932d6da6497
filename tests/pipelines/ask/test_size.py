"""What a pipeline would need: the windows that a sample predicts are those of a run, and a small sample predicts more.

That the predicted seconds and bytes are those of an epoch is proven by `benchmarks.sizes`, on docs/operations/sizes.md.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.lake import DAY0, Lake, hourly_pipeline
from tests.pipelines.project.cli.project import Project as CommandLine
from tidegate import (
    Count,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    IntervalJoin,
    Pipeline,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.pipelines import DeltaSource, Input
from tidegate.pipelines.ask.costs import Workload, load_costs
from tidegate.pipelines.ask.sample import distinct_in
from tidegate.pipelines.ask.size import Sized
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.run.limits import EpochLimits

HOUR = timedelta(hours=1)
COUNT = {"n": Count()}
WINDOWS = {
    "tumbling": Windows(TumblingEventTimeWindows.of(HOUR), aggregate=COUNT),
    "late": Windows(TumblingEventTimeWindows.of(HOUR), aggregate=COUNT, allowed_lateness=HOUR),
    "sliding": Windows(SlidingEventTimeWindows.of(HOUR, timedelta(minutes=10)), aggregate=COUNT),
    "sparse": Windows(SlidingEventTimeWindows.of(timedelta(hours=4), timedelta(minutes=30)), aggregate=COUNT),
    "session": Windows(EventTimeSessionWindows.with_gap(timedelta(minutes=20)), aggregate=COUNT),
}
EPOCHS, ROWS, KEYS = 8, 1_500, 200


def commits(lake: Lake, epochs: int = EPOCHS, rows: int = ROWS, keys: int = KEYS, hot: float = 0.3) -> None:
    """Commit rows of an hour each; one key has a share of them."""
    rng = np.random.default_rng(7)
    for hour in range(epochs):
        numbers = rng.integers(0, keys, rows)
        numbers[rng.random(rows) < hot] = keys
        seconds = hour * 3600 + np.sort(rng.integers(0, 3600, rows))
        moments = pa.array(DAY0.timestamp() * 1e6 + seconds * 1e6).cast(pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        columns = {"user": pa.array([f"u{each}" for each in numbers]), "at": moments, "value": pa.array(numbers)}
        lake.write(pa.table(columns), "events")


def pipeline_of(windows: Windows, name: str = "p") -> Pipeline:
    watermark = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(minutes=1))
    return hourly_pipeline(name, watermark=watermark, compute=windows)


def sized(lake: Lake, pipeline: Pipeline, **given: object) -> Sized:
    return lake.project(pipeline).size(pipeline.name, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", WINDOWS)
def test_open_and_fired_windows_of_a_whole_sample_are_those_of_a_run(lake: Lake, kind: str) -> None:
    commits(lake)
    pipeline = pipeline_of(WINDOWS[kind])
    predicted = sized(lake, pipeline)
    project = lake.project(pipeline)
    fired, most = 0, 0
    project.stream("p", limits=EpochLimits(commits=1), end_of_input=True)
    for row in lake.rows(pipeline, "epochs").to_pylist():
        fired += row["fired_on_time"]
        most = max(most, row["open_windows"])
    if kind in ("tumbling", "late", "session"):
        assert predicted.open_windows == most
    whole = next(each for each in predicted.epochs if each.epoch == "the whole source")
    assert whole.events == EPOCHS * ROWS
    assert whole.windows == pytest.approx(fired, rel=0.01)


@pytest.mark.parametrize("kind", ["tumbling", "sliding"])
def test_windows_longer_than_the_sample_are_extrapolated(lake: Lake, kind: str) -> None:
    commits(lake, keys=3_000)
    day = timedelta(hours=EPOCHS)
    assigner = TumblingEventTimeWindows.of(day) if kind == "tumbling" else SlidingEventTimeWindows.of(day, HOUR)
    pipeline = pipeline_of(Windows(assigner, aggregate=COUNT))
    whole, part = sized(lake, pipeline), sized(lake, pipeline, rows=3 * ROWS)
    assert part.sampled_rows == 3 * ROWS
    assert part.open_windows == pytest.approx(whole.open_windows, rel=0.15)
    assert any("extrapolated" in note for note in part.notes)
    assert not any("extrapolated" in note for note in whole.notes)


def test_hot_keys_are_named_with_their_share(lake: Lake) -> None:
    commits(lake, hot=0.4)
    answer = sized(lake, pipeline_of(WINDOWS["tumbling"]))
    assert answer.keys == KEYS + 1
    assert [each.key for each in answer.hot_keys] == [(f"u{KEYS}",)]
    assert answer.hot_keys[0].share == pytest.approx(0.4, abs=0.02)


def test_files_of_a_huge_commit_are_sampled(lake: Lake) -> None:
    commits(lake, epochs=4)
    table = DeltaTable(lake.path("events"))
    rows = table.to_pyarrow_table()
    lake.write(pa.concat_tables([rows] * 3), "events")
    answer = sized(lake, pipeline_of(WINDOWS["tumbling"]), rows=100)
    assert answer.sampled_rows == 12 * ROWS
    assert answer.rows == 16 * ROWS


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (Windows(GlobalWindows(), aggregate=COUNT, trigger=PurgingTrigger(CountTrigger(5))), "event time alone"),
        (IntervalJoin(lower=-HOUR, upper=HOUR), "a join keeps"),
    ],
)
def test_what_only_a_run_can_tell_is_left_out_with_the_reason(lake: Lake, compute: object, reason: str) -> None:
    commits(lake, epochs=2)
    lake.write(DeltaTable(lake.path("events")).to_pyarrow_table(), "right")
    right = {"right": Input(source=DeltaSource("right", timestamp="at"))} if isinstance(compute, IntervalJoin) else {}
    answer = sized(lake, hourly_pipeline("p", compute=compute, **right))
    assert any(reason in note for note in answer.notes)
    assert answer.epochs
    assert all(each.windows == 0 for each in answer.epochs)


def test_memory_that_is_too_small_asks_for_smaller_epochs(lake: Lake) -> None:
    commits(lake)
    pipeline = pipeline_of(WINDOWS["session"])

    def advised(memory: str) -> list[int]:
        settings = sized(lake, pipeline, memory=memory).settings
        return [int(each.value.replace(",", "")) for each in settings if each.setting == "--max-rows-per-epoch"]

    (little,), (more,) = advised("1g"), advised("2g")
    assert 0 < little < more
    assert advised("900g") == []


def test_a_hot_key_of_sessions_needs_memory_in_one_process() -> None:
    work = Workload(kind="backfill", shape="session", events=10_000_000, windows=0, shards=8, processes=2)
    assert work.largest_shard == 1 / 8
    assert replace(work, hot=0.1).largest_shard == 1 / 8
    assert replace(work, hot=0.5).largest_shard == 0.5 + 0.5 / 8
    costs = load_costs()
    assert costs.predict(replace(work, hot=0.5), "process") > costs.predict(work, "process")


def test_memory_is_given_as_a_size(lake: Lake) -> None:
    commits(lake, epochs=1)
    with pytest.raises(UsageError, match="--memory 'much': give a number of bytes"):
        sized(lake, pipeline_of(WINDOWS["tumbling"]), memory="much")


def test_a_source_without_rows_has_no_epochs(lake: Lake) -> None:
    commits(lake, epochs=1, rows=1)
    DeltaTable(lake.path("events")).delete()
    answer = sized(lake, pipeline_of(WINDOWS["tumbling"]))
    assert (answer.rows, answer.sampled_rows, answer.epochs) == (0, 0, ())


def test_the_command_shows_epochs_and_where_the_costs_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = Lake(tmp_path)
    commits(lake, epochs=2)
    project = CommandLine.make(tmp_path, capsys)
    project.says(0, "each commit, as now", "size", "sessions")
    project.says(0, load_costs().measured, "size", "sessions", "--memory", "2g")
    assert project.data("size", "sessions")["rows"] == 2 * ROWS


@pytest.mark.parametrize("keys", [50, 500, 5_000])
@pytest.mark.parametrize("times", [2.0, 4.0])
def test_the_number_of_keys_in_a_larger_sample_is_estimated(keys: int, times: float) -> None:
    rng, rows = np.random.default_rng(7), 2_000
    drawn = (rng.random(round(rows * times)) ** 2 * keys).astype(int)
    counts = np.unique(drawn[:rows], return_counts=True)[1]
    assert distinct_in(counts, times) == pytest.approx(len(np.unique(drawn)), rel=0.1)
