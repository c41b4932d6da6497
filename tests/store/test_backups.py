"""Backups within a bucket, between buckets, and between a bucket and a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake import Lake
from tests.recovery import arrivals
from tests.recovery.arrivals import PIPELINE, differences, outcome, source_of
from tests.recovery.without_spark import NoSpark
from tests.store.lives import upload
from tests.store.proxy import Proxy
from tests.store.server import S3Server, options_of
from tidegate.pipelines.backups.backup import create_backup
from tidegate.pipelines.backups.restored import restore_backup
from tidegate.pipelines.storage import Warehouse
from tidegate.pipelines.tables.pipeline_tables import PipelineTables


def test_tables_in_a_bucket_come_back_object_by_object(
    server: S3Server, proxy: Proxy, bucket: str, tmp_path: Path
) -> None:
    disk = source_of(tmp_path / "disk", commits=0)
    lake = begun(server, proxy, bucket, disk, tmp_path, epoch=1)
    tables = lake.tables(PIPELINE)
    place = PipelineTables(Warehouse(f"s3://{bucket}/backups", tables.warehouse.options), PIPELINE.name)
    before = objects(server, bucket)
    proxy.requests()
    made, copied = create_backup(tables, place, "first", lake.clock())
    assert copied == made.size
    assert proxy.counted()["COPY"] == made.files, "the store copies within a bucket by itself"
    tables.warehouse.delete_folder(tables.warehouse.path(PIPELINE.name))
    assert not tables.exist
    restore_backup(tables, place, made)
    assert objects(server, bucket) == before


@pytest.mark.long
@pytest.mark.parametrize("to", ["bucket", "folder"])
def test_a_stream_over_a_bucket_goes_on_from_a_backup(
    server: S3Server, proxy: Proxy, bucket: str, tmp_path: Path, to: str
) -> None:
    disk = source_of(tmp_path / "disk", commits=1)
    lake = begun(server, proxy, bucket, disk, tmp_path, epoch=2)
    tables = lake.tables(PIPELINE)
    server.make_bucket(f"{bucket}-backups")
    uri = f"s3://{bucket}-backups/here" if to == "bucket" else str(tmp_path / "backups")
    place = PipelineTables(Warehouse(uri, tables.warehouse.options), PIPELINE.name)
    made, _ = create_backup(tables, place, "first", lake.clock())
    arrivals.run(NoSpark(), lake)
    tables.warehouse.delete_folder(tables.warehouse.path(PIPELINE.name))
    restore_backup(tables, place, made)
    arrivals.run(NoSpark(), lake)
    arrivals.run(NoSpark(), disk)
    assert differences(outcome(lake), outcome(disk)) == {}


def begun(server: S3Server, proxy: Proxy, bucket: str, disk: Lake, folder: Path, epoch: int) -> Lake:
    """A lake in a bucket whose stream ended after some epochs."""
    upload(server, Path(disk.path("events")), bucket, "wh/events")
    lake = arrivals.in_bucket(disk, folder / "store", f"s3://{bucket}/wh", options_of(proxy.endpoint))
    arrivals.crash_after(NoSpark(), lake, "published epochs", epoch=epoch)
    return lake


def objects(server: S3Server, bucket: str) -> dict[str, bytes]:
    """The pipeline's objects, without the lease, which is nobody's after a loss."""
    keys = server.keys(bucket, f"wh/{PIPELINE.name}/")
    return {key: server.read(bucket, key) for key in keys if "/lease/" not in key}
