"""Streams over a log without a JVM, and the timer that their waits advance: nobody sleeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from tests.lake import LOCAL, Lake
from tidegate.pipelines import Pipeline
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stream import Stream


@dataclass
class Waits:
    """The timer of a stream, advanced by its waits.

    Args:
        happens: called after each wait, with its number.
        now: current time, seconds.
    """

    happens: Callable[[int], None] = lambda number: None
    now: float = 0.0
    waited: list[float] = field(default_factory=list)

    def pause(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds
        self.happens(len(self.waited))

    def timer(self) -> float:
        return self.now


def continuous(
    lake: Lake,
    pipeline: Pipeline,
    waits: Waits,
    should_stop: Callable[[], bool],
    interval: timedelta = timedelta(seconds=5),
    on_epoch: Callable[[Manifest], None] = lambda manifest: None,
    **limits: int,
) -> list[Manifest]:
    """Stream until asked to stop, and return the manifests of the epochs."""
    made: list[Manifest] = []

    def keep(manifest: Manifest) -> None:
        made.append(manifest)
        on_epoch(manifest)

    with lake.driver(LOCAL, pipeline) as driver:
        stream = Stream(driver, keep, EpochLimits(**limits), pause=waits.pause, timer=waits.timer)
        stream.run_continuously(interval, should_stop)
    return made
