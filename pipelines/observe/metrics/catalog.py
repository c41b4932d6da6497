"""All metrics: names and units by OpenTelemetry's conventions, and the counters behind them.

Importing this module does not import OpenTelemetry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.pipelines.definition.counters import (
    DELETED_IN_WINDOWS,
    FATES,
    FIRED,
    NEVER_EMITTED,
    REOPENED,
    RETRACTED,
    ROWS_DELETED,
    ROWS_OUT,
    VERSIONS_SKIPPED,
)

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

PIPELINE = "tidegate.pipeline"
"""Attribute of every metric: name of the pipeline."""
OUTCOME = "tidegate.outcome"
CORRECTION = "tidegate.correction"
TIMING = "tidegate.timing"
STEP = "tidegate.step"
KIND = "tidegate.epoch.kind"
OPERATOR = "tidegate.operator"

STEPS = ("plan", "operate", "commit", "publish")
ARRAYS, ROWS = "arrays", "rows"
"""Operators that compute windows: over arrays, or element by element."""

SHORT = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Bucket bounds of epoch durations, in seconds."""
LONG = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 21600.0, 86400.0)
"""Bucket bounds of waits, in seconds; a schedule may make waits long."""

_SUFFIXES = {"s": "_seconds", "By": "_bytes"}


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a run.

    Args:
        name: name by OpenTelemetry's conventions.
        unit: UCUM unit; a word in braces names what is counted.
        kind: kind of instrument.
        meaning: its description.
        attributes: attributes besides the pipeline.
        counts: for a counter, pairs of a value of its attribute (empty if it has none) and an epoch's counter.
        buckets: bounds of a histogram.
    """

    name: str
    unit: str
    kind: Kind
    meaning: str
    attributes: tuple[str, ...] = ()
    counts: tuple[tuple[str, str], ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def in_prometheus(self) -> str:
        """Return the name in Prometheus; the series of a histogram have further suffixes."""
        name = self.name.replace(".", "_") + _SUFFIXES.get(self.unit, "")
        return f"{name}_total" if self.kind == "counter" else name


def _counter(name: str, unit: str, meaning: str, counter: str) -> Metric:
    return Metric(name, unit, "counter", meaning, (), (("", counter),))


COUNTERS = (
    Metric(
        "tidegate.source.events",
        "{event}",
        "counter",
        "Events read from the source, by outcome",
        (OUTCOME,),
        tuple((fate, fate) for fate in FATES),
    ),
    _counter("tidegate.source.removals", "{event}", "Events that were deleted from the source", ROWS_DELETED),
    _counter("tidegate.source.skipped", "{version}", "Versions of the source that were skipped", VERSIONS_SKIPPED),
    _counter(
        "tidegate.window.lost",
        "{event}",
        "Events in windows that the trigger removed before any pane",
        NEVER_EMITTED,
    ),
    Metric(
        "tidegate.window.corrections",
        "{event}",
        "counter",
        "Events that corrections added to windows or removed from them",
        (CORRECTION,),
        ((REOPENED, REOPENED), (DELETED_IN_WINDOWS, DELETED_IN_WINDOWS)),
    ),
    Metric(
        "tidegate.window.panes",
        "{pane}",
        "counter",
        "Panes that fired, by timing",
        (TIMING,),
        tuple((name.removeprefix("fired_"), name) for name in FIRED),
    ),
    _counter("tidegate.window.retractions", "{pane}", "Panes that were retracted", RETRACTED),
    _counter("tidegate.result.rows", "{row}", "Rows added to table results", ROWS_OUT),
    _counter("tidegate.timer.registered", "{timer}", "Timers that were set", "timers_registered"),
    _counter("tidegate.timer.fired", "{timer}", "Timers that fired", "timers_fired"),
    _counter("tidegate.timer.deleted", "{timer}", "Timers that were deleted before they fired", "timers_deleted"),
)

OPEN_WINDOWS = Metric("tidegate.window.open", "{window}", "gauge", "Windows in the state")
STATE_ROWS = Metric("tidegate.state.rows", "{row}", "gauge", "Rows of the state")
STATE_SIZE = Metric("tidegate.state.size", "By", "gauge", "Size of the files of the newest snapshot")
STANDING = Metric("tidegate.windows.rows", "{row}", "gauge", "Rows of table windows; 0 if there is no such table")
WINDOWS_FILES = Metric("tidegate.windows.files", "{file}", "gauge", "Files of table windows")
LAG = Metric("tidegate.watermark.lag", "s", "gauge", "How far a stream's watermark is behind the clock")
WATERMARK = Metric(
    "tidegate.watermark.time", "s", "gauge", "Watermark, in seconds since 1970; results up to it are complete"
)
EPOCH = Metric("tidegate.epoch.number", "{epoch}", "gauge", "Number of the newest epoch")
PUBLISHED_AT = Metric(
    "tidegate.epoch.time",
    "s",
    "gauge",
    "Time, in seconds since 1970, at which the newest epoch was published, or started if an earlier run computed it",
)
LOOKED_AT = Metric(
    "tidegate.source.poll.time", "s", "gauge", "Time of a stream's last poll of its source, in seconds since 1970"
)
GAUGES = (OPEN_WINDOWS, STATE_ROWS, STATE_SIZE, STANDING, WINDOWS_FILES, LAG, WATERMARK, EPOCH, PUBLISHED_AT, LOOKED_AT)

EPOCH_DURATION = Metric(
    "tidegate.epoch.duration", "s", "histogram", "Duration of an epoch", (KIND, OPERATOR), buckets=SHORT
)
STEP_DURATION = Metric(
    "tidegate.step.duration", "s", "histogram", "Duration of a step of an epoch", (STEP, OPERATOR), buckets=SHORT
)
DELAY = Metric(
    "tidegate.result.delay",
    "s",
    "histogram",
    "Time from a commit of the source until the results that it changed are visible",
    buckets=LONG,
)
HISTOGRAMS = (EPOCH_DURATION, STEP_DURATION, DELAY)

METRICS = (*COUNTERS, *GAUGES, *HISTOGRAMS)
