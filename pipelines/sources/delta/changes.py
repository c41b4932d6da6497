"""Versions of a Delta table that removed rows: UPDATE, DELETE, MERGE, overwrites and RESTORE."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from tidegate.pipelines.delta_log import Action, commit_info
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.commits import ChangedFiles, SourceFile
from tidegate.pipelines.sources.delta.actions import number_of_rows, number_stored
from tidegate.pipelines.sources.delta.reader import DELETED, DELETED_BESIDE, PARTITION
from tidegate.pipelines.sources.delta.table_facts import details_of

_File: TypeAlias = tuple[str, str]
"""Path and deletion vector of a file: with another vector it has other rows."""


def removes_data(actions: Sequence[Action]) -> bool:
    """Return True if a commit removed or changed rows, and did not only write them anew."""
    return any("remove" in action and action["remove"].get("dataChange", True) for action in actions)


def refusal_of(path: str, version: int, actions: Sequence[Action]) -> Refused:
    """Return the error for a version that removed or changed rows.

    Args:
        path: path of the table.
        version: the version.
        actions: its actions.
    """
    operation = commit_info(actions).get("operation")
    return Refused(
        f"source table {path} is not append-only: version {version} ({operation or 'unknown operation'}) removed or "
        "changed rows that may have been read. Give the pipeline's DeltaSource changes='correct', which corrects the "
        "windows of these rows, or changes='ignore', which passes over such versions; or start a new pipeline with a "
        "backfill of the table as it is now"
    )


def changed_files(
    commits: Iterable[tuple[int, Sequence[Action]]],
    path_of: Callable[[str], str],
    earlier: Callable[[], Mapping[str, Mapping[str, Any]]],
) -> ChangedFiles:
    """Return the files in which the version before some commits and the version of the last one differ.

    A file that came and went again in between is in neither list. Files that OPTIMIZE wrote anew are left out if no
    other commit touched them.

    Args:
        commits: the commits in order, each with its version and its actions.
        path_of: returns the path of a file in the file system, from its path in the log.
        earlier: returns the add actions of the older version by path, for removals that don't tell partition values.
    """
    gone: dict[_File, SourceFile] = {}
    came: dict[_File, SourceFile] = {}
    rewritten: list[tuple[set[_File], set[_File]]] = []
    adds: Mapping[str, Mapping[str, Any]] | None = None
    for _, actions in commits:
        removed, added = set[_File](), set[_File]()
        for action in actions:
            if (remove := action.get("remove")) is None:
                continue
            path, details = path_of(remove["path"]), details_of(remove)
            file = (path, _vector(remove))
            removed.add(file)
            if came.pop(file, None) is not None:
                continue
            if PARTITION not in details:
                adds = earlier() if adds is None else adds
                if path in adds:
                    details |= {name: value for name, value in details_of(adds[path]).items() if name == PARTITION}
            gone[file] = SourceFile(path, 0, stored=number_stored(remove), details=details, size=remove.get("size"))
        for action in actions:
            if (add := action.get("add")) is None:
                continue
            path = path_of(add["path"])
            file = (path, _vector(add))
            if not removed and not add.get("dataChange", True):
                # Statistics and row ids are written by adding a file again that is there already.
                continue
            added.add(file)
            if gone.pop(file, None) is None:
                came[file] = SourceFile(
                    path,
                    add["modificationTime"],
                    rows=number_of_rows(add),
                    stored=number_stored(add),
                    details=details_of(add),
                    size=int(add["size"]),
                )
        if removed and not removes_data(actions):
            rewritten.append((removed, added))
    for removed, added in rewritten:
        if removed <= gone.keys() and added <= came.keys():
            for file in removed:
                del gone[file]
            for file in added:
                del came[file]
    return _without_rows_of_both(gone, came)


def _without_rows_of_both(gone: Mapping[_File, SourceFile], came: Mapping[_File, SourceFile]) -> ChangedFiles:
    """Return the files; of one that only has another deletion vector, the rows that just one of the vectors removes."""
    sides = [{path: file for (path, _), file in side.items()} for side in (gone, came)]
    parts: list[tuple[SourceFile, ...]] = []
    for side, beside in (sides, sides[::-1]):
        files = []
        for path, file in side.items():
            if path not in beside:
                files.append(file)
            elif vector := beside[path].details.get(DELETED):
                files.append(replace(file, details={**file.details, DELETED_BESIDE: vector}))
        parts.append(tuple(files))
    return ChangedFiles(*parts)


def _vector(action: Mapping[str, Any]) -> str:
    """Return a text that tells the deletion vectors of a file apart; empty for none."""
    return json.dumps(action[DELETED], sort_keys=True) if action.get(DELETED) else ""
