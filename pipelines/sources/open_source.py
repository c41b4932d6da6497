"""Open the sources that a pipeline describes, and check that each is a source in its own folder."""

from __future__ import annotations

import os
import posixpath
import re
from contextlib import suppress
from pathlib import PurePosixPath

from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.pipeline import Pipeline, SourceDescription
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.base import MEMBERS, MissingSource, Source
from tidegate.pipelines.storage.warehouse import Warehouse


def open_source(description: SourceDescription, warehouse: Warehouse) -> Source:
    """Open a source at its newest version.

    Raises:
        MissingSource: there is no such source yet.
        Refused: it can't be opened, or what opens is not a source.
    """
    source = description.open(warehouse)
    if not isinstance(source, Source):
        missing = [name for name in MEMBERS if not hasattr(source, name)]
        raise Refused(
            f"{type(description).__name__}({description.table!r}).open returned a {type(source).__name__}, which is "
            f"not a source: it lacks {', '.join(missing)}. tidegate.pipelines.sources.base.Source says what each is for"
        )
    return source


def check_sources_exist(pipeline: Pipeline, warehouse: Warehouse) -> None:
    """Refuse a pipeline whose sources do not exist, before starting Spark."""
    for part in pipeline.inputs:
        open_source(part.source, warehouse)


def missing_sources(pipeline: Pipeline, warehouse: Warehouse) -> dict[str, str]:
    """Return the paths of those sources that do not exist yet, each with the message of the source."""
    missing = {}
    for part in pipeline.inputs:
        try:
            open_source(part.source, warehouse)
        except MissingSource as error:
            missing[warehouse.path(part.source.table)] = str(error)
    return missing


def sources_of_panes(pipeline: Pipeline, warehouse: Warehouse) -> list[str]:
    """Return the sources that are results tables of windowed pipelines, where a window may have several rows."""
    panes = []
    for part in pipeline.inputs:
        if part.source.table.rstrip("/").rpartition("/")[2] != results.NAME:
            continue
        with suppress(MissingSource):
            if results.has_panes(open_source(part.source, warehouse).schema):
                panes.append(part.source.table)
    return panes


def check_places(warehouse: Warehouse, pipeline: Pipeline) -> None:
    """Refuse a pipeline whose folder is, contains or is inside a source, and two inputs that are the same table.

    A VACUUM of a source removes every file in its folder that its log does not list, including the pipeline's tables.
    """
    folder = place(warehouse.path(pipeline.name))
    places = []
    for number, part in enumerate(pipeline.inputs):
        table = place(warehouse.path(part.source.table))
        if table == folder or table in folder.parents or folder in table.parents:
            how = "is" if table == folder else "lies in" if table in folder.parents else "contains"
            raise Refused(
                f"the folder of pipeline {pipeline.name!r}, {folder}, {how} {'right.' if number else ''}source.table = "
                f"{part.source.table!r}: a VACUUM of the source would remove the pipeline's tables. Give the pipeline "
                "another name, or the warehouse another folder"
            )
        if table in places:
            raise Refused(
                f"right.source.table = {part.source.table!r} of pipeline {pipeline.name!r} is the first input's table "
                f"({table}), and a pipeline has only one position in a table: use a KeyedProcess, which sees all of "
                "its rows, or give the second input another table"
            )
        places.append(table)


def place(path: str) -> PurePosixPath:
    """Normalize a path or URI: no dots, links or doubled slashes, and `s3` for every S3 file system."""
    scheme, sign, rest = path.rpartition("://")
    scheme = re.sub(r"^s3[an]?$", "s3", scheme.lower())
    if not sign or scheme == "file":
        return PurePosixPath(os.path.realpath(rest))
    return PurePosixPath(f"/{scheme}:/{posixpath.normpath(re.sub('/+', '/', rest))}")
