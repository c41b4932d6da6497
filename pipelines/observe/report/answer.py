"""Answers: the values that calls of a project return. Programs use their fields; users see tables.

The terminal, `print` and a notebook show the same lines and tables; `to_dict` is what `--json` prints.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel

from tidegate.extras import require
from tidegate.pipelines.observe.report.plain_text import plain, plain_cell
from tidegate.pipelines.remedy import Remedy
from tidegate.pipelines.rendering import fields as fields_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Grid:
    """A table to show.

    Args:
        title: its title.
        columns: names of the columns; a column with an empty name has no header.
        rows: the values of each row; None is an empty cell.
        right: names of the columns that are aligned to the right.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    right: Sequence[str] = ()

    def texts(self) -> list[list[str]]:
        """Return the cells as strings without control characters."""
        return [["" if value is None else plain_cell(str(value)) for value in row] for row in self.rows]


Shown = str | Grid
"""A line of text, or a table."""


class Answer:
    """The base of the values that calls of a project return. Subclasses are frozen dataclasses.

    Their field `pipeline` is the name of the pipeline. If one sentence describes the answer, it is in `says`, with
    fields in braces. Other answers have a method `shown`.
    """

    __slots__ = ()
    says: ClassVar[str]
    wraps: ClassVar[bool] = True
    """False if a terminal must not break its lines, because they are copied."""
    for_people: ClassVar[tuple[str, ...]] = ()
    """Fields that only `shown` uses."""

    @property
    def notice(self) -> str | None:
        """A remark that is not part of the content. Commands write it to standard error, even with `--json`."""
        never_run: str | None = getattr(self, "never_run", None)
        return never_run

    def to_dict(self) -> Any:
        """Return the content as dicts, lists and plain values, as `--json` prints it."""
        return {name: value for name, value in as_plain(self).items() if name not in self.for_people}

    main: ClassVar[str] = ""
    """Entry of `to_dict` with the rows of the main table; empty if the fields are its only row."""

    def to_arrow(self) -> pa.Table:
        """Return the main table as an Arrow table: a row for each epoch, snapshot, check and so on.

        An answer without such a table is one row. A column with values of several types holds them as JSON.
        """
        import pyarrow as pa

        content = self.to_dict()
        rows = content if isinstance(content, list) else content[self.main] if self.main else [content]
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: _column([row.get(name) for row in rows]) for name in names})

    def to_pandas(self) -> pd.DataFrame:
        """Return the main table as a pandas data frame."""
        require("a pandas data frame", "pandas")
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def require(self) -> Self:
        """Return this answer; subclasses raise an error instead if the answer says that something is wrong."""
        return self

    def shown(self) -> Iterable[Shown]:
        """Return the lines and tables that show the content."""
        yield self.says.format(**{field.name: getattr(self, field.name) for field in fields(self)})  # type: ignore[arg-type]

    def __str__(self) -> str:
        return "\n".join(map(text_of, [*filter(None, [self.notice]), *self.shown()]))

    def _repr_html_(self) -> str:
        return "\n".join(map(_html, [*filter(None, [self.notice]), *self.shown()]))


def _column(values: list[Any]) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if value is None else json_text(value) for value in values], pa.string())


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


def text_of(shown: Shown) -> str:
    """Return a line, or a table as lines, as plain text."""
    if isinstance(shown, str):
        return plain(shown)
    lines = [list(shown.columns), *shown.texts()] if any(shown.columns) else shown.texts()
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    sides = [">" if column in shown.right else "<" for column in shown.columns]
    aligned = (
        "  ".join(f"{text:{side}{width}}" for text, side, width in zip(cells, sides, widths, strict=True)).rstrip()
        for cells in lines
    )
    return "\n".join([plain_cell(shown.title), *aligned])


def _html(shown: Shown) -> str:
    if isinstance(shown, str):
        return f"<p>{escape(plain(shown))}</p>" if shown else ""
    sides = [' style="text-align: right"' if column in shown.right else "" for column in shown.columns]
    names = "".join(f"<th{side}>{escape(column)}</th>" for column, side in zip(shown.columns, sides, strict=True))
    lines = "".join(
        f"<tr>{''.join(f'<td{side}>{escape(text)}</td>' for text, side in zip(row, sides, strict=True))}</tr>"
        for row in shown.texts()
    )
    head = f"<thead><tr>{names}</tr></thead>" if any(shown.columns) else ""
    return f"<table><caption>{escape(plain_cell(shown.title))}</caption>{head}<tbody>{lines}</tbody></table>"


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
