"""The sources of a pipeline as plain values, recorded for watchers that must not import the project's code.

Airflow's triggerer watches them. The project's code must not run in a process with Airflow's secrets, and may not even
be installed there, so the runs of the stream, which have the code, record the sources.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import artifacts_of
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.storage.warehouse import Warehouse

_OURS = "tidegate.pipelines.sources."
"""Modules that a watcher may import."""


class News(Protocol):
    """The new versions of a source for one pipeline."""

    def first_after(self, version: int) -> int | None:
        """Return the first version after `version` that a stream would read, or None if there is none."""


@dataclass(frozen=True, slots=True)
class WatchedSource:
    """A source whose commits can be seen without the project's code.

    Args:
        module: one of tidegate's modules, with a function `open_news(warehouse, path, **options)`.
        table: name below the warehouse, or an absolute path or URI; manifests store the position under this name.
        options: fields of the description that determine what is read; plain JSON.
    """

    module: str
    table: str
    options: Mapping[str, Any]

    def news(self, warehouse: Warehouse) -> News:
        """Return the new versions of the source in a warehouse.

        Raises:
            UsageError: the module is not part of tidegate.
        """
        if not self.module.startswith(_OURS):
            raise UsageError(f"source {self.table!r} is watched by {self.module}, which is not part of tidegate")
        news: News = import_module(self.module).open_news(warehouse, warehouse.path(self.table), **self.options)
        return news


@runtime_checkable
class WatchableDescription(Protocol):
    """A description of a source that can be watched, such as `DeltaSource`. Supporting this is optional."""

    def watched(self) -> WatchedSource:
        """Return the source as plain values."""


def note_sources(config: Config, pipeline: Pipeline) -> None:
    """Record the sources of a pipeline among the artifacts, for watchers. A stream does so at the start of a run."""
    described = [pipeline.source, *([] if pipeline.right is None else [pipeline.right.source])]
    watched = [asdict(source.watched()) for source in described if isinstance(source, WatchableDescription)]
    unwatched = [source.table for source in described if not isinstance(source, WatchableDescription)]
    content = json.dumps({"watched": watched, "unwatched": unwatched}).encode()
    artifacts, name = artifacts_of(config), _note_of(pipeline.name)
    if artifacts.read(name) != content:
        artifacts.write(name, content)


def noted_sources(config: Config, pipeline: str) -> list[WatchedSource] | None:
    """Return the sources of a pipeline as its last run recorded them, or None if there was no run.

    Raises:
        UsageError: a source can't be watched.
    """
    content = artifacts_of(config).read(_note_of(pipeline))
    if content is None:
        return None
    note = json.loads(content)
    if note["unwatched"]:
        raise UsageError(
            f"source {note['unwatched'][0]!r} of pipeline {pipeline!r} can't be watched for commits, as a DeltaSource "
            'can. Set stream_mode = "schedule" in tidegate.toml'
        )
    return [WatchedSource(**source) for source in note["watched"]]


def _note_of(pipeline: str) -> str:
    return f"sources/{pipeline}.json"
