"""Rules for values that follow from others in the same row: a window's id from its bounds, a key group from its key.

The expected value is computed before the rule sees the rows, from columns in their own types, as a further column.
"""

from __future__ import annotations

from typing import ClassVar

import pandas as pd

from tidegate.expectations.invariants.rule import Rule, milliseconds

COMPUTED = "\0"
"""Beginning of the names of computed columns; no column of a table has it."""
COMPUTED_ID, COMPUTED_GROUP = f"{COMPUTED}window_id", f"{COMPUTED}key_group"


class ExpectWindowIdsToNameTheirWindows(Rule):
    """The id of a window follows from its key and its bounds at its first firing.

    `is_merging`: a session may have grown since, so only the first pane of a session is checked.
    """

    is_merging: bool

    success_keys: ClassVar[tuple[str, ...]] = ("is_merging",)
    shown: ClassVar[tuple[str, ...] | None] = ("window_id", COMPUTED_ID, "pane", "op")
    text: ClassVar[str] = "The id of a window is computed from its key and its bounds."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        differs = rows["window_id"] != rows[COMPUTED_ID]
        return differs & (rows["pane"] == 0) & (rows["op"] == "+") if self.is_merging else differs


class ExpectFinalAtToFitTheBounds(Rule):
    """A window is final when the watermark reaches its last millisecond and the lateness.

    The present lateness may differ from that of an older epoch, but within an epoch it is the same for all windows.
    Milliseconds.
    """

    lateness: int

    success_keys: ClassVar[tuple[str, ...]] = ("lateness",)
    shown: ClassVar[tuple[str, ...] | None] = ("final_at", "epoch")
    text: ClassVar[str] = (
        "Each window of an epoch becomes final the same time after its end; today that is $lateness ms."
    )

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        bounded = rows[rows["window_end"].notna() & rows["final_at"].notna()]
        waited = milliseconds(bounded["final_at"]) - (milliseconds(bounded["window_end"]) - 1)
        epochs = bounded["epoch"]
        rows_of = pd.DataFrame({"epoch": epochs, "waited": waited, "rows": 1}).groupby(["epoch", "waited"]).count()
        by_size = rows_of.reset_index().sort_values("rows", kind="stable").drop_duplicates("epoch", keep="last")
        usual = epochs.map(by_size.set_index("epoch")["waited"])
        has_today = epochs.isin(epochs[waited == self.lateness])
        wrong = (waited < 0) | (waited != usual.where(~has_today, self.lateness))
        return wrong.reindex(rows.index, fill_value=False)


class ExpectKeysToHashToTheirGroup(Rule):
    """A row of the snapshot is in the key group of its key: an epoch reads no other key group for it."""

    text: ClassVar[str] = "The key group of a row is the hash of its key."
    shown: ClassVar[tuple[str, ...] | None] = ("key_group", COMPUTED_GROUP)

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["key_group"] != rows[COMPUTED_GROUP]
