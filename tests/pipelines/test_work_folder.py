"""Old files of the work folder are removed; files of a running command or of the next check stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lake import LOCAL, Lake, hourly_pipeline
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.run import work_folder
from tidegate.pipelines.run.work_folder import DAY, HourlyCleaning, clean_work

NOW = 1_000 * DAY
HOUR = DAY // 24
OLD = (
    "logs/spark-999999999.log",
    "reports/hours/epoch-000007.html",
    "alarms.jsonl",
    "alarms.1.jsonl",
)
NEWEST = "reports/hours/epoch-000012.html"


def write(folder: Path, name: str, days: float) -> Path:
    """A file that was last written this many days ago."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(name)
    os.utime(file, (NOW / 1000 - days * 86_400,) * 2)
    return file


def left(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_what_nothing_was_written_to_for_so_many_days_goes(tmp_path: Path) -> None:
    write(tmp_path, NEWEST, days=29)
    for name in OLD:
        write(tmp_path, name, days=31)
    assert clean_work(tmp_path, 30, NOW) == len(OLD)
    assert left(tmp_path) == {NEWEST}


def test_the_newest_report_of_each_pipeline_stays_however_old(tmp_path: Path) -> None:
    newest = (NEWEST, "reports/days/epoch-1000000.html")
    for name in (*newest, OLD[1], "reports/days/epoch-999999.html"):
        write(tmp_path, name, days=400)
    assert clean_work(tmp_path, 1, NOW) == 2
    assert left(tmp_path) == set(newest)


def test_a_run_that_lasts_cleans_once_an_hour_and_goes_on_where_it_can_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cleaning = HourlyCleaning(Config(root=tmp_path, work="."))
    write(tmp_path, OLD[0], days=31)
    assert cleaning.clean_if_due(NOW) == 1
    write(tmp_path, OLD[0], days=31)
    assert cleaning.clean_if_due(NOW + HOUR - 1) == 0
    assert cleaning.clean_if_due(NOW + HOUR) == 1

    def fail(config: Config, now: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(work_folder, "clean", fail)
    assert cleaning.clean_if_due(NOW + 2 * HOUR) == 0
    assert "Permission denied. The stream tries again in an hour" in caplog.text


def test_what_is_younger_stays(tmp_path: Path) -> None:
    for name in OLD:
        write(tmp_path, name, days=29)
    assert clean_work(tmp_path, 30, NOW) == 0
    assert left(tmp_path) == set(OLD)


def test_the_log_of_a_process_that_is_there_stays(tmp_path: Path) -> None:
    write(tmp_path, f"logs/spark-{os.getpid()}.log", days=400)
    assert clean_work(tmp_path, 30, NOW) == 0


def test_everything_else_stays_however_old(tmp_path: Path) -> None:
    kept = (
        "logs/hours.epochs.jsonl",
        "shipped/code.zip",
        "quality/hours/index.html",
        "quality/hours/check-000001-0123456789ab.html",
    )
    for name in kept:
        write(tmp_path, name, days=400)
    assert clean_work(tmp_path, 1, NOW) == 0
    assert left(tmp_path) == set(kept)


def test_without_a_number_of_days_all_stays_and_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    write(tmp_path, OLD[0], days=400)
    assert clean_work(tmp_path, 0, NOW) == 0
    assert clean_work(tmp_path / "nowhere", 30, NOW) == 0


def test_whoever_drives_a_pipeline_cleans_up(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    log = lake.config.work_folder / "logs" / "spark-999999999.log"
    log.parent.mkdir(parents=True)
    log.write_text("long ago")
    os.utime(log, (lake.clock() / 1000 - 31 * 86_400,) * 2)
    with lake.driver(LOCAL, hourly_pipeline(name="hours")):  # type: ignore[arg-type]
        assert not log.exists()
