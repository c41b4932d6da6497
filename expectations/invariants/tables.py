"""Rules for computed values, for the origin of rows, for epochs, and for a snapshot.

If an expected value can be derived from others (a window's id from its bounds, a key group from its key), it is
computed from the columns in their own types before the rule sees the rows, and added as a column.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pandas as pd

from tidegate.expectations.commits import CHANGED, LOST, REWRITTEN, UNKNOWN, UNREADABLE
from tidegate.expectations.invariants.rule import Rule, milliseconds
from tidegate.pipelines.definition.counters import FATES
from tidegate.windowing.lateness import are_late

COMPUTED = "\0"
"""Prefix of the names of computed columns; no column of a table has it."""
COMPUTED_ID, COMPUTED_GROUP = f"{COMPUTED}window_id", f"{COMPUTED}key_group"


class ExpectWindowIdsToNameTheirWindows(Rule):
    """The id of a window is derived from its key and its bounds at its first firing.

    `is_merging`: a session may have grown since, so only the first pane of a session is checked.
    """

    is_merging: bool

    shown: ClassVar[tuple[str, ...] | None] = ("window_id", COMPUTED_ID, "pane", "op")
    text: ClassVar[str] = "The id of a window is computed from its key and its bounds."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        differs = rows["window_id"] != rows[COMPUTED_ID]
        return differs & (rows["pane"] == 0) & (rows["op"] == "+") if self.is_merging else differs


class ExpectFinalAtToFitTheBounds(Rule):
    """A window is final when the watermark reaches its last millisecond plus the allowed lateness.

    The current lateness may differ from that of an older epoch, but within an epoch it is the same for all windows. A
    retraction repeats its pane, which an older epoch may have emitted, so it is not checked. The lateness is in
    milliseconds.
    """

    lateness: int

    shown: ClassVar[tuple[str, ...] | None] = ("final_at", "epoch")
    lengths: ClassVar[tuple[str, ...]] = ("lateness",)
    text: ClassVar[str] = (
        "All windows of an epoch become final the same time after their end; currently that is $lateness."
    )

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        bounded = rows[(rows["op"] == "+") & rows["window_end"].notna() & rows["final_at"].notna()]
        waited = milliseconds(bounded["final_at"]) - (milliseconds(bounded["window_end"]) - 1)
        epochs = bounded["epoch"]
        rows_of = pd.DataFrame({"epoch": epochs, "waited": waited, "rows": 1}).groupby(["epoch", "waited"]).count()
        by_size = rows_of.reset_index().sort_values("rows", kind="stable").drop_duplicates("epoch", keep="last")
        usual = epochs.map(by_size.set_index("epoch")["waited"])
        has_today = epochs.isin(epochs[waited == self.lateness])
        wrong = (waited < 0) | (waited != usual.where(~has_today, self.lateness))
        return wrong.reindex(rows.index, fill_value=False)


class ExpectKeysToHashToTheirGroup(Rule):
    """A row of the snapshot is in the key group of its key, because an epoch looks for it only there."""

    text: ClassVar[str] = "The key group of a row is the hash of its key."
    shown: ClassVar[tuple[str, ...] | None] = ("key_group", COMPUTED_GROUP)

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["key_group"] != rows[COMPUTED_GROUP]


class ExpectFilesToBeOfOurCommits(Rule):
    """A commit of tidegate added each existing file, and removed each removed file."""

    text: ClassVar[str] = (
        "A commit of tidegate added each file, and a commit of tidegate removed each file that no longer exists."
    )

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["fault"].isin((UNKNOWN, LOST))


class ExpectFilesToKeepTheirRows(Rule):
    """Each listed file exists, and its rows have the checksum that was recorded when it was written."""

    text: ClassVar[str] = "Each file exists, and its rows have the checksum that its commit recorded."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["fault"].isin((CHANGED, UNREADABLE))


class ExpectNobodyElseToRewriteFiles(Rule):
    """No foreign commit rewrote tidegate's files, even with the same rows."""

    text: ClassVar[str] = "No other program rewrote files of tidegate."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["fault"] == REWRITTEN


class ExpectTableToHaveTheWindowsThatStand(Rule):
    """Table `windows` has the newest pane of each current window and no other row; `rows` holds the differences.

    `tidegate tables rebuild-windows` repairs the table.
    """

    text: ClassVar[str] = "Table windows has each current window of table results once, and no other row."
    shown: ClassVar[tuple[str, ...] | None] = ("fault",)

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["fault"] != ""


class ExpectEpochsToBeOfTheLineage(Rule):
    """Each current row belongs to an epoch that led to the newest snapshot."""

    text: ClassVar[str] = "Each row belongs to an epoch that led to the newest snapshot."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return ~rows["is_on_line"].astype(bool)


class ExpectEventsToBeConserved(Rule):
    """Events are conserved: in each epoch, events in = on time + late + filtered."""

    text: ClassVar[str] = "Events in = on time + late + no window + rejected + dropped, in every epoch."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["events_in"] != rows[list(FATES)].sum(axis=1)


class ExpectWatermarkNeverToGoBack(Rule):
    """The watermark never decreases along the epochs that led to the snapshot; it is null before the first value."""

    text: ClassVar[str] = "The watermark of an epoch is not behind that of an earlier one."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        ordered = rows.dropna(subset=["watermark"]).sort_values("epoch")
        highest = ordered["watermark"].cummax().shift()
        return (ordered["watermark"] < highest).reindex(rows.index, fill_value=False)


def _passed(rows: pd.DataFrame, watermark: int, lateness: int) -> pd.Series:
    """Mark the windows whose cleanup time the watermark has reached; the global window has no cleanup time."""
    # A slice records which of its windows fires next.
    ends = rows["window_end"].where(rows["namespace"] != "slice", rows["state_window_end"])
    bounded = ends[rows["namespace"].isin(["window", "slice"]) & ends.notna()]
    late = are_late(milliseconds(bounded).to_numpy(np.int64) - 1, lateness, watermark)
    return pd.Series(late, bounded.index).reindex(rows.index, fill_value=False)


class ExpectNoStateBehindWatermark(Rule):
    """The snapshot has no window whose end plus lateness is behind the watermark (milliseconds)."""

    watermark: int
    lateness: int

    lengths: ClassVar[tuple[str, ...]] = ("lateness",)
    times: ClassVar[tuple[str, ...]] = ("watermark",)
    text: ClassVar[str] = (
        "State has no contents of a window that ended $lateness or more before the watermark $watermark."
    )

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return _passed(rows, self.watermark, self.lateness) & rows["in_flight"].astype(bool)


class ExpectNoTimerOfClosedWindow(Rule):
    """The snapshot has no event-time timer of a window whose cleanup time was reached (milliseconds)."""

    watermark: int
    lateness: int

    lengths: ClassVar[tuple[str, ...]] = ("lateness",)
    times: ClassVar[tuple[str, ...]] = ("watermark",)
    text: ClassVar[str] = "State has no timer of a window that ended $lateness or more before the watermark $watermark."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        timers = rows["event_time_timers"].map(lambda times: 0 if times is None else len(times)) > 0
        return _passed(rows, self.watermark, self.lateness) & timers


class ExpectStateToMatchChecksums(Rule):
    """After a restore each key group has the same rows as in the snapshot that was restored."""

    text: ClassVar[str] = "Each key group has the same checksum as in the snapshot that was restored."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["recorded"].fillna("") != rows["computed"].fillna("")
