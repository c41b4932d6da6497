"""Streams without a JVM whose metrics a test reads, in memory or at the destinations that [metrics] names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition.config import Config, MetricsSettings, PipelineEntry
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.epoch.observer import Observer
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.observe.metrics import catalog
from tidegate.pipelines.observe.metrics.meter import Meter
from tidegate.pipelines.observe.metrics.open import check_metrics, measured
from tidegate.windowing.columnar import choose_operator
from tidegate.windowing.compute import Compute

Series = dict[tuple[str, tuple[str, ...]], Any]
"""Values by the name of the metric and its attribute values, except the pipeline's, in the order of their names."""


class Read:
    """A meter and the values that it has."""

    def __init__(self, lake: Lake, pipeline: Pipeline, operator: str = "arrays") -> None:
        self.reader = InMemoryMetricReader()
        self.meter = Meter(pipeline.name, operator, "warehouse", [self.reader], lake.clock)

    def series(self) -> Series:
        """Return every value; for a histogram, the number of recorded values."""
        data = self.reader.get_metrics_data()
        values: Series = {}
        for metric in [
            metric for part in data.resource_metrics for scope in part.scope_metrics for metric in scope.metrics
        ]:
            for point in metric.data.data_points:
                attributes = {name: str(value) for name, value in (point.attributes or {}).items()}
                assert attributes.pop("tidegate.pipeline")
                key = metric.name, tuple(attributes[name] for name in sorted(attributes))
                values[key] = getattr(point, "value", None) if hasattr(point, "value") else point.count
        return values


def counted(series: Series) -> Counter[str]:
    """Return the counters of epochs, from the metrics that show them."""
    sums = Counter[str]()
    for metric in catalog.COUNTERS:
        for value, counter in metric.counts:
            sums[counter] += series[metric.name, (value,) if value else ()]
    return sums


@contextmanager
def measured_driver(
    lake: Lake, pipeline: Pipeline, tell: Callable[[str], None] = lambda step: None
) -> Iterator[tuple[Driver, Read]]:
    """A driver without a JVM, and its metrics in memory."""
    with lake.driver(LOCAL, pipeline, tell) as driver:
        read = Read(lake, pipeline)
        driver.metrics = read.meter
        yield driver, read


@dataclass
class MeasuredLake(Lake):
    """A project with a table [metrics]."""

    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """As a tidegate.toml in the folder would define it."""
        return super().config.model_copy(update={"metrics": MetricsSettings(**self.metrics)})


@pytest.fixture(scope="module")
def epoch(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """An epoch that read two events and emitted one pane."""
    by_hand = ByHand(tmp_path_factory.mktemp("epoch"), hourly_pipeline())
    return by_hand.epoch(("ann", at("10:00"), 1), ("bob", at("08:00"), 1), watermark=at("09:30"))


@contextmanager
def run(folder: Path, port: int | None = None, compute: Compute | None = None, **settings: Any) -> Iterator[Observer]:
    """Return the observer of a run that [metrics] of a tidegate.toml in the folder asks for."""
    entry = PipelineEntry.model_validate({"object": "a:b", "start": "2024-03-01", "metrics_port": port})
    config = Config(root=folder, pipelines={"hours": entry}, metrics=MetricsSettings(**settings))
    check_metrics(config)
    operator = choose_operator(compute or hourly_pipeline().compute)
    with measured(config, "hours", operator, lambda: 1_710_000_000_000) as observer:
        yield observer


def values(text: str) -> dict[str, float]:
    """Return values by the name of the series; values of the same name are added."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums
