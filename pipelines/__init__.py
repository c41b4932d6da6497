"""Tidegate's Spark side: pipelines as values, run as a backfill or as a stream, on Delta tables."""

from typing import TYPE_CHECKING

from tidegate.exports import exports

if TYPE_CHECKING:
    from tidegate.pipelines.definition.pipeline import Input as Input, Pipeline as Pipeline
    from tidegate.pipelines.run.limits import EpochLimits as EpochLimits
    from tidegate.pipelines.sources.delta.description import DeltaSource as DeltaSource
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            ".definition.pipeline": "Input Pipeline",
            ".run.limits": "EpochLimits",
            ".sources.delta.description": "DeltaSource",
        },
    )
