"""A check that continues from an earlier one makes a request for each file that was written since, and for no other."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tests.store.proxy import Proxy
from tests.store.server import options_of
from tidegate.expectations.commits import follow
from tidegate.pipelines.definition import results
from tidegate.pipelines.ledger.tables.damaged_footers import check_footers
from tidegate.pipelines.ledger.tables.files import epoch_of

PIPELINE = hourly_pipeline()


def files_read(proxy: Proxy) -> set[str]:
    """Return the data files that were read since the last call."""
    paths = (request.path.partition("?")[0] for request in proxy.requests() if request.kind in ("GET", "HEAD"))
    return {Path(path).name for path in paths if path.endswith(".parquet") and "_delta_log" not in path}


def names(table: DeltaTable) -> set[str]:
    return {Path(uri).name for uri in table.file_uris()}


def test_only_files_written_since_are_compared(proxy: Proxy, bucket: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path, warehouse=f"s3://{bucket}/wh", options=options_of(proxy.endpoint))
    for hour in range(10, 14):
        lake.append(("ann", at(f"{hour}:10"), 1))
        lake.stream(LOCAL, PIPELINE)
    tables = lake.tables(PIPELINE)
    every = set[str]().union(*(names(tables.open(table)) for table in ("state", "results", "late", "epochs")))
    newest = lake.snapshot(PIPELINE).manifest.epoch
    files_read(proxy)
    check_footers(tables)
    assert files_read(proxy) >= every
    check_footers(tables, newest - 1)
    read = files_read(proxy)
    assert read
    assert {epoch_of(name) for name in read} <= {newest, None}
    assert len(read) < len(every)

    table = tables.open(results.NAME)
    first = names(tables.open(results.NAME, 2))
    files_read(proxy)
    follow(tables, results.NAME, table, since=2)
    assert files_read(proxy) == names(table) - first
