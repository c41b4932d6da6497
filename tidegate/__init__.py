"""Exact, Flink-grade windows for Spark and Delta Lake.

The names that a pipeline is written with can be imported from here:

>>> from tidegate import Count, EventTimeSessionWindows, Pipeline

`Project` runs pipelines from code: in a notebook, a job of Databricks, or `spark-submit`.

The parts of the package are folders of the repository, linked into this one: `windowing`, `pipelines`, `expectations`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate import windowing
    from tidegate.pipelines import DeltaSource, EpochLimits, Input, Pipeline
    from tidegate.pipelines.project.project import Project
    from tidegate.windowing import *

    __all__ = ["DeltaSource", "EpochLimits", "Input", "Pipeline", "Project"]
    __all__ += windowing.__all__

_PARTS = ("expectations", "pipelines", "windowing")
_OF_PIPELINES = ("DeltaSource", "EpochLimits", "Input", "Pipeline")


def __getattr__(name: str) -> Any:
    # Loaded on first use: Airflow parses DAG files that import parts of this package, and needs no window.
    if name == "Project":
        return import_module("tidegate.pipelines.project.project").Project
    if name in _OF_PIPELINES:
        return getattr(import_module("tidegate.pipelines"), name)
    if name not in _PARTS:
        windowing = import_module("tidegate.windowing")
        if name == "__all__":
            return ["Project", *_OF_PIPELINES, *windowing.__all__]
        if name in windowing.__all__:
            return getattr(windowing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
