"""Late rows reopened while the source's first commit is read in part: nothing is behind a watermark yet."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.lake import EVENTS, LOCAL, Lake, at, hourly_pipeline
from tidegate.pipelines.epoch.recompute_plan import Selection
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.run.corrections import reopen
from tidegate.pipelines.run.next_commits import EpochLimits
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import Count, SlidingEventTimeWindows, TumblingEventTimeWindows, Windows
from tidegate.windowing.assigners import WindowAssigner

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    "assigner", [TumblingEventTimeWindows.of(HOUR), SlidingEventTimeWindows.of(HOUR, timedelta(minutes=20))]
)
def test_there_is_nothing_to_reopen_in_a_first_commit_that_is_read_in_part(
    tmp_path: Path, assigner: WindowAssigner
) -> None:
    lake = Lake(tmp_path)
    rows = [{"user": user, "at": at("10:00"), "value": 1} for user in ("ann", "bob")]
    write_deltalake(lake.path("events"), pa.Table.from_pylist(rows, EVENTS), partition_by=["user"])
    pipeline = hourly_pipeline(compute=Windows(assigner, aggregate={"n": Count()}))
    epochs: list[Manifest] = []
    with lake.driver(LOCAL, pipeline) as driver:
        Stream(driver, epochs.append, EpochLimits(files=1)).run_available(lambda: bool(epochs))
        position = epochs[0].positions["events"]
        assert (position.version, position.files) == (-1, 1)
        assert reopen(driver, Selection()) == (None, 0)
