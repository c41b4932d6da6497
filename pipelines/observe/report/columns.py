"""Columns of answers: each is declared once, with its name, its unit and how it prints.

The terminal, notebooks, JSON, Arrow and the reference of the docs are made from the same declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from tidegate.pipelines.definition.counters import ROWS_DELETED, ROWS_OUT, filtered, fired
from tidegate.pipelines.observe.report.plain_text import plain_cell
from tidegate.pipelines.observe.report.values import as_plain, cell, json_text, moment

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Unit:
    """What the values of a column are, and how one is printed.

    Args:
        name: its name in the reference, such as `epoch ms`.
        text: returns a value as a cell; None is an empty cell.
        arrow: name of the Arrow type, which a column without values has too; empty if it follows from the values.
        is_number: True if cells are aligned to the right.
    """

    name: str
    text: Callable[[Any], object]
    arrow: str = ""
    is_number: bool = False


def _as_it_is(value: Any) -> object:
    return value


def _millis(value: Any) -> object:
    # Commands that show no time don't load the library.
    from tidegate.windowing.time import show_millis

    return show_millis(value) if isinstance(value, int) else moment(value)


def _watermark(value: Any) -> object:
    from tidegate.windowing.time import show_watermark

    return show_watermark(value)


def _duration(value: Any) -> object:
    from tidegate.windowing.time import show_duration

    return show_duration(value)


def _key(value: Any) -> object:
    from tidegate.pipelines.ledger.tables.keys import text_of_value

    return text_of_value(value)


TEXT = Unit("text", _as_it_is, "string")
NAMES = Unit("list of text", lambda values: ", ".join(map(str, values)))
NUMBER = Unit("number", _as_it_is, "int64", is_number=True)
"""An epoch, a version or another number that counts nothing."""
COUNT = Unit("count", _as_it_is, "int64", is_number=True)
BYTES = Unit("bytes", _as_it_is, "int64", is_number=True)
SECONDS = Unit("seconds", lambda value: f"{value:.1f}", "double", is_number=True)
SHARE = Unit("share", lambda value: f"{value:g}", "double", is_number=True)
PERCENT = Unit("share", lambda value: f"{100 * value:.3g} %", "double", is_number=True)
INSTANT = Unit("epoch ms", _millis, "int64")
WATERMARK = Unit("epoch ms", _watermark, "int64")
DURATION = Unit("ms", _duration, "int64", is_number=True)
YES_NO = Unit("true or false", lambda value: "yes" if value else "no", "bool")
DATE_TIME = Unit("time", moment)
ISO_TIME = Unit("time", _as_it_is, "string")
"""A time in UTC as ISO text."""
VALUE = Unit("value", cell)
"""A user's value, of any type."""
NUMERIC = Unit("value", cell, is_number=True)
"""A user's number."""
KEY = Unit("key", _key)
OBJECT = Unit("object", _as_it_is)
"""A value with fields of its own."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, or a fact.

    Args:
        name: its name in JSON, Arrow and pandas, and of the field of a row.
        unit: what its values are.
        head: its header; by default the name with spaces. Empty if another column prints the value.
        value: returns its value for a row that has no field of this name.
        text: returns the cell for a row, if it depends on more than the value.
        is_optional: True if a table without any value shows no such column.
        is_spread: True for values by name that are shown as a column each.
    """

    name: str
    unit: Unit
    head: str | None = None
    value: Callable[[Any], Any] | None = None
    text: Callable[[Any], object] | None = None
    is_optional: bool = False
    is_spread: bool = False

    @property
    def title(self) -> str:
        """Its header for users."""
        return self.name.replace("_", " ") if self.head is None else self.head

    def of(self, row: Any) -> Any:
        """Return the value of a row: a mapping or an object."""
        if self.value is not None:
            return self.value(row)
        return row.get(self.name) if isinstance(row, Mapping) else getattr(row, self.name)

    def cell(self, row: Any) -> object:
        """Return the value of a row as it is printed."""
        if self.text is not None:
            return self.text(row)
        value = self.of(row)
        return None if value is None else self.unit.text(value)


Columns: TypeAlias = tuple[Column, ...]


def count_columns(counters: Callable[[Any], Mapping[str, Any]]) -> Columns:
    """Return the columns with the numbers of an epoch's rows and windows, given what returns the counters of a row."""

    def counted(name: str, head: str, count: Callable[[Mapping[str, Any]], int | None] | None = None) -> Column:
        count = count or (lambda row: row.get(name))
        return Column(name, COUNT, head, value=lambda row: count(counters(row)))

    return (
        counted("events_in", "in"),
        replace(counted(ROWS_DELETED, "deleted"), is_optional=True),
        counted("on_time", "on time"),
        counted("late", "late"),
        counted("filtered", "filtered", filtered),
        counted("fired", "fired", fired),
        counted(ROWS_OUT, "rows out"),
        counted("open_windows", "open"),
    )


@dataclass(frozen=True, slots=True)
class Table:
    """A table of an answer: rows of any type with declared columns.

    Args:
        name: its name in JSON.
        columns: its columns.
        rows: the rows.
        title: its title.
        most: largest number of rows that users see; None for all.
        is_newest: True if users see the last of the rows instead of the first ones.
        is_shown: False if users don't see it.
    """

    name: str
    columns: Columns
    rows: Sequence[Any]
    title: str = ""
    most: int | None = None
    is_newest: bool = False
    is_shown: bool = True

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as JSON has them."""
        return [{column.name: as_plain(column.of(row)) for column in self.columns} for row in self.rows]

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table; the metadata of each field has its unit."""
        import pyarrow as pa

        records = self.records()
        arrays = [_array(column.unit.arrow, [record[column.name] for record in records]) for column in self.columns]
        named = zip(self.columns, arrays, strict=True)
        schema = [pa.field(column.name, array.type, metadata={"unit": column.unit.name}) for column, array in named]
        return pa.table(arrays, schema=pa.schema(schema))

    def grid(self) -> Grid:
        """Return what users see."""
        rows = self.rows if self.most is None else self.rows[-self.most :] if self.is_newest else self.rows[: self.most]
        columns = [column for column in self._spread(rows) if column.title]
        columns = [column for column in columns if not column.is_optional or any(map(column.of, rows))]
        lines = [[column.cell(row) for column in columns] for row in rows]
        right = [column.title for column in columns if column.unit.is_number]
        return Grid(self.title, [column.title for column in columns], lines, right)

    def _spread(self, rows: Sequence[Any]) -> Iterator[Column]:
        for column in self.columns:
            if column.is_spread:
                for name in dict.fromkeys(name for row in rows for name in column.of(row) or ()):
                    yield replace(column, name=name, head=name, text=_entry(column, name), is_spread=False)
            else:
                yield column


def _entry(column: Column, name: str) -> Callable[[Any], object]:
    return lambda row: column.unit.text((column.of(row) or {}).get(name))


def _array(arrow: str, values: list[Any]) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(values, pa.type_for_alias(arrow) if arrow else None)
    except (pa.ArrowException, OverflowError, TypeError):
        return pa.array([None if value is None else json_text(value) for value in values], pa.string())


@dataclass(frozen=True, slots=True)
class Grid:
    """A table as users see it.

    Args:
        title: its title.
        columns: headers of the columns; a column with an empty one has no header.
        rows: the cells of each row; None is an empty cell.
        right: headers of the columns that are aligned to the right.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    right: Sequence[str] = ()

    def texts(self) -> list[list[str]]:
        """Return the cells as strings without control characters."""
        return [["" if value is None else plain_cell(str(value)) for value in row] for row in self.rows]
