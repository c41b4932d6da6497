"""The checkpoint of a query of Spark's: made from positions before it runs, and read for the end of each batch.

A Delta offset (v, i) says that all versions before v are read, and the files of v up to index i.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path

from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.manifest import Position

UNREAD = Position(version=-1)
"""Position of a source of which nothing was read."""

_NO_OFFSET = "-"
"""What Spark writes for a source in which it found nothing."""


def seed_checkpoint(folder: Path, inputs: Sequence[tuple[str, Position]], beats: bool = False) -> None:
    """Make a checkpoint that goes on after a position in each input, as if a stream had come so far.

    Args:
        folder: the checkpoint.
        inputs: id and position of each table, in the order in which the query reads them.
        beats: whether a heartbeat is read after them.
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
    """Where a batch ends in each source, in the order of the query: Spark writes the offsets before it hands it out.

    A source in which nothing was ever found is unread.
    """
    lines = (checkpoint / "offsets" / str(number)).read_text().splitlines()
    # By their order and not by the table's id, which a copied folder shares with its original.
    found = [_end(line) for line in lines[2:] if line == _NO_OFFSET or "reservoirVersion" in line]
    if not found:
        raise TidegateError(f"batch {number} of the stream has no offset of a Delta source in {checkpoint}")
    return found


def _end(line: str) -> Position:
    if line == _NO_OFFSET:
        return UNREAD
    offset = json.loads(line)
    return Position(
        version=offset["reservoirVersion"] - 1, files=max(0, offset["index"] + 1), table_id=offset["reservoirId"]
    )
