"""Rules for a snapshot: it has no closed window, no timer of one, and after a restore the right checksums."""

from __future__ import annotations

from typing import ClassVar

import pandas as pd

from tidegate.expectations.invariants.rule import Rule, milliseconds


def _passed(rows: pd.DataFrame, watermark: int, lateness: int) -> pd.Series:
    """Mark the windows whose cleanup time the watermark has reached; the global window has no cleanup time."""
    bounded = rows[(rows["namespace"] == "window") & rows["window_end"].notna()]
    cleanup = milliseconds(bounded["window_end"]) - 1 + lateness
    return (cleanup <= watermark).reindex(rows.index, fill_value=False)


class ExpectNoStateBehindWatermark(Rule):
    """The snapshot has no window whose end plus lateness lies behind the watermark; milliseconds."""

    watermark: int
    lateness: int

    success_keys: ClassVar[tuple[str, ...]] = ("watermark", "lateness")
    text: ClassVar[str] = (
        "State has no contents of a window that ended $lateness ms or more before the watermark $watermark."
    )

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return _passed(rows, self.watermark, self.lateness) & rows["in_flight"].astype(bool)


class ExpectNoTimerOfClosedWindow(Rule):
    """The snapshot has no event-time timer of a window whose cleanup time was reached; milliseconds."""

    watermark: int
    lateness: int

    success_keys: ClassVar[tuple[str, ...]] = ("watermark", "lateness")
    text: ClassVar[str] = (
        "State has no timer of a window that ended $lateness ms or more before the watermark $watermark."
    )

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        timers = rows["event_time_timers"].map(lambda times: 0 if times is None else len(times)) > 0
        return _passed(rows, self.watermark, self.lateness) & timers


class ExpectStateToMatchChecksums(Rule):
    """After a restore each key group has the same rows as in the snapshot that was restored."""

    text: ClassVar[str] = "Each key group has the same checksum as in the snapshot that was restored."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["recorded"].fillna("") != rows["computed"].fillna("")
