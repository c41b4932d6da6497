"""The stream: structured streaming finds new data, and each of its batches becomes an epoch.

Spark's checkpoint is never trusted: it is made anew for every run from the position in the manifest,
and of a batch only its end in the source counts, never its number.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from pipelines.driver import Driver
from pipelines.epoch.plan import Source
from pipelines.epoch.plan_commits import ReadCommit, plan_commits
from pipelines.errors import Refused, TidegateError
from pipelines.snapshots.head import Snapshot, read_snapshot
from pipelines.snapshots.manifest import Manifest, Position

OnEpoch = Callable[[Manifest], None]


def stream_available(driver: Driver, work: Path, on_epoch: OnEpoch, options: dict[str, str] | None = None) -> None:
    """Run epochs over everything that is in the source now, then return.

    Args:
        driver: holds the lease.
        work: folder for Spark's checkpoint; it is removed at the end.
        on_epoch: hears of each epoch.
        options: of Spark's Delta source, such as maxFilesPerTrigger.

    Raises:
        Refused: the source is not what the position was taken in.
    """
    head = driver.recover()
    checkpoint = work / "checkpoints" / f"{driver.pipeline.name}-{uuid.uuid4().hex}"
    failure: list[Exception] = []

    def take(batch: DataFrame, number: int) -> None:
        try:
            manifest = _epoch(driver, end_of_batch(checkpoint, number))
            if manifest is not None:
                on_epoch(manifest)
        except Exception as error:
            # Spark wraps what comes out of here; the caller shall get the error itself.
            failure.append(error)
            raise

    path = driver.tables.warehouse.path(driver.pipeline.source.table)
    source = Source.open(driver.spark, driver.tables, driver.pipeline)
    position = _position(driver, head)
    if position.version >= source.log.head:
        return
    # Spark would stop at what is not append-only too, but in words that name no way on.
    source.log.commits(position.version)
    reader = driver.spark.readStream.format("delta").options(**(options or {}))
    if position.version < 0:
        # Version 0 can't be seeded; and without a starting version Delta would not keep the commits in order.
        reader = reader.option("startingVersion", 0)
    else:
        seed_checkpoint(checkpoint, source.log.table_id, position)
    frame = reader.load(path)
    try:
        query = (
            frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    except StreamingQueryException as error:
        raise failure[0] if failure else TidegateError(f"the stream stopped: {error}") from error
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def seed_checkpoint(folder: Path, table_id: str, position: Position) -> None:
    """Make a checkpoint that goes on after a position, as if a stream had come so far."""
    offset = {
        "sourceVersion": 1,
        "reservoirId": table_id,
        "reservoirVersion": position.version + 1,
        "index": position.files - 1,
        "isStartingVersion": False,
    }
    batch = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}
    for name, lines in (
        ("metadata", [{"id": str(uuid.uuid4())}]),
        ("offsets/0", [None, batch, offset]),
        ("commits/0", [None, {"nextBatchWatermarkMs": 0}]),
    ):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join("v1" if line is None else json.dumps(line) for line in lines))


def end_of_batch(checkpoint: Path, number: int) -> Position:
    """Where a batch ends: Spark writes the offset before it hands the batch out.

    A Delta offset (v, i) says that all versions before v are read, and the files of v up to index i.
    """
    for line in (checkpoint / "offsets" / str(number)).read_text().splitlines():
        if "reservoirVersion" in line:
            offset = json.loads(line)
            return Position(version=offset["reservoirVersion"] - 1, files=max(0, offset["index"] + 1))
    raise TidegateError(f"batch {number} of the stream has no offset of a Delta source in {checkpoint}")


def _epoch(driver: Driver, end: Position) -> Manifest | None:
    """The epoch of one batch; None where there is nothing in it that was not read before."""
    head = read_snapshot(driver.tables)
    source = Source.open(driver.spark, driver.tables, driver.pipeline)
    commits = _between(source, _position(driver, head), end)
    if not commits:
        return None
    plan = plan_commits(source, driver.tables, commits, head, driver.clock(), driver.shards)
    driver.tell("planned")
    return driver.run(plan)


def _between(source: Source, begin: Position, end: Position) -> list[ReadCommit]:
    """What lies between two positions, commit by commit."""
    taken: list[ReadCommit] = []
    for commit in source.log.commits(begin.version, end.version + (end.files > 0)):
        first = begin.files if commit.version == begin.version + 1 else 0
        last = end.files if commit.version > end.version else len(commit.files)
        if first < last:
            taken.append(ReadCommit(commit, commit.files[first:last], last, complete=last == len(commit.files)))
    if taken and not taken[-1].complete and not source.bound.may_split_commits:
        # The rest comes with a later batch, and then the commit is read whole.
        taken.pop()
    return taken


def _position(driver: Driver, head: Snapshot | None) -> Position:
    if head is None:
        return Position(version=-1)
    position = head.manifest.positions[driver.pipeline.source.table]
    if position.frontier is not None:
        raise Refused(
            f"pipeline {driver.pipeline.name!r} stands in the middle of a backfill, at epoch {head.manifest.epoch}: "
            "the hand-over from a backfill to a stream is not in this version. Give the stream a name of its own"
        )
    return position
