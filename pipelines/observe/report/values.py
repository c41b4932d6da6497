"""Values of answers: as plain data for JSON, and as text for the cells of tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from tidegate.pipelines.remedy import Remedy
from tidegate.pipelines.rendering import fields as fields_of

if TYPE_CHECKING:
    import pyarrow as pa


def as_plain(value: Any) -> Any:
    """Return a value with dataclasses as dicts and tuples as lists, at any depth."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, Remedy):
        return fields_of(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        # A key of a map may have a type that JSON lacks.
        is_of_json = str | int | float | None
        return {
            name if isinstance(name, is_of_json) else str(_json_value(name)): as_plain(each)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [as_plain(each) for each in value]
    return value


def json_text(data: Any) -> str:
    """Return data as JSON. Numbers that JSON lacks become the strings "NaN", "Infinity" and "-Infinity"."""
    text = json.dumps(data, default=_json_value)
    return json.dumps(json.loads(text, parse_constant=str)) if "NaN" in text or "Infinity" in text else text


def _json_value(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)


def rows_of(source: pa.Table) -> list[dict[str, Any]]:
    """Return rows as Python values. In a column with a time that Python can't represent, times are strings."""
    try:
        return source.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        from tidegate.pipelines.definition.far_times import as_text

        return as_text(source).to_pylist()  # type: ignore[no-any-return]


def moment(value: datetime | str | None) -> str:
    """Return a time as text: as `show_time`, `-` for None. A time that Python can't represent is text already."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    # Commands that show no time don't load the library.
    from tidegate.windowing.time import show_time

    return show_time(value)


def span(row: Mapping[str, Any]) -> str:
    """Return the window of a row as text: only its start if it has no end, and "" if the row belongs to a key alone."""
    start, end = row.get("window_start"), row.get("window_end")
    if row.get("namespace") == "key":
        return ""
    if start is None:
        return "global"
    return moment(start) if end is None else f"{moment(start)} to {moment(end)}"


def cell(value: object, exact: bool = False) -> object:
    """Return a value as a cell of a table.

    >>> cell(2.0), cell(0.0042), cell({"price": 0.25, "peak": 1 / 3}), cell(1 / 3, exact=True)
    ('2.00', '0.0042', 'price 0.25, peak 0.33', '0.3333333333333333')
    """
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, float):
        # Two decimals would turn a small number into 0.00.
        return str(value) if exact else f"{value:.3g}" if 0 < abs(value) < 0.01 else f"{value:.2f}"
    if isinstance(value, dict):
        return (
            cell(value["value"], exact)
            if set(value) == {"at", "value"}
            else ", ".join(f"{k} {cell(v, exact)}" for k, v in value.items())
        )
    return value


def cells_apart(one: object, other: object) -> tuple[object, object]:
    """Return two different values as cells that differ.

    >>> cells_apart(100.001, 100.002), cells_apart(1.0, 2.0)
    (('100.001', '100.002'), ('1.00', '2.00'))
    """
    exact = cell(one) == cell(other)
    return cell(one, exact), cell(other, exact)
