"""Opening of the sources that a pipeline describes, with a check that what opens is a source."""

from __future__ import annotations

from contextlib import suppress

from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.definition.source import SourceDescription
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.base import MEMBERS, MissingSource, Source
from tidegate.pipelines.storage import Warehouse


def open_source(description: SourceDescription, warehouse: Warehouse) -> Source:
    """Open a source at its newest version.

    Raises:
        MissingSource: there is no such source yet.
        Refused: it can't be opened, or what opens is no source.
    """
    source = description.open(warehouse)
    if not isinstance(source, Source):
        missing = [name for name in MEMBERS if not hasattr(source, name)]
        raise Refused(
            f"{type(description).__name__}({description.table!r}).open returned a {type(source).__name__}, which is no "
            f"source: it lacks {', '.join(missing)}. tidegate.pipelines.sources.base.Source says what each is for"
        )
    return source


def check_sources_exist(pipeline: Pipeline, warehouse: Warehouse) -> None:
    """Refuse a pipeline whose sources do not exist, before Spark is started.

    Raises:
        MissingSource: the message names the first source that is missing.
    """
    for part in pipeline.inputs:
        open_source(part.source, warehouse)


def missing_sources(pipeline: Pipeline, warehouse: Warehouse) -> dict[str, str]:
    """Return the places of those sources that do not exist yet, each with the message of the source."""
    missing = {}
    for part in pipeline.inputs:
        try:
            open_source(part.source, warehouse)
        except MissingSource as error:
            missing[warehouse.path(part.source.table)] = str(error)
    return missing


def sources_of_panes(pipeline: Pipeline, warehouse: Warehouse) -> list[str]:
    """Return the sources that are table results of a pipeline of windows, in which a window may have several rows."""
    panes = []
    for part in pipeline.inputs:
        if part.source.table.rstrip("/").rpartition("/")[2] != results.NAME:
            continue
        with suppress(MissingSource):
            if results.has_panes(open_source(part.source, warehouse).schema):
                panes.append(part.source.table)
    return panes
