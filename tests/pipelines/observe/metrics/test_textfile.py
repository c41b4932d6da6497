"""The file that runs leave for node_exporter: it goes on from run to run, and none waits for it."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from pathlib import Path
from time import perf_counter

import pytest

from tests.pipelines.observe.metrics.measuring import epoch as epoch
from tests.pipelines.observe.metrics.measuring import run, values
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.observe.metrics import open as opened
from tidegate.pipelines.observe.metrics import prometheus
from tidegate.windowing import IntervalJoin


def test_the_file_goes_on_from_the_runs_before(tmp_path: Path, epoch: Manifest) -> None:
    file = tmp_path / "prom" / "tidegate_hours.prom"
    for number in (1, 2, 3):
        with run(tmp_path, textfile="prom") as observer:
            observer.published(epoch.model_copy(update={"epoch": number}), {"plan": 0.5})
        shown = values(file.read_text())
        assert shown["tidegate_source_events_total"] == 2 * number
        assert shown["tidegate_epoch_duration_seconds_count"] == number
        assert shown["tidegate_epoch_duration_seconds_sum"] == 0.5 * number
        assert shown["tidegate_epoch_number"] == number, "a gauge is no sum"
    with run(tmp_path, textfile="prom", compute=IntervalJoin.between(timedelta(0), timedelta(hours=1))) as observer:
        observer.published(epoch, {"plan": 1.0})
    text = file.read_text()
    assert text.count("# TYPE tidegate_epoch_duration_seconds histogram") == 1
    assert values(text)["tidegate_epoch_duration_seconds_sum"] == 2.5, "a series that ended stays"
    assert "tidegate_watermark_lag_seconds" not in text, "it would stand still after the run"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_file_keeps_the_durations_and_delays_of_runs_before_one_that_found_nothing(
    tmp_path: Path, epoch: Manifest
) -> None:
    file = tmp_path / "tidegate_hours.prom"
    for number in (1, 2):
        with run(tmp_path, textfile=".") as observer:
            observer.published(epoch, {"plan": 0.5})
            observer.visible([1_710_000_000_000 - 5000])
        of_run = file.read_text()
        with run(tmp_path, textfile="."):
            pass
        text = file.read_text()
        for family in ("tidegate_epoch_duration_seconds", "tidegate_result_delay_seconds"):
            assert values(text)[f"{family}_count"] == number, "a series that goes away begins at 0 again"
            assert lines_of(family, text) == lines_of(family, of_run)


def lines_of(family: str, text: str) -> list[str]:
    """Every line of a metric, with its description and type."""
    return sorted(line for line in text.splitlines() if family in line)


@pytest.mark.parametrize("content", ["", "not { metrics", "\x00\xff", "tidegate_source_events_total NaN\n"])
def test_a_damaged_file_is_begun_again(tmp_path: Path, epoch: Manifest, content: str) -> None:
    file = tmp_path / "tidegate_hours.prom"
    file.write_bytes(content.encode("latin-1"))
    with run(tmp_path, textfile=".") as observer:
        observer.published(epoch, {})
    assert values(file.read_text())["tidegate_source_events_total"] == 2


def test_a_folder_that_can_not_be_written_is_one_line(
    tmp_path: Path, epoch: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "prom").write_text("a file")
    with run(tmp_path, textfile="prom") as observer:
        observer.published(epoch, {})
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith(f"metrics can't be written to {tmp_path / 'prom'}/tidegate_hours.prom: ")


def test_a_disk_that_hangs_keeps_no_run_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "_LAST_WORDS", 0.2)
    answered = threading.Event()
    monkeypatch.setattr(prometheus, "text_string_to_metric_families", lambda text: answered.wait() and ())
    monkeypatch.setattr(prometheus, "write_to_textfile", lambda *given: None)
    (tmp_path / "tidegate_hours.prom").write_text("")
    began = perf_counter()
    with run(tmp_path, textfile=".", every_seconds=600):
        pass
    answered.set()
    assert perf_counter() - began < 60
