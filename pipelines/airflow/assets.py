"""The assets of a pipeline: a new snapshot, and final windows that passed their checks.

An event carries what a downstream DAG needs to decide: versions, watermark, counters, quality.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from airflow.sdk import Asset

from tidegate.pipelines.airflow.report_link import report_url
from tidegate.pipelines.inspect.standing import read_standing

_OF_AN_EVENT = (
    "pipeline",
    "timeline",
    "epoch",
    "snapshot_version",
    "since",
    "interval",
    "watermark",
    "counters",
    "quality",
    "windows",
    "report",
    "report_url",
    "docs",
)


def snapshot_asset(pipeline: str) -> Asset:
    """Changes with every run of the stream."""
    return Asset(name=f"{pipeline}__snapshot", uri=f"tidegate://{pipeline}/state", group="tidegate")


def final_windows_asset(pipeline: str) -> Asset:
    """Changes when windows became final and no critical expectation failed.

    Example:
        >>> from airflow.sdk import DAG
        >>> billing = DAG("billing", schedule=[final_windows_asset("aircraft_duty")])
    """
    return Asset(name=f"{pipeline}__final_windows", uri=f"tidegate://{pipeline}/results", group="tidegate")


def event_extra(result: Any) -> dict[str, Any]:
    """What an event of final windows tells, of the JSON that a check left."""
    if not isinstance(result, dict):
        return {}
    told = {**result, "report_url": report_url(result)}
    return {name: told[name] for name in _OF_AN_EVENT if told.get(name) is not None}


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    """What an event of a new snapshot tells: how the pipeline stands once its stream has ended.

    Args:
        config: path of tidegate.toml.
        pipeline: its name.
    """

    config: str
    pipeline: str

    def __call__(self, result: Any) -> dict[str, Any]:
        """The event, whatever the command left."""
        standing = read_standing(self.config, self.pipeline)
        return event_extra({**asdict(standing), "snapshot_version": standing.version})
