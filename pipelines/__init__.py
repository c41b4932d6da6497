"""Tidegate's Spark side: pipelines as values, run as a backfill or as a stream, on Delta tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.pipelines.definition.pipeline import Input, Pipeline
    from tidegate.pipelines.run.limits import EpochLimits
    from tidegate.pipelines.sources.delta.description import DeltaSource

__all__ = ["DeltaSource", "EpochLimits", "Input", "Pipeline"]


def __getattr__(name: str) -> Any:
    # The names are loaded on first use: Airflow parses DAG files that import this package without using them.
    if name == "DeltaSource":
        from tidegate.pipelines.sources.delta import description

        return getattr(description, name)
    if name == "EpochLimits":
        from tidegate.pipelines.run import limits

        return limits.EpochLimits
    if name in __all__:
        from tidegate.pipelines.definition import pipeline

        return getattr(pipeline, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
