"""The events of the benchmarks: skewed keys, one day, up to a minute out of order; equal numbers give equal events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.columnar.hashing import hash_keys, key_groups
from tidegate.windowing.keys import KeySchema

START = 1_700_000_000_000
DAY = 86_400_000


@dataclass(frozen=True)
class EventSet:
    """A description of generated events.

    Args:
        events: number of events.
        keys: number of keys; key k has events in proportion to the slope of the square root at k, so low ones are hot.
        hot: share of all events that one more key has.
        is_steep: True if keys have events by a power law instead, so that most events lie in few windows.
        span: event time covered, milliseconds.
        jitter: largest delay of an event, milliseconds.
    """

    events: int
    keys: int = 100_000
    hot: float = 0.0
    span: int = DAY
    jitter: int = 60_000
    is_steep: bool = False

    def arrays(self) -> pa.Table:
        """Return columns key (string), ts (int64 epoch milliseconds) and value (int64), in order of arrival."""
        return self._piece(0, self.events)

    def pieces(self, length: int) -> Iterator[pa.Table]:
        """Yield the events in pieces of the same columns, so that they need not fit into memory together."""
        for begin in range(0, self.events, length):
            yield self._piece(begin, min(length, self.events - begin))

    def _piece(self, begin: int, length: int) -> pa.Table:
        rng = np.random.default_rng([7, begin])
        drawn = rng.pareto(0.8, length) * 50 % self.keys if self.is_steep else rng.random(length) ** 2 * self.keys
        numbers = drawn.astype(np.int64)
        numbers[rng.random(length) < self.hot] = self.keys
        steps = np.arange(begin, begin + length) * self.span // self.events
        return pa.table(
            {
                "key": names(numbers),
                "ts": pa.array(START + steps - rng.integers(0, self.jitter, length)),
                "value": pa.array(rng.integers(0, 100, length)),
            }
        )


def names(numbers: np.ndarray) -> pa.Array:
    """Return the names of key numbers; key number 7 is `user-7`."""
    return pc.binary_join_element_wise("user-", pc.cast(pa.array(numbers), pa.string()), "")


def keys_of_group(keys: int, group: int, groups: int) -> np.ndarray:
    """Return the numbers below `keys` of the keys in one of `groups` key groups."""
    numbers = np.arange(keys)
    hashes = hash_keys(KeySchema.of(key=pa.string()), [names(numbers)], keys)
    return numbers[key_groups(hashes, groups) == group]


def events_of(numbers: np.ndarray, count: int, start: int) -> pa.Table:
    """Return events of keys in turn, all within a second from `start`, int64 epoch milliseconds."""
    return pa.table(
        {
            "key": names(np.resize(numbers, count)),
            "ts": pa.array(start + np.arange(count) % 1000),
            "value": pa.array(np.ones(count, np.int64)),
        }
    )


def one_each(count: int, keys: int, start: int) -> pa.Table:
    """Return an event for each of `count` keys, chosen evenly from `keys` keys, within a second from `start`.

    Args:
        count: number of events, `keys` at most.
        keys: number of keys; every (keys // count)-th gets an event.
        start: int64 epoch milliseconds.
    """
    return events_of(np.arange(count) * (keys // count), count, start)
