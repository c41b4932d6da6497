"""All commands on a warehouse and a source in a bucket: their output and their rows are the same as on disk."""

from __future__ import annotations

import tarfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.expectations.broken import broken_by_rules
from tests.frozen import warehouse_0_3
from tests.lake import LOCAL, Lake, assert_same_windows
from tests.recovery import arrivals
from tests.recovery.arrivals import differences, run, source_of
from tests.store.lives import Life, modules_of_projects, rows_left, unequal, upload
from tests.store.server import SECRET, S3Server, options_of
from tidegate.expectations.pinned import pin
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ODD = "été 2024/a+b=c & ~d'(e)"
"""A folder as users name it: with spaces, non-English letters, and characters that a URL encodes."""

SLOW_COMMANDS = ("setup", "quality", "report", "3")
"""Words of commands that import much or need Java, and of the first restore: they are in the long form."""


@pytest.mark.parametrize(
    ("pipeline", "without"),
    [
        ("hours", SLOW_COMMANDS),
        pytest.param("hours", (), marks=pytest.mark.long),
        pytest.param("visits", ("reopen",), marks=pytest.mark.long),
    ],
)
def test_every_command_gives_on_s3_what_it_gives_on_disk(
    pipeline: str,
    without: tuple[str, ...],
    server: S3Server,
    bucket: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pipeline `hours` is computed by arrays, and `visits` by the row operator, whose late rows can't be reopened."""
    disk = Life(tmp_path / "disk")
    source_of(disk.folder, commits=2)
    upload(server, disk.folder / "warehouse" / "events", bucket, f"{ODD}/events")
    store = Life(tmp_path / "store", f"s3://{bucket}/{ODD}/", options_of(server.endpoint))
    with modules_of_projects():
        expected = list(disk.answers(capsys, pipeline, without))
    with modules_of_projects():
        for (command, on_disk), (_, on_store) in zip(expected, store.answers(capsys, pipeline, without), strict=True):
            assert list(unequal(on_store, on_disk)) == [], command
        assert differences(rows_left(store, pipeline), rows_left(disk, pipeline)) == {}, "rows of tables"
    assert not list(store.folder.glob("warehouse*")), "nothing is written beside the bucket"


@pytest.mark.long
def test_a_source_in_a_bucket_fills_a_warehouse_on_disk(server: S3Server, bucket: str, tmp_path: Path) -> None:
    disk = source_of(tmp_path / "disk", commits=2)
    upload(server, Path(disk.path("events")), bucket, f"{ODD}/events")
    mixed = arrivals.copy_of(disk, tmp_path / "mixed")
    mixed.options = options_of(server.endpoint)
    pipeline = arrivals.reading(f"s3://{bucket}/{ODD}/events")
    arrivals.run(arrivals.LOCAL, mixed, pipeline=pipeline)
    arrivals.run(arrivals.LOCAL, disk)
    assert arrivals.rows_of(mixed, pipeline)["results"] == arrivals.rows_of(disk)["results"]


@pytest.mark.long
def test_tables_that_an_older_version_wrote_on_disk_go_on_in_a_bucket(
    server: S3Server, bucket: str, tmp_path: Path
) -> None:
    """Copied file by file: no manifest, log or savepoint contains its location."""
    with tarfile.open(warehouse_0_3.ARCHIVE) as packed:
        packed.extractall(tmp_path, filter="data")
    upload(server, tmp_path / "warehouse", bucket, ODD)
    (tmp_path / "here").mkdir()
    moved = Lake(tmp_path / "here", warehouse=f"s3://{bucket}/{ODD}", options=options_of(server.endpoint))
    stayed, pipelines = Lake(tmp_path), (warehouse_0_3.HOURS, warehouse_0_3.SESSIONS)
    for lake in (moved, stayed):
        for rows in warehouse_0_3.NEXT:
            for table in ("events", "changing"):
                lake.append(*rows, table=table)
            for pipeline in pipelines:
                run(LOCAL, lake, pipeline=pipeline)
        tables = lake.tables(warehouse_0_3.SESSIONS)
        with Lease(tables, "restore", lake.clock):
            restore(tables, find_snapshot(tables, f"savepoint:{warehouse_0_3.SAVEPOINT}"), lake.clock())
            vacuum(tables, Retention(2, timedelta(0)), lake.clock())
        run(LOCAL, lake, pipeline=warehouse_0_3.SESSIONS)
    for pipeline in pipelines:
        assert warehouse_0_3.contents(moved, pipeline) == warehouse_0_3.contents(stayed, pipeline)
        assert broken_by_rules(pin(moved.tables(pipeline), pipeline)) == set()


@pytest.mark.long
def test_tasks_of_spark_read_and_write_a_bucket_without_a_connector_in_the_jvm(
    spark: SparkSession, server: S3Server, bucket: str, tmp_path: Path
) -> None:
    disk = source_of(tmp_path / "disk", commits=1)
    upload(server, Path(disk.path("events")), bucket, "here/events")
    store = arrivals.in_bucket(disk, tmp_path / "store", f"s3://{bucket}/here", options_of(server.endpoint))
    lines: list[str] = []

    def note_processes(step: str) -> None:
        for each in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                lines.append(" ".join(each.cmdline()))

    arrivals.run(spark, store, note_processes)
    assert any("java" in line for line in lines)
    assert SECRET not in "".join(lines)
    arrivals.run(spark, disk)
    assert len(disk.latest(arrivals.PIPELINE)) > 0
    assert_same_windows(store.latest(arrivals.PIPELINE), disk.latest(arrivals.PIPELINE))
    assert differences(arrivals.outcome(store), arrivals.outcome(disk)) == {}
