"""The seconds of each phase of an epoch, measured by a listener to a driver's steps."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from time import perf_counter

PHASES = ("plan", "operate", "commit", "publish")
"""The phases of an epoch. `plan` includes the look into the log of the source."""

_OF_STEP = {"planned": "plan", "operated": "operate", "committed": "commit"}

Seconds = dict[str, float]
"""Seconds of each phase."""


class Phases:
    """A listener to the steps of a driver, which adds up the seconds of each phase."""

    def __init__(self) -> None:
        self._seconds: Seconds = dict.fromkeys(PHASES, 0.0)
        self._before = perf_counter()

    def __call__(self, step: str) -> None:
        now = perf_counter()
        self._seconds[_OF_STEP.get(step, "publish")] += now - self._before
        self._before = now

    def take(self) -> Seconds:
        """Return the seconds since the last call, by phase, and start again from zero."""
        taken, self._seconds = self._seconds, dict.fromkeys(PHASES, 0.0)
        self._before = perf_counter()
        return taken


def typical(epochs: Iterable[Seconds]) -> Seconds:
    """Return the median of each phase."""
    runs = list(epochs)
    return {phase: median(run[phase] for run in runs) for phase in PHASES}


def show(seconds: Seconds) -> str:
    """Return the seconds of the phases as text: `plan 0.12 + operate 0.81 + ...`."""
    return " + ".join(f"{phase} {seconds[phase]:.2f}" for phase in PHASES)
