"""Metrics in a file for node_exporter: runs that end before Prometheus could scrape them leave their numbers there.

Each run begins its counters at 0. The file goes on from what it held before, because Prometheus can't tell two short
runs apart whose counters came to similar numbers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Metric, write_to_textfile
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tidegate.pipelines.metrics.catalog import COUNTERS, HISTOGRAMS, LAG

_log = logging.getLogger(__name__)

_Series: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
_SUMS = {metric.in_prometheus.removesuffix("_total"): metric for metric in (*COUNTERS, *HISTOGRAMS)}
"""Metrics that go on from the runs before, by the name of their family in Prometheus."""


class Textfile:
    """The file of a pipeline, written every few seconds and at the end of the run.

    Args:
        file: its path.
        registry: the metrics of this run.
        every: seconds between two writes.
    """

    def __init__(self, file: Path, registry: CollectorRegistry, every: float) -> None:
        self._file, self._registry, self._every = file, registry, every
        self._ended = threading.Event()
        self._is_failing = False
        self._before: Mapping[str, Mapping[_Series, float]] = {}
        self._thread = threading.Thread(target=self._run, name="tidegate-metrics-file", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Write the file for the last time.

        Args:
            seconds: longest time that it takes; a disk that hangs keeps no run from its end.
        """
        self._ended.set()
        self._thread.join(seconds)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of this run with the counts of the runs before it; `prometheus_client` calls this."""
        left = {name: dict(series) for name, series in self._before.items()}
        for metric in self._registry.collect():
            # Nobody moves it on after the run.
            if metric.name == LAG.in_prometheus:
                continue
            if metric.name in _SUMS:
                before = left.pop(metric.name, {})
                metric.samples = [
                    sample._replace(value=sample.value + before.pop(_series_of(sample), 0)) for sample in metric.samples
                ]
                metric.samples += _samples(before)
            yield metric
        for name, before in left.items():
            # A run that makes no epoch has no durations of its own.
            metric = Metric(name, _SUMS[name].meaning, _SUMS[name].kind)
            metric.samples = _samples(before)
            yield metric

    def _run(self) -> None:
        # The run itself does not wait for a disk.
        self._before = _sums_in(self._file)
        while not self._ended.wait(self._every):
            self._write()
        self._write()

    def _write(self) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_to_textfile(str(self._file), self)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            if not self._is_failing:
                _log.warning("metrics can't be written to %s: %s. The run goes on without", self._file, reason)
            self._is_failing = True
        else:
            self._is_failing = False


def _sums_in(file: Path) -> Mapping[str, Mapping[_Series, float]]:
    """Return the counts that a file holds, by metric; empty if there is no file, or another program's."""
    with suppress(OSError, ValueError):
        return {
            family.name: {_series_of(sample): sample.value for sample in family.samples}
            for family in text_string_to_metric_families(file.read_text())
            if family.name in _SUMS and family.type == _SUMS[family.name].kind
        }
    return {}


def _samples(series: Mapping[_Series, float]) -> list[Sample]:
    return [Sample(name, dict(labels), value) for (name, labels), value in series.items()]


def _series_of(sample: Sample) -> _Series:
    return sample.name, tuple(sorted(sample.labels.items()))
