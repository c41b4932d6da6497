"""The file tidegate.toml: where a command finds it, and its settings. A project in code has the same settings."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tidegate.pipelines.definition.config.faults import describe, unquoted
from tidegate.pipelines.definition.config.settings import ANY_START, FILE_NAME, IN_CODE, Config
from tidegate.pipelines.definition.names import listed
from tidegate.pipelines.errors import UsageError

ENVIRONMENT = "TIDEGATE_CONFIG"


def find_config(start: Path | None = None) -> Path:
    """Return the path of tidegate.toml: the one in TIDEGATE_CONFIG, or else the nearest one from `start` upwards.

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
        UsageError: the file is missing, or the shared settings are faulty; the error names file and field, but no value
            that may be secret.
    """
    path = file or find_config()
    by_environment = f", which {ENVIRONMENT} names" if file is None and os.environ.get(ENVIRONMENT) else ""
    file = path.absolute()
    text = ""
    try:
        text = file.read_text()
        raw = tomllib.loads(text)
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
    if reserved := sorted({"root", "file_name", "values", "session", "faulty"} & raw.keys()):
        raise UsageError(f"{file}: {reserved[0]}: unknown key")
    given = {**raw, "root": file.parent, "file_name": file.name}
    try:
        return Config.model_validate(given)
    except ValidationError as error:
        faults = error.errors()
    # Raised outside the handler: pydantic's error holds the values, and a chained traceback would show them.
    if any(fault["loc"][:1] != ("pipelines",) or len(fault["loc"]) == 1 for fault in faults):
        raise UsageError(f"{file}: {describe(faults)}")
    by_pipeline: dict[str, list[Mapping[str, Any]]] = {}
    for fault in faults:
        by_pipeline.setdefault(str(fault["loc"][1]), []).append(fault)
    sound = {name: entry for name, entry in raw["pipelines"].items() if name not in by_pipeline}
    faulty = {name: describe(its) for name, its in by_pipeline.items()}
    return Config.model_validate({**given, "pipelines": sound, "faulty": faulty})


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
        raise UsageError(f"settings has {strangers[0]!r}, but pipelines has {listed(sorted(pipelines))}")
    fields = {name: {"start": ANY_START, **entries.get(name, {}), "object": IN_CODE} for name in pipelines}
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        return Config.model_validate({"root": Path.cwd(), **given, "pipelines": fields, "values": dict(pipelines)})
    except ValidationError as error:
        faults = error.errors()
    raise UsageError(f"Project: {describe(faults)}")
