"""The JSON schema of tidegate.toml for editors, derived from the models that read the file."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from tidegate.pipelines.definition.config import settings
from tidegate.pipelines.definition.config.settings import Config

SCHEMA_FILE = "tidegate.schema.json"
"""Name of the schema's file in a project that `tidegate init` makes."""


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
