from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from tests.lake import at
from tests.pipelines.by_hand import START_OF_DRIVER, ByHand
from tidegate.pipelines.run.epoch_log import EpochLog, StepTimes
from tidegate.windowing.time import to_millis


def test_a_line_has_what_became_of_the_events_and_the_seconds_of_each_phase(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    now = iter([9.0, 9.875, 10.0, 10.5, 10.75, 11.0, 11.25, 11.5, 11.75, 12.0])
    times = StepTimes(lambda: next(now))
    times.begin()
    for step in ("planned", "operated", "committed", *(f"published {name}" for name in "abcd")):
        times.note(step)
    times.end()
    log = EpochLog(tmp_path / "logs" / "epochs.jsonl", lambda: datetime(2024, 3, 2, tzinfo=UTC))
    manifest = by_hand.epoch(("ann", at("10:00"), 1), ("bob", at("08:00"), 1), watermark=at("09:30"))
    log.write(manifest, times.newest)
    log.close()
    (line,) = (tmp_path / "logs" / "epochs.jsonl").read_text().splitlines()
    told = json.loads(line)
    assert told["phases"] == {"plan": 0.125, "operate": 0.5, "commit": 0.25, "publish": 1.0}
    assert told["seconds"] == 1.875
    assert (told["events"], told["on_time"], told["fired"], told["open_windows"]) == (2, 2, 1, 1)
    assert told["watermark"] == "2024-03-01T09:30:00.000+00:00"
    assert told["watermark_lag_ms"] == START_OF_DRIVER + 60_000 - to_millis(at("09:30"))
    assert told["at"] == "2024-03-02T00:00:00.000+00:00"


def test_the_seconds_of_an_epoch_are_its_own() -> None:
    now = iter(range(100))
    times = StepTimes(lambda: float(next(now)))
    ended = []
    for planned in (1, 2):
        for step in (*["planned"] * planned, "operated", "committed"):
            times.note(step)
        ended.append(times.end())
    # Windows may be planned twice, with a larger margin.
    assert ended == [{"plan": 1, "operate": 1, "commit": 1}, {"plan": 2, "operate": 1, "commit": 1}]
    assert times.newest is ended[1]


def test_table_epochs_has_the_lag_of_the_watermark(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    manifest = by_hand.epoch(("ann", at("10:00"), 1), watermark=at("09:30"))
    (row,) = by_hand.rows("epochs").to_pylist()
    assert row["watermark_lag_ms"] == manifest.watermark_lag == manifest.processing_time - to_millis(at("09:30"))
