"""The calls with which a driver reports to metrics. Importing this module does not import OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.windowing.time import Millis

if TYPE_CHECKING:
    from tidegate.windowing.columnar import OperatorChoice


class Observer:
    """Observes a run without measuring anything. `Meter` does the measuring.

    All calls come from the driver's thread; none raises an error or waits for the network.
    """

    is_on = False

    def began(self, manifest: Manifest) -> None:
        """Receive the newest snapshot at the start of a run. Nothing is counted."""

    def published(self, manifest: Manifest, seconds: Mapping[str, float]) -> None:
        """Count an epoch whose last table this process has just published.

        `seconds`, the duration of its steps, is empty if an earlier run computed the epoch.
        """

    def visible(self, commits: Iterable[Millis]) -> None:
        """Receive the times of source commits whose results have just been published."""

    def state(self, files: Collection[Mapping[str, Any]]) -> None:
        """Receive the state files of the newest snapshot, as deltalake lists them."""

    def windows(self, files: Collection[Mapping[str, Any]]) -> None:
        """Receive the files of table `windows`, as deltalake lists them, or none if there is no such table."""

    def polled(self) -> None:
        """Record a poll of the source."""


Observe = Callable[[Config, str, "OperatorChoice", Callable[[], Millis]], AbstractContextManager[Observer]]
"""Function from the project, the pipeline's name, its operator and the clock to the observer of a run."""


def unobserved(
    config: Config, pipeline: str, operator: OperatorChoice, clock: Callable[[], Millis]
) -> AbstractContextManager[Observer]:
    """Return an observer that measures nothing."""
    return nullcontext(Observer())
