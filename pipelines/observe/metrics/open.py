"""The metrics of a run, as set in `[metrics]` of tidegate.toml. Without that table, nothing is imported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING

from tidegate.extras import missing_extra, require
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.epoch.observer import Observer
from tidegate.pipelines.observe.metrics.catalog import ARRAYS, ROWS
from tidegate.pipelines.storage.credentials import masked
from tidegate.windowing.time import Millis

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from prometheus_client import CollectorRegistry

    from tidegate.pipelines.observe.metrics.meter import Meter
    from tidegate.windowing.columnar import OperatorChoice

_log = logging.getLogger(__name__)

_FOR_PROMETHEUS = ("opentelemetry.exporter.prometheus", "prometheus_client")

_LAST_WORDS = 3.0
"""Longest time in seconds that a run waits at its end for its last metrics to be sent."""


def check_metrics(config: Config) -> None:
    """Check that the libraries for the metrics of a project are installed.

    Raises:
        UsageError: one is missing; the error names the extra.
    """
    settings = config.metrics
    needed = [
        *(["tidegate.pipelines.observe.metrics.meter"] if settings.are_on else []),
        *(["tidegate.pipelines.observe.metrics.push"] if settings.otlp is not None else []),
        *(_FOR_PROMETHEUS if settings.prometheus is not None or settings.textfile is not None else []),
    ]
    subject = f"[metrics] in {config.file_name}"
    try:
        for module in needed:
            import_module(module)
    except ImportError as error:
        raise missing_extra(error, subject) or error from error
    if settings.otlp is not None:
        # The exporter imports it when created; without this check, a missing library would silently disable the
        # metrics.
        require(subject, "requests", extra="metrics")


def measured(
    config: Config, pipeline: str, operator: OperatorChoice, clock: Callable[[], Millis]
) -> AbstractContextManager[Observer]:
    """Return a context manager for the observer of a run. Metrics that can't be sent are logged and don't stop the run.

    Raises:
        UsageError: a library that the metrics need is not installed.
    """
    check_metrics(config)
    return _measured(config, pipeline, operator, clock)


@contextmanager
def _measured(
    config: Config, pipeline: str, operator: OperatorChoice, clock: Callable[[], Millis]
) -> Iterator[Observer]:
    settings = config.metrics
    entry = config.pipelines.get(pipeline)
    own_port = None if entry is None else entry.metrics_port
    if own_port is not None and settings.prometheus is None:
        _log.warning(
            "metrics_port of [pipelines.%s] has no effect: set `prometheus = %d` in [metrics] as well",
            pipeline,
            own_port,
        )
    if not settings.are_on:
        yield Observer()
        return
    with ExitStack() as ends:
        readers: list[MetricReader] = []
        try:
            observer: Observer = _opened(config, pipeline, operator, clock, readers, ends)
        except Exception as error:  # OpenTelemetry reads many environment variables, and refuses some values
            _log.warning("metrics of %s are off: %s. The run continues without them", pipeline, masked(str(error)))
            for reader in readers:
                with suppress(Exception):
                    reader.shutdown(0)
            observer = Observer()
        yield observer


def _opened(
    config: Config,
    pipeline: str,
    operator: OperatorChoice,
    clock: Callable[[], Millis],
    readers: list[MetricReader],
    ends: ExitStack,
) -> Meter:
    """Return the meter of a run. Its readers are added to `readers`, and the functions that stop them to `ends`."""
    from tidegate.pipelines.observe.metrics.meter import Meter

    settings = config.metrics
    label = ARRAYS if operator.columnar else ROWS
    registries = [_registry(readers) for place in (settings.prometheus, settings.textfile) if place is not None]
    if settings.otlp is not None:
        from tidegate.pipelines.observe.metrics.push import pushing

        # Stopping it may take all the remaining time, so it is stopped last.
        readers.append(pushing(settings.otlp, settings.every_seconds))
    meter = Meter(pipeline, label, config.warehouse_uri, readers, clock)
    ends.callback(meter.close, _LAST_WORDS)
    if settings.textfile is not None:
        from tidegate.pipelines.observe.metrics.prometheus import Textfile

        file = config.root / settings.textfile / f"tidegate_{pipeline}.prom"
        ends.callback(Textfile(file, registries[-1], settings.every_seconds).close, _LAST_WORDS)
    if settings.prometheus is not None:
        from tidegate.pipelines.observe.metrics.prometheus import serve

        host, _, port = settings.prometheus.rpartition(":")
        entry = config.pipelines.get(pipeline)
        port_of_run = (entry and entry.metrics_port) or int(port)
        ends.callback(serve(host.strip("[]"), port_of_run, registries[0], pipeline))
    return meter


def _registry(readers: list[MetricReader]) -> CollectorRegistry:
    """Return a registry with another reader for Prometheus."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    readers.append(PrometheusMetricReader(scope_info_enabled=False, registry=registry))
    return registry
