"""Windows of processing time are final when the clock has passed them, wherever event time stands."""

from __future__ import annotations

import sys
from datetime import timedelta
from io import StringIO
from json import loads
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pytest

from tests.lake import Clock, Lake, hourly_pipeline
from tests.pipelines.looping import available
from tidegate.expectations.pinned import pin
from tidegate.pipelines.observe.reading import read_view
from tidegate.pipelines.project.cli import run as tidegate
from tidegate.windowing import AfterCount, Count, Repeatedly, TumblingProcessingTimeWindows, WatermarkStrategy, Windows
from tidegate.windowing.time import from_millis

HOUR = 3_600_000


def test_every_view_and_check_waits_for_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path, Clock())
    begin = lake.clock.now
    # The commits have the clock of the machine: the window holds all of the test.
    assigner = TumblingProcessingTimeWindows.of(HOUR, timedelta(milliseconds=(begin - HOUR // 2) % HOUR))
    windows = Windows(assigner, Repeatedly(AfterCount(1)), aggregate={"events": Count()})
    pipeline = hourly_pipeline(compute=windows, watermark=WatermarkStrategy.for_monotonous_timestamps())
    module = ModuleType("module_of_windows_by_clock")
    module.pipeline = pipeline  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    config = tmp_path / "tidegate.toml"
    config.write_text(
        f'warehouse = "warehouse"\n[pipelines.hours]\nobject = "{module.__name__}:pipeline"\nstart = "2024-03-01"\n'
    )
    tables = lake.tables(pipeline)

    def told(*arguments: str) -> Any:
        said = StringIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", said)
            assert tidegate(["results", "hours", *arguments, "--json", "--config", str(config)]) == 0
        return loads(said.getvalue())

    def final() -> list[int]:
        """Return how many final windows each reader sees."""
        session = duckdb.connect()
        session.execute("SET TimeZone = 'UTC'")
        session.execute("CREATE MACRO delta_scan(path) AS TABLE FROM query_table(path)")
        for table in ("results", "epochs"):
            session.register(tables.path(table), lake.rows(pipeline, table))
        pinned = pin(tables, pipeline)
        return [
            len(told()),
            len(read_view("hours", "final", config=config)),
            len(session.execute(told("--sql", "--dialect", "duckdb")["sql"]).fetchall()),
            pinned.fresh_windows,
        ]

    # The event lies beyond the end of the window, and the watermark with it.
    lake.append(("ann", from_millis(begin + HOUR - 60_000), 1))
    available(lake, pipeline)
    assert len(told("--view", "latest")) == 1
    assert final() == [0, 0, 0, 0]
    lake.append(("ann", from_millis(begin), 1))
    available(lake, pipeline)
    assert [row["events"] for row in told("--view", "latest")] == [2]
    lake.clock.now += HOUR
    available(lake, pipeline)
    assert final() == [1, 1, 1, 1]
