"""The assets of a pipeline: a new snapshot, and final windows that passed their checks.

An event carries the facts that a downstream DAG decides by: versions, watermark, counters, quality.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from airflow.sdk import Asset

from tidegate.pipelines.airflow.report_link import report_url
from tidegate.pipelines.inspect.status import read_status

_EVENT_FIELDS = (
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
    """Return the asset that changes with every run of the stream."""
    return Asset(name=f"{pipeline}__snapshot", uri=f"tidegate://{pipeline}/state", group="tidegate")


def final_windows_asset(pipeline: str) -> Asset:
    """Return the asset that changes when windows became final and no critical expectation failed.

    Example:
        >>> from airflow.sdk import DAG
        >>> billing = DAG("billing", schedule=[final_windows_asset("aircraft_duty")])
    """
    return Asset(name=f"{pipeline}__final_windows", uri=f"tidegate://{pipeline}/results", group="tidegate")


def event_extra(result: Any) -> dict[str, Any]:
    """Return the content of a final windows event: the fields it carries, from the JSON of a quality check."""
    if not isinstance(result, dict):
        return {}
    values = {**result, "report_url": report_url(result)}
    return {name: values[name] for name in _EVENT_FIELDS if values.get(name) is not None}


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    """The content of a new snapshot event: the status of the pipeline after its stream has ended.

    Args:
        config: path of tidegate.toml.
        pipeline: its name.
    """

    config: str
    pipeline: str

    def __call__(self, result: Any) -> dict[str, Any]:
        """Return the event; the result of the command is not needed for it."""
        status = read_status(self.config, self.pipeline)
        return event_extra({**asdict(status), "snapshot_version": status.version})
