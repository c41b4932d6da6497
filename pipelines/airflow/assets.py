"""The assets of a pipeline: a new snapshot, and final windows that passed their checks.

An event carries what a downstream DAG needs to decide: versions, watermark, counters, quality.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset

_OF_AN_EVENT = (
    "pipeline",
    "timeline",
    "epoch",
    "snapshot_version",
    "interval",
    "watermark",
    "counters",
    "quality",
    "windows",
    "report",
    "docs",
)


def snapshot_asset(pipeline: str) -> Asset:
    """Changes with every run of the stream."""
    return Asset(name=f"{pipeline}__snapshot", uri=f"tidegate://{pipeline}/state", group="tidegate")


def final_windows_asset(pipeline: str) -> Asset:
    """Changes when windows became final and no critical expectation failed.

    Example:
        >>> from airflow.sdk import DAG
        >>> DAG("billing", schedule=[final_windows_asset("aircraft_duty")])
    """
    return Asset(name=f"{pipeline}__final_windows", uri=f"tidegate://{pipeline}/results", group="tidegate")


def event_extra(result: Any) -> dict[str, Any]:
    """What an asset event tells, of the JSON that a command left."""
    if not isinstance(result, dict):
        return {}
    # A stream tells of each epoch that it made; the last one is where it stands.
    if made := result.get("epochs"):
        result = {**made[-1], **result}
    return {name: result[name] for name in _OF_AN_EVENT if result.get(name) is not None}
