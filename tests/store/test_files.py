"""Files of a warehouse in a bucket: what is written can be read, with few requests; a failing store does no damage."""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tests.property import test_column_names, test_delta_features
from tests.store.lives import upload
from tests.store.proxy import Fault, Plan, Proxy
from tests.store.server import S3Server, options_of
from tidegate.pipelines.errors import Refused, StoreFailed, UsageError
from tidegate.pipelines.ledger.snapshots.head import published_by
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, list_savepoints
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.delta_log import LAST_CHECKPOINT
from tidegate.pipelines.storage.options import settings_of
from tidegate.pipelines.storage.warehouse import Warehouse

ROWS = pa.table({"n": pa.array(range(1000), pa.int64())})

QUICK = {"max_retries": "1", "retry_timeout": "5s", "timeout": "1s", "backoff_config.init_backoff": "10ms"}

"""Options that give up soon."""


@pytest.fixture
def warehouse(proxy: Proxy, bucket: str) -> Warehouse:
    """A warehouse behind the proxy, whose earlier requests are not counted."""
    proxy.requests()
    return Warehouse(f"s3://{bucket}/wh", options_of(proxy.endpoint))


def test_a_file_is_written_by_one_request_and_read_by_another(warehouse: Warehouse, proxy: Proxy) -> None:
    folder = warehouse.path("t")
    size = warehouse.write_parquet(folder, "a.parquet", ROWS).size
    assert proxy.counted() == {"PUT": 1}
    assert warehouse.read_files(folder, ["a.parquet"], ROWS.schema) == ROWS
    assert proxy.counted() == {"GET": 1}
    assert warehouse.sizes(folder, ["a.parquet", "b.parquet"]) == {"a.parquet": size, "b.parquet": None}
    assert proxy.counted() == {"HEAD": 2}
    assert (warehouse.names(folder), warehouse.folders(warehouse.uri)) == ({"a.parquet": size}, ["t"])
    assert proxy.counted() == {"LIST": 2}


def test_of_a_large_file_only_the_end_and_the_columns_are_read(warehouse: Warehouse, proxy: Proxy) -> None:
    draw = random.Random(7)
    wide = pa.table({name: [draw.getrandbits(60) for _ in range(60_000)] for name in ("a", "b", "c")})
    warehouse.write_parquet(warehouse.path("t"), "a.parquet", wide, use_dictionary=False)
    proxy.requests()
    read = warehouse.read_files(warehouse.path("t"), ["a.parquet"], wide.schema, ["b"])
    assert read == wide.select(["b"])
    ranges = [request.headers["range"] for request in proxy.requests()]
    assert ranges[0] == f"bytes=-{1 << 19}"
    assert 2 <= len(ranges) <= 3


def test_every_byte_of_a_file_that_is_read_in_ranges_is_right(warehouse: Warehouse) -> None:
    content = bytes(number * 31 % 251 for number in range((1 << 19) + 70_000))
    warehouse.replace_file(warehouse.path("t"), "a", content)
    filesystem, root = warehouse.filesystem(warehouse.path("t"))
    with filesystem.open_input_file(f"{root}/a") as file:
        assert file.size() == len(content)
        for start, length in ((0, 10), (69_990, 20), (70_000, 5), (len(content) - 3, 10), (len(content), 4)):
            file.seek(start)
            assert file.read(length) == content[start : start + length], start
        file.seek(0)
        assert file.read() == content


def test_an_empty_file_is_read(warehouse: Warehouse) -> None:
    warehouse.replace_file(warehouse.path("t"), "empty", b"")
    filesystem, root = warehouse.filesystem(warehouse.path("t"))
    assert filesystem.open_input_file(f"{root}/empty").read() == b""


def test_a_file_is_copied_by_the_store_and_from_and_to_a_disk(
    warehouse: Warehouse, proxy: Proxy, tmp_path: Path
) -> None:
    first, second = warehouse.path("t"), warehouse.path("savepoint")
    warehouse.write_parquet(first, "a.parquet", ROWS)
    proxy.requests()
    warehouse.copy_file(first, "a.parquet", second, "b.parquet")
    assert proxy.counted() == {"COPY": 1}
    warehouse.copy_file(second, "b.parquet", str(tmp_path / "t"), "c.parquet")
    assert pq.read_table(tmp_path / "t" / "c.parquet") == ROWS
    warehouse.copy_file(str(tmp_path / "t"), "c.parquet", first, "d.parquet")
    assert warehouse.read_files(first, ["d.parquet"], ROWS.schema) == ROWS
    with pytest.raises(Refused, match=r"file nothing\.parquet of table .* is missing"):
        warehouse.copy_file(first, "nothing.parquet", second, "b.parquet")


def test_a_folder_is_removed_with_all_below_it(warehouse: Warehouse) -> None:
    for name in ("a", "_delta_log/0", "part=x%20y+ä/b"):
        warehouse.replace_file(warehouse.path("t"), name, b"1")
    warehouse.replace_file(warehouse.path("tt"), "beside", b"1")
    warehouse.delete_folder(warehouse.path("t"))
    warehouse.delete_folder(warehouse.path("t"))
    assert warehouse.folders(warehouse.uri) == ["tt"]


def test_a_table_exists_once_its_log_has_an_entry(warehouse: Warehouse, proxy: Proxy) -> None:
    folder = warehouse.path("t")
    warehouse.replace_file(f"{folder}/_delta_log", LAST_CHECKPOINT, b"{}")
    assert not warehouse.exists(folder)
    warehouse.replace_file(f"{folder}/_delta_log", f"{0:020d}.json", b"{}")
    proxy.requests()
    assert warehouse.exists(folder)
    assert proxy.counted() == {"LIST": 1}


def test_a_missing_or_damaged_file_is_a_clear_refusal(warehouse: Warehouse) -> None:
    folder = warehouse.path("t")
    with pytest.raises(Refused, match=f"a file of table {folder} can't be read: there is no {folder}/a.parquet"):
        warehouse.read_files(folder, ["a.parquet"], ROWS.schema)
    warehouse.replace_file(folder, "a.parquet", b"PAR1 no more")
    with pytest.raises(Refused, match=f"a file of table {folder} can't be read"):
        warehouse.read_files(folder, ["a.parquet"], ROWS.schema)


@pytest.mark.parametrize("fault", [Fault.SLOW_DOWN, Fault.INTERNAL_ERROR, Fault.CUT, Fault.CUT_WITHIN])
def test_a_request_that_fails_once_is_repeated(warehouse: Warehouse, proxy: Proxy, fault: Fault) -> None:
    folder = warehouse.path("t")
    for kind, act in (
        ("PUT", lambda: warehouse.write_parquet(folder, "a.parquet", ROWS)),
        ("GET", lambda: warehouse.read_files(folder, ["a.parquet"], ROWS.schema)),
        ("LIST", lambda: warehouse.names(folder)),
    ):
        proxy.set(Plan(fault=fault, kind=kind))
        act()
        proxy.requests()
        assert proxy.failed.pop().startswith(f"{fault.value}: {kind}")


def test_a_store_that_goes_on_failing_is_an_error_to_be_tried_again_and_no_damage(proxy: Proxy, bucket: str) -> None:
    warehouse = Warehouse(f"s3://{bucket}/wh", {**options_of(proxy.endpoint), **QUICK})
    folder = warehouse.path("t")
    warehouse.write_parquet(folder, "a.parquet", ROWS)
    proxy.set(Plan(fault=Fault.SLOW_DOWN, times=1000))
    for act in (
        lambda: warehouse.read_files(folder, ["a.parquet"], ROWS.schema),
        lambda: warehouse.write_parquet(folder, "a.parquet", ROWS),
        lambda: warehouse.copy_file(folder, "a.parquet", folder, "b.parquet"),
        lambda: warehouse.names(folder),
        lambda: warehouse.exists(folder),
    ):
        with pytest.raises(StoreFailed, match=f"can't .* {folder}.*503") as caught:
            act()
        assert caught.value.exit_code == 1


def test_a_table_whose_store_does_not_answer_is_not_called_damaged(proxy: Proxy, bucket: str) -> None:
    warehouse = Warehouse(f"s3://{bucket}/wh", {**options_of(proxy.endpoint), **QUICK})
    tables = PipelineTables(warehouse, "visits")
    tables.create_one("results", ROWS.schema, {})
    proxy.set(Plan(fault=Fault.SLOW_DOWN, times=1000))
    with pytest.raises(StoreFailed, match=r"can't open table s3://.*/visits/results: .*503"):
        tables.open("results")
    proxy.set(Plan())
    warehouse.delete_file(f"{tables.path('results')}/_delta_log", f"{0:020d}.json")
    warehouse.replace_file(f"{tables.path('results')}/_delta_log", f"{1:020d}.json", b"{}")
    with pytest.raises(Refused, match="can't be opened"):
        tables.open("results")


def test_other_threads_run_while_a_store_is_slow(warehouse: Warehouse, proxy: Proxy) -> None:
    """Including the thread that renews the lease."""
    folder, beats, ended = warehouse.path("t"), [time.monotonic()], threading.Event()
    warehouse.write_parquet(folder, "a.parquet", ROWS)

    def beat() -> None:
        while not ended.wait(0.01):
            beats.append(time.monotonic())

    thread = threading.Thread(target=beat)
    thread.start()
    proxy.set(Plan(fault=Fault.SLOW, times=1000, hold=2.4))
    try:
        warehouse.exists(folder)
        warehouse.names(folder)
        warehouse.read_files(folder, ["a.parquet"], ROWS.schema)
    finally:
        ended.set()
        thread.join()
    assert max(after - before for before, after in itertools.pairwise(beats)) < 1.1


def test_options_are_sorted_for_the_library_of_our_own_files() -> None:
    settings = settings_of(
        "s3://lake",
        {
            **options_of("http://127.0.0.1:1"),
            **QUICK,
            "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
            "aws_session_token": "t",
            "region": "eu-west-1",
        },
    )
    assert set(settings.config) == {"endpoint", "region", "access_key_id", "secret_access_key", "session_token"}
    assert settings.client == {"allow_http": True, "timeout": "1s"}
    assert (settings.retry["max_retries"], settings.retry["retry_timeout"].seconds) == (1, 5)
    with pytest.raises(UsageError, match="storage option 'retry_timeout': give a duration"):
        settings_of("s3://lake", {"retry_timeout": "soon"})


def test_a_server_that_tests_start_keeps_a_condition(server: S3Server, bucket: str) -> None:
    """Without it, tests of the fence would prove nothing."""
    from obstore.exceptions import AlreadyExistsError
    from obstore.store import S3Store

    settings = settings_of("s3://", options_of(server.endpoint))
    store = S3Store(bucket, config=settings.config, client_options=settings.client)  # type: ignore[arg-type]
    store.put("a", b"1", mode="create")
    with pytest.raises(AlreadyExistsError):
        store.put("a", b"2", mode="create")


def test_a_file_is_moved_over_another_and_one_that_is_missing_is_told(warehouse: Warehouse) -> None:
    folder, aside = warehouse.path("t"), warehouse.path("t", "aside")
    warehouse.replace_file(folder, "a", b"new")
    warehouse.replace_file(aside, "b", b"old")
    assert warehouse.move_file(folder, "a", aside, "b")
    assert (warehouse.names(folder), warehouse.read_file(aside, "b")) == ({}, b"new")
    assert not warehouse.move_file(folder, "a", aside, "b")
    assert warehouse.read_file(aside, "b") == b"new"


def test_the_records_of_commits_are_read(tmp_path: Path, server: S3Server, bucket: str) -> None:
    """Delta's own history is empty below a folder with such a name."""
    by_hand = ByHand(tmp_path, elsewhere=Warehouse(f"s3://{bucket}/a=b;c:d/e", options_of(server.endpoint)))
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    assert published_by(by_hand.warehouse, by_hand.head().handle) is not None
    create_savepoint(by_hand.tables, by_hand.head(), "first", 1)
    assert [entry.name for entry in list_savepoints(by_hand.tables)] == ["first"]


Brought = Callable[[Path], Warehouse]

ROOT = "lake of é, a+b=c & d~'(e);@!$"


@pytest.fixture(scope="module")
def brought(server: S3Server) -> Brought:
    """Copies a folder into a bucket, below a separate folder."""
    server.make_bucket("drawn-sources")

    def bring(folder: Path) -> Warehouse:
        key = f"{ROOT}/{uuid.uuid4().hex}"
        upload(server, folder, "drawn-sources", key)
        return Warehouse(f"s3://drawn-sources/{key}", options_of(server.endpoint))

    return bring


@settings(max_examples=6)
@given(test_delta_features.files())
def test_a_table_with_drawn_features_is_read_in_a_bucket(brought: Brought, drawn: dict[str, Any]) -> None:
    test_delta_features.holds(drawn, brought)


@settings(max_examples=3)
@given(test_column_names.FILE_NAMES)
def test_files_of_any_name_are_read_in_a_bucket(brought: Brought, names: list[str]) -> None:
    test_column_names.placed(names, brought=brought)
