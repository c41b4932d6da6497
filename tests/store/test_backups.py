"""Backups within a bucket, between buckets, and between a bucket and a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.lake import LOCAL, Lake
from tests.recovery import arrivals
from tests.recovery.arrivals import PIPELINE, Crash, differences, outcome, source_of
from tests.store.lives import upload
from tests.store.proxy import Plan, Proxy
from tests.store.server import S3Server, options_of
from tests.store.test_commits import run_until_done
from tidegate.pipelines.ledger.backups import renamed
from tidegate.pipelines.ledger.backups.backup import create_backup, find_backup, restore_backup
from tidegate.pipelines.ledger.backups.cut import cut_now
from tidegate.pipelines.ledger.backups.renamed import copy_tables, finish, remove_tables
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import Warehouse


@pytest.mark.long
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
def test_a_pipeline_in_a_bucket_is_renamed_within_it(
    server: S3Server, proxy: Proxy, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the command was killed before the copy was compared, and again before the old tables were removed."""
    lake = begun(server, proxy, bucket, source_of(tmp_path / "disk", commits=0), tmp_path, epoch=1)
    old, pipeline = lake.tables(PIPELINE), replace(PIPELINE, name="hours_by_user")
    new, before = lake.tables(pipeline), outcome(lake)
    with monkeypatch.context() as planted:
        planted.setattr(renamed, "cut_now", lambda tables: raises() if tables == new else cut_now(tables))
        with pytest.raises(Crash):
            copy_tables(old, new)
    with monkeypatch.context() as planted:
        planted.setattr(Warehouse, "delete_folder", lambda warehouse, path: raises())
        with pytest.raises(Crash):
            remove_tables(old)
    copy_tables(old, new)
    remove_tables(old)
    finish(old, new)
    assert differences(outcome(lake, pipeline), before) == {}
    assert not [name for name in objects(server, bucket) if f"/{PIPELINE.name}/" in name or "renamed.json" in name]
    arrivals.run(LOCAL, lake, pipeline=pipeline)


def raises() -> Any:
    raise Crash


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
    arrivals.run(LOCAL, lake)
    tables.warehouse.delete_folder(tables.warehouse.path(PIPELINE.name))
    restore_backup(tables, place, made)
    arrivals.run(LOCAL, lake)
    arrivals.run(LOCAL, disk)
    assert differences(outcome(lake), outcome(disk)) == {}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 6))
def test_over_a_store_that_fails_at_random_commands_are_repeated_until_they_succeed(
    server: S3Server, proxy: Proxy, bucket: str, tmp_path: Path, seed: int
) -> None:
    disk = source_of(tmp_path / "disk", commits=1)
    quick = {"timeout": "1s", "max_retries": "3", "retry_timeout": "10s", "backoff_config.init_backoff": "10ms"}
    lake = begun(server, proxy, bucket, disk, tmp_path, epoch=2)
    lake.options |= quick
    tables = lake.tables(PIPELINE)
    place = PipelineTables(Warehouse(f"s3://{bucket}/backups", tables.warehouse.options), PIPELINE.name)
    before = objects(server, bucket)
    names = (f"try-{number}" for number in range(100))
    proxy.set(Plan(seed=seed, share=0.1, hold=1.2))
    run_until_done(lambda: create_backup(tables, place, next(names), lake.clock()))
    proxy.set(Plan())
    newest = find_backup(place, "latest")
    tables.warehouse.delete_folder(tables.warehouse.path(PIPELINE.name))
    proxy.set(Plan(seed=seed, share=0.1, hold=1.2))
    run_until_done(lambda: restore_backup(tables, place, newest))
    proxy.set(Plan())
    proxy.requests()
    assert proxy.failed
    assert objects(server, bucket) == before


def begun(server: S3Server, proxy: Proxy, bucket: str, disk: Lake, folder: Path, epoch: int) -> Lake:
    """A lake in a bucket whose stream ended after some epochs."""
    upload(server, Path(disk.path("events")), bucket, "wh/events")
    lake = arrivals.in_bucket(disk, folder / "store", f"s3://{bucket}/wh", options_of(proxy.endpoint))
    arrivals.crash_after(LOCAL, lake, "published epochs", epoch=epoch)
    return lake


def objects(server: S3Server, bucket: str) -> dict[str, bytes]:
    """The pipeline's objects, without the lease, which is nobody's after a loss."""
    keys = server.keys(bucket, f"wh/{PIPELINE.name}/")
    return {key: server.read(bucket, key) for key in keys if "/lease/" not in key}
