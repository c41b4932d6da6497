"""Facts of the actions in a source's log: changes of data, commit times, and row counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
from deltalake import DeltaTable

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.commits import SourceFile
from tidegate.pipelines.storage.delta_log import Action
from tidegate.windowing.time import Millis


def changes_data(action: Action) -> bool:
    """Return True if an action adds or removes rows, rather than only rewriting them."""
    return any(kind in action and action[kind].get("dataChange", True) for kind in ("add", "remove"))


def commit_time(actions: list[Action]) -> Millis:
    """Return the commit's own time. File times are the last resort, because copying a table changes them."""
    for action in actions:
        info = action.get("commitInfo", {})
        if time := info.get("inCommitTimestamp") or info.get("timestamp"):
            return int(time)
    return max((action["add"]["modificationTime"] for action in actions if "add" in action), default=0)


def number_stored(add: Action) -> int | None:
    """Return the number of rows by the statistics of an add action, including those that a deletion vector removes."""
    rows = json.loads(add["stats"]).get("numRecords") if add.get("stats") else None
    return None if rows is None else int(rows)


def number_of_rows(add: Action) -> int | None:
    """Return the number of rows by the statistics of an add action, without those that a deletion vector removes."""
    rows = number_stored(add)
    return None if rows is None else rows - int((add.get("deletionVector") or {}).get("cardinality", 0))


def bounded(
    files: Sequence[SourceFile], table: DeltaTable, name: str, path_of: Callable[[str], str]
) -> tuple[SourceFile, ...]:
    """Return files with the bounds of a column of times that a version of their table records."""
    listed = pa.table(table.get_add_actions(flatten=True))
    paths = [path_of(path) for path in listed["path"].to_pylist()]
    oldest, newest = (
        dict(zip(paths, recorded_millis(listed, f"{bound}.{name}"), strict=True)) for bound in ("min", "max")
    )
    return tuple(replace(file, oldest=oldest.get(file.path), newest=newest.get(file.path)) for file in files)


def recorded_millis(files: pa.Table, name: str) -> list[Millis | None]:
    """Return a bound of times from the statistics of files, rounded down, or None where it is not recorded.

    Python's datetime can't hold every time of Delta, so these values are never converted to one. A column `a.b` and a
    field `b` of a struct `a` have the same name here, so the bounds of neither are used.
    """
    if files.column_names.count(name) != 1 or not pa.types.is_timestamp(files.schema.field(name).type):
        return [None] * len(files)
    zone = files.schema.field(name).type.tz
    micros = files[name].cast(pa.timestamp("us", tz=zone)).cast(pa.int64()).to_pylist()
    return [None if value is None else int(value) // 1000 for value in micros]


def unreadable_entry(path: str, version: int, error: FileNotFoundError | ValueError) -> Refused:
    """Return the error for a log entry that is missing or damaged."""
    if isinstance(error, FileNotFoundError):
        return Refused(
            f"source table {path}: the log entry of version {version} no longer exists (cleaned up, or the table was "
            "replaced), so the rows that it added are unknown. Start a new pipeline with a backfill of the table as it "
            "is now"
        )
    return Refused(
        f"source table {path}: the log entry of version {version} is damaged ({error}). Restore the entry from a copy, "
        "and run again; nothing in the pipeline has changed"
    )
