"""Metrics in a file for node_exporter: runs that end before Prometheus could scrape them leave their numbers there.

Each run begins its counters at 0. The file goes on from what it held before, because Prometheus can't tell two short
runs apart whose counters came to similar numbers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Metric, write_to_textfile
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tidegate.pipelines.metrics.catalog import LAG

_log = logging.getLogger(__name__)

_Series: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
_SUMS = ("counter", "histogram")


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
        self._before = _sums_in(file)
        self._thread = threading.Thread(target=self._run, name="tidegate-metrics-file", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the file for the last time."""
        self._ended.set()
        self._thread.join(self._every)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of this run with the counts of the runs before it; `prometheus_client` calls this."""
        left = {family.name: _by_series(family) for family in self._before}
        for metric in self._registry.collect():
            # Nobody moves it on after the run.
            if metric.name == LAG.in_prometheus:
                continue
            if metric.type in _SUMS:
                before = left.pop(metric.name, {})
                metric.samples = [
                    sample._replace(value=sample.value + before.pop(_series_of(sample), 0)) for sample in metric.samples
                ]
                metric.samples += [Sample(name, dict(labels), value) for (name, labels), value in before.items()]
            yield metric
        # A histogram of which this run has no value yet.
        yield from (family for family in self._before if family.name in left)

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            self._write()
        self._write()

    def _write(self) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_to_textfile(str(self._file), self)
        except OSError as error:
            if not self._is_failing:
                _log.warning("metrics can't be written to %s: %s. The run goes on without", self._file, error.strerror)
            self._is_failing = True
        else:
            self._is_failing = False


def _sums_in(file: Path) -> tuple[Metric, ...]:
    """Return the metrics of a file that are counts; none if there is no file, or another program's."""
    with suppress(OSError, ValueError):
        return tuple(family for family in text_string_to_metric_families(file.read_text()) if family.type in _SUMS)
    return ()


def _by_series(family: Metric) -> dict[_Series, float]:
    return {_series_of(sample): sample.value for sample in family.samples}


def _series_of(sample: Sample) -> _Series:
    return sample.name, tuple(sorted(sample.labels.items()))
