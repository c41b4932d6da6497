"""Wrong settings of an object store are named, with the way out, before or instead of what libraries say of them."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tidegate.pipelines.errors import BucketMissing, Refused, StoreFailed, TidegateError, UsageError
from tidegate.pipelines.storage.options import check
from tidegate.pipelines.storage.warehouse import Warehouse, active_files, arrow_schema, read_table

ROWS = pa.table({"n": pa.array(range(1000), pa.int64()), "name": [str(n) for n in range(1000)]})


def test_a_table_is_below_the_warehouse_unless_its_path_says_where_it_is(tmp_path: Path) -> None:
    assert Warehouse("/lake/").path("duty", "state") == "/lake/duty/state"
    assert Warehouse("/lake").path("/elsewhere/events") == "/elsewhere/events"
    assert Warehouse("/lake").path("s3://bucket/events") == "s3://bucket/events"


def test_a_table_is_read_at_the_version_it_was_opened_at(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, ROWS.slice(0, 10))
    handle = DeltaTable(path)
    write_deltalake(path, ROWS.slice(10), mode="append")
    warehouse = Warehouse(str(tmp_path))
    assert len(read_table(warehouse, handle)) == 10
    assert len(read_table(warehouse, warehouse.open(path))) == 1000
    assert read_table(warehouse, warehouse.open(path), ["n"], pc.field("n") >= 998)["n"].to_pylist() == [998, 999]


def test_a_column_that_a_file_is_older_than_is_null(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, ROWS.select(["n"]).slice(0, 2))
    write_deltalake(path, ROWS.slice(2, 1), mode="append", schema_mode="merge")
    rows = read_table(Warehouse(str(tmp_path)), DeltaTable(path)).sort_by("n")
    assert rows["name"].to_pylist() == [None, None, "2"]


def test_a_warehouse_may_have_spaces_and_letters_of_any_alphabet_in_its_path(tmp_path: Path) -> None:
    path = str(tmp_path / "my läke, 東京" / "t")
    write_deltalake(path, ROWS)
    warehouse = Warehouse(str(tmp_path / "my läke, 東京"))
    assert len(read_table(warehouse, warehouse.open(warehouse.path("t")))) == 1000


def test_an_empty_table_has_its_columns(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), ROWS.slice(0, 0))
    rows = read_table(Warehouse(str(tmp_path)), DeltaTable(str(tmp_path / "t")))
    assert (len(rows), rows.schema.names) == (0, ["n", "name"])


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_bytes(b"PAR1 no more")])
def test_a_file_that_is_gone_or_damaged_is_a_clear_refusal(tmp_path: Path, harm: object) -> None:
    path = tmp_path / "t"
    write_deltalake(str(path), ROWS)
    harm(next(path.glob("*.parquet")))  # type: ignore[operator]
    warehouse = Warehouse(str(tmp_path))
    with pytest.raises(Refused, match=f"a file of table {path} can't be read"):
        read_table(warehouse, warehouse.open(str(path)))


def test_a_file_in_which_a_bit_fell_over_is_refused(tmp_path: Path) -> None:
    """Also where no decoder would notice: every page has a checksum."""
    warehouse, path = Warehouse(str(tmp_path)), str(tmp_path / "t")
    numbers = pa.table({"n": pa.array([n * 7919 for n in range(1000)], pa.int64())})
    size = warehouse.write_parquet(path, "f.parquet", numbers, use_dictionary=False)
    file = tmp_path / "t" / "f.parquet"
    whole = bytearray(file.read_bytes())
    for at in range(200, size // 2, 97):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(Refused, match=f"a file of table {path} can't be read"):
            warehouse.read_files(path, ["f.parquet"], numbers.schema)


def test_sizes_tell_a_missing_file_and_a_folder_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").mkdir()
    sizes = Warehouse(str(tmp_path)).sizes(str(tmp_path), ["a", "b", "c"])
    assert sizes == {"a": 5, "b": None, "c": None}


def test_floats_have_no_parquet_statistics_because_nan_falsifies_them(tmp_path: Path) -> None:
    table = pa.table({"d": [1.0, float("nan")], "n": [1, 2], "l": [[1], [2]]})
    Warehouse(str(tmp_path)).write_parquet(str(tmp_path / "t"), "f.parquet", table)
    group = pq.ParquetFile(tmp_path / "t" / "f.parquet").metadata.row_group(0)
    described = {group.column(i).path_in_schema: group.column(i).is_stats_set for i in range(group.num_columns)}
    assert described == {"d": False, "n": True, "l.list.element": False}


def test_the_files_of_a_table_come_with_size_rows_and_bounds(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), ROWS)
    handle = DeltaTable(str(tmp_path / "t"))
    (file,) = active_files(handle)
    assert file["size_bytes"] == (tmp_path / "t" / file["path"]).stat().st_size
    assert (file["num_records"], file["min.n"], file["max.n"]) == (1000, 0, 999)
    assert arrow_schema(handle).names == ["n", "name"]


READER = """
import sys
from tidegate.pipelines.storage.warehouse import Warehouse, read_table
warehouse = Warehouse(sys.argv[1])
print(len(read_table(warehouse, warehouse.open(sys.argv[2]))))
"""


@pytest.mark.parametrize("times", [2, pytest.param(12, marks=pytest.mark.long)])
def test_a_short_process_that_reads_a_table_ends_with_0_every_time(tmp_path: Path, times: int) -> None:
    """Read through deltalake's own reader, more than half of such processes end with SIGABRT after success."""
    path = str(tmp_path / "t")
    for part in range(4):
        write_deltalake(path, ROWS.slice(part * 250, 250), mode="append")
    ended = [
        subprocess.run([sys.executable, "-c", READER, str(tmp_path), path], capture_output=True, text=True)
        for _ in range(times)
    ]
    assert [(done.returncode, done.stdout) for done in ended] == [(0, "1000\n")] * times


def test_a_file_and_then_its_name_are_made_to_outlive_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real(descriptor)

    monkeypatch.setattr("tidegate.pipelines.storage.warehouse.os.fsync", fsync)
    warehouse = Warehouse(str(tmp_path))
    path = str(tmp_path / "t")
    warehouse.write_parquet(path, "a.parquet", ROWS)
    warehouse.make_durable(path)
    write_deltalake(path, ROWS)
    DeltaTable(path).create_checkpoint()
    warehouse.make_commit_durable(path, 0)
    entries = [f"{0:020d}.json", f"{0:020d}.checkpoint.parquet", "_last_checkpoint", "_delta_log"]
    assert synced == ["a.parquet", "t", *entries]


def test_nothing_is_synced_in_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.pipelines.storage.warehouse.os.open", pytest.fail)
    Warehouse("s3://bucket").make_commit_durable("s3://bucket/t", 3)


GOOD = {"AWS_ACCESS_KEY_ID": "AKIA0123456789", "AWS_SECRET_ACCESS_KEY": "hush-0123456789", "AWS_REGION": "eu-west-1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aws_endpont_url": "https://a"}, "'aws_endpont_url' is unknown; did you mean 'aws_endpoint_url'?"),
        ({"aws_secret_key": "hush"}, "'aws_secret_key' is unknown; did you mean 'aws_secret_access_key'?"),
        ({"secret_key": "hush"}, "'secret_key' is unknown; did you mean 'secret_access_key'?"),
        ({"max_retry": "3"}, "'max_retry' is unknown; did you mean 'max_retries'?"),
        ({"timeout": "30"}, "storage option 'timeout': give a duration with its unit, such as \"500ms\""),
        ({"aws_endpoint_url": "127.0.0.1:9000"}, "aws_endpoint_url = '127.0.0.1:9000': the address"),
        ({"AWS_ENDPOINT_URL": "http://me:hush@store:9000"}, "'http://store:9000' is not encrypted. If"),
        ({"AWS_ENDPOINT_URL": "http://store", "AWS_ALLOW_HTTP": "false"}, 'aws_allow_http = "true"'),
        ({"AWS_ACCESS_KEY_ID": "AKIA"}, "aws_access_key_id but no aws_secret_access_key: set it as"),
        ({"aws_secret_access_key": "hush"}, "AWS_ACCESS_KEY_ID in the environment"),
    ],
)
def test_a_wrong_option_is_named_with_the_way_out(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        check("s3://lake", options)
    assert message in str(refused.value)
    assert "hush" not in str(refused.value)
    for path in ("s3://lake/events", "s3a://lake/events"):
        with pytest.raises(UsageError):
            Warehouse("s3://lake", options).open(path)
        with pytest.raises(UsageError):
            Warehouse("s3://lake", options).exists(path)


def test_options_of_other_stores_and_of_deltalake_are_taken() -> None:
    check("az://lake", {"azure_storage_account_key": "a", "account_nam": "b"})
    check("s3://lake", {**GOOD, "AWS_S3_ALLOW_UNSAFE_RENAME": "true", "AWS_REGION_DYNAMODB": "eu", "unlike_all": "1"})
    check("s3://lake", {"token": "t", "endpoint_url": "https://store", "backoff_config.base": "2", "timeout": "1m 30s"})
    # Settings in the environment of a project without a store refuse nothing.
    assert Warehouse("/lake", {"AWS_ENDPOINT_URL": "http://store"}).options_of("/lake/events") is None


@contextmanager
def answering(status: int, code: str, message: str) -> Iterator[Warehouse]:
    """A warehouse whose server gives one answer to all."""
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        do_PUT = do_GET  # noqa: N815 - the name of http.server

        def log_message(self, *given: object) -> None:
            """Write no line."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        place = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "AWS_ALLOW_HTTP": "true"}
        try:
            yield Warehouse("s3://lake/here", {**GOOD, **place, "max_retries": "0"})
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        ((403, "AccessDenied", "Access Denied"), StoreFailed, "docs/operations/object-stores.md lists the permissions"),
        ((404, "NoSuchBucket", "none"), BucketMissing, "there is no bucket 'lake', which s3://lake/here"),
    ],
)
def test_an_answer_of_the_store_is_told_with_its_code_and_the_way_out(
    answer: tuple[int, str, str], kind: type[TidegateError], message: str
) -> None:
    with answering(*answer) as warehouse:
        for request in (
            lambda: warehouse.open(warehouse.path("t")),
            lambda: warehouse.exists(warehouse.path("t")),
            lambda: warehouse.replace_file(warehouse.path("t"), "a", b"1"),
        ):
            with pytest.raises(kind) as failed:
                request()
            text = str(failed.value)
            assert message in text
            assert "<" not in text
            assert (answer[1] in text) == (kind is StoreFailed), text
    assert (BucketMissing.exit_code, StoreFailed.exit_code) == (3, 1)


def test_a_server_that_does_not_answer_is_told_with_the_setting_of_its_address() -> None:
    options = {**GOOD, "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true", "max_retries": "0"}
    with pytest.raises(StoreFailed, match=r"check its address .`aws_endpoint_url` under"):
        Warehouse("s3://lake", options).exists("s3://lake/t")
