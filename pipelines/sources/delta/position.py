"""The position in a Delta table, and the check that the table is still the one in which it was taken."""

from __future__ import annotations

from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.base import ReplacedSource

TABLE_ID = "table_id"
"""Field of a position: the id of the table, which a table that replaced it does not have."""


def check_position(path: str, identity: str, head: int, position: Position) -> None:
    """Check that a position belongs to a table, not to another table with the same name.

    Raises:
        ReplacedSource: the table was replaced.
        Refused: the table was set back to before the position, or a newer tidegate wrote the position.
    """
    if unknown := sorted(position.own.keys() - {TABLE_ID}):
        raise Refused(
            f"the position in source table {path} has a field that this tidegate does not know, {unknown[0]}: install "
            "the version that wrote it or a newer one, or restore a snapshot from before"
        )
    read = position.own.get(TABLE_ID) or identity
    if read != identity:
        raise ReplacedSource(
            f"source table {path} was replaced: it has another id ({identity}) than the one that was read up to "
            f"version {position.version} ({read}). Put the old table back; or go on with this one, `tidegate source "
            "reset PIPELINE --keep-results`; or start a new pipeline with a backfill of this one"
        )
    # Of a later version, `files` first files are read; another version in its place would lose as many files.
    newest = position.version + (position.files > 0)
    if newest > head:
        part = "into" if position.files else "up to"
        raise Refused(
            f"source table {path} is at version {head}, and was read {part} version {newest}: it was put back to an "
            "older state. Put the newer one back, or start a new pipeline with a backfill"
        )
