"""Messages about a faulty tidegate.toml: each names the field, the error and what to give.

A faulty file may hold keys of an object store, even in the wrong place, and everyone who sees Airflow's import errors
can read the messages. So only the value of a known field of a pipeline is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from tidegate.pipelines.definition.config.settings import Config, MetricsSettings, PipelineEntry

_SECTIONS = ("storage_options", "spark")
"""Tables of the project whose values may be secrets."""
_EXPECTED = {
    "string_type": "give a text in quotes",
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
    "missing": "the field is missing, and must be given",
}
_EXAMPLES = {
    "object": 'such as "package.module:name"',
    "start": "such as 2024-03-01 or 2024-03-01T06:00:00Z",
    "end": "such as 2024-03-01 or 2024-03-01T06:00:00Z",
}


def describe(faults: Sequence[Mapping[str, Any]]) -> str:
    """Return a message that names each faulty field and its error; `faults` are those of pydantic's error."""
    messages: dict[str, str] = {}
    for fault in faults:
        place = _place(fault["loc"])
        # A value that fits none of several types has an error for each; the first is enough.
        messages.setdefault(".".join(place), _fault(place, fault) if place else _own_words(fault))
    return "; ".join(f"{field}: {message}" if field else message for field, message in messages.items())


def unquoted(text: str, message: str) -> str:
    """Return what to add to the parser's message if a value lacks quotes, or is a Python boolean; else "".

    The value may be a secret, so only its key is shown.

    Args:
        text: the content of the file.
        message: that of tomllib, which ends with the place of the fault.
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
    return f": write a text in quotes: {key} = {values}"


def _place(loc: tuple[int | str, ...]) -> tuple[str, ...]:
    """Return the keys that lead to a value, without the parts that pydantic adds for its types."""
    depth = 3 if loc[:1] == ("pipelines",) else 2
    return tuple(str(part) for part in loc[:depth] if part != "[key]")


def _fault(place: tuple[str, ...], fault: Mapping[str, Any]) -> str:
    kind, key = fault["type"], place[-1]
    if kind == "extra_forbidden":
        model = PipelineEntry if place[0] == "pipelines" else MetricsSettings if len(place) > 1 else Config
        return _unknown(key, model)
    field = ".".join(place)
    if place[0] in _SECTIONS and len(place) > 1:
        return f"give a text in quotes{'' if place[0] == _SECTIONS[0] else ', a whole number, true or false'}"
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
    """Return the message of one of this package's checks, or else pydantic's message."""
    return str(fault["msg"]).removeprefix("Value error, ")


def _may_be_shown(place: tuple[str, ...], value: object) -> bool:
    return place[0] == "pipelines" and len(place) == 3 and not isinstance(value, Mapping | list)
