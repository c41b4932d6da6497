"""What some commands have in addition to the arguments of their methods: a confirmation, files, signals, the engine."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, get_args

import click

from tidegate.extras import is_installed
from tidegate.pipelines.definition.config import EngineName
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.observe.report.answer import Answer
from tidegate.pipelines.project.cli.screen import Screen
from tidegate.pipelines.project.given import Format
from tidegate.pipelines.run.stopping import StopRequest

if TYPE_CHECKING:
    from tidegate.pipelines.project.results import Results

Call: TypeAlias = Callable[..., Answer]
"""Calls the method of a project, which is the first argument, with what the command line gave."""

RUN = frozenset({("backfill",), ("replay",), ("stream",), ("late", "reopen")})
"""Commands that run epochs, whose steps are shown."""
ENGINE = frozenset({("plan",), ("restore",), ("snapshots", "check")})
"""Commands that ask the engine for the types of columns."""

engine_option = click.Option(
    ["--engine"],
    type=click.Choice(get_args(EngineName)),
    help="Engine that runs the tasks: spark, or local (processes on this machine, without Java).",
)
log_option = click.Option(
    ["--log", "log_format"],
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: print a line of JSON for each epoch as soon as it is published, with its time, rows and rate.",
)


@dataclass(frozen=True)
class Added:
    """What a command has in addition to the arguments of its method.

    Args:
        options: its own options, or options that replace those of arguments.
        call: calls the method in its own way, with what the command line gave; None to call it and show the answer.
    """

    options: tuple[click.Option, ...] = ()
    call: Callable[[Screen, Call, dict[str, Any]], Answer | None] | None = None


def _stream(screen: Screen, call: Call, given: dict[str, Any]) -> Answer:
    if given["available_now"] == (given["interval"] is not None):
        raise UsageError("give --available-now, or --interval such as 5s")
    request = StopRequest()
    # Spark takes a while to start, and a signal in the meantime must not be lost.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *ignored: request.make())
    with screen.running(given["pipeline"]) as project:
        return call(project, stop=request)


def _results(screen: Screen, call: Call, given: dict[str, Any]) -> Answer | None:
    format_: Format | None = given["format_"]
    if given["to"] is not None and format_ is None:
        raise click.BadParameter("give --format too", param_hint="--to")
    if format_ is not None and (screen.json or screen.output is not None):
        raise click.BadParameter("leave out --json and --output", param_hint="--format")
    limit = given["limit"] if given["limit"] is not None or format_ is not None else 20
    answer: Results = call(screen.project(), limit=limit or None)  # type: ignore[assignment]
    if format_ is None:
        return answer
    answer.write(given["to"] or _bytes_of_terminal(format_), format_)
    return None


def _bytes_of_terminal(format_: str) -> BinaryIO:
    """Return standard output for writing rows, unless the format is not for a terminal."""
    if sys.stdout.isatty() and format_ in ("parquet", "arrow"):
        raise click.BadParameter(f"{format_} is not for a terminal: give --to FILE", param_hint="--format")
    return sys.stdout.buffer


_SHOWN = 20
"""Largest number of keys that the question lists."""


def _forget(screen: Screen, call: Call, given: dict[str, Any]) -> Answer:
    key, keys, where, project = given["key"], given["keys"], given["where"], screen.project()
    if sum(each is not None for each in (key, keys, where)) != 1:
        raise UsageError("give a KEY, --keys or --where")
    if keys == []:
        raise UsageError("--keys: the file has no key")
    if not given["dry_run"] and not given["yes"]:
        from tidegate.pipelines.project.forget import check_keys, selected_keys

        named = [key] if key is not None else keys
        if named is not None:
            check_keys(project.config, given["pipeline"], named)
        chosen = selected_keys(project.config, given["pipeline"], where).keys if named is None else named
        if chosen:
            shown = "; ".join(map(", ".join, chosen[:_SHOWN]))
            more = f" and {len(chosen) - _SHOWN} more keys" if len(chosen) > _SHOWN else ""
            _ask(f"erase {shown}{more} and every older snapshot of {given['pipeline']}?")
    return call(project)


def _ask(question: str) -> None:
    """Ask a question, and go on only if the answer is yes.

    Raises:
        UsageError: there is no terminal to ask on.
        click.Abort: the answer is no.
    """
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort as error:
        # click raises the same error for end of input and Ctrl-C.
        if isinstance(error.__context__, EOFError):
            raise UsageError("forget asks for confirmation, and there is no terminal to ask on: give --yes") from error
        raise


def _check(screen: Screen, call: Call, given: dict[str, Any]) -> Answer:
    project = screen.project()
    if is_installed("great_expectations"):
        from tidegate.expectations.lean_import import import_lean

        import_lean()
    return call(project)


ADDED = {
    ("stream",): Added(
        (
            click.Option(
                ["--available-now"],
                is_flag=True,
                help="Read the commits that exist now, advance the clock, then end. Give this or --interval.",
            ),
        ),
        _stream,
    ),
    ("results",): Added(
        (
            click.Option(
                ["--limit"],
                type=click.IntRange(min=0),
                help="Largest number of rows; 0 for all. Default: 20, or all with --format.",
            ),
            click.Option(
                ["--format", "format_"],
                type=click.Choice(get_args(Format)),
                help="Write all rows in this format, to standard output or to the file given by --to.",
            ),
            click.Option(
                ["--to"],
                type=click.Path(path_type=Path, dir_okay=False),
                help="File for --format; replaced if it exists.",
            ),
        ),
        _results,
    ),
    ("forget",): Added((click.Option(["--yes"], is_flag=True, help="Don't ask for confirmation."),), _forget),
    ("quality", "check"): Added((), _check),
}
"""By words of the command."""
