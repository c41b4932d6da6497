"""The options that all commands share, and one way to show results to users or programs."""

from __future__ import annotations

import inspect
import logging
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, TextIO

import click
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.pipelines.definition.config import Config, EngineName, load_config
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.failures import reported_as
from tidegate.pipelines.observe.report.answer import Answer, text_of
from tidegate.pipelines.observe.report.columns import Grid
from tidegate.pipelines.observe.report.plain_text import plain, plain_cell
from tidegate.pipelines.observe.report.values import as_plain, json_text
from tidegate.pipelines.project.progress import OnProgress, Progress
from tidegate.pipelines.project.project import Project
from tidegate.pipelines.storage.links import replacing

_WIDE = 200
_MANY = 1000
"""Largest number of rows of a table that Rich draws: it takes a second for 2,000 rows."""
_DOCUMENT = "tidegate_document"
"""Attribute of an error: the document that its command had already shown."""


@dataclass(frozen=True)
class Screen:
    """The output of a command: tables on the terminal, or JSON with --json.

    `documents` are printed when the command ends, so that a later error can be added to the document. With --log json,
    `log` takes a line of JSON for each epoch and message of a run, and nothing else is shown.
    """

    json: bool
    console: Console
    config_file: Path | None
    output: Path | None = None
    engine: EngineName | None = None
    log: TextIO | None = None
    documents: list[Any] = field(default_factory=list)

    def config(self) -> Config:
        """Return tidegate.toml. The option --engine takes precedence over its `engine`."""
        config = load_config(self.config_file)
        return config if self.engine is None else config.model_copy(update={"engine": self.engine})

    def project(self, on_progress: OnProgress | None = None) -> Project:
        """Return the project. Its progress is shown in lines unless another function receives it."""
        return Project(self.config_file, engine=self.engine, progress=on_progress or self._hear)

    @contextmanager
    def running(self, pipeline: str | Sequence[str]) -> Iterator[Project]:
        """Enter the project while it runs pipelines. Their steps replace each other in one line."""
        if self.log is not None:
            yield self.project(self._log)
            return
        names = pipeline if isinstance(pipeline, str) else ", ".join(pipeline)
        with self.console.status(f"{names}: looking for work") as status:

            def hear(progress: Progress) -> None:
                if progress.is_step:
                    status.update(f"{progress.pipeline}: {progress.text}")
                else:
                    self._hear(progress)

            yield self.project(hear)

    def _hear(self, progress: Progress) -> None:
        if not progress.is_step:
            self.tell(progress.text)

    def _log(self, progress: Progress) -> None:
        if not progress.is_step:
            content = {"message": progress.text} if progress.epoch is None else progress.epoch
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            print(json_text({"at": now, "pipeline": progress.pipeline, **content}), file=self.log, flush=True)

    def show_answer(self, answer: Answer) -> None:
        """Show the answer of a call, as JSON or as its lines and tables."""
        if answer.notice is not None:
            click.echo(plain_cell(answer.notice), err=True)
        parts = () if self.json else answer.shown()
        line = str if answer.wraps else Text
        shown = [line(each) if isinstance(each, str) else as_table(each, self.console) for each in parts]
        self.show(answer.to_dict(), *shown)

    def show(self, data: Any, *renderables: RenderableType) -> None:
        """Show data as JSON or as these renderables, and write it to the file that --output names."""
        if self.output is not None:
            beside = f"{self.output}.{uuid.uuid4().hex}.part"
            with (
                reported_as(f"--output {self.output} can't be written", "The command itself is done"),
                replacing(str(self.output), beside),
                # Mode x only creates a file, so it never follows a link that somebody put there.
                open(beside, "x", encoding="utf-8") as file,
            ):
                file.write(json_text(data))
        if self.json:
            self.documents.append(data)
        elif self.log is None:
            for renderable in renderables:
                # The lines of a very long table are not wrapped.
                self.console.print(renderable, soft_wrap=isinstance(renderable, Text))

    def tell(self, text: str) -> None:
        """Show a message only to users, not in JSON."""
        if not self.json:
            self.console.print(text)


def error_as_json(error: Exception, message: str, exit_code: int) -> str:
    """Return an error as one JSON document, together with what the command showed before it failed."""
    shown = getattr(error, _DOCUMENT, {})
    answer = {**shown, "error": type(error).__name__, "message": message, "exit_code": exit_code}
    remedies = error.remedies if isinstance(error, TidegateError) else ()
    return json_text({**answer, "remedies": as_plain(remedies)} if remedies else answer)


_SHARED = (
    click.Option(["--config", "config_file"], type=click.Path(path_type=Path), help="tidegate.toml of the project."),
    click.Option(["--json", "as_json"], is_flag=True, help="Print JSON, for programs."),
    click.Option(["--output"], type=click.Path(path_type=Path), help="Also write the JSON to this file."),
    click.Option(["--debug"], is_flag=True, help="Show the traceback of an unexpected error."),
)
"""Options of every command."""


def of_screen(
    name: str, function: Callable[..., Answer | None], params: Sequence[click.Parameter], help_text: str | None = None
) -> click.Command:
    """Return the command that calls a function with a Screen, and shows the answer that the function returns.

    The command fails if the answer says that something is wrong (`Answer.require`).

    Args:
        name: name of the command.
        function: takes a Screen, and the values of `params` by name.
        params: arguments and options of the command.
        help_text: its help; None for the docstring of the function.
    """
    text = inspect.cleandoc(help_text or function.__doc__ or "")
    return click.Command(name, callback=_with_screen(function), params=[*params, *_SHARED], help=text)


def command(
    *params: click.Parameter, name: str | None = None
) -> Callable[[Callable[..., Answer | None]], click.Command]:
    """Return a decorator that turns a function into a command: see `of_screen`. The name is that of the function."""
    return lambda function: of_screen(name or function.__name__, function, params)


def _with_screen(function: Callable[..., Answer | None]) -> Callable[..., None]:
    @wraps(function)
    def wrapper(
        *args: Any,
        config_file: Path | None,
        as_json: bool,
        output: Path | None,
        debug: bool,
        engine: EngineName | None = None,
        log_format: str = "text",
        **kwargs: Any,
    ) -> None:
        # py4j's messages are in the log of Spark's process; the terminal shows them only with --debug.
        logging.getLogger("py4j").propagate = debug
        log = sys.stdout if log_format == "json" else None
        screen = Screen(as_json, plain_console(), config_file, output, engine, log)
        try:
            # Modules of the project and libraries may print during import.
            with redirect_stdout(sys.stderr) if as_json or log else nullcontext():
                answer = function(screen, *args, **kwargs)
                if answer is not None:
                    screen.show_answer(answer)
                    answer.require()
        except click.exceptions.Exit:
            raise
        except Exception as error:
            if screen.documents and isinstance(screen.documents[-1], dict):
                setattr(error, _DOCUMENT, screen.documents.pop())
            raise
        finally:
            for data in screen.documents:
                click.echo(json_text(data))

    return wrapper


class _PlainConsole(Console):
    """A console that shows control characters as escapes. `table` does the same for table cells."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*map(_without_commands, objects), **options)


def _without_commands(shown: Any) -> Any:
    if isinstance(shown, str):
        return plain(shown)
    # Styled text loses its styles if it contains something to escape.
    if isinstance(shown, Text) and (text := plain(shown.plain)) != shown.plain:
        return text
    return shown


def plain_console() -> Console:
    """Return a console that escapes only control characters: `[id]` or `:smile:` may be a user's key."""
    # A file or pipe has no width, so nothing should be truncated there.
    width = None if sys.stdout.isatty() else _WIDE
    return _PlainConsole(markup=False, emoji=False, highlight=False, width=width)


def as_table(grid: Grid, console: Console) -> Table | Text:
    """Return a table for the console: a line for each field of a row, if a terminal is too narrow for its columns."""
    if len(grid.rows) > _MANY:
        return Text(text_of(grid))
    # The terminal wraps a title, so a title does not make columns unreadable.
    given, options = table("", grid.columns, grid.rows), console.options.update(width=_WIDE)
    is_narrow = console.is_terminal and console.measure(given, options=options).minimum > console.width
    if not is_narrow or not grid.rows:
        return table(grid.title, grid.columns, grid.rows, grid.right)
    lines = [line for row in grid.rows for line in (*zip(grid.columns, row, strict=True), ("", ""))]
    return table(grid.title, ("", ""), lines[:-1])


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> Table:
    """Return a table for the console. The columns in `right` are right-aligned."""
    title = plain_cell(title)
    result = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        # Columns without names need no header line.
        show_header=any(columns),
        box=None,
        pad_edge=False,
        # A title is wrapped at its table's width, even if that is narrow.
        min_width=cell_len(title),
    )
    for column in columns:
        result.add_column(plain_cell(column), justify="right" if column in right else "left")
    for row in rows:
        result.add_row(*("" if value is None else plain_cell(str(value)) for value in row))
    return result
