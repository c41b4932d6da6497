"""What moves time within an epoch: one step for each source commit, or one for a whole interval."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.windowing.compute import Compute, Windows
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class CommitStep:
    """One source commit, as every shard sees it.

    Args:
        clock: processing time before its elements, int64 epoch milliseconds.
        watermark: event time after its elements.
        complete: whether this epoch ends the commit; else neither watermark nor late panes move.
    """

    clock: Millis
    watermark: Millis
    complete: bool = True


@dataclass(frozen=True, slots=True)
class EventOrder:
    """The watermark follows the elements of an interval: before one at t, what is due at `t - lag` fires.

    The lag is 1 ms, and 2 for windows that merge, since an element at t may still join a session
    that ends at t.
    """

    lag: Millis

    @classmethod
    def of(cls, compute: Compute) -> EventOrder:
        """The order that a computation needs."""
        merges = isinstance(compute, Windows) and compute.assigner.merges
        return cls(2 if merges else 1)
