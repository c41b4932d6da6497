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
    from tidegate.pipelines import DeltaSource as DeltaSource, EpochLimits as EpochLimits, Input as Input
    from tidegate.pipelines import Pipeline as Pipeline
    from tidegate.pipelines.project.project import Project as Project
    from tidegate.windowing import *

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
