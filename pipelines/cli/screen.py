"""The options that all commands share, and one way to show results to people or to programs."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.pipelines.config import Config, EngineName, load_config
from tidegate.pipelines.report.plain_text import plain, plain_cell

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.pipelines.tables.pipeline_tables import PipelineTables

F = TypeVar("F", bound=Callable[..., Any])

_WIDE = 200
_DOCUMENT = "tidegate_document"
"""Attribute of an error: the document that its command had shown."""


@dataclass(frozen=True)
class Screen:
    """The output of a command: tables on the terminal, or JSON with --json.

    `documents` is printed when the command ends, so that an error after it can join its document.
    """

    json: bool
    console: Console
    config_file: Path | None
    output: Path | None = None
    engine: EngineName | None = None
    documents: list[Any] = field(default_factory=list)

    def config(self) -> Config:
        """Return tidegate.toml; the option --engine takes precedence over its `engine`."""
        config = load_config(self.config_file)
        return config if self.engine is None else config.model_copy(update={"engine": self.engine})

    def tables(self, pipeline: str) -> PipelineTables:
        """Return the tables of a pipeline that tidegate.toml names; the pipeline itself is not imported."""
        # Commands that read no table must not wait for these imports: a probe runs `tidegate alive` every minute.
        from tidegate.pipelines.storage import warehouse_of
        from tidegate.pipelines.tables.pipeline_tables import PipelineTables

        config = self.config()
        config.entry(pipeline)
        return PipelineTables(warehouse_of(config), pipeline)

    def show(self, data: Any, *renderables: RenderableType) -> None:
        """Show data, as JSON or as these renderables, and write it to the file of --output."""
        if self.output is not None:
            part = self.output.with_suffix(".part")
            part.write_text(_as_json(data))
            part.replace(self.output)
        if self.json:
            self.documents.append(data)
        else:
            for renderable in renderables:
                self.console.print(renderable)

    def tell_if_never_run(self, tables: PipelineTables) -> None:
        """Say to people why a list of a pipeline without tables is empty."""
        from tidegate.pipelines.snapshots.head import no_snapshot_yet

        if not tables.exist:
            self.tell(str(no_snapshot_yet(tables)))

    def tell(self, text: str) -> None:
        """Say something to people only."""
        if not self.json:
            self.console.print(text)


def error_as_json(error: Exception, message: str, exit_code: int) -> str:
    """Return an error as one JSON document, with what the command had shown before it failed."""
    shown = getattr(error, _DOCUMENT, {})
    answer = {**shown, "error": type(error).__name__, "message": message, "exit_code": exit_code}
    return _as_json(answer)


def _as_json(data: Any) -> str:
    """Return data as JSON, with numbers that JSON lacks as the texts "NaN", "Infinity" and "-Infinity"."""
    text = json.dumps(data, default=_plain)
    return json.dumps(json.loads(text, parse_constant=str)) if "NaN" in text or "Infinity" in text else text


engine_option = click.option(
    "--engine",
    type=click.Choice(get_args(EngineName)),
    help="What runs the tasks: spark, or local for processes of this machine, without Java.",
)
"""Option of the commands that run epochs."""


def with_screen(command: F) -> F:
    """Give a command the options that all have, and a Screen as its first argument."""

    @click.option("--config", "config_file", type=click.Path(path_type=Path), help="tidegate.toml of the project.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    @click.option("--output", type=click.Path(path_type=Path), help="Write the JSON to this file as well.")
    @click.option("--debug", is_flag=True, help="Show the traceback of an unexpected error.")
    @wraps(command)
    def wrapper(
        *args: Any,
        config_file: Path | None,
        as_json: bool,
        output: Path | None,
        debug: bool,
        engine: EngineName | None = None,
        **kwargs: Any,
    ) -> Any:
        # The log of Spark's process has what py4j logs; people see it on the terminal only with --debug.
        logging.getLogger("py4j").propagate = debug
        screen = Screen(as_json, plain_console(), config_file, output, engine)
        try:
            # Modules of the project and libraries may print while they are imported.
            with redirect_stdout(sys.stderr) if as_json else nullcontext():
                return command(screen, *args, **kwargs)
        except click.exceptions.Exit:
            raise
        except Exception as error:
            if screen.documents and isinstance(screen.documents[-1], dict):
                setattr(error, _DOCUMENT, screen.documents.pop())
            raise
        finally:
            for data in screen.documents:
                click.echo(_as_json(data))

    return wrapper  # type: ignore[return-value]


class _PlainConsole(Console):
    """A console that shows control characters in a text as escapes; `table` does it for the cells of a table."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*map(_without_commands, objects), **options)


def _without_commands(shown: Any) -> Any:
    if isinstance(shown, str):
        return plain(shown)
    # A text with styles loses them if there is something to escape in it.
    if isinstance(shown, Text) and (text := plain(shown.plain)) != shown.plain:
        return text
    return shown


def plain_console() -> Console:
    """Return a console that shows text unchanged, but control characters: `[id]` or `:smile:` may be a user's key."""
    # A file or pipe has no width to fit into, so nothing should be cut there.
    width = None if sys.stdout.isatty() else _WIDE
    return _PlainConsole(markup=False, emoji=False, highlight=False, width=width)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> Table:
    """Return a table for the console; the columns in `right` are right-aligned."""
    title = plain_cell(title)
    result = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        # Columns without names need no line for them.
        show_header=any(columns),
        box=None,
        pad_edge=False,
        # A title is broken to the width of its table, however narrow that is.
        min_width=cell_len(title),
    )
    for column in columns:
        result.add_column(plain_cell(column), justify="right" if column in right else "left")
    for row in rows:
        result.add_row(*("" if value is None else plain_cell(str(value)) for value in row))
    return result


def rows_of(source: pa.Table) -> list[dict[str, Any]]:
    """Return rows as Python values; a column with a time outside of Python's datetime range has such times as text."""
    try:
        return source.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        from tidegate.pipelines.tables.far_times import as_text

        return as_text(source).to_pylist()  # type: ignore[no-any-return]


def moment(value: datetime | str | None, like: datetime | str | None = None) -> str:
    """Return a time as text; milliseconds and offset only if they are not 0, the date unless `like` has the same."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    like = None if isinstance(like, str) else like
    text = value.isoformat(sep=" ", timespec="milliseconds").replace(".000", "").removesuffix("+00:00")
    return text.split(" ", 1)[1] if like is not None and value.date() == like.date() else text


def span(row: dict[str, Any]) -> str:
    """Return the window of a row as text; an empty text for a row that belongs to a key and to no window."""
    start, end = row.get("window_start"), row.get("window_end")
    if row.get("namespace") == "key":
        return ""
    return "global" if start is None else f"{moment(start)} to {moment(end, start)}"


def cell(value: object) -> object:
    """Return a value as a cell of a table."""
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, dict):
        return (
            cell(value["value"])
            if set(value) == {"at", "value"}
            else ", ".join(f"{k} {cell(v)}" for k, v in value.items())
        )
    return value


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)
