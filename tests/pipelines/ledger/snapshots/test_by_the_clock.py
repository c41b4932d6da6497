"""Windows that the clock ends: sensors, `tidegate why` and the page go by the clock, wherever the watermark is."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from deltalake import DeltaTable

from tests.lake import Lake, at, hourly_pipeline
from tests.pipelines.looping import available
from tidegate.pipelines.airflow.tasks import WatermarkWatch
from tidegate.pipelines.observe.inspect.status import read_status
from tidegate.pipelines.observe.report.page import render
from tidegate.pipelines.observe.report.run import read_run
from tidegate.pipelines.project.cli import run
from tidegate.windowing import Count, TumblingProcessingTimeWindows, Windows
from tidegate.windowing.time import from_millis, show_millis

PIPELINE = hourly_pipeline(
    compute=Windows(TumblingProcessingTimeWindows.of(timedelta(hours=1)), aggregate={"events": Count()}),
    max_ahead=timedelta(days=99_999),
)
HOUR = 3_600_000


@pytest.mark.parametrize("event", [at("00:00"), at("00:00", 20_000)], ids=["long ago", "long ahead"])
def test_final_is_what_the_clock_has_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str], event: Any) -> None:
    module = ModuleType("module_of_the_clock")
    module.pipeline = PIPELINE  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    toml = tmp_path / "tidegate.toml"
    entry = f'[pipelines.hours]\nobject = "{module.__name__}:pipeline"\nstart = "2024-03-01"\n'
    toml.write_text(f'warehouse = "warehouse"\n{entry}')
    lake = Lake(tmp_path)
    lake.append(("ann", event, 1))
    committed = DeltaTable(lake.path("events")).history(1)[0]["timestamp"]
    begin = committed // HOUR * HOUR
    lake.clock.now = committed
    available(lake, PIPELINE)

    def why() -> Any:
        assert run(["why", "hours", "--json", "--config", str(toml)]) == 0
        return json.loads(capsys.readouterr().out)

    (window,) = why()["windows"]
    assert window["missing"] == begin + HOUR - committed
    assert window["lateness_left"] is None
    assert f"in the first epoch from {show_millis(begin + HOUR)} on" in window["reason"]
    end = from_millis(begin + HOUR)
    status = read_status(toml, "hours")
    assert not status.is_past(end)
    assert status.is_past(from_millis(committed))
    assert status.lag(from_millis(committed + 999)) == pytest.approx(1.0)

    lake.clock.now = begin + HOUR
    available(lake, PIPELINE)
    assert why()["windows"] == []
    assert why()["final_through"] == begin + HOUR - 1
    assert read_status(toml, "hours").is_past(end)
    page = render(read_run(lake.tables(PIPELINE)))
    assert f'<dt>Clock (UTC)</dt><dd id="watermark">{show_millis(begin + HOUR - 1)}</dd>' in page
    assert '<dd id="lag">-</dd>' in page
    assert "Watermark lag behind the clock" not in page
    assert "Red line: the clock." in page

    late = from_millis(begin + 3 * HOUR)
    watch = WatermarkWatch(
        task_id="watermark", pipeline="hours", config=str(toml), max_lag=timedelta(hours=1), clock=lambda: late
    )
    with pytest.raises(AirflowFailException, match=r"clock of epoch 2 lies 2:00:00 behind.* Is the stream not running"):
        watch.execute({"params": {}})  # type: ignore[arg-type]
