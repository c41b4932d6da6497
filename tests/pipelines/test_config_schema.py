"""The JSON schema of tidegate.toml accepts and refuses what the models do, and explains every key."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tidegate.pipelines.definition.config import Config, settings
from tidegate.pipelines.definition.config.file import json_schema

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).parents[2]
SCHEMA = json_schema()
ENTRY = '[pipelines.p]\nobject = "a:b"\nstart = 2024-03-01\n'


def keys(model: type[Any]) -> dict[str, Any]:
    found: dict[str, Any] = (SCHEMA if model is Config else SCHEMA["$defs"][model.__name__])["properties"]
    return found


OTHERS = [getattr(settings, name) for name in SCHEMA["$defs"]]
WITHOUT_TEXTS = {"pipelines", "notifier", "name", "uri"}
"""Keys that explain themselves, or that the page of the settings explains."""


@pytest.mark.parametrize("model", [Config, *OTHERS])
def test_every_key_is_in_it_with_its_default_and_what_it_means(model: type[Any]) -> None:
    fields = {name: field for name, field in model.model_fields.items() if not field.exclude}
    assert keys(model).keys() == fields.keys()
    assert {name for name, key in keys(model).items() if "description" not in key} <= WITHOUT_TEXTS
    for name, field in fields.items():
        if isinstance(field.default, bool | int | str):
            assert keys(model)[name]["default"] == field.default


def errors(toml: str) -> list[str]:
    """Return the faults that an editor would show, which takes dates for strings."""
    value = json.loads(json.dumps(tomllib.loads(toml), default=str))
    checker = jsonschema.Draft7Validator(SCHEMA, format_checker=jsonschema.FormatChecker())
    return [error.message for error in checker.iter_errors(value)]


@pytest.mark.parametrize(
    "file",
    [
        ROOT / "tidegate.toml",
        *sorted((ROOT / "deployment").rglob("tidegate.toml")),
        *sorted((ROOT / "pipelines" / "airflow").rglob("tidegate.toml")),
    ],
    ids=lambda file: file.relative_to(ROOT).as_posix(),
)
def test_the_settings_of_this_project_fulfil_it(file: Path) -> None:
    assert errors(file.read_text()) == []


@pytest.mark.parametrize(
    "toml",
    [
        "",
        ENTRY,
        ENTRY + "end = 2025-01-01T06:00:00Z",
        ENTRY
        + 'notifiers = [{ notifier = "a.b:C", channel = "x" }]\nsource_assets = ["s3://a", { name = "n", uri = "u" }]',
        ENTRY + "default_args = { executor_config = { pod_override = { a = 1 } }, execution_timeout = 2.5 }",
        "[metrics]\nprometheus = 9464",
        '[metrics]\nprometheus = "0.0.0.0:9464"',
        '[spark]\n"spark.driver.memory" = "2g"\n"spark.ui.enabled" = false',
    ],
)
def test_settings_that_the_models_accept_fulfil_it(toml: str) -> None:
    Config.model_validate(tomllib.loads(toml))
    assert errors(toml) == []


@pytest.mark.parametrize(
    "toml",
    [
        'warehaus = "w"',
        'engine = "flink"',
        ENTRY + 'owners = "me"',
        ENTRY + 'stream_mode = "never"',
        ENTRY + "default_args.retries = -1",
        ENTRY + 'catchup = "yes please"',
        ENTRY + '[pipelines.p.windows]\npartition_by = "week"',
        "[pipelines.p]\nstart = 2024-03-01",
    ],
)
def test_settings_that_the_models_refuse_do_not(toml: str) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Config.model_validate(tomllib.loads(toml))
    assert errors(toml)
