"""The checkpoint of a Spark query: made from positions before the query runs, and read for the end of each batch.

A Delta offset (v, i) means that all versions before v are read, and the files of v up to index i.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path

from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.manifest import Position

UNREAD = Position(version=-1)
"""Position of an unread source."""

_NO_OFFSET = "-"
"""Spark's line for a source without data."""


def seed_checkpoint(folder: Path, inputs: Sequence[tuple[str, Position]], beats: bool = False) -> None:
    """Make a checkpoint that continues after a position in each input, as if a stream had read so far.

    Args:
        folder: folder of the checkpoint.
        inputs: id and position of each table, in the order in which the query reads them.
        beats: True if the query reads a heartbeat source after them.
    """
    offsets = [
        _NO_OFFSET if position.version < 0 else json.dumps(_offset(table_id, position)) for table_id, position in inputs
    ]
    batch = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}
    for name, lines in (
        ("metadata", [json.dumps({"id": str(uuid.uuid4())})]),
        ("offsets/0", ["v1", json.dumps(batch), *offsets, *(["0"] if beats else [])]),
        ("commits/0", ["v1", json.dumps({"nextBatchWatermarkMs": 0})]),
    ):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines))


def _offset(table_id: str, position: Position) -> dict[str, object]:
    return {
        "sourceVersion": 1,
        "reservoirId": table_id,
        "reservoirVersion": position.version + 1,
        "index": position.files - 1,
        "isStartingVersion": False,
    }


def ends_of_batch(checkpoint: Path, number: int) -> list[Position]:
    """Return the end of a batch in each source, in the order of the query.

    Spark writes the offsets of a batch before it calls the batch's function. A source without data is unread.
    """
    lines = (checkpoint / "offsets" / str(number)).read_text().splitlines()
    # The lines are matched by their order, because a copied table has the same id as its original.
    ends = [_end(line) for line in lines[2:] if line == _NO_OFFSET or "reservoirVersion" in line]
    if not ends:
        raise TidegateError(f"batch {number} of the stream has no offset of a Delta source in {checkpoint}")
    return ends


def _end(line: str) -> Position:
    if line == _NO_OFFSET:
        return UNREAD
    offset = json.loads(line)
    return Position(
        version=offset["reservoirVersion"] - 1, files=max(0, offset["index"] + 1), table_id=offset["reservoirId"]
    )
