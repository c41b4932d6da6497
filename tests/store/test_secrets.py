"""A store's secret is in nothing that a run leaves behind, prints or shows; and where a secret may come from."""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.recovery.arrivals import source_of
from tests.store.lives import Life, modules_of_projects, upload
from tests.store.proxy import Fault, Plan, Proxy
from tests.store.server import KEY, SECRET, S3Server, options_of, place_of
from tidegate.pipelines import airflow
from tidegate.pipelines.airflow import connections
from tidegate.pipelines.airflow.command import Command, CommandOutcome
from tidegate.pipelines.airflow.operator import TidegateOperator
from tidegate.pipelines.definition.config import Config, load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.project.cli import run
from tidegate.pipelines.storage import credentials
from tidegate.pipelines.storage.credentials import complete, masked
from tidegate.pipelines.storage.options import check, settings_of
from tidegate.pipelines.storage.warehouse import Warehouse

TOKEN = "token/Of+A/Session/0123456789"
HADOOP_SECRET = "hush/of+Hadoop/0123456789"
SPARK_WITH_A_SECRET = f"""[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "1g"
"spark.hadoop.fs.s3a.secret.key" = "{HADOOP_SECRET}"
"""
_PLACES = ("AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ALLOW_HTTP", "AWS_CONFIG_FILE")
COMMANDS = ("optimize", "quality", "report", "reopen")
"""Commands that are left out because they take long; the long form has them."""


@pytest.fixture(autouse=True)
def without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no credentials of this machine, and no Airflow."""
    for name in (
        "AWS_PROFILE",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        *_PLACES,
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(credentials, "_connections", [])
    monkeypatch.setattr(credentials, "_secrets", set())
    monkeypatch.setattr(credentials, "_maskers", [])


def with_the_secret(server: S3Server, bucket: str, folder: Path) -> Iterator[str]:
    """Yield each file and each object that contains the secret, in its bytes or in a value of a table."""
    files = [(str(file), file.read_bytes()) for file in folder.rglob("*") if file.is_file()]
    objects = [(key, server.read(bucket, key)) for key in server.keys(bucket)]
    for name, content in (*files, *objects):
        values = str(pq.read_table(pa.BufferReader(content)).to_pylist()) if name.endswith(".parquet") else ""
        if SECRET.encode() in content or SECRET in values or SECRET.replace("/", "\\/").encode() in content:
            yield name


@pytest.mark.long
@pytest.mark.parametrize("without", [("setup", *COMMANDS), pytest.param(("reopen",), marks=pytest.mark.long)])
def test_a_secret_in_tidegate_toml_is_in_nothing_that_the_commands_leave_or_print(
    without: tuple[str, ...],
    server: S3Server,
    bucket: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = source_of(tmp_path / "disk", commits=2)
    upload(server, Path(disk.path("events")), bucket, "here/events")
    life = Life(tmp_path / "project", f"s3://{bucket}/here", options_of(server.endpoint))
    with modules_of_projects():
        printed = [str(answer) for _, answer in life.answers(capsys, "hours", without)]
    assert SECRET not in "".join(printed)
    assert list(with_the_secret(server, bucket, life.folder)) == [str(life.file)], "only where it was written"
    config = load_config(life.file)
    assert SECRET not in repr(config) + str(config) + repr(warehouse_of(config))


def test_the_search_finds_a_secret_in_a_file_and_in_a_table(server: S3Server, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(f"key {SECRET}")
    rows = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [SECRET]}), rows, compression="zstd")
    server.write(bucket, "t/a.parquet", rows.getvalue().to_pybytes())
    assert list(with_the_secret(server, bucket, tmp_path)) == [str(tmp_path / "log.txt"), "t/a.parquet"]


def test_errors_of_a_store_show_no_secret(
    proxy: Proxy, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = {"timeout": "1s", "max_retries": "0"}
    life = Life(tmp_path / "project", f"s3://{bucket}/here", {**options_of(proxy.endpoint), **quick})
    for fault in (Fault.SLOW_DOWN, Fault.CUT, Fault.PRECONDITION_FAILED):
        proxy.set(Plan(fault=fault, times=1000))
        for debug in ((), ("--debug",)):
            with modules_of_projects():
                code, text = life.tidegate(capsys, "stream", "hours", "--available-now", *debug, json_too=False)
            assert (code != 0, SECRET in text) == (True, False), text


def test_a_message_with_a_secret_is_masked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    complete({"AWS_SECRET_ACCESS_KEY": SECRET, "aws_session_token": TOKEN, "azure_storage_sas_token": "sv=1&sig=x"})
    assert masked(f"signed {SECRET}, {TOKEN}; sv=1&sig=x, {KEY}") == f"signed ***, ***; ***, {KEY}"


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("proxy_url", "http://me:hush+hush@proxy:8080", "hush+hush"),
        ("AWS_ENDPOINT_URL", "https://me:hush%2Bhush@host", "hush+hush"),
        ("azure_storage_sas_key", "?sv=2024&sig=hush%2Fhush%3D", "hush/hush="),
        ("azure_storage_access_key", "hush/hush==", "hush%2Fhush%3D%3D"),
        ("master_key", "hush/hush", "hush%2Fhush"),
        ("google_service_account_key", '{"private_key": "hush\\nhush"}', '{\\"private_key\\": \\"hush\\\\nhush\\"}'),
        ("spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net", "hush/hush", "hush/hush"),
        ("spark.ssl.keyStorePassword", "hushhush", "hushhush"),
        ("spark.remote", "sc://host/;user_id=me;token=hushhush", "hushhush"),
    ],
)
def test_a_secret_is_masked_in_each_spelling(name: str, value: str, secret: str) -> None:
    credentials.remember({name: value})
    assert "hush" not in masked(f"in a message: {value} and {secret}")


def test_names_that_tell_no_secret_mask_nothing() -> None:
    credentials.remember(
        {
            "aws_region": "eu-central-1",
            "aws_access_key_id": KEY,
            "aws_web_identity_token_file": "/var/run/token",
            "spark.sql.shuffle.partitions": "number",
            "disk_encryption": "aes-256",
        }
    )
    assert (
        masked(f"eu-central-1 {KEY} /var/run/token number aes-256")
        == f"eu-central-1 {KEY} /var/run/token number aes-256"
    )


def test_airflows_logs_and_fields_show_no_secret_of_tidegate_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a task that reads tables itself; otherwise Airflow knows only the secrets of its connections."""
    masked_by_airflow: list[str] = []
    monkeypatch.setattr("airflow.sdk.log.mask_secret", masked_by_airflow.append)
    importlib.reload(airflow)
    options = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "aws_region": "eu-central-1"}
    for _ in range(2):
        warehouse_of(Config(root=tmp_path, warehouse="s3://bucket/here", storage_options=options))
    assert masked_by_airflow[0] == SECRET
    assert len(masked_by_airflow) == len(set(masked_by_airflow)), "each spelling once"


def test_credentials_of_the_environment_sign_every_request_and_tidegate_toml_needs_none(
    server: S3Server, proxy: Proxy, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = source_of(tmp_path / "disk", commits=1)
    upload(server, Path(disk.path("events")), bucket, "here/events")
    for name, value in {**place_of(proxy.endpoint), "AWS_ACCESS_KEY_ID": "ENVIRONMENTKEY"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    life = Life(tmp_path / "project", f"s3://{bucket}/here")
    proxy.requests()
    with modules_of_projects():
        assert run(["stream", "hours", "--available-now", "--json", "--config", str(life.file)]) == 0
    signed = {request.headers.get("authorization", "").partition("Credential=")[2][:14] for request in proxy.requests()}
    assert signed == {"ENVIRONMENTKEY"}


def test_the_most_particular_place_gives_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def key_of(options: dict[str, str]) -> tuple[str | None, str | None, str | None]:
        names = ("aws_access_key_id", "aws_session_token", "aws_region")
        usual = {credentials._usual(name): value for name, value in options.items()}
        return tuple(usual.get(name) for name in names)  # type: ignore[return-value]

    assert key_of(complete({})) == (None, None, None), "the platform's own chain"
    (tmp_path / "credentials").write_text(
        "[work]\naws_access_key_id = PROFILE\naws_secret_access_key = a%b\naws_session_token = t\n"
    )
    (tmp_path / "config").write_text("[profile work]\nregion = eu-west-3\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert key_of(complete({})) == ("PROFILE", "t", "eu-west-3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert key_of(complete({})) == ("ENVIRONMENT", None, "eu-west-3"), "a token goes with its key"
    credentials.read_connections_by(lambda name: {"aws_access_key_id": name, "aws_region": "eu-north-1"})
    assert key_of(complete({}, "aws_default")) == ("aws_default", None, "eu-north-1")
    assert key_of(complete({}))[0] == "ENVIRONMENT", "no connection is named"
    assert key_of(complete({"ACCESS_KEY_ID": "GIVEN", "region": "r"}, "aws_default")) == ("GIVEN", None, "r")
    assert key_of(complete({"aws_profile": "work"}, "aws_default")) == ("PROFILE", "t", "eu-west-3"), "of the file"
    assert "AWS_PROFILE" not in complete({"AWS_PROFILE": "work"}), "tasks elsewhere have its key, and not the profile"
    assert key_of(complete({"profile": "work", "access_key_id": "GIVEN"})) == ("GIVEN", None, "eu-west-3")


def test_the_default_profile_counts_for_a_bucket_of_s3_without_any_other_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deltalake uses this key, so our own files must be read with it too."""
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = DEFAULT\naws_secret_access_key = s\n")
    (tmp_path / "config").write_text("[default]\nregion = eu-west-3\nendpoint_url = http://127.0.0.1:9\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    of_profile = {
        "aws_access_key_id": "DEFAULT",
        "aws_secret_access_key": "s",
        "aws_region": "eu-west-3",
        "aws_endpoint_url": "http://127.0.0.1:9",
        "aws_allow_http": "true",
    }
    assert complete({}, uri="s3://b/wh") == of_profile
    assert complete({}, uri="/data/wh") == {}, "tasks of a warehouse in a folder get no key"
    assert complete({}, uri="gs://b/wh") == {}
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token")
    assert complete({}, uri="s3://b/wh") == {}, "the platform's chain takes this first"
    (tmp_path / "credentials").write_text("[work]\n")
    monkeypatch.delenv("AWS_WEB_IDENTITY_TOKEN_FILE")
    assert "aws_access_key_id" not in complete({}, uri="s3://b/wh"), "the role of the machine"


def test_an_endpoint_without_encryption_has_to_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"aws_endpoint_url": "http://127.0.0.1:9"}
    with pytest.raises(
        UsageError, match=r"allow it with aws_allow_http = .true.: .* AWS_ALLOW_HTTP in the environment"
    ):
        check("s3://b/wh", complete(given))
    check("s3://b/wh", complete({"endpoint": "http://127.0.0.1:9", "allow_http": "true"}))
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    check("s3://b/wh", complete(given))


def test_variables_of_another_store_are_not_mixed_with_the_key_and_the_endpoint_of_tidegate_toml(
    server: S3Server, proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The libraries send the environment's token with any key, and prefer its endpoint for S3 to any other."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    warehouse = Warehouse(f"s3://{bucket}/wh", complete(options_of(proxy.endpoint)))
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    files, key = warehouse.objects(warehouse.path("a"))
    files.put(key, b"1")
    assert os.environ["AWS_ENDPOINT_URL_S3"] == "http://127.0.0.1:9", "the environment stays as it was"
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    write_deltalake(warehouse.path("t"), pa.table({"a": [1]}), storage_options=warehouse.options)
    requests = proxy.requests()
    assert {request.method for request in requests} >= {"PUT", "GET"}
    assert [request.path for request in requests if "x-amz-security-token" in request.headers] == []


def test_a_token_of_the_environment_goes_only_with_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    assert complete({}) == {}
    complete({"aws_access_key_id": "GIVEN", "aws_session_token": "own"})
    assert os.environ["AWS_SESSION_TOKEN"] == TOKEN, "the given key has a token, which the libraries prefer"
    complete({"aws_access_key_id": "GIVEN"})
    assert "AWS_SESSION_TOKEN" not in os.environ, "deltalake has no option that says: no token"
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    credentials.read_connections_by(lambda name: {})
    complete({"aws_access_key_id": "GIVEN"})
    assert os.environ["AWS_SESSION_TOKEN"] == TOKEN, "a process of Airflow needs it, for example for its logs"


def test_the_endpoint_for_s3_in_the_environment_is_known_to_tasks_on_other_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://for-all")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://for-s3")
    assert complete({})["aws_endpoint_url"] == "https://for-s3"
    assert complete({"endpoint": "https://given"})["AWS_ENDPOINT_URL_S3"] == "https://given"


def test_variables_of_s3_are_no_options_of_other_stores() -> None:
    options = {"aws_access_key_id": KEY, "aws_region": "r", "google_service_account": "f", "timeout": "1s"}
    assert settings_of("gs://b/wh", options).config == {"google_service_account": "f"}
    with_proxy = settings_of("s3://b/wh", {**options_of("http://h"), "proxy_url": "http://me:hush@proxy"})
    assert not any(secret in f"{with_proxy} {with_proxy!r}" for secret in ("hush", SECRET))


def test_a_profile_without_a_key_of_its_own_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "sso")
    with pytest.raises(UsageError, match="aws configure export-credentials --profile sso --format env"):
        complete({})
    assert complete({"aws_access_key_id": "a"}) == {"aws_access_key_id": "a"}
    with pytest.raises(UsageError, match=r"aws_profile = 'other': .*, and leave aws_profile out"):
        complete({"aws_profile": "other"})


@pytest.fixture
def by_connection(monkeypatch: pytest.MonkeyPatch, server: S3Server, bucket: str, tmp_path: Path) -> Life:
    """A project whose tidegate.toml names an Airflow connection, and nothing else about the store."""
    connection = {
        "conn_type": "aws",
        "login": KEY,
        "password": SECRET,
        "extra": {"endpoint_url": server.endpoint, "region_name": "eu-central-1"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(connection))
    life = Life(tmp_path / "project", f"s3://{bucket}/here")
    life.file.write_text(f'connection = "aws_default"\n{life.file.read_text()}')
    return life


def test_a_connection_of_airflow_gives_key_endpoint_and_region(by_connection: Life, server: S3Server) -> None:
    credentials.read_connections_by(connections.options_of)
    assert warehouse_of(load_config(by_connection.file)).options == {
        "aws_access_key_id": KEY,
        "aws_secret_access_key": SECRET,
        "aws_endpoint_url": server.endpoint,
        "aws_region": "eu-central-1",
        "aws_allow_http": "true",
    }
    with pytest.raises(UsageError, match="Airflow has no such connection"):
        connections.options_of("nowhere")


def test_a_command_gets_a_connection_by_its_environment_and_no_one_can_read_it(
    by_connection: Life, monkeypatch: pytest.MonkeyPatch, server: S3Server, bucket: str, tmp_path: Path
) -> None:
    """Neither in the command lines of its processes, nor in what the operator renders, nor in the folder of the run."""
    environment = connections.environment_of(str(by_connection.file))
    monkeypatch.delenv("AIRFLOW_CONN_AWS_DEFAULT")
    operator = TidegateOperator(
        task_id="runs", arguments=["runs", "hours", "--json"], config=str(by_connection.file), pipeline="hours"
    )
    shown = [str(getattr(operator, name)) for name in operator.template_fields]
    words = [*operator.words, *operator.arguments, "--config", str(by_connection.file)]
    lines = command_lines_of(Command(words, environment, print), 60)
    assert any("-m tidegate runs hours" in line for line in lines)
    assert SECRET not in " ".join([*lines, *shown])
    assert list(with_the_secret(server, bucket, tmp_path)) == []


def command_lines_of(command: Command, seconds: float) -> set[str]:
    """Run a command to a good end, and return the command lines of its processes."""
    outcomes: list[CommandOutcome] = []
    running = threading.Thread(target=lambda: outcomes.append(command.run()))
    before = set(psutil.Process().children(recursive=True))
    running.start()
    lines: set[str] = set()
    deadline = time.monotonic() + seconds
    while running.is_alive() and time.monotonic() < deadline:
        for each in set(psutil.Process().children(recursive=True)) - before:
            with suppress(psutil.Error):
                lines.add(" ".join(each.cmdline()))
    running.join(seconds)
    assert [(outcome.exit_code, outcome.reason) for outcome in outcomes if outcome.exit_code] == []
    assert outcomes, "it ends in time"
    return lines


@pytest.mark.long
@pytest.mark.spark
def test_a_run_with_spark_shows_no_secret_on_a_command_line_and_leaves_none_in_a_file(
    server: S3Server, bucket: str, tmp_path: Path
) -> None:
    """Neither the key of the store nor the one in a Spark setting; its scratch files are searched, too."""
    disk = source_of(tmp_path / "disk", commits=2)
    upload(server, Path(disk.path("events")), bucket, "here/events")
    life = Life(tmp_path / "project", f"s3://{bucket}/here", options_of(server.endpoint))
    written = life.file.read_text().replace("[storage_options]", SPARK_WITH_A_SECRET + "[storage_options]")
    life.file.write_text(written.replace('engine = "local"', 'engine = "spark"'))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "tidegate", "stream", "hours", "--available-now"]
    environment = {"SPARK_LOCAL_DIRS": str(scratch), "TMPDIR": str(scratch)}
    lines = command_lines_of(Command([*command, "--config", str(life.file)], environment, print), 300)
    assert any("org.apache.spark.deploy.SparkSubmit" in line for line in lines), "the JVM was seen"
    assert any("pyspark.daemon" in line for line in lines), "and so were its Python workers"
    assert [line for line in lines if SECRET in line or HADOOP_SECRET in line] == []
    assert list(with_the_secret(server, bucket, tmp_path)) == [str(life.file)], "only where it was written"
    left = [str(file) for file in tmp_path.rglob("*") if file.is_file() and HADOOP_SECRET.encode() in file.read_bytes()]
    assert left == [str(life.file)]
