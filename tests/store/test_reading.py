"""Views of a pipeline over a bucket, and a query that follows them: each task reads the bucket by itself."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.lake import at, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.pipelines.observe.reading.query import Query, values_of
from tests.store.server import S3Server, options_of
from tidegate import read_view
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.time import to_millis


@pytest.mark.long
def test_a_query_follows_a_pipeline_over_a_bucket(here: Path, server: S3Server, bucket: str) -> None:
    warehouse = Warehouse(f"s3://{bucket}/wh", options_of(server.endpoint))
    visits = ByHand(here.parent, session_pipeline(name="visits"), parallelism=1, elsewhere=warehouse)
    visits.epoch(("ann", at("10:00"), 1), ("bob", at("10:00"), 3), watermark=at("11:30"))
    query = Query(here.parent / "checkpoint", here.parent / "target", {"path": "visits", "config": str(here)})

    def final() -> Counter[tuple[object, ...]]:
        return Counter(tuple(values) for _, *values in values_of(read_view("visits", config=here)))

    query.run()
    before = visits.head()
    assert query.total() == final()
    assert len(final()) == 2
    visits.epoch(("ann", at("12:00"), 1), watermark=at("13:30") + timedelta(seconds=1))
    query.run()
    assert query.total() == final()
    assert len(final()) == 3
    restore(visits.tables, before, to_millis(at("20:00")))
    query.run()
    assert query.total() == final()
    assert len(final()) == 2
    late = read_view("visits", columns=["total"], where=pc.field("user") == "bob", config=here)
    assert late.to_pylist() == [{"total": 3}]
