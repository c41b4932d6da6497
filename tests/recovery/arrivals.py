"""The stream of the recovery tests: its rows, its runs and crashes, and the outcome that must not change."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.lake import DAY0, LOCAL, Clock, Lake, Row, hourly_pipeline
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stream import Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


USERS = 4

PIPELINE = hourly_pipeline(
    name="hours",
    watermark_by="user",
    allowed_lateness=timedelta(minutes=30),
    parallelism=2,
    max_parallelism=8,
    checkpoint_interval=timedelta(hours=1),
)
"""Each user is a source partition, and commits may be divided: epochs that end inside one are the hardest to resume.
Clocks that differ by minutes add no epoch.
"""

FILE_BY_FILE = EpochLimits(files=1)

NOTE = "position.json"

"""File in which `run` records the position, in the lake's folder."""


class Crash(Exception):
    """Ends a run in the middle, as a crash would."""


def commit_to(lake: Lake, number: int, files: int = 2) -> None:
    """Return one commit of the source, two hours later: rows in order, out of order, late, duplicated, unusable. Every
    file has all users, and the newest rows are in the first.
    """
    draw = random.Random(number)
    end = DAY0 + timedelta(hours=2 * number)
    rows: list[Row] = [
        (f"user{at % USERS}", end - timedelta(minutes=draw.randrange(1, 180)), draw.randrange(100)) for at in range(40)
    ]
    late: list[Row] = [(f"user{at}", end - timedelta(hours=7), at) for at in range(USERS if number > 2 else 0)]
    newest: list[Row] = [(f"user{at}", end, number) for at in range(USERS)]
    useless: list[Row] = [(None, end, 1), ("user0", None, 2)]
    half = len(rows) // 2
    if files == 1:
        lake.append_in_files([*rows, *rows[:5], *newest, *late, *useless])
    else:
        lake.append_in_files([*rows[:half], *newest, *late], [*rows[half:], *rows[:5], *useless])


def source_of(folder: Path, commits: int) -> Lake:
    """A lake with a source of this many commits of two files each, and one of a single file at the end."""
    lake = Lake(folder)
    for number in range(1, commits + 1):
        commit_to(lake, number)
    commit_to(lake, commits + 1, files=1)
    return lake


def copy_of(lake: Lake, folder: Path) -> Lake:
    """The same lake in another place, with a clock of its own: neither sees what happens to the other."""
    shutil.copytree(lake.folder, folder)
    return Lake(folder, Clock(lake.clock.now))


def in_bucket(lake: Lake, folder: Path, warehouse: str, options: dict[str, str]) -> Lake:
    """A lake whose warehouse is elsewhere, with the same clock."""
    folder.mkdir()
    return Lake(folder, Clock(lake.clock.now), warehouse, options)


def reading(table: str) -> Pipeline:
    """The stream over a source at another place."""
    return replace(PIPELINE, source=replace(cast("DeltaSource", PIPELINE.source), table=table))


def run(
    spark: Engine | SparkSession,
    lake: Lake,
    tell: Callable[[str], None] = lambda step: None,
    pipeline: Pipeline = PIPELINE,
    limits: EpochLimits = FILE_BY_FILE,
) -> None:
    """Stream everything there is, by default one file per epoch, and record the position next to the tables. The record
    is what a stream with a checkpoint of its own would write at its start, and after each epoch. Only a planted bug
    reads it.
    """
    planned: list[str] = []

    def note(manifest: Manifest) -> None:
        (lake.folder / NOTE).write_text(manifest.position_in(pipeline.source.table).model_dump_json())

    def hear(step: str) -> None:
        if step == "planned":
            if not planned and (head := read_snapshot(lake.tables(pipeline))) is not None:
                note(head.manifest)
            planned.append(step)
        tell(step)

    with lake.driver(spark, pipeline, hear) as driver:
        Stream(driver, note, limits).run_available()


def crash_after(spark: Engine | SparkSession, lake: Lake, step: str, epoch: int = 1, **options: Any) -> None:
    """Stream until a step of the n-th epoch is done."""
    planned: list[str] = []

    def tell(done: str) -> None:
        if done == "planned":
            planned.append(done)
        if done == step and len(planned) == epoch:
            raise Crash

    with pytest.raises(Crash):
        run(spark, lake, tell, **options)


@dataclass(frozen=True)
class Runs:
    """The same stream three times, without a JVM.

    Args:
        source: the stream before its start.
        begun: three epochs on, and before the one that ends a commit which was read by half.
        ended: the stream at its end, undisturbed.
    """

    source: Lake
    begun: Lake
    ended: Lake

    @classmethod
    def make(cls, folder: Path) -> Runs:
        """Create them in a folder."""
        source = source_of(folder / "source", commits=2)
        begun, ended = copy_of(source, folder / "begun"), copy_of(source, folder / "ended")
        crash_after(LOCAL, begun, STEPS[-1], epoch=3)
        run(LOCAL, ended)
        return cls(source, begun, ended)


def outcome(lake: Lake, pipeline: Pipeline = PIPELINE, without: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Return everything that readers can see and that later runs depend on, row by row, without what identifies a run.

    Args:
        lake: lake of the pipeline's tables.
        pipeline: name of the pipeline.
        without: other columns to leave out.
    """
    own = {
        "results": ["emitted_at"],
        "late": [],
        "rejects": [],
        "epochs": ["phases", "run_id", "started_at"],
        "state": ["manifest"],
    }
    found = {}
    for table, marks in own.items():
        rows = lake.rows(pipeline, table)
        rows = rows.drop_columns([name for name in (*marks, *without) if name in rows.column_names])
        found[table] = sorted(str(row) for row in rows.to_pylist() if row.get("key_group") != -1)
    manifest = lake.snapshot(pipeline).manifest
    found["position"] = [str((manifest.positions, manifest.watermark, manifest.partitions))]
    panes = [
        (row.get("window_id"), row.get("pane"), row.get("op")) for row in lake.rows(pipeline, "results").to_pylist()
    ]
    found["doubled panes"] = sorted(str(pane) for pane in panes if pane[0] is not None and panes.count(pane) > 1)
    return found


def rows_of(
    lake: Lake, pipeline: Pipeline = PIPELINE, without: tuple[str, ...] = ("epoch", "timeline")
) -> dict[str, list[str]]:
    """Return the contents of the tables without epoch numbers, which restores and the division into epochs change."""
    return {table: rows for table, rows in outcome(lake, pipeline, without).items() if table != "epochs"}


def differences(found: dict[str, list[str]], expected: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the rows that only one of two outcomes has, by table; empty if they are equal."""
    told = {}
    for name in expected:
        more = [f"+ {row}" for row in found[name] if row not in expected[name]]
        less = [f"- {row}" for row in expected[name] if row not in found[name]]
        if found[name] != expected[name]:
            told[name] = [*more, *less] or [f"{len(found[name])} rows, not {len(expected[name])}"]
    return told


STEPS = (
    "planned",
    "operated",
    "committed",
    "published results",
    "published late",
    "published rejects",
    "published epochs",
)
WITH_WINDOWS = (*STEPS[:-1], "published windows", STEPS[-1])
"""The steps of a pipeline that has table windows."""
