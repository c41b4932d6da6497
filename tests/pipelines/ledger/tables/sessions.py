"""Sessions of a pipeline whose epochs a test makes by hand, for the queries of results in several dialects."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from tests.lake import at, session_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.windowing import Accumulation, Count, EventTimeSessionWindows, Sum, Windows


def sessions_of(folder: Path, accumulation: Accumulation) -> ByHand:
    """Sessions that fired, grew, merged and were withdrawn; some final, some not, a key that is null."""
    windows = Windows(
        EventTimeSessionWindows.with_gap(timedelta(minutes=30)),
        allowed_lateness=timedelta(hours=2),
        accumulation=accumulation,
        aggregate={"events": Count(), "total": Sum("value")},
    )
    made = ByHand(folder, session_pipeline(compute=windows, null_keys="keep"))
    made.epoch(("ann", at("10:00"), 1), ("ann", at("10:50"), 2), ("bob", at("10:00"), 3), watermark=at("11:30"))
    made.epoch(("ann", at("10:25"), 4), (None, at("11:00"), 5), watermark=at("11:31"))  # type: ignore[arg-type]
    made.epoch(("bob", at("10:10"), 6), ("cem", at("12:00"), 7), watermark=at("12:45"))
    made.epoch((None, at("11:05"), 8), watermark=at("13:00"))  # type: ignore[arg-type]
    return made
