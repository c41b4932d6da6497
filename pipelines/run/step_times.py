"""Durations of the steps of an epoch: plan, operate, commit, publish."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

_STEPS = {"planned": "plan", "operated": "operate", "committed": "commit"}
"""Steps by what the driver says when they are done; everything else is a part of `publish`."""


@dataclass
class StepTimes:
    """The clock of one driver's epochs.

    Args:
        clock: returns seconds that only grow.
    """

    clock: Callable[[], float] = perf_counter
    newest: dict[str, float] = field(default_factory=dict, init=False)
    """Seconds by step of the newest epoch that was published."""
    _seconds: dict[str, float] = field(default_factory=dict, init=False)
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self._since = self.clock()

    def begin(self) -> None:
        """Begin the plan of an epoch; what came before belongs to none."""
        self._seconds, self._since = {}, self.clock()

    def hear(self, done: str) -> None:
        """Note that a step is done, or a part of it."""
        now, step = self.clock(), _STEPS.get(done, "publish")
        self._seconds[step] = self._seconds.get(step, 0.0) + now - self._since
        self._since = now

    def end(self) -> dict[str, float]:
        """End the epoch, and return its seconds by step; the next one begins."""
        self.newest = self._seconds
        self.begin()
        return self.newest
