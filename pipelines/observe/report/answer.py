"""Answers: the values that calls of a project return. Programs use their fields; users see lines and tables.

There are two kinds: a table (`Listing`), and facts with tables (`Facts`). Their columns are declared once, from which
the terminal, `print`, notebooks, JSON (`to_dict`), Arrow and the reference of the docs are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tidegate.extras import require
from tidegate.pipelines.observe.report.columns import Columns, Grid, Table
from tidegate.pipelines.observe.report.plain_text import plain, plain_cell
from tidegate.pipelines.observe.report.values import as_plain

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Shown = str | Grid
"""A line of text, or a table."""


class Answer:
    """The base of the values that calls of a project return. Subclasses are frozen dataclasses."""

    __slots__ = ()
    wraps: ClassVar[bool] = True
    """False if a terminal must not break its lines, because they are copied."""

    @property
    def notice(self) -> str | None:
        """A remark that is not part of the content. Commands write it to standard error, even with `--json`."""
        never_run: str | None = getattr(self, "never_run", None)
        return never_run

    def to_dict(self) -> Any:
        """Return the content as dicts, lists and plain values, as `--json` prints it."""
        raise NotImplementedError

    def main(self) -> Table:
        """Return the main table: a row for each epoch, snapshot, check and so on."""
        raise NotImplementedError

    def to_arrow(self) -> pa.Table:
        """Return the main table as an Arrow table. The metadata of each field has the column's unit.

        Facts without a table are one row. A column with values of several types holds them as JSON.
        """
        return self.main().to_arrow()

    def to_pandas(self) -> pd.DataFrame:
        """Return the main table as a pandas data frame."""
        require("a pandas data frame", "pandas")
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def require(self) -> Self:
        """Return this answer; subclasses raise an error instead if the answer says that something is wrong."""
        return self

    def shown(self) -> Iterator[Shown]:
        """Yield the lines and tables that show the content."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(map(text_of, [*filter(None, [self.notice]), *self.shown()]))

    def _repr_html_(self) -> str:
        return "\n".join(map(_html, [*filter(None, [self.notice]), *self.shown()]))


class Listing(Answer):
    """A table. As JSON it is a list of rows."""

    __slots__ = ()
    columns: ClassVar[Columns] = ()
    """The declared columns; `main` adds those that depend on the pipeline."""

    def remarks(self) -> Iterable[str]:
        """Return lines that follow the table."""
        return ()

    def to_dict(self) -> list[dict[str, Any]]:
        return self.main().records()

    def shown(self) -> Iterator[Shown]:
        yield self.main().grid()
        yield from self.remarks()


class Facts(Answer):
    """Facts, with tables. As JSON it is an object: a field for each fact, and a list of rows for each table.

    Users see one sentence (`says`), several lines (`lines`), or, if there is a `title`, a line for each fact; then the
    tables, and then `remarks`.
    """

    __slots__ = ()
    facts: ClassVar[Columns]
    """The declared facts: properties or fields of the answer."""
    holds: ClassVar[Mapping[str, Columns]] = {}
    """The declared columns of each table by name; the first table is the main one."""
    says: ClassVar[str] = ""
    """A sentence with facts in braces."""

    @property
    def title(self) -> str:
        """Title of the facts as a table; empty if lines show them."""
        return ""

    def tables(self) -> Iterable[Table]:
        """Return the tables: by default each with the rows of the field of its name."""
        return [
            Table(name, columns, getattr(self, name), name.replace("_", " ")) for name, columns in self.holds.items()
        ]

    def lines(self) -> Iterable[str]:
        """Return the lines that precede the tables."""
        return [self.says.format_map({column.name: column.of(self) for column in self.facts})] if self.says else ()

    def remarks(self) -> Iterable[str]:
        """Return the lines that follow the tables."""
        return ()

    def main(self) -> Table:
        return next(iter(self.tables()), Table("", self.facts, [self]))

    def to_dict(self) -> dict[str, Any]:
        facts = {column.name: as_plain(column.of(self)) for column in self.facts}
        return facts | {table.name: table.records() for table in self.tables()}

    def shown(self) -> Iterator[Shown]:
        yield from self.lines()
        if self.title:
            told = [column for column in self.facts if column.title]
            cells = [(column, column.cell(self)) for column in told]
            cells = [(column, cell) for column, cell in cells if cell not in (None, "") or not column.is_optional]
            yield Grid(self.title, ("", ""), [(column.title, cell) for column, cell in cells])
        yield from (table.grid() for table in self.tables() if table.is_shown)
        yield from self.remarks()


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
