"""The trigger of the sensor, which waits in the triggerer without a worker slot and without a JVM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from tidegate.pipelines.observe.inspect.status import PipelineStatus, read_status

_ENDED = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})


class SnapshotTrigger(BaseTrigger):
    """Fires when a pipeline has computed an epoch after a given one and its watermark has passed a given time.

    Args:
        config: path of tidegate.toml.
        pipeline: its name.
        newer_than: an epoch number, or None.
        watermark_past: a time as ISO text, or None.
        poke_interval: seconds between two polls.
        driver: dag_id, run_id and task_id of the task that drives the pipeline; None to wait without a limit.
    """

    def __init__(
        self,
        config: str,
        pipeline: str,
        newer_than: int | None = None,
        watermark_past: str | None = None,
        poke_interval: float = 5.0,
        driver: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.config = config
        self.pipeline = pipeline
        self.newer_than = newer_than
        self.watermark_past = watermark_past
        self.poke_interval = poke_interval
        self.driver = driver

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("config", "pipeline", "newer_than", "watermark_past", "poke_interval", "driver")
        return "tidegate.pipelines.airflow.triggers.SnapshotTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while True:
            # The driver's end is read before the snapshot, so an epoch that it commits in between still counts.
            ended = None if self.driver is None else await sync_to_async(end_of)(self.driver)
            # Reading a table blocks; other triggers share this loop.
            status = await asyncio.to_thread(read_status, self.config, self.pipeline)
            if has_reached(status, self.newer_than, self.watermark_past):
                yield TriggerEvent(asdict(status))  # type: ignore[no-untyped-call]
                return
            if ended is not None:
                yield TriggerEvent({"ended": ended})  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(self.poke_interval)


def end_of(driver: Mapping[str, str]) -> str | None:
    """Return the state in which a task (dag_id, run_id, task_id) ended, or None while it may continue."""
    states = RuntimeTaskInstance.get_task_states(
        dag_id=driver["dag_id"], run_ids=[driver["run_id"]], task_ids=[driver["task_id"]]
    )
    state = states.get(driver["run_id"], {}).get(driver["task_id"])
    return state if state in _ENDED else None


def has_reached(status: PipelineStatus, newer_than: int | None, watermark_past: str | None) -> bool:
    """Return True if a pipeline has reached the epoch and watermark that a sensor waits for."""
    if newer_than is not None and not status.is_newer_than(newer_than):
        return False
    return watermark_past is None or status.is_past(datetime.fromisoformat(watermark_past))
