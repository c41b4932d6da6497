"""Wrong settings of an object store are named, with the remedy, before or instead of the libraries' own messages."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.hand_made import HandMade, column
from tidegate.pipelines.errors import BucketMissing, Refused, StoreFailed, TidegateError, UsageError
from tidegate.pipelines.storage.delta_log import (
    LAST_CHECKPOINT,
    checkpoint_files,
    checkpoint_name,
    checkpoint_versions,
    commit_info,
    entry_name,
    entry_versions,
    files_in,
    is_entry,
)
from tidegate.pipelines.storage.object_files import object_files
from tidegate.pipelines.storage.options import check, settings_of
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


def test_a_copy_stays_whole_until_it_is_copied_again(tmp_path: Path) -> None:
    """A hung rename copied a file again whose original had meanwhile been removed by the same command, run again."""
    warehouse, folder, target = Warehouse(str(tmp_path)), str(tmp_path / "t"), str(tmp_path / "copy")
    warehouse.write_parquet(folder, "a.parquet", ROWS)
    for share in (True, True, False):
        warehouse.copy_file(folder, "a.parquet", target, "a.parquet", share)
        assert [*warehouse.names(target)] == ["a.parquet"]
    warehouse.copy_file(folder, "a.parquet", target, "a.parquet", share=True)
    warehouse.copy_file(folder, "a.parquet", target, "a.parquet")
    assert pq.read_table(f"{folder}/a.parquet") == ROWS, "writing the copy must not change the original by a hard link"
    warehouse.delete_file(folder, "a.parquet")
    with pytest.raises(Refused, match="is missing"):
        warehouse.copy_file(folder, "a.parquet", target, "a.parquet")
    assert pq.read_table(f"{target}/a.parquet") == ROWS


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
    """Even where no decoder would notice: every page has a checksum."""
    warehouse, path = Warehouse(str(tmp_path)), str(tmp_path / "t")
    numbers = pa.table({"n": pa.array([n * 7919 for n in range(1000)], pa.int64())})
    size = warehouse.write_parquet(path, "f.parquet", numbers, use_dictionary=False).size
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
    """With deltalake's own reader, more than half of such processes end with SIGABRT after success."""
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
    check("az://lake", {"azure_storage_account_key": "a", "account_name": "b", "AWS_REGION": "eu", "max_retries": "1"})
    check("gs://lake", {"google_service_account": "/key.json", "skip_signature": "true"})
    check("s3://lake", {**GOOD, "AWS_S3_ALLOW_UNSAFE_RENAME": "true", "AWS_REGION_DYNAMODB": "eu", "unlike_all": "1"})
    check("s3://lake", {"token": "t", "endpoint_url": "https://store", "backoff_config.base": "2", "timeout": "1m 30s"})
    # Store settings in the environment don't affect a project without a store.
    assert Warehouse("/lake", {"AWS_ENDPOINT_URL": "http://store"}).options_of("/lake/events") is None


@pytest.mark.parametrize(
    ("uri", "options", "message"),
    [
        ("az://lake", {"account_nam": "b"}, "'account_nam' is unknown; did you mean 'account_name'?"),
        ("az://lake", {"azure_account_name": "b"}, "'azure_account_name' is unknown; did you mean 'account_name'?"),
        ("abfss://lake", {"azure_storage_acount_key": "hush"}, "did you mean 'azure_storage_account_key'?"),
        ("gs://lake", {"google_servise_account": "f"}, "did you mean 'google_service_account'?"),
        ("az://lake", {"azure_timeout": "30"}, "storage option 'azure_timeout': give a duration with its unit"),
    ],
)
def test_a_wrong_option_of_azure_or_google_is_named(uri: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        check(uri, options)
    assert message in str(refused.value)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "prefix", "options"),
    [
        ("abfss://lake@acme.dfs.core.windows.net/wh", "azure_", {"tenant_id": "t"}),
        ("abfss://lake/wh", "azure_storage_", {"account_name": "acme"}),
        ("gs://lake/wh", "google_", {"skip_signature": "true"}),
    ],
)
def test_settings_of_connections_have_the_prefix_of_their_store(uri: str, prefix: str, options: dict[str, str]) -> None:
    """With a prefix that it did not expect, obstore panicked."""
    given = {f"{prefix}{name}": value for name, value in {**options, "allow_http": "true"}.items()}
    files, key = object_files(uri, given)
    assert (files.address, key) == (uri.removesuffix("/wh"), "wh")
    assert settings_of(uri, given).client == {"allow_http": True}


@contextmanager
def answering(status: int, code: str, message: str) -> Iterator[Warehouse]:
    """A warehouse whose server answers every request in the same way."""
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
        ((403, "AccessDenied", "Access Denied"), StoreFailed, "s3:PutObject and s3:DeleteObject on the warehouse"),
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


# --- the log of a Delta table ------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


def test_no_other_module_names_a_file_of_a_log() -> None:
    others = [
        str(file.relative_to(ROOT))
        for package in ("pipelines", "expectations", "windowing", "dags")
        for file in sorted((ROOT / package).rglob("*.py"))
        if "_delta_log" in (text := file.read_text()) or ":020d" in text
    ]
    assert others == ["pipelines/storage/delta_log.py"]


def test_names_tell_their_version_and_kind() -> None:
    parts = f"{7:020d}.checkpoint.0000000001.0000000002.parquet"
    second_form = f"{8:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    names = [entry_name(2), entry_name(10), checkpoint_name(2), parts, second_form, LAST_CHECKPOINT, "damaged.json"]
    assert entry_versions(names) == [2, 10]
    assert checkpoint_versions(names) == [2, 7, 8]
    assert [name for name in names if is_entry(name)] == names[:2]


def test_entries_and_checkpoints_are_read_as_delta_wrote_them(tmp_path: Path) -> None:
    path = str(tmp_path / "events of today")
    for number in range(2):
        write_deltalake(path, pa.table({"n": [number]}), mode="append")
    write_deltalake(path, pa.table({"n": [5]}), mode="overwrite")
    table = DeltaTable(path)
    table.create_checkpoint()
    log = Warehouse(str(tmp_path)).log(path)
    actions = log.actions(2)
    assert commit_info(actions)["operation"] == "WRITE"
    assert {*files_in(actions, "add")} == {file["path"] for file in pa.table(table.get_add_actions()).to_pylist()}
    assert len(files_in(actions, "remove")) == 2
    assert log.active_in_checkpoint(2) == [*files_in(actions, "add")]
    assert log.info(3) is None
    assert log.info(2) is not None
    with pytest.raises(FileNotFoundError):
        log.actions(3)
    (Path(path) / "_delta_log" / entry_name(2)).write_text('{"commitInfo": {')
    with pytest.raises(ValueError, match="Expecting"):
        log.actions(2)


def _in_one_file(log: Path, rows: pa.Table, name: str) -> None:
    pq.write_table(rows, log / f"{name}.parquet")


def _in_parts(log: Path, rows: pa.Table, name: str) -> None:
    for number in (1, 2):
        part = rows.slice(0, 3) if number == 1 else rows.slice(3)
        pq.write_table(part, log / f"{name}.{number:010d}.{2:010d}.parquet")


def _with_an_id(log: Path, rows: pa.Table, name: str) -> None:
    pq.write_table(rows, log / f"{name}.{uuid.uuid4()}.parquet")


def _with_a_sidecar(log: Path, rows: pa.Table, name: str) -> None:
    (log / "_sidecars").mkdir()
    pq.write_table(rows, log / "_sidecars" / "adds.parquet")
    lines = [{"checkpointMetadata": {"version": 3}}, {"sidecar": {"path": "adds.parquet", "sizeInBytes": 1}}]
    (log / f"{name}.{uuid.uuid4()}.json").write_text("\n".join(map(json.dumps, lines)))


@pytest.mark.parametrize("write", [_in_one_file, _in_parts, _with_an_id, _with_a_sidecar])
def test_add_actions_are_read_from_checkpoints_of_every_form(tmp_path: Path, write: Callable[..., None]) -> None:
    table = HandMade(tmp_path / "events", [column("value", "long"), column("part", "string")], ["part"])
    rows = pa.table({"value": [1]})
    for text in ("a", "b", None):
        table.commit(table.file(rows, {"part": text}, f"{text}.parquet"))
    folder = tmp_path / "events" / "_delta_log"
    DeltaTable(str(tmp_path / "events")).create_checkpoint()
    checkpoint = folder / "00000000000000000003.checkpoint.parquet"
    actions = pq.read_table(checkpoint)
    checkpoint.unlink()
    write(folder, actions, "00000000000000000003.checkpoint")
    for version in range(4):
        (folder / f"{version:020d}.json").unlink()
    table.commit(table.file(rows, {"part": "c"}, "c.parquet"))
    names = [file.name for file in folder.iterdir()]
    log = Warehouse(str(tmp_path)).log(str(tmp_path / "events"))
    adds = log.added(4, names, ("partitionValues", "deletionVector"))
    assert {path: add["partitionValues"] for path, add in adds.items()} == {
        f"{text}.parquet": {"part": text} for text in ("a", "b", None, "c")
    }


def test_a_checkpoint_that_lacks_a_part_counts_for_nothing(tmp_path: Path) -> None:
    part = "00000000000000000003.checkpoint.0000000001.0000000002.parquet"
    whole = "00000000000000000003.checkpoint.0000000002.0000000002.parquet"
    assert checkpoint_files([part], 3) == []
    assert checkpoint_files([whole, part], 3) == [part, whole]
    assert checkpoint_files([whole, part], 4) == []
