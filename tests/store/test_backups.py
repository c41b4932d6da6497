"""Backups between buckets, and between a bucket and a folder: the store copies what stays in it by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

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


@pytest.mark.parametrize("to", ["bucket", pytest.param("folder", marks=pytest.mark.long)])
def test_tables_in_a_bucket_are_lost_and_come_back(
    server: S3Server, proxy: Proxy, bucket: str, tmp_path: Path, to: str
) -> None:
    disk = source_of(tmp_path / "disk", commits=1)
    upload(server, Path(disk.path("events")), bucket, "wh/events")
    lake = arrivals.in_bucket(disk, tmp_path / "store", f"s3://{bucket}/wh", options_of(proxy.endpoint))
    arrivals.crash_after(NoSpark(), lake, "published epochs", epoch=2)
    tables = lake.tables(PIPELINE)
    server.make_bucket(f"{bucket}-backups")
    uri = f"s3://{bucket}-backups/here" if to == "bucket" else str(tmp_path / "backups")
    place = PipelineTables(Warehouse(uri, tables.warehouse.options), PIPELINE.name)
    made, copied = create_backup(tables, place, "first", lake.clock())
    assert (made.epoch, copied) == (2, made.size)
    arrivals.run(NoSpark(), lake)
    tables.warehouse.delete_folder(tables.warehouse.path(PIPELINE.name))
    assert not tables.exist
    restore_backup(tables, place, made)
    arrivals.run(NoSpark(), lake)
    arrivals.run(NoSpark(), disk)
    assert differences(outcome(lake), outcome(disk)) == {}
