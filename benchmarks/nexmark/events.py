"""The events of Nexmark, from a seed: of 50 events one is a person, three are auctions and 46 are bids.

Proportions, hot keys and prices are those of the suite (github.com/nexmark/nexmark): half of the bids go to one of a
hundred auctions, three of four come from one of a hundred persons, and prices spread over six powers of ten. Events are
in the order of their times, 10,000 a second. The texts that only fill up the suite's rows are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Int64s

BASE = 1_714_521_600_000
"""Time of the first event, int64 epoch milliseconds: a midnight, so that a day has all events."""
RATE = 10_000
"""Events in a second of event time."""
TABLES = ("person", "auction", "bid")

_ROUND, _AUCTIONS = 50, 3
_FIRST = 1000
_HOT, _ACTIVE, _IN_FLIGHT = 100, 1000, 100
_CHANNELS = ("Apple", "Baidu", "Facebook", "Google")
_MOMENT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Events:
    """All events of a run.

    Args:
        events: number of events of all kinds.
        seed: seed of the draws.
        per_commit: number of events in a commit of the source tables.
    """

    events: int
    seed: int = 1
    per_commit: int = 500_000

    @property
    def commits(self) -> int:
        """Number of commits."""
        return -(-self.events // self.per_commit)

    @cached_property
    def tables(self) -> dict[str, pa.Table]:
        """Return the rows of each table, in the order of their times. Column `commit` has the number of the commit."""
        draw = np.random.default_rng(self.seed)
        number = np.arange(self.events)
        place, turn = number % _ROUND, number // _ROUND
        person, auction = place == 0, (place > 0) & (place <= _AUCTIONS)
        return {
            "person": self._person(number[person], turn[person], draw),
            "auction": self._auction(number[auction], turn[auction], place[auction], draw),
            "bid": self._bid(number[place > _AUCTIONS], turn[place > _AUCTIONS], draw),
        }

    def _person(self, number: Int64s, turn: Int64s, draw: np.random.Generator) -> pa.Table:
        names = pa.array([f"{first} {last}" for first in ("Peter", "Paul", "Kate", "Julie") for last in "ABCDE"])
        return self._table(number, {"id": _FIRST + turn, "name": names.take(pa.array(draw.integers(0, 20, len(turn))))})

    def _auction(self, number: Int64s, turn: Int64s, place: Int64s, draw: np.random.Generator) -> pa.Table:
        hot = draw.random(len(turn)) < 0.75
        seller = np.where(hot, turn // _HOT * _HOT, turn - draw.integers(0, np.minimum(turn, _ACTIVE) + 1))
        return self._table(
            number,
            {
                "id": _FIRST + turn * _AUCTIONS + place - 1,
                "seller": _FIRST + seller,
                "category": 10 + draw.integers(0, 5, len(turn)),
            },
        )

    def _bid(self, number: Int64s, turn: Int64s, draw: np.random.Generator) -> pa.Table:
        newest = turn * _AUCTIONS + _AUCTIONS - 1
        hot = draw.random(len(turn)) < 0.5
        auction = np.where(hot, newest // _HOT * _HOT, newest - draw.integers(0, np.minimum(newest, _IN_FLIGHT) + 1))
        hot = draw.random(len(turn)) < 0.75
        bidder = np.where(hot, turn // _HOT * _HOT + 1, turn - draw.integers(0, np.minimum(turn, _ACTIVE) + 1))
        return self._table(
            number,
            {
                "auction": _FIRST + auction,
                "bidder": _FIRST + bidder,
                "price": np.round(10.0 ** (draw.random(len(turn)) * 6) * 100).astype(np.int64),
                "channel": pa.array(_CHANNELS).take(pa.array(draw.integers(0, len(_CHANNELS), len(turn)))),
            },
        )

    def _table(self, number: Int64s, columns: dict[str, Int64s | pa.Array]) -> pa.Table:
        at = pa.array((BASE + number * 1000 // RATE) * 1000).cast(_MOMENT)
        return pa.table({**columns, "at": at, "commit": number // self.per_commit})
