"""Streams without a JVM whose metrics a test reads: in memory, or at the places that [metrics] names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.lake import Lake
from tests.pipelines.looping import NO_SPARK
from tests.recovery.without_spark import NoSpark, standing_in
from tidegate.pipelines import Pipeline
from tidegate.pipelines.config import Config, MetricsSettings
from tidegate.pipelines.metrics.meter import Meter
from tidegate.pipelines.run.driver import Driver

Series = dict[tuple[str, tuple[str, ...]], Any]
"""Values by the name of the metric and the values of its attributes but the pipeline's, in the order of their names."""


class Read:
    """A meter and the values that it has."""

    def __init__(self, lake: Lake, pipeline: Pipeline, operator: str = "arrays") -> None:
        self.reader = InMemoryMetricReader()
        self.meter = Meter(pipeline.name, operator, "warehouse", [self.reader], lake.clock)

    def series(self) -> Series:
        """Return every value; of a histogram, the number of values that it took."""
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


@contextmanager
def measured_driver(
    lake: Lake, pipeline: Pipeline, tell: Callable[[str], None] = lambda step: None
) -> Iterator[tuple[Driver, Read]]:
    """A driver without a JVM, and its metrics in memory."""
    with standing_in(NoSpark()), lake.driver(NO_SPARK, pipeline, tell) as driver:
        read = Read(lake, pipeline)
        driver.metrics = read.meter
        yield driver, read


@dataclass
class MeasuredLake(Lake):
    """A project with a table [metrics]."""

    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """As a tidegate.toml in the folder would give it."""
        return super().config.model_copy(update={"metrics": MetricsSettings(**self.metrics)})
