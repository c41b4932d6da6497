"""Rules for epochs: no event disappears, and the watermark never goes back."""

from __future__ import annotations

from typing import ClassVar

import pandas as pd

from tidegate.expectations.invariants.rule import Rule
from tidegate.pipelines.tables.counters import FATES


class ExpectEventsToBeConserved(Rule):
    """Events are conserved: in each epoch, events in = on time + late + filtered."""

    text: ClassVar[str] = "Events in = on time + late + no window + rejected + dropped, in every epoch."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["events_in"] != rows[list(FATES)].sum(axis=1)


class ExpectWatermarkNeverToGoBack(Rule):
    """The watermark never falls along the epochs that led to the snapshot; it is null before the first watermark."""

    text: ClassVar[str] = "The watermark of an epoch is not behind that of an earlier one."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        ordered = rows.dropna(subset=["watermark"]).sort_values("epoch")
        highest = ordered["watermark"].cummax().shift()
        return (ordered["watermark"] < highest).reindex(rows.index, fill_value=False)
