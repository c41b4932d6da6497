"""Versions of a Delta table that removed rows: UPDATE, DELETE, MERGE, overwrites and RESTORE."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.pipelines.delta_log import Action, commit_info
from tidegate.pipelines.errors import Refused


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
        "changed rows that may have been read. Write corrections as new rows, pass over such versions with "
        "changes='ignore' in the pipeline's DeltaSource, or start a new pipeline with a backfill of the table as it is "
        "now"
    )
