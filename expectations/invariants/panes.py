"""Rules for the panes of a window: gaps in their numbers only after a merge; at most one is on time, before late ones.

`op` is "+" for a pane, and "-" for the retraction of that pane and all before it. When a session merges with one that
had fired more often, its numbers continue from the larger one.
"""

from __future__ import annotations

from typing import ClassVar

import pandas as pd

from tidegate.expectations.invariants.rule import Rule

_TIMINGS = {"early": 0, "on_time": 1, "late": 2}


class ExpectPanesToBeDense(Rule):
    """Panes of a window are numbered 0, 1, 2 and so on; only after a merge may numbers be left out."""

    key: list[str]

    success_keys: ClassVar[tuple[str, ...]] = ("key",)
    shown: ClassVar[tuple[str, ...] | None] = ("window_id", "pane", "timing", "op", "epoch")
    text: ClassVar[str] = "Panes of a window of one $key are numbered 0, 1, 2 and so on."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        panes = rows[rows["op"] == "+"].sort_values([*self.key, "window_id", "pane"], kind="stable")
        before = panes.groupby([*self.key, "window_id"], dropna=False)["pane"].shift(fill_value=-1)
        jumps = panes[panes["pane"] != before + 1]
        by = [*self.key, "epoch", "pane"]
        merged = rows.loc[rows["op"] == "-", by].drop_duplicates()
        merged["pane"] += 1
        # Pandas adds a column, and a key may have its name, so the columns have numbers.
        numbers = list(range(len(by)))
        sides = [side[by].set_axis(numbers, axis=1) for side in (jumps, merged)]
        explained = sides[0].merge(sides[1], on=numbers, how="left", indicator=True)["_merge"] == "both"
        doubled = jumps["pane"] == before[jumps.index]
        broken = pd.Series(False, index=rows.index)
        broken[jumps.index] = ~explained.to_numpy() | doubled.to_numpy()
        return broken


class ExpectOneOnTimePaneBeforeLateOnes(Rule):
    """The panes of a window that are not retracted are early ones, then at most one on-time pane, then late ones."""

    key: list[str]

    success_keys: ClassVar[tuple[str, ...]] = ("key",)
    shown: ClassVar[tuple[str, ...] | None] = ("window_id", "pane", "timing", "op", "epoch")
    text: ClassVar[str] = "Each window of one $key has at most one on-time pane, after early and before late ones."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        by = [*self.key, "window_id"]
        retracted = rows["pane"].where(rows["op"] == "-", -1).groupby([rows[name] for name in by], dropna=False)
        valid = rows[(rows["op"] == "+") & (rows["pane"] > retracted.transform("max"))]
        ordered = valid.sort_values([*by, "pane"], kind="stable")
        timing = ordered["timing"].map(_TIMINGS)
        before = timing.groupby([ordered[name] for name in by], dropna=False).shift()
        on_time = _TIMINGS["on_time"]
        wrong = (timing < before) | ((timing == on_time) & (before == on_time))
        broken = pd.Series(False, index=rows.index)
        broken[ordered.index] = wrong
        return broken
