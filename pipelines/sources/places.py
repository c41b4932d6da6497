"""Check of folders: a pipeline's folder must not overlap with a source, and two inputs must not be the same table.

A VACUUM of a source removes every file in its folder that its log does not list, and so the tables of a pipeline there.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import PurePosixPath

from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.storage import Warehouse


def check_places(warehouse: Warehouse, pipeline: Pipeline) -> None:
    """Refuse a pipeline whose folder is, contains or lies in a source, and two inputs that are the same table.

    Args:
        warehouse: the warehouse of the pipeline's tables, and of sources that are named relative to it.
        pipeline: the pipeline; it may name sources by paths and URIs too.

    Raises:
        Refused: the message names both places.
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
                f"({table}), in which a pipeline has one position: a KeyedProcess over it sees all its rows, or give "
                "the second input a table of its own"
            )
        places.append(table)


def place(path: str) -> PurePosixPath:
    """Normalize a path or URI: no dots, links or doubled slashes, and `s3` for every S3 file system."""
    scheme, sign, rest = path.rpartition("://")
    scheme = re.sub(r"^s3[an]?$", "s3", scheme.lower())
    if not sign or scheme == "file":
        return PurePosixPath(os.path.realpath(rest))
    return PurePosixPath(f"/{scheme}:/{posixpath.normpath(re.sub('/+', '/', rest))}")
