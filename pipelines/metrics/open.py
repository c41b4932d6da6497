"""The metrics of a run, opened as `[metrics]` of tidegate.toml wants them. Without that table nothing is imported."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from tidegate.pipelines.config import Config
from tidegate.pipelines.metrics.catalog import ARRAYS, ROWS
from tidegate.pipelines.metrics.observer import Observer, Off
from tidegate.windowing.compute import Compute
from tidegate.windowing.time import Millis

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from prometheus_client import CollectorRegistry

_log = logging.getLogger(__name__)

_FOR_PROMETHEUS = ("opentelemetry.exporter.prometheus", "prometheus_client")

_LAST_WORDS = 3.0
"""Longest time in seconds that a run waits at its end for its last metrics to be sent."""


def check_metrics(config: Config) -> None:
    """Check that the libraries are installed which the metrics of a project need.

    Raises:
        ModuleNotFoundError: one is missing; the command names the extra.
    """
    settings = config.metrics
    needed = [
        *(["tidegate.pipelines.metrics.meter"] if settings.are_on else []),
        *(["tidegate.pipelines.metrics.push"] if settings.otlp is not None else []),
        *(_FOR_PROMETHEUS if settings.prometheus is not None or settings.textfile is not None else []),
    ]
    for module in needed:
        import_module(module)


@contextmanager
def measured(config: Config, pipeline: str, compute: Compute, clock: Callable[[], Millis]) -> Iterator[Observer]:
    """Enter the observer of a run. Metrics that can't be given to anybody are a line in the log, and no error.

    Args:
        config: the project.
        pipeline: name of the pipeline.
        compute: its computation.
        clock: returns the present time, int64 epoch milliseconds.
    """
    settings = config.metrics
    entry = config.pipelines.get(pipeline)
    own_port = None if entry is None else entry.metrics_port
    if own_port is not None and settings.prometheus is None:
        _log.warning(
            "metrics_port of [pipelines.%s] serves nothing: give `prometheus = %d` in [metrics] as well",
            pipeline,
            own_port,
        )
    if not settings.are_on:
        yield Off()
        return
    from tidegate.pipelines.metrics.meter import Meter
    from tidegate.windowing.columnar import choose_operator

    operator = ARRAYS if choose_operator(compute).columnar else ROWS
    with ExitStack() as ends:
        readers: list[MetricReader] = []
        registries = [_registry(readers) for place in (settings.prometheus, settings.textfile) if place is not None]
        if settings.otlp is not None:
            from tidegate.pipelines.metrics.push import pushing

            # It may need all the time there is to end, so it ends last.
            readers.append(pushing(settings.otlp, settings.every_seconds))
        meter = Meter(pipeline, operator, config.warehouse_uri, readers, clock)
        ends.callback(meter.close, _LAST_WORDS)
        if settings.textfile is not None:
            from tidegate.pipelines.metrics.textfile import Textfile

            file = config.root / settings.textfile / f"tidegate_{pipeline}.prom"
            ends.callback(Textfile(file, registries[-1], settings.every_seconds).close)
        if settings.prometheus is not None:
            host, _, port = settings.prometheus.rpartition(":")
            ends.callback(_serve(host.strip("[]"), own_port or int(port), registries[0], pipeline))
        yield meter


def _registry(readers: list[MetricReader]) -> CollectorRegistry:
    """Return the registry of a further reader for Prometheus."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    readers.append(PrometheusMetricReader(scope_info_enabled=False, registry=registry))
    return registry


def _serve(host: str, port: int, registry: CollectorRegistry, pipeline: str) -> Callable[[], None]:
    """Serve metrics to Prometheus; return the function that ends it."""
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        other_port = f"give this pipeline another port by `metrics_port` in [pipelines.{pipeline}]"
        way = (
            f"the port is in use: {other_port}"
            if error.errno == errno.EADDRINUSE
            else f"{error.strerror}: correct `prometheus` in [metrics]"
        )
        _log.warning("metrics of %s can't be served at %s:%d: %s. The run goes on without", pipeline, host, port, way)
        return lambda: None

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end
