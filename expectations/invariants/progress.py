"""From epoch to epoch: nothing disappears, and the watermark never goes back."""

from __future__ import annotations

from typing import ClassVar

import pandas as pd

from tidegate.expectations.invariants.rule import Rule
from tidegate.pipelines.tables.counters import FATES


class ExpectEventsToBeConserved(Rule):
    """Of each epoch: events in = on time + late + filtered."""

    text: ClassVar[str] = "Events in = on time + late + no window + rejected + dropped, in every epoch."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["events_in"] != rows[list(FATES)].sum(axis=1)


class ExpectWatermarkNeverToGoBack(Rule):
    """Along the epochs that led to the snapshot the watermark only grows; it is null before the first."""

    text: ClassVar[str] = "The watermark of an epoch is not behind that of an earlier one."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        known = rows.dropna(subset=["watermark"]).sort_values("epoch")
        highest = known["watermark"].cummax().shift()
        return (known["watermark"] < highest).reindex(rows.index, fill_value=False)
