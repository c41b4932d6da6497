"""A run without rows never decides which rows are late, also if the code has another bound on out-of-orderness."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.lake import DAY0, LOCAL, Lake, hourly_pipeline
from tidegate.pipelines import Pipeline
from tidegate.windowing import WatermarkStrategy
from tidegate.windowing.time import to_millis

MINUTE = timedelta(minutes=1)
LONG, SHORT = (WatermarkStrategy.for_bounded_out_of_orderness(minutes * MINUTE) for minutes in (300, 10))
STRATEGIES = {
    "lowered": (LONG, SHORT),
    "raised": (SHORT, LONG),
    "lowered, with idleness": (LONG.with_idleness(600 * MINUTE), SHORT.with_idleness(600 * MINUTE)),
    "monotonous": (LONG, WatermarkStrategy.for_monotonous_timestamps()),
    "turned off": (SHORT, WatermarkStrategy.no_watermarks()),
}


def late_rows(folder: Path, before: Pipeline, after: Pipeline, idle_runs: int) -> tuple[list[int], int]:
    """Return the late rows, and the watermark at the end. The code changes after the first of three commits."""
    lake = Lake(folder)
    lake.clock.now = start = to_millis(DAY0 + timedelta(days=1))

    def commit(*minutes: int) -> None:
        lake.clock.now += 3_600_000
        lake.append_in_files([("ann", DAY0 + minute * MINUTE, minute) for minute in minutes])

    commit(0, 300)
    lake.stream(LOCAL, before)
    for _ in range(idle_runs):
        lake.clock.now += 600_000
        # A clock epoch, because the checkpoint interval has passed.
        lake.stream(LOCAL, after)
    lake.clock.now = start + 3_600_000 + 1_800_000
    commit(30, 310)
    lake.stream(LOCAL, after)
    commit(31, 340)
    lake.stream(LOCAL, after)
    return sorted(lake.rows(after, "late")["value"].to_pylist()), lake.snapshot(after).manifest.watermark


@pytest.mark.first(2)
@pytest.mark.parametrize("change", STRATEGIES)
def test_equal_rows_are_late_with_and_without_a_run_between(tmp_path: Path, change: str) -> None:
    by = "user" if "idleness" in change else None
    before, after = (
        hourly_pipeline(watermark=strategy, watermark_by=by, checkpoint_interval=MINUTE)
        for strategy in STRATEGIES[change]
    )
    outcomes = [late_rows(tmp_path / str(idle), before, after, idle) for idle in (0, 2)]
    assert outcomes[0] == outcomes[1]
    if change.startswith("lowered") or change == "monotonous":
        assert outcomes[0][0] == [31], "the new bound counts from the end of the next commit"
