"""The file tidegate.toml: where a command finds it, and its settings. A project in code has the same settings.

A faulty file may contain keys of an object store, even in the wrong place, and everyone who can see Airflow's import
errors can read the messages. So messages show only values of known pipeline fields.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from tidegate.pipelines.definition.config import settings
from tidegate.pipelines.definition.config.settings import (
    ANY_START,
    FILE_NAME,
    IN_CODE,
    Config,
    MetricsSettings,
    PipelineEntry,
)
from tidegate.pipelines.definition.environment import CONFIG_FILE as ENVIRONMENT
from tidegate.pipelines.definition.names import listed
from tidegate.pipelines.errors import UsageError


def find_config(start: Path | None = None) -> Path:
    """Return the path of tidegate.toml: the one that TIDEGATE_CONFIG names, or the nearest one from `start` upwards.

    Raises:
        UsageError: there is no such file.
    """
    if named := os.environ.get(ENVIRONMENT):
        return Path(named)
    folder = (start or Path.cwd()).absolute()
    for candidate in (folder, *folder.parents):
        if (candidate / FILE_NAME).is_file():
            return candidate / FILE_NAME
    raise UsageError(
        f"no {FILE_NAME} in {folder} or above: change to your project's folder, give --config, or set {ENVIRONMENT}"
    )


def load_config(file: Path | None = None) -> Config:
    """Read tidegate.toml.

    A faulty entry of a pipeline affects only that pipeline: `Config.entry` raises its error, and `Config.check_entries`
    those of all pipelines.

    Raises:
        UsageError: the file is missing, or the shared settings are faulty; the error names file and field, but never a
        value that may be secret.
    """
    by_environment = f", which {ENVIRONMENT} names" if file is None and os.environ.get(ENVIRONMENT) else ""
    path = file or find_config()
    raw = _toml_of(path, by_environment)
    file = path.absolute()
    if reserved := sorted({"root", "file_name", "values", "session", "processes", "faulty"} & raw.keys()):
        raise UsageError(f"{file}: {reserved[0]}: unknown key")
    given = {**raw, "root": file.parent, "file_name": file.name}
    try:
        return Config.model_validate(given)
    except ValidationError as error:
        faults = error.errors()
    # Raised outside the handler: pydantic's error contains the values, which a chained traceback would show.
    if any(fault["loc"][:1] != ("pipelines",) or len(fault["loc"]) == 1 for fault in faults):
        raise UsageError(f"{file}: {describe(faults)}")
    by_pipeline: dict[str, list[Mapping[str, Any]]] = {}
    for fault in faults:
        by_pipeline.setdefault(str(fault["loc"][1]), []).append(fault)
    sound = {name: entry for name, entry in raw["pipelines"].items() if name not in by_pipeline}
    faulty = {name: describe(its) for name, its in by_pipeline.items()}
    return Config.model_validate({**given, "pipelines": sound, "faulty": faulty})


def _toml_of(path: Path, by_environment: str) -> dict[str, Any]:
    """Read a TOML file. `by_environment` says in messages where its name comes from."""
    file, text = path.absolute(), ""
    try:
        text = file.read_text()
        return tomllib.loads(text)
    except FileNotFoundError as error:
        relative = f"; {path} is relative to the current folder, {Path.cwd()}"
        raise UsageError(f"there is no {file}{by_environment}{'' if path.is_absolute() else relative}") from error
    except IsADirectoryError as error:
        raise UsageError(f"{file} is a folder{by_environment}: name the file, such as {file / FILE_NAME}") from error
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: the file is not UTF-8 text, as TOML requires") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: {error}{unquoted(text, str(error))}") from error


def config_of(
    pipelines: Mapping[str, object], entries: Mapping[str, Mapping[str, object]], settings: Mapping[str, object]
) -> Config:
    """Return the settings of a project that is described in code, without a file.

    Args:
        pipelines: the Pipeline values by name.
        entries: by pipeline, fields as in `[pipelines.NAME]` of tidegate.toml.
        settings: the other fields of the file; None for the default.

    Raises:
        UsageError: a setting is faulty, or names a pipeline that is not given.
    """
    if strangers := sorted(entries.keys() - pipelines.keys()):
        raise UsageError(f"settings names {strangers[0]!r}, but pipelines has {listed(sorted(pipelines))}")
    fields = {name: {"start": ANY_START, **entries.get(name, {}), "object": IN_CODE} for name in pipelines}
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        return Config.model_validate({"root": Path.cwd(), **given, "pipelines": fields, "values": dict(pipelines)})
    except ValidationError as error:
        faults = error.errors()
    raise UsageError(f"Project: {describe(faults)}")


_SECTIONS = ("storage_options", "spark")
"""Tables of the project whose values may be secrets."""
_TABLES: Mapping[tuple[int | str, ...], type[BaseModel]] = {
    ("default_args",): settings.TaskArguments,
    ("suites",): settings.Suites,
    ("windows",): settings.WindowsTable,
}
"""Keys of a pipeline that are tables."""
_EXPECTED = {
    "string_type": "give a string in quotes",
    "bool_type": "give true or false",
    "bool_parsing": "give true or false",
    "int_type": "give a whole number",
    "int_parsing": "give a whole number",
    "int_from_float": "give a whole number",
    "float_type": "give a number",
    "float_parsing": "give a number",
    "tuple_type": 'give a list, such as ["a", "b"]',
    "dict_type": "make it a table: [{field}]",
    "model_type": "make it a table: [{field}]",
    "model_attributes_type": "make it a table: [{field}]",
    "missing": "required field is missing",
}
_EXAMPLES = {
    "object": 'such as "package.module:name"',
    "start": "such as 2024-03-01 or 2024-03-01T06:00:00Z",
    "end": "such as 2024-03-01 or 2024-03-01T06:00:00Z",
}


def describe(faults: Sequence[Mapping[str, Any]]) -> str:
    """Return a message that names each faulty field and its error. `faults` are the errors that pydantic found."""
    messages: dict[str, str] = {}
    for fault in faults:
        place = _place(fault["loc"])
        # A value that fits none of several types causes an error for each; the first is enough.
        messages.setdefault(".".join(place), _fault(place, fault) if place else _own_words(fault))
    return "; ".join(f"{field}: {message}" if field else message for field, message in messages.items())


def unquoted(text: str, message: str) -> str:
    """Return advice to add to the parser's message if a value lacks quotes or is a Python boolean; else "".

    The value may be a secret, so only its key is shown.

    Args:
        text: the content of the file.
        message: tomllib's message, which ends with the place of the error.
    """
    place = re.search(r"at line (\d+), column", message)
    line = text.splitlines()[int(place[1]) - 1] if place else ""
    bare = re.fullmatch(r"\s*(?P<key>[\w-]+)\s*=\s*(?P<value>[A-Za-z].*)", line)
    if bare is None:
        return ""
    key, value = bare["key"], bare["value"].partition("#")[0].strip()
    if value.lower() in ("true", "false"):
        return f": write {key} = {value.lower()}"
    field = Config.model_fields.get(key) or PipelineEntry.model_fields.get(key)
    choices = get_args(field.annotation) if field is not None and get_origin(field.annotation) is Literal else ()
    values = " or ".join(f'"{each}"' for each in choices or ("...",))
    return f": write a string in quotes: {key} = {values}"


def _place(loc: tuple[int | str, ...]) -> tuple[str, ...]:
    """Return the keys that lead to a value, without the parts that pydantic inserts for its types."""
    depth = 2 if loc[:1] != ("pipelines",) else 4 if loc[2:3] in _TABLES else 3
    return tuple(str(part) for part in loc[:depth] if part != "[key]")


def _fault(place: tuple[str, ...], fault: Mapping[str, Any]) -> str:
    kind, key = fault["type"], place[-1]
    if kind == "extra_forbidden":
        model = PipelineEntry if place[0] == "pipelines" else MetricsSettings if len(place) > 1 else Config
        return _unknown(key, _TABLES.get(place[2:3], model))
    field = ".".join(place)
    if place[0] in _SECTIONS and len(place) > 1:
        return f"give a string in quotes{'' if place[0] == _SECTIONS[0] else ', a whole number, true or false'}"
    expected = _EXPECTED.get(kind, "").format(field=field) or _limit(kind, fault.get("ctx") or {}) or _own_words(fault)
    example = f", {_EXAMPLES[key]}" if kind != "value_error" and len(place) == 3 and key in _EXAMPLES else ""
    shown = f" (given {fault['input']!r})" if kind != "missing" and _may_be_shown(place, fault["input"]) else ""
    return f"{expected}{example}{shown}"


def _unknown(key: str, model: type[BaseModel]) -> str:
    names = [name for name, field in model.model_fields.items() if not field.exclude]
    close = get_close_matches(key, names, 1)
    return f"unknown key; did you mean {close[0]}?" if close else f"unknown key; the keys here are {', '.join(names)}"


def _limit(kind: str, given: Mapping[str, Any]) -> str:
    words = {"greater_than_equal": ("ge", "at least"), "greater_than": ("gt", "more than")}
    words |= {"less_than_equal": ("le", "at most")}
    if kind in words:
        name, word = words[kind]
        return f"give {word} {given[name]:g}"
    return f"give {given['expected']}" if kind == "literal_error" else ""


def _own_words(fault: Mapping[str, Any]) -> str:
    """Return the message of this package's own check, or else pydantic's message."""
    return str(fault["msg"]).removeprefix("Value error, ")


def _may_be_shown(place: tuple[str, ...], value: object) -> bool:
    return place[0] == "pipelines" and len(place) == 3 and not isinstance(value, Mapping | list)


SCHEMA_FILE = "tidegate.schema.json"
"""Name of the schema's file in a project that a new project gets."""


def json_schema() -> dict[str, Any]:
    """Return the schema: every key of tidegate.toml with its type, default and meaning."""
    schema = Config.model_json_schema()
    parts = {Config.__name__: schema, **schema["$defs"]}
    for title, part in parts.items():
        model, keys = getattr(settings, title), part["properties"]
        for name, field in model.model_fields.items():
            if field.exclude:
                del keys[name]
        for name, text in _texts(model).items():
            if name in keys:
                keys[name]["description"] = text
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema, "title": "tidegate.toml"}


def _texts(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring below each field. Pydantic would read them at every import of the models."""
    body = ast.parse(inspect.getsource(model)).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: inspect.cleandoc(str(text.value.value))
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
