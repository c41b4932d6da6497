"""The instruments of a run, updated from the manifests of published epochs.

Counters start at 0 in each process, as usual: readers treat a smaller value as a restart. An epoch is counted when it
is published, so an epoch that is computed twice, because its first run was killed before the commit, is counted once.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib.metadata import version
from typing import Any

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from tidegate.pipelines.epoch.observer import Observer
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.observe.metrics import catalog
from tidegate.pipelines.observe.metrics.catalog import Metric
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis

_log = logging.getLogger(__name__)

_INSTANCES = uuid.UUID("4d63009a-8d0f-11ee-aad7-4c796ed8e320")
"""Namespace for `service.instance.id` in OpenTelemetry's conventions."""


class Meter(Observer):
    """An observer that measures one pipeline, whose windows an operator computes: `arrays` or `rows`.

    The warehouse distinguishes two pipelines of the same name. Readers call the clock from their own threads.
    """

    is_on = True

    def __init__(
        self,
        pipeline: str,
        operator: str,
        warehouse: str,
        readers: Collection[MetricReader],
        clock: Callable[[], Millis],
    ) -> None:
        self._clock = clock
        self._pipeline = {catalog.PIPELINE: pipeline}
        self._operator = {**self._pipeline, catalog.OPERATOR: operator}
        self._values: dict[str, float] = {}
        self._watermark: Millis | None = None
        resource = _resource(f"{warehouse}/{pipeline}")
        # Without spans there are no exemplars, and OpenTelemetry would read the environment for them.
        self._provider = MeterProvider(
            tuple(readers), resource, shutdown_on_exit=False, exemplar_filter=AlwaysOffExemplarFilter()
        )
        meter = self._provider.get_meter("tidegate", version("tidegate"))
        self._counters = [
            (counter, name, self._pipeline | dict.fromkeys(metric.attributes, value))
            for metric in catalog.COUNTERS
            for counter in [meter.create_counter(metric.name, metric.unit, metric.meaning)]
            for value, name in metric.counts
        ]
        self._histograms = {
            metric.name: meter.create_histogram(
                metric.name,
                metric.unit,
                metric.meaning,
                explicit_bucket_boundaries_advisory=list(metric.buckets),
            )
            for metric in catalog.HISTOGRAMS
        }
        for metric in catalog.GAUGES:
            read = self._read_lag if metric is catalog.LAG else self._reader_of(metric)
            meter.create_observable_gauge(metric.name, [read], metric.unit, metric.meaning)
        for counter, _, attributes in self._counters:
            # If a series starts with its first count, Prometheus's `increase` misses that count.
            counter.add(0, attributes)

    def began(self, manifest: Manifest) -> None:
        self._take(manifest)
        if catalog.PUBLISHED_AT.name not in self._values:
            self._set(catalog.PUBLISHED_AT, manifest.started_at / 1000)

    def published(self, manifest: Manifest, seconds: Mapping[str, float]) -> None:
        for counter, name, attributes in self._counters:
            if count := manifest.counters.get(name):
                counter.add(count, attributes)
        self._take(manifest)
        self._set(catalog.PUBLISHED_AT, self._clock() / 1000)
        if not seconds:
            return
        self._histograms[catalog.EPOCH_DURATION.name].record(
            sum(seconds.values()), {**self._operator, catalog.KIND: manifest.kind}
        )
        for step, duration in seconds.items():
            self._histograms[catalog.STEP_DURATION.name].record(duration, self._operator | {catalog.STEP: step})

    def visible(self, commits: Iterable[Millis]) -> None:
        now, delays = self._clock(), self._histograms[catalog.DELAY.name]
        for time in commits:
            # The source writer's clock may be ahead of this one.
            delays.record(max(0, now - time) / 1000, self._pipeline)

    def state(self, files: Collection[Mapping[str, Any]]) -> None:
        self._set(catalog.STATE_SIZE, sum(file["size_bytes"] for file in files))

    def windows(self, files: Collection[Mapping[str, Any]]) -> None:
        self._set(catalog.STANDING, sum(file["num_records"] for file in files))
        self._set(catalog.WINDOWS_FILES, len(files))

    def polled(self) -> None:
        self._set(catalog.LOOKED_AT, self._clock() / 1000)

    def close(self, seconds: float) -> None:
        """Pass the last values to the readers that send values, within some seconds, and stop all readers."""
        try:
            self._provider.shutdown(seconds * 1000)
        except Exception as error:  # the SDK raises bare exceptions, and the run itself succeeded
            _log.warning("not all readers got the last metrics: %s", error)

    def _take(self, manifest: Manifest) -> None:
        is_moment = MIN_TIMESTAMP < manifest.watermark < MAX_TIMESTAMP
        # The user chose the interval of a backfill, so its age says nothing about the run.
        is_stream = all(position.frontier is None for position in manifest.positions.values())
        self._watermark = manifest.watermark if is_moment and is_stream else None
        self._set(catalog.WATERMARK, manifest.watermark / 1000 if is_moment else None)
        self._set(catalog.OPEN_WINDOWS, manifest.counters.get("open_windows", 0))
        self._set(catalog.STATE_ROWS, sum(shard.rows for shard in manifest.shards))
        self._set(catalog.EPOCH, manifest.epoch)

    def _set(self, metric: Metric, value: float | None) -> None:
        if value is None:
            self._values.pop(metric.name, None)
        else:
            self._values[metric.name] = value

    def _reader_of(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(options: CallbackOptions) -> Iterable[Observation]:
            value = self._values.get(metric.name)
            return [] if value is None else [Observation(value, self._pipeline)]

        return read

    def _read_lag(self, options: CallbackOptions) -> Iterable[Observation]:
        watermark = self._watermark
        return [] if watermark is None else [Observation((self._clock() - watermark) / 1000, self._pipeline)]


def _resource(instance: str) -> Resource:
    """Return the attributes of all metrics. Attributes from the environment take precedence.

    The instance is the same on every host, so a pipeline that moves to another host continues its series.
    """
    ours = Resource(
        {
            "service.name": "tidegate",
            "service.version": version("tidegate"),
            "service.instance.id": str(uuid.uuid5(_INSTANCES, instance)),
        }
    )
    merged = Resource.create().merge(ours).merge(OTELResourceDetector().detect())
    return Resource({_as_text(name): _as_text(value) for name, value in merged.attributes.items()}, merged.schema_url)


def _as_text(value: Any) -> Any:
    """Return an attribute's value as text. `?` replaces bytes that are not valid UTF-8, which no reader accepts."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
