"""The watermark that each file of a source was compared with, and which entries of the source's log are read to find
out. Manifests of every version distinguish a partition that reappeared from a new one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.lake import DAY0, LOCAL, Lake, at, hourly_pipeline
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.correct.source_rows import JudgedAt, marks_of, missed_windows
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.ledger.manifest import Interval
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.windowing import Count, SlidingEventTimeWindows, TumblingEventTimeWindows, WatermarkStrategy, Windows
from tidegate.windowing.time import MIN_TIMESTAMP, to_millis

ALL = Interval(start=FIRST_TIME, end=LAST_TIME)


def epochs(oldest: int) -> pa.Table:
    """Return rows of table epochs, from epoch 1 on: epoch n read versions 2n and 2n + 1 of the source, up to n
    o'clock.
    """
    rows = [
        {
            "epoch": number,
            "parent": number - 1 or None,
            "source_version": 2 * number + 1,
            "interval_start": None,
            "watermark": DAY0 + timedelta(hours=number),
        }
        for number in range(oldest, 6)
    ]
    moment = pa.timestamp("us", tz="UTC")
    kinds = {"epoch": pa.int64(), "parent": pa.int64(), "source_version": pa.int64()}
    return pa.Table.from_pylist(rows, pa.schema({**kinds, "interval_start": moment, "watermark": moment}))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A source of twelve versions, each with a row a minute later than the previous one."""
    lake = Lake(tmp_path)
    for version in range(12):
        lake.append(("ann", at(f"10:{version:02d}"), version))
    return lake


def marks(lake: Lake, judged_at: JudgedAt, within: Interval = ALL) -> dict[int, int]:
    """Return the watermark that the rows of each version were compared with."""
    log = SourceLog(warehouse_of(lake.config), lake.path("events"))
    files = log.active("at")
    source = cast("OpenInput", _Instants(log))
    found = marks_of(source, files, log.head, judged_at, within)
    times = {file.path: cast("int", file.newest) for file in files}
    return {(times[path] - to_millis(at("10:00"))) // 60_000: mark for path, mark in found.items()}


class _Instants:
    """A source whose event times are a column of the table."""

    has_instants = True

    def __init__(self, log: SourceLog) -> None:
        self.log = log


def opened_versions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    opened: list[int] = []
    real = SourceLog._actions

    def actions(self: SourceLog, version: int) -> Any:
        opened.append(version)
        return real(self, version)

    monkeypatch.setattr(SourceLog, "_actions", actions)
    return opened


def millis(hours: int) -> int:
    return to_millis(DAY0 + timedelta(hours=hours))


def test_the_log_is_read_as_far_back_as_watermarks_differ(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = millis(5)
    opened = opened_versions(monkeypatch)
    whole = marks(lake, JudgedAt(epochs(1), newest))
    assert len(opened) == 12
    assert [whole[version] for version in (0, 1, 3, 4, 5, 11)] == [MIN_TIMESTAMP, *map(millis, (1, 1, 1, 2, 5))]
    opened.clear()
    # The rows of the oldest epochs were removed, so what they read is compared with the first one that is left.
    assert marks(lake, JudgedAt(epochs(4), newest)) == {
        **{version: max(mark, millis(4)) for version, mark in whole.items()}
    }
    assert {10, 11} <= {*opened} <= {*range(8, 12)}, "some are read ahead"


def test_only_files_with_rows_in_the_interval_are_looked_for(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    judged_at, newest = JudgedAt(epochs(1), millis(5)), millis(5)
    whole = marks(lake, judged_at)
    opened = opened_versions(monkeypatch)
    found = marks(lake, judged_at, Interval(start=to_millis(at("10:09")), end=to_millis(at("10:11"))))
    assert {9, 10, 11} <= {*opened} <= {*range(6, 12)}, "some are read ahead"
    assert {version: found[version] for version in (9, 10)} == {version: whole[version] for version in (9, 10)}
    assert all(found[version] == newest for version in range(9)), "the most that it can be"


@pytest.mark.parametrize("lateness", [0, 60])
def test_rows_read_before_the_first_watermark_missed_no_window(lake: Lake, lateness: int) -> None:
    sliding = SlidingEventTimeWindows.of(timedelta(hours=2), timedelta(hours=1))
    allowed = timedelta(minutes=lateness)
    windows = Windows(sliding, allowed_lateness=allowed, aggregate={"events": Count()})
    pipeline = replace(hourly_pipeline(), compute=windows)
    lake.stream(LOCAL, pipeline)
    lake.append(("ann", at("20:00"), 0))
    lake.stream(LOCAL, pipeline)
    lake.append(("bob", at("17:30"), 0))
    lake.stream(LOCAL, pipeline)
    tables = lake.tables(pipeline)
    source = OpenInput.open(LOCAL, tables, pipeline)
    bound = source.bound.compute
    assert isinstance(bound, Windows)
    missed = missed_windows(source, lake.snapshot(pipeline), tables, bound, ALL).to_pylist()
    # The watermark has just passed 19:00, where the second window of bob's row ends.
    of_bob = [
        ("bob", to_millis(at("16:00")), to_millis(at("18:00"))),
        ("bob", to_millis(at("17:00")), to_millis(at("19:00"))),
    ]
    assert sorted(tuple(row.values()) for row in missed) == of_bob[: 1 if lateness else 2]


PIPELINE = Pipeline(
    name="hours",
    source=DeltaSource("events", timestamp="time", unit="ms"),
    key=("user",),
    watermark=WatermarkStrategy.for_bounded_out_of_orderness(10),
    watermark_by="user",
    compute=Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"n": Count()}),
)
