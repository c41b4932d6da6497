"""A look at a table in a bucket that nobody committed to is one request, however many entries its log has."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.store.proxy import Proxy
from tests.store.server import options_of
from tidegate.pipelines.ledger.tables.newest import newest
from tidegate.pipelines.storage.delta_log import FOLDER, entry_name
from tidegate.pipelines.storage.warehouse import Warehouse

ROWS = pa.table({"n": pa.array([1], pa.int64())})
VERSIONS = 8


@pytest.fixture
def warehouse(proxy: Proxy, bucket: str) -> Warehouse:
    """A warehouse with a table of some versions."""
    warehouse = Warehouse(f"s3://{bucket}/wh", options_of(proxy.endpoint))
    for _ in range(VERSIONS):
        a_commit(warehouse)
    return warehouse


def a_commit(warehouse: Warehouse) -> None:
    path = warehouse.path("t")
    write_deltalake(path, ROWS, mode="append", storage_options=warehouse.options_of(path))


def a_checkpoint(warehouse: Warehouse) -> None:
    warehouse.open(warehouse.path("t")).create_checkpoint()


def an_entry_in_the_place_of_another(warehouse: Warehouse) -> None:
    files, log = warehouse.objects(f"{warehouse.path('t')}/{FOLDER}")
    entry = f"{log}/{entry_name(VERSIONS - 1)}"
    version = files.version(entry)
    assert version is not None
    files.put(entry, version.content.replace(b'"WRITE"', b'"OTHER"'))


def the_newest_entry_removed(warehouse: Warehouse) -> None:
    files, log = warehouse.objects(f"{warehouse.path('t')}/{FOLDER}")
    files.remove(f"{log}/{entry_name(VERSIONS - 1)}")


def a_reader_that_moved_it(warehouse: Warehouse) -> None:
    newest(warehouse, warehouse.path("t")).load_as_version(1)


def test_a_second_look_is_one_request(warehouse: Warehouse, proxy: Proxy) -> None:
    first = newest(warehouse, warehouse.path("t"))
    proxy.requests()
    assert newest(warehouse, warehouse.path("t")) is first
    assert proxy.counted() == {"LIST": 1}


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "change",
    [a_commit, a_checkpoint, an_entry_in_the_place_of_another, the_newest_entry_removed, a_reader_that_moved_it],
)
def test_after_a_change_it_is_opened_again(warehouse: Warehouse, change: Callable[[Warehouse], None]) -> None:
    path = warehouse.path("t")
    before = newest(warehouse, path)
    change(warehouse)
    after = newest(warehouse, path)
    assert after is not before
    assert after.version() == DeltaTable(path, storage_options=warehouse.options_of(path)).version()


def test_tables_of_one_name_in_two_buckets_are_not_mixed_up(warehouse: Warehouse, proxy: Proxy) -> None:
    elsewhere = Warehouse(f"{warehouse.uri}/other", warehouse.options)
    a_commit(elsewhere)
    assert newest(warehouse, warehouse.path("t")).version() == VERSIONS - 1
    assert newest(elsewhere, elsewhere.path("t")).version() == 0
