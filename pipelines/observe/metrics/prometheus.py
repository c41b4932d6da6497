"""Metrics for Prometheus: served during a run, or in a file for node_exporter.

When the standard library's server starts, it looks up the host name of its own address. A name service that does not
answer would block the run.

The file is for runs that end before Prometheus can scrape them. Each run starts its counters at 0. The file continues
from its previous values, because Prometheus can't distinguish two short runs with similar numbers.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Metric, generate_latest, make_wsgi_app
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.observe.metrics.catalog import COUNTERS, HISTOGRAMS, LAG
from tidegate.pipelines.storage.shared_folder import SharedFolder

_log = logging.getLogger(__name__)


class _Server(ThreadingMixIn, WSGIServer):
    """A server that uses a thread for each scrape and does not look up host names."""

    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, address: Any) -> None:
        self.address_family = family
        super().__init__(address, _Silent)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


class _Silent(WSGIRequestHandler):
    """A handler that does not log scrapes."""

    def log_message(self, *ignored: object) -> None:
        """Log nothing."""


def serve(host: str, port: int, registry: CollectorRegistry, pipeline: str) -> Callable[[], None]:
    """Serve metrics to Prometheus. Return the function that stops the server. A failure is logged."""
    try:
        # A numeric address needs no name service.
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        server = _Server(family, address)
    except (OSError, UnicodeError) as error:
        other_port = f"give this pipeline another port with `metrics_port` in [pipelines.{pipeline}]"
        is_used = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = (error.strerror if isinstance(error, OSError) else None) or "that is not a host name"
        way = f"the port is in use: {other_port}" if is_used else f"{reason}: correct `prometheus` in [metrics]"
        _log.warning(
            "metrics of %s can't be served at %s:%d: %s. The run continues without them", pipeline, host, port, way
        )
        return lambda: None
    server.set_app(make_wsgi_app(registry))
    thread = threading.Thread(target=server.serve_forever, name="tidegate-metrics-port", daemon=True)
    thread.start()

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end


_Series: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
_SUMS = {metric.in_prometheus.removesuffix("_total"): metric for metric in (*COUNTERS, *HISTOGRAMS)}
"""Metrics that continue the counts of earlier runs, by the name of their family in Prometheus."""


class Textfile:
    """The metrics file of a pipeline, written every few seconds and at the end of the run."""

    def __init__(self, file: Path, registry: CollectorRegistry, every: float) -> None:
        self._file, self._registry, self._every = file, registry, every
        self._ended = threading.Event()
        self._is_failing = False
        self._before: Mapping[str, Mapping[_Series, float]] = {}
        self._thread = threading.Thread(target=self._run, name="tidegate-metrics-file", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Write the file one last time; after some seconds, a disk that hangs does not keep the run from ending."""
        self._ended.set()
        self._thread.join(seconds)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of this run, added to the counts of earlier runs; `prometheus_client` calls this."""
        left = {name: dict(series) for name, series in self._before.items()}
        for metric in self._registry.collect():
            # Nothing updates this value after the run.
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
            # A run without epochs has no durations of its own.
            metric = Metric(name, _SUMS[name].meaning, _SUMS[name].kind)
            metric.samples = _samples(before)
            yield metric

    def _run(self) -> None:
        # The run itself does not wait for the disk.
        self._before = _sums_in(self._file)
        while not self._ended.wait(self._every):
            self._write()
        self._write()

    def _write(self) -> None:
        try:
            # Other users can often write in the folder of node_exporter.
            SharedFolder(self._file.parent).write(self._file.name, generate_latest(self))
        except (OSError, ValueError, Refused) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            if not self._is_failing:
                _log.warning("metrics can't be written to %s: %s. The run continues without them", self._file, reason)
            self._is_failing = True
        else:
            self._is_failing = False


def _sums_in(file: Path) -> Mapping[str, Mapping[_Series, float]]:
    """Return the counts in a file by metric; none if there is no file, or if another program wrote it."""
    with suppress(OSError, ValueError, Refused):
        return {
            family.name: {_series_of(sample): sample.value for sample in family.samples}
            for family in text_string_to_metric_families((SharedFolder(file.parent).read(file.name) or b"").decode())
            if family.name in _SUMS and family.type == _SUMS[family.name].kind
        }
    return {}


def _samples(series: Mapping[_Series, float]) -> list[Sample]:
    return [Sample(name, dict(labels), value) for (name, labels), value in series.items()]


def _series_of(sample: Sample) -> _Series:
    return sample.name, tuple(sorted(sample.labels.items()))
