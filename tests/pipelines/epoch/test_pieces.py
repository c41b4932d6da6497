"""A large shard takes its events in pieces. Each event is in one piece, and pieces follow the commits. So epochs of
millions of rows need the memory of a few pieces, and give exact windows and late rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction
from hypothesis import given
from hypothesis import strategies as st

from tests.lake import DAY0, EVENTS, LOCAL, Clock, Lake, hourly_pipeline
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition.event_columns import COMMIT
from tidegate.pipelines.epoch.pieces import MOST_ROWS, in_pieces, may_be_cut
from tidegate.windowing import ContinuousEventTimeTrigger, EventTimeSessionWindows, Windows
from tidegate.windowing.time import to_millis

HOUR = timedelta(hours=1)


@given(st.lists(st.lists(st.integers(0, 6), max_size=8), max_size=8), st.integers(1, 9), st.booleans())
def test_pieces_follow_the_commits_and_have_every_event_once(
    tables: list[list[int]], rows: int, complete: bool
) -> None:
    numbered = [pa.table({COMMIT: pa.array(commits, pa.int32())}) for commits in tables if commits]
    ordered = sorted(numbered, key=lambda table: min(table[COMMIT].to_pylist()))
    pieces = list(in_pieces(iter([*ordered, numbered[0].slice(0, 0)] if numbered else []), 7, complete, rows))
    came = [(piece[COMMIT].to_pylist(), last, ended) for piece, last, ended in pieces]
    assert sorted(commit for commits, _, _ in came for commit in commits) == sorted(chain(*tables))
    assert came[-1][1:] == (6, complete)
    assert all(len(commits) >= rows for commits, _, _ in came[:-1])
    open_commit = 0
    for commits, last, ended in came:
        assert all(open_commit <= commit <= last for commit in commits)
        open_commit = last + ended


def test_the_order_of_a_commit_decides_what_may_be_cut() -> None:
    hours = hourly_pipeline().compute
    assert isinstance(hours, Windows)
    assert may_be_cut(hours)
    sessions = replace(hours, assigner=EventTimeSessionWindows.with_gap(HOUR))
    early = replace(hours, trigger=ContinuousEventTimeTrigger(60_000))
    assert not any(map(may_be_cut, (sessions, early)))


def add_commit(lake: Lake, *files: tuple[int, int]) -> None:
    """Add one commit of files, each with a number of rows at one second: all rows of a file are equal."""
    path = lake.path("events")
    actions = []
    for number, (rows, second) in enumerate(files):
        name = f"part-{DeltaTable(path).version()}-{number}.parquet"
        micros = (to_millis(DAY0) + second * 1000) * 1000
        columns = {
            "user": pa.DictionaryArray.from_arrays(np.zeros(rows, np.int8), ["ann"]),
            "at": pa.array(np.full(rows, micros), pa.timestamp("us", tz="UTC")),
            "value": pa.array(np.ones(rows, np.int64)),
        }
        kept = [pa.field(each.name, columns[each.name].type) for each in EVENTS]
        pq.write_table(
            pa.table(columns, schema=pa.schema(kept)), f"{path}/{name}", row_group_size=rows, store_schema=False
        )
        stats = json.dumps({"numRecords": rows})
        actions.append(AddAction(name, Path(path, name).stat().st_size, {}, lake.clock(), True, stats))
    handle = DeltaTable(path)
    handle.create_write_transaction(actions, "append", handle.schema())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "lake", Clock(to_millis(DAY0)))
    DeltaTable.create(made.path("events"), Schema.from_arrow(EVENTS))
    return made


PIPELINE = hourly_pipeline(max_ahead=timedelta(days=9), allowed_lateness=HOUR)
LATE, AGAIN = 40, 10


def totals(lake: Lake, pipeline: Pipeline) -> dict[int, int]:
    rows = lake.latest(pipeline).to_pylist()
    return {int((row["window_start"] - DAY0) / HOUR): row["total"] for row in rows}


def test_a_large_epoch_of_several_commits_gives_exact_windows_and_late_rows(lake: Lake) -> None:
    """The third commit has rows for an open window, for a fired one, and rows that are late."""
    large = MOST_ROWS * 2 // 5
    add_commit(lake, (large, 10), (5, 3 * 3600))
    add_commit(lake, (large, 3 * 3600), (7, 5 * 3600))
    add_commit(lake, (LATE, 20), (AGAIN, 3 * 3600), (large, 5 * 3600))
    add_commit(lake, (1, 20 * 3600))
    (epoch, *_) = lake.stream(LOCAL, PIPELINE)
    assert epoch.counters["events_in"] == 3 * large + 5 + 7 + LATE + AGAIN + 1
    assert (epoch.counters["late"], lake.rows(PIPELINE, "late").num_rows) == (LATE, LATE)
    assert totals(lake, PIPELINE) == {0: large, 3: large + 5 + AGAIN, 5: large + 7}
    lake.backfill(LOCAL, backfilled := hourly_pipeline("whole"), DAY0, DAY0 + timedelta(days=1))
    assert totals(lake, backfilled) == {0: large + LATE, 3: large + 5 + AGAIN, 5: large + 7, 20: 1}


PEAK = """
import resource, sys
from pathlib import Path
from tests.lake import LOCAL, Lake
from tests.pipelines.epoch.test_pieces import PIPELINE
from tidegate.pipelines.engine.local import LocalEngine
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
Lake(Path(sys.argv[1])).stream(LocalEngine(cores=1, work=Path(sys.argv[1])), PIPELINE)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("rows", [8_000_000, pytest.param(60_000_000, marks=pytest.mark.long)])
def test_one_row_group_of_equal_rows_needs_little_memory(lake: Lake, rows: int) -> None:
    """Compression and encoding make the file tiny: its size says nothing about the memory of its rows."""
    add_commit(lake, (rows, 10))
    assert sum(file.stat().st_size for file in Path(lake.path("events")).glob("*.parquet")) < 1_000_000
    command = [sys.executable, "-c", PEAK, str(lake.folder)]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert peak < 700
    assert lake.snapshot(PIPELINE).manifest.counters["on_time"] == rows
