"""A project with the tables of two correct epochs, and what Airflow gives a task: both as DAG files and tasks see
them.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.expectations.quality_lake import QualityLake, session_lake

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger


def write_project(folder: Path, *lakes: QualityLake, **settings: str) -> Path:
    """Write tables and tidegate.toml of some pipelines, with settings added to their entries as TOML; return the
    file.
    """
    lines = []
    for lake in lakes or (session_lake(),):
        entry = lake.write(folder).pipelines[lake.pipeline.name]
        lines += [f"[pipelines.{lake.pipeline.name}]", f'object = "{entry.object}"', "start = 2024-03-01"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
    file = folder / "tidegate.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


class OutletEvents(dict[Any, Any]):
    """The events of a task, as Airflow passes them to readers."""

    def __missing__(self, outlet: Any) -> Any:
        self[outlet] = events = SimpleNamespace(extra={}, keys=[], added=[])
        events.add_partitions = events.keys.extend
        events.add = lambda asset, extra: events.added.append((asset, extra))
        return events


class Store(dict[str, Any]):
    """The state that Airflow keeps for a task across its tries, or for an asset across all tasks."""

    def set(self, key: str, value: Any) -> None:
        self[key] = json.loads(json.dumps(value))

    def delete(self, key: str) -> None:
        self.pop(key, None)


def first_event(trigger: BaseTrigger, seconds: float = 20) -> Any:
    """Return the content of a trigger's first event; raise TimeoutError if none comes."""

    async def first() -> Any:
        return await asyncio.wait_for(anext(aiter(trigger.run())), seconds)

    return asyncio.run(first()).payload


def task_instance(dag_id: str, task_id: str = "quality", run_id: str = "r", **more: Any) -> Any:
    """What Airflow tells a task about itself."""
    return SimpleNamespace(dag_id=dag_id, run_id=run_id, task_id=task_id, **{"try_number": 1, **more})
