"""Facts of the actions in a source's log: changes of data, commit times, and numbers of rows."""

from __future__ import annotations

import json
from typing import Any

from tidegate.pipelines.delta_log import Action
from tidegate.windowing.time import Millis, to_millis


def changes_data(action: Action) -> bool:
    """Return True if an action adds or removes rows, and does not only write them anew."""
    return any(kind in action and action[kind].get("dataChange", True) for kind in ("add", "remove"))


def commit_time(actions: list[Action]) -> Millis:
    """Return the commit's own time. File times are the last resort, because copying a table changes them."""
    for action in actions:
        info = action.get("commitInfo", {})
        if time := info.get("inCommitTimestamp") or info.get("timestamp"):
            return int(time)
    return max((action["add"]["modificationTime"] for action in actions if "add" in action), default=0)


def number_stored(add: Action) -> int | None:
    """Return the number of rows by the statistics of an add action, with those that a deletion vector removes."""
    rows = json.loads(add["stats"]).get("numRecords") if add.get("stats") else None
    return None if rows is None else int(rows)


def number_of_rows(add: Action) -> int | None:
    """Return the number of rows by the statistics of an add action, without those that a deletion vector removes."""
    rows = number_stored(add)
    return None if rows is None else rows - int((add.get("deletionVector") or {}).get("cardinality", 0))


def recorded_millis(value: Any) -> Millis | None:
    """Return a time in the statistics of a file; None if it is no time."""
    return to_millis(value) if hasattr(value, "year") and hasattr(value, "hour") else None
