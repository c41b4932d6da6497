"""The events that benchmarks run on: skewed keys, one day, a minute out of order; the same for the same numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

START = 1_700_000_000_000
DAY = 86_400_000


@dataclass(frozen=True)
class EventSet:
    """How many events there are, of how many keys.

    Args:
        events: number of events.
        keys: number of keys; key k has events in proportion to the square root's slope, so low ones are hot.
        hot: share of all events that one more key has.
        span: event time covered, milliseconds.
        jitter: how far events come out of order, milliseconds.
    """

    events: int
    keys: int = 100_000
    hot: float = 0.0
    span: int = DAY
    jitter: int = 60_000

    def arrays(self) -> pa.Table:
        """Columns key (string), ts (int64 epoch milliseconds) and value (int64), in order of arrival."""
        rng = np.random.default_rng(7)
        numbers = (rng.random(self.events) ** 2 * self.keys).astype(np.int64)
        numbers[rng.random(self.events) < self.hot] = self.keys
        ts = START + np.arange(self.events) * self.span // self.events - rng.integers(0, self.jitter, self.events)
        names = pa.array([f"user-{number}" for number in range(self.keys + 1)])
        return pa.table(
            {
                "key": names.take(pa.array(numbers)),
                "ts": pa.array(ts),
                "value": pa.array(rng.integers(0, 100, self.events)),
            }
        )
