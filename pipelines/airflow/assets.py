"""The assets of a pipeline: one for a new snapshot, and one for final windows that passed their checks.

An event has the facts that a downstream DAG needs to decide: versions, watermark, counters, quality.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow.sdk import Asset, AssetAlias

from tidegate.pipelines.airflow.operator import event_extra
from tidegate.pipelines.definition.config import SourceAsset
from tidegate.pipelines.errors import QUALITY, UsageError
from tidegate.pipelines.observe.inspect.status import read_status

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidegate.pipelines.definition.config import PartitionUnit


def snapshot_asset(pipeline: str) -> Asset:
    """Return the asset that changes with every run of the stream.

    Args:
        pipeline: the beginning of the ids of the pipeline's DAGs: its name, after the `prefix` of `project_dags`.
    """
    return Asset(name=f"{pipeline}__snapshot", uri=f"tidegate://{pipeline}/state", group="tidegate")


def final_windows_asset(pipeline: str) -> Asset:
    """Return the asset that changes when windows became final and no critical expectation failed.

    Args:
        pipeline: the beginning of the ids of the pipeline's DAGs: its name, after the `prefix` of `project_dags`.

    Example:
        >>> from airflow.sdk import DAG
        >>> billing = DAG("billing", schedule=[final_windows_asset("aircraft_duty")])
    """
    return Asset(name=f"{pipeline}__final_windows", uri=f"tidegate://{pipeline}/results", group="tidegate")


def source_assets(pipeline: str, given: Sequence[str | SourceAsset]) -> list[Asset]:
    """Return the assets that represent the sources of a pipeline in Airflow, from its entry in tidegate.toml.

    Raises:
        UsageError: Airflow does not allow such names or URIs; the message names the field.
    """
    try:
        return [Asset(each) if isinstance(each, str) else Asset(name=each.name, uri=each.uri) for each in given]
    except ValueError as error:
        raise UsageError(
            f"pipelines.{pipeline}.source_assets: {error}. Write each as in the DAG that fills the source: "
            '"s3://lake/events" for Asset("s3://lake/events"), or { name = "events", uri = "s3://lake/events" }'
        ) from error


def newest_event(asset: Asset) -> Any:
    """Return the newest event of an asset in Airflow, or None if there is none."""
    from airflow.sdk.execution_time.context import InletEventsAccessor

    events = InletEventsAccessor(asset_name=asset.name, asset_uri=asset.uri).ascending(False).limit(1)
    return next(iter(events), None)


@dataclass(frozen=True, slots=True)
class WindowEvents:
    """Events of the final windows: one for each changed partition, and one without a partition; none if none changed.

    Airflow runs DAGs that are scheduled by partitions only for events with a partition, and other DAGs only for events
    without one. The asset's state in Airflow records which events were already sent to consumers. Running a check by
    hand does not change that.

    Args:
        pipeline: its name.
        unit: length of a partition; `none` creates only the event without a partition.
        newest: returns the newest event of an asset.
        hold: `partitions` creates events even if a check failed, unless it held back everything.
        table: URI of table `results`. The asset with this URI also gets the event without a partition; None for no such
            event.
    """

    pipeline: str
    unit: PartitionUnit | Literal["none"]
    newest: Callable[[Asset], Any] = newest_event
    hold: Literal["asset", "partitions"] = "asset"
    table: str | None = None

    @property
    def asset(self) -> Asset:
        """Return the asset that changes."""
        return final_windows_asset(self.pipeline)

    @property
    def alias(self) -> AssetAlias:
        """Return the alias by which the same task also sends the event without a partition and the table's event."""
        return AssetAlias(name=f"{self.pipeline}__final_windows_of_all_partitions", group="tidegate")

    def arguments(self, context: Context) -> list[str]:
        """Return the options of `tidegate quality check` for partitions that are not announced to consumers yet."""
        mark = self._known(context)
        unit = "day" if self.unit == "none" else self.unit
        return [f"--partitions={unit}", *([f"--since={json.dumps(mark)}"] if mark else [])]

    def may_emit(self, result: Any, exit_code: int) -> bool:
        """Return True if the JSON of a failed check still allows events for some partitions."""
        if exit_code != QUALITY:
            return False
        return self.hold == "partitions" and isinstance(result, dict) and result.get("partitions") is not None

    def emit(self, context: Context, result: Any) -> str | None:
        """Pass the events to Airflow, and return a line for the log if there are none, or too many partitions to name.

        There is none if nothing changed, or if the Param `events` of the run is off. The next check that may send
        events then names everything that changed since the last event.
        """
        if not context["params"].get("events", True):
            self._withhold(context)
            return "no event: Param `events` of this run is off"
        partitions, extra = result["partitions"], event_extra(result)
        check = {"mark": partitions["mark"], "check_id": result.get("check_id")}
        state = {"by": _name_of(context), "before": self._known(context), **check}
        context["asset_state_store"][self.asset].set(_ANNOUNCED, state)
        if not partitions["is_any"]:
            self._withhold(context)
            return f"no final window changed since the last event of {self.asset.name}: no new event"
        events, keys = context["outlet_events"], partitions["keys"]
        if self.unit == "none":
            extra = {name: value for name, value in extra.items() if name != "partitions"}
        if self.table is not None:
            extra = {**extra, "table": self.table}
        events[self.asset].extra = extra
        if keys and self.unit != "none":
            events[self.asset].add_partitions(keys)
            # A reader that ignores partitions can't leave out those that are held back.
            if not partitions.get("held"):
                events[self.alias].add(self.asset, extra=extra)
        if self.table is not None and not partitions.get("held"):
            events[self.alias].add(Asset(self.table), extra=extra)
        if keys is not None or self.unit == "none":
            return None
        return (
            f"{partitions['count']} partitions changed, from {partitions['first']} to {partitions['last']}. These are "
            "too many for one event, so DAGs that are scheduled by partition do not run for them: run those DAGs for "
            "that time yourself. DAGs that are scheduled by the asset alone run as usual"
        )

    def _withhold(self, context: Context) -> None:
        # Airflow creates an event for each outlet.
        task = context["ti"].task
        task.outlets = [outlet for outlet in task.outlets if outlet != self.asset]

    def _known(self, context: Context) -> Any:
        """Return the mark of what was announced to consumers, or None if nothing was."""
        state: Any = context["asset_state_store"][self.asset].get(_ANNOUNCED)
        if not isinstance(state, dict):
            return None
        if state.get("by") != _name_of(context):
            return state.get("mark")
        # This task was retried or cleared. It may have ended before or after Airflow received its events.
        event, check = self.newest(self.asset), state.get("check_id")
        was_announced = event is not None and check is not None and (event.extra or {}).get("check_id") == check
        return state["mark"] if was_announced else state.get("before")


_ANNOUNCED = "told"


def _name_of(context: Context) -> str:
    """Return the name of a task's run, which is the same for all of its attempts."""
    instance = context["ti"]
    return f"{instance.dag_id}/{instance.run_id}/{instance.task_id}"


@dataclass(frozen=True, slots=True)
class SnapshotEvents:
    """Events of the snapshots of one stream, or of those streams of a group that did not fail.

    Args:
        config: path of tidegate.toml.
        names: the streams' pipelines, each with its name in Airflow.
    """

    config: str
    names: Mapping[str, str]

    def asset(self, pipeline: str) -> Asset:
        """Return the asset of a pipeline's snapshots."""
        return snapshot_asset(self.names[pipeline])

    def arguments(self, context: Context) -> list[str]:
        """Return no options, because the events need none."""
        return []

    def may_emit(self, result: Any, exit_code: int) -> bool:
        """Return True if the command reported which streams failed. Then task `failed` fails instead of this one."""
        return isinstance(_failed_in(result), dict)

    def emit(self, context: Context, result: Any) -> str | None:
        """Pass the events to Airflow, each with the status of its pipeline after the stream has ended."""
        failed = _failed_in(result) or {}
        good = [name for name in self.names if name not in failed]
        # Airflow creates an event for each outlet of a task that succeeds.
        context["ti"].task.outlets = [self.asset(name) for name in good]
        for name in good:
            status = read_status(self.config, name)
            extra = event_extra({**asdict(status), "snapshot_version": status.version})
            context["outlet_events"][self.asset(name)].extra = extra
        return f"failed: {', '.join(failed)}" if failed else None


FAILED: Final = "failed"
"""Id of the task that fails in a group of streams, and name of the field in the result of the command."""


def _failed_in(result: Any) -> Any:
    """Return the errors of the streams that failed; None for the result of a single stream."""
    return result.get(FAILED) if isinstance(result, dict) else None
