"""Steps of time within an epoch: one step for each source commit, or one step for a whole interval."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.windowing.compute import Compute, Windows
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class CommitStep:
    """Time at one source commit, the same for all shards.

    Args:
        clock: processing time before its elements, int64 epoch milliseconds.
        watermark: event time after its elements.
        complete: True if the epoch reads the commit to its end; otherwise neither watermark nor late panes move.
    """

    clock: Millis
    watermark: Millis
    complete: bool = True


@dataclass(frozen=True, slots=True)
class EventOrder:
    """Event order: the watermark follows the elements. Before an element at t, all timers up to `t - lag` fire.

    The lag is 1 ms. For windows that merge it is 2 ms, because an element at t may join a session that ends at t.
    """

    lag: Millis

    @classmethod
    def of(cls, compute: Compute) -> EventOrder:
        """Return the order for a computation."""
        merges = isinstance(compute, Windows) and compute.assigner.merges
        return cls(2 if merges else 1)
