"""The latency program: which results show a commit first, and a short run of its own side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.latency import P50, P99, Visible, figures, latencies, ours, visible_batches, visible_epochs
from tests.lake import Lake, at, hourly_pipeline
from tests.pipelines.looping import available
from tidegate.pipelines.definition import epochs
from tidegate.pipelines.definition.config.opened import warehouse_of


def test_a_commit_is_visible_with_the_first_results_that_contain_it() -> None:
    committed = {1: 1_000, 2: 1_500, 3: 2_000, 4: 2_500}
    visible = [Visible(2, 1_900), Visible(2, 2_100), Visible(3, 4_000)]
    assert latencies(committed, visible, since=0) == [0.9, 0.4, 2.0], "nobody has seen the last commit yet"
    assert latencies(committed, visible, since=1_500) == [0.4, 2.0]


def test_the_percentiles_stand_beside_their_bounds() -> None:
    half, most = figures("Tidegate", 20_000, [0.5] * 98 + [3.0] * 2, engine="spark")
    assert (half.value, half.wanted, half.is_reached) == (0.5, P50["spark"], True)
    assert (most.wanted, most.is_reached) == (P99, False)
    assert not next(iter(figures("Tidegate", 20_000, [], engine="spark"))).is_reached, "nothing became visible"


def test_an_epoch_is_visible_when_all_of_it_is_published(tmp_path: Path) -> None:
    lake, pipeline = Lake(tmp_path), hourly_pipeline()
    for hour in (10, 11, 12):
        lake.append(("ann", at(f"{hour}:00"), 1))
    available(lake, pipeline, commits=2)
    tables = lake.tables(pipeline)
    assert [seen.version for seen in visible_epochs(tables)] == [1, 2]
    tables.open(epochs.NAME).create_checkpoint()
    Path(tables.path(epochs.NAME), "_delta_log", f"{1:020d}.json").unlink()
    with pytest.raises(RuntimeError, match="the commits of 1 epochs were cleaned up, from epoch 1 on"):
        visible_epochs(tables)


def test_a_batch_of_spark_is_visible_when_its_sink_has_it(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    log, checkpoint = Path(lake.path("windows"), "_delta_log"), tmp_path / "checkpoint"
    log.mkdir(parents=True)
    (checkpoint / "offsets").mkdir(parents=True)
    for batch, (reached, index, time) in enumerate([(3, -1, 700), (4, 0, 900)]):
        offset = {"reservoirVersion": reached, "index": index}
        (checkpoint / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", json.dumps(offset)]))
        actions = [{"commitInfo": {"timestamp": time}}, {"txn": {"appId": "query", "version": batch}}]
        (log / f"{batch + 1:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    (log / f"{0:020d}.json").write_text(json.dumps({"commitInfo": {"timestamp": 1}}))
    seen = visible_batches(warehouse_of(lake.config), lake.path("windows"), checkpoint)
    assert seen == [Visible(2, 700), Visible(4, 900)]


@pytest.mark.spark
@pytest.mark.long
def test_a_short_run_at_1_000_events_a_second_shows_its_commits(tmp_path: Path) -> None:
    seconds = ours(tmp_path, rate=1_000, seconds=30, interval="100ms", engine="spark")
    assert len(seconds) > 10
    assert sorted(seconds)[len(seconds) // 2] < 3 * P50.value
