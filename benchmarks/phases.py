"""Where the seconds of epochs go: a listener to a driver's steps."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from time import perf_counter

PHASES = ("plan", "operate", "commit", "publish")
"""The steps of an epoch. To plan includes waiting for Spark to hand out the next batch of a stream."""

_OF_STEP = {"planned": "plan", "operated": "operate", "committed": "commit"}

Seconds = dict[str, float]
"""Seconds of each phase."""


class Phases:
    """Hears the steps of a driver and adds up what each took since the one before."""

    def __init__(self) -> None:
        self._seconds: Seconds = dict.fromkeys(PHASES, 0.0)
        self._before = perf_counter()

    def __call__(self, step: str) -> None:
        now = perf_counter()
        self._seconds[_OF_STEP.get(step, "publish")] += now - self._before
        self._before = now

    def take(self) -> Seconds:
        """What came together since the last call; the next epoch begins now."""
        taken, self._seconds = self._seconds, dict.fromkeys(PHASES, 0.0)
        self._before = perf_counter()
        return taken


def typical(epochs: Iterable[Seconds]) -> Seconds:
    """The median of each phase."""
    runs = list(epochs)
    return {phase: median(run[phase] for run in runs) for phase in PHASES}


def show(seconds: Seconds) -> str:
    """`plan 0.12 + operate 0.81 + ...`, in seconds."""
    return " + ".join(f"{phase} {seconds[phase]:.2f}" for phase in PHASES)
