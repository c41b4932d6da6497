"""Import of the Pipeline value that an entry of tidegate.toml names."""

from __future__ import annotations

import sys

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.imports import similar
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import UsageError


def load_pipeline(config: Config, name: str) -> Pipeline:
    """Return the Pipeline value of an entry: the one given in code, or the one imported from `object`.

    Raises:
        UsageError: there is no such entry, it names no Pipeline, or the Pipeline has another name.
    """
    entry = config.entry(name)
    if name in config.values:
        given = config.values[name]
        assert isinstance(given, Pipeline)
        return given
    value = config.load(entry.object, f"pipelines.{name}.object")
    if not isinstance(value, Pipeline):
        module = sys.modules[entry.object.partition(":")[0]]
        raise UsageError(
            f"pipelines.{name}.object = {entry.object!r}: it is a {type(value).__name__}, not a Pipeline"
            f"{similar(module, name, Pipeline)}"
        )
    if value.name != name:
        raise UsageError(
            f"pipelines.{name}.object = {entry.object!r}: that pipeline is named {value.name!r}; "
            "give the entry the same name"
        )
    return value
