"""A branch in a bucket: the store copies its objects by itself, and it runs, is promoted and is deleted there."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.lake import LOCAL
from tests.recovery import arrivals
from tests.recovery.arrivals import PIPELINE, source_of
from tests.store.proxy import Proxy
from tests.store.server import S3Server
from tests.store.test_backups import begun
from tidegate.pipelines.definition.branch_settings import with_settings
from tidegate.pipelines.definition.branches import branches_of
from tidegate.pipelines.ledger.backups.branch import make_branch, remove_branch, remove_folder
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.promote import promote
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import millis


@pytest.mark.long
def test_a_branch_in_a_bucket_lives_there(server: S3Server, proxy: Proxy, bucket: str, tmp_path: Path) -> None:
    lake = begun(server, proxy, bucket, source_of(tmp_path / "disk", commits=1), tmp_path, epoch=1)
    tables = lake.tables(PIPELINE)
    branch = PipelineTables(tables.warehouse, f"{PIPELINE.name}@wide")
    settings = {"allowed_lateness": millis(timedelta(hours=2), "lateness")}
    proxy.requests()
    with Lease(branch, "branch", lake.clock) as lease:
        note = make_branch(tables, branch, "latest", settings, lake.clock(), lease.check)
    assert proxy.counted()["COPY"] > 0, "the store copies within a bucket by itself"
    pipeline = replace(with_settings(PIPELINE, settings), name=branch.pipeline)
    arrivals.run(LOCAL, lake, pipeline=pipeline)
    expected = lake.latest(pipeline)
    with Lease(tables, "promote", lake.clock), Lease(branch, "promote", lake.clock):
        promote(tables, branch, note, lake.clock())
    dropped = ["epoch", "timeline"]
    by = [("user", "ascending"), ("window_start", "ascending")]
    promoted = lake.latest(PIPELINE)
    assert len(promoted) > 0
    assert promoted.sort_by(by).drop_columns(dropped) == expected.sort_by(by).drop_columns(dropped)
    with Lease(branch, "branch --delete", lake.clock) as lease:
        remove_branch(branch, lease.check)
    remove_folder(branch)
    assert branches_of(tables.warehouse, PIPELINE.name) == []
    assert lake.latest(PIPELINE) == promoted
