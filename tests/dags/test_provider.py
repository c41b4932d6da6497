"""Tidegate as a provider of Airflow: its description, connections of its type, links and example DAGs."""

from __future__ import annotations

import json
import tomllib
from argparse import Namespace
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import airflow
import jsonschema
import pytest
from airflow._shared import module_loading
from airflow._shared.module_loading import import_string
from airflow.cli.commands import provider_command
from airflow.providers_manager import ProvidersManager
from airflow.sdk import DAG
from airflow.sdk._shared import module_loading as sdk_module_loading
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime
from airflow.serialization.serialized_objects import DagSerialization

from tests.dags.project import write_project
from tidegate.pipelines.airflow import project_dags
from tidegate.pipelines.airflow.connections import environment_of, options_of
from tidegate.pipelines.airflow.hook import WarehouseHook
from tidegate.pipelines.airflow.provider import get_provider_info
from tidegate.pipelines.airflow.report_link import PageLink
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.storage import credentials
from tidegate.pipelines.storage.credentials import FURTHER, complete

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "pipelines" / "airflow" / "example_dags"
INFO = get_provider_info()


def schema(name: str) -> Any:
    return json.loads((Path(airflow.__file__).parent / name).read_text())


def test_the_description_is_as_airflow_wants_it() -> None:
    jsonschema.validate(INFO, schema("provider_info.schema.json"))
    (connection_type,) = INFO["connection-types"]
    # Airflow checks its own providers against this stricter schema, which knows the fields of forms.
    strict = schema("provider.yaml.schema.json")["properties"]["connection-types"]["items"]
    jsonschema.validate(connection_type, strict)


def test_all_that_it_names_can_be_imported() -> None:
    modules = [
        module for kind in ("operators", "sensors", "hooks", "triggers") for module in INFO[kind][0]["python-modules"]
    ]
    for module in modules:
        import_module(module)
    for name in (*INFO["extra-links"], INFO["connection-types"][0]["hook-class-name"]):
        assert import_string(name)


def begin_again() -> None:
    """Make Airflow look for providers again; its commands and its tasks have separate lists of them."""
    for loading in (module_loading, sdk_module_loading):
        loading._get_grouped_entry_points.cache_clear()
    ProvidersManager()._cleanup()
    ProvidersManagerTaskRuntime()._cleanup()


@pytest.fixture
def providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProvidersManager]:
    """Airflow's list of providers, with Tidegate installed as pyproject.toml says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = tmp_path / f"{project['name']}-{project['version']}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"]["apache_airflow_provider"].items()
    lines = "\n".join(f"{name} = {place}" for name, place in points)
    (installed / "entry_points.txt").write_text(f"[apache_airflow_provider]\n{lines}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    begin_again()
    yield ProvidersManager()
    monkeypatch.undo()
    begin_again()


COMMANDS = {
    "list": (provider_command.providers_list, ["tidegate", "Flink-grade windows"]),
    "get": (provider_command.provider_get, ["tidegate.pipelines.airflow.hook.WarehouseHook"]),
    "links": (provider_command.extra_links_list, [f"report_link.{name}" for name in ("DocsLink", "PageLink")]),
    "behaviours": (provider_command.connection_field_behaviours, ["tidegate"]),
    "hooks": (provider_command.hooks_list, ["WarehouseHook", "tidegate_conn_id"]),
    "triggers": (provider_command.triggers_list, ["tidegate.pipelines.airflow.commits"]),
    "widgets": (provider_command.connection_form_widget_list, ["extra__tidegate__secret_storage_options"]),
}


def test_the_commands_of_airflow_show_it(providers: ProvidersManager, capsys: pytest.CaptureFixture[str]) -> None:
    for name, (command, shown) in COMMANDS.items():
        command(Namespace(output="json", provider_name="tidegate", full=True, verbose=False))
        printed = capsys.readouterr().out
        assert [text for text in shown if text not in printed] == [], name


def test_the_form_of_a_connection_hides_its_secrets_and_can_be_tested(providers: ProvidersManager) -> None:
    hook = ProvidersManagerTaskRuntime().hooks["tidegate"]
    assert hook is not None
    assert hook.connection_testable
    widgets = {
        name.removeprefix("extra__tidegate__"): widget.is_sensitive
        for name, widget in providers.connection_form_widgets.items()
        if name.startswith("extra__tidegate__")
    }
    assert {name for name, is_sensitive in widgets.items() if is_sensitive} == {
        "aws_session_token",
        "secret_storage_options",
    }
    assert set(widgets) >= {"warehouse", "region_name", "endpoint_url"}
    assert "host" in providers.field_behaviours["tidegate"]["hidden_fields"]


def connect(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Set connection `lake`."""
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "tidegate", **fields}))


def test_a_connection_gives_the_storage_options_that_tidegate_toml_leaves_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extra = {"warehouse": "s3://lake/wh", "region_name": "eu", "endpoint_url": "http://store:9000"}
    connect(monkeypatch, login="key", password="hidden", extra={**extra, "aws_session_token": "t"})
    assert options_of("lake") == {
        "aws_access_key_id": "key",
        "aws_secret_access_key": "hidden",
        "aws_session_token": "t",
        "aws_region": "eu",
        "aws_endpoint_url": "http://store:9000",
        "aws_allow_http": "true",
    }


@pytest.mark.parametrize("given", ['{"account_key": "k"}', {"account_key": "k"}])
def test_other_options_are_json_kept_as_a_text_or_as_an_object(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, extra={"secret_storage_options": given})
    assert options_of("lake") == {"account_key": "k"}


def test_a_command_gets_all_options_of_its_connection_by_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"aws_virtual_hosted_style_request": "true", "max_retries": "3"}
    connect(monkeypatch, login="key", password="hidden", extra={"secret_storage_options": json.dumps(others)})
    (tmp_path / "tidegate.toml").write_text('connection = "lake"\nstorage_options = { max_retries = "5" }\n')
    config = load_config(tmp_path / "tidegate.toml")
    monkeypatch.setattr(credentials, "_connections", [options_of])
    in_airflow = complete(config.storage_options, config.connection)
    variables = environment_of(str(config.file))
    monkeypatch.setattr(credentials, "_connections", [])
    for name, value in variables.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    in_command = complete(config.storage_options, config.connection)
    expected = {"aws_access_key_id": "key", "aws_secret_access_key": "hidden", **others, "max_retries": "5"}
    assert in_airflow == in_command == expected
    monkeypatch.setenv(FURTHER, "{hidden}")
    with pytest.raises(UsageError, match="TIDEGATE_STORAGE_OPTIONS is not a JSON object of strings") as refused:
        complete({})
    assert refused.value.__context__ is None, "the parser's error has the text"


@pytest.mark.parametrize("given", ["{account_key: hidden}", '["hidden"]', '{"account_key": 5}', {"key": {"a": "b"}}])
def test_options_that_can_not_be_read_are_refused_without_their_value(
    given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, extra={"secret_storage_options": given})
    with pytest.raises(UsageError, match="connection 'lake': secret_storage_options is not a JSON object") as refused:
        options_of("lake")
    assert "hidden" not in str(refused.value)


def test_the_test_of_a_connection_looks_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = WarehouseHook("lake")
    write_project(tmp_path)
    connect(monkeypatch, extra={"warehouse": str(tmp_path / "warehouse")})
    outcome, told = hook.test_connection()
    assert outcome, told
    assert "can be read and written to; it has " in told
    connect(monkeypatch, extra={"warehouse": str(tmp_path / "nowhere")})
    assert hook.test_connection() == (
        False,
        f"folder {tmp_path}/nowhere does not exist on this host, where the connection was tested",
    )
    assert not (tmp_path / "nowhere").exists()
    connect(monkeypatch, login="key")
    assert hook.test_connection()[0] is False
    assert "names no warehouse" in hook.test_connection()[1]


@pytest.mark.parametrize(
    ("warehouse", "extra", "reason"),
    [
        ("s3://key:hushhush@lake/wh", {}, "connection 'lake': warehouse: a URI can't have a key or a password: put"),
        ("hdfs://me:hushhush@node/wh", {}, "connection 'lake': warehouse: 'hdfs' is not an object store"),
        ("abfss://lake/wh?sig=hushhush", {}, "connection 'lake': warehouse: a URI can't have '?'"),
        ("az://lake/wh", {"account_key": "hushhush"}, "Generic MicrosoftAzure error: Account must be specified"),
        ("gs://lake/wh", {"service_account_key": "{hushhush"}, "Generic GCS error: GCP credential error: Unable to"),
    ],
)
def test_a_wrong_connection_has_a_plain_reason_without_its_secret(
    warehouse: str, extra: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, extra={"warehouse": warehouse, "secret_storage_options": json.dumps(extra)})
    outcome, told = WarehouseHook("lake").test_connection()
    assert not outcome
    assert told.startswith(reason)
    assert "hushhush" not in told
    assert "\n" not in told


def test_each_task_that_runs_a_command_links_to_the_pipeline_on_the_page(tmp_path: Path) -> None:
    dags = project_dags(write_project(tmp_path, reopen_schedule='"0 4 * * *"'))
    for task in (task for dag in dags.values() for task in dag.tasks if task.task_type == "TidegateOperator"):
        (link,) = [link for link in task.operator_extra_links if isinstance(link, PageLink)]
        assert link.get_link(task, ti_key=None).endswith("/tidegate/#sessions")
    assert PageLink().get_link(SimpleNamespace(), ti_key=None) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("example_*.py")), ids=lambda file: file.stem)
def test_an_example_is_parsed_as_airflow_does(file: Path) -> None:
    module = import_module(f"tidegate.pipelines.airflow.example_dags.{file.stem}")
    dags = [value for value in vars(module).values() if isinstance(value, DAG)]
    # DAGs created in a `with` statement are not kept by name; Airflow finds them through that statement.
    names = {dag.dag_id for dag in dags} or {"duty_by_day", "duty_after_every_check", "duty_of_every_hour"}
    assert names
    for dag in dags:
        DagSerialization.to_dict(dag)
