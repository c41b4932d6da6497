"""A warehouse below a prefix whose first folder has characters with a meaning in addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tests.store.server import S3Server, options_of
from tidegate.pipelines.ledger.snapshots.head import published_by
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, list_savepoints
from tidegate.pipelines.storage.warehouse import Warehouse


@pytest.mark.parametrize("prefix", ["a:b", "a=b;c:d/e"])
def test_the_records_of_commits_are_read(tmp_path: Path, server: S3Server, prefix: str) -> None:
    """Delta's own history is empty there."""
    bucket = f"prefixes-{len(prefix)}"
    server.make_bucket(bucket)
    by_hand = ByHand(tmp_path, elsewhere=Warehouse(f"s3://{bucket}/{prefix}", options_of(server.endpoint)))
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    assert published_by(by_hand.warehouse, by_hand.head().handle) is not None
    create_savepoint(by_hand.tables, by_hand.head(), "first", 1)
    assert [entry.name for entry in list_savepoints(by_hand.tables)] == ["first"]
