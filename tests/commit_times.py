"""Commit times that a test sets in a table's log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tidegate.windowing.time import Millis


def newest_entry(table: str) -> Path:
    """Return the newest entry of a table's log."""
    return max(Path(table, "_delta_log").glob("*[0-9].json"))


def date_commit(entry: Path, time: Millis, field: str = "timestamp", with_files: bool = False) -> None:
    """Give a commit a time.

    Args:
        entry: its entry in the log.
        time: the time.
        field: field of `commitInfo` for the time.
        with_files: True to also set it for the files that the commit added.
    """
    # The checksum that Hadoop stores for the file would no longer match.
    entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)
    actions: list[dict[str, Any]] = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"][field] = time
        if with_files and "add" in action:
            action["add"]["modificationTime"] = time
    entry.write_text("\n".join(map(json.dumps, actions)) + "\n")


def vacuum_with_no_hours(table: str) -> list[str]:
    """Remove the files that a table no longer needs, as VACUUM with 0 hours does; return their names.

    The removals are dated back first, because deltalake keeps a file that was removed in the same millisecond.
    """
    for entry in Path(table, "_delta_log").glob("*[0-9].json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        removals = [action["remove"] for action in actions if "remove" in action]
        for removal in removals:
            removal["deletionTimestamp"] = 0
        if removals:
            entry.write_text("\n".join(map(json.dumps, actions)) + "\n")
    return DeltaTable(table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
