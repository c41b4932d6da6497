"""The `tidegate` command. Each subcommand is a module that is loaded when it is called, so that help is fast."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import traceback
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

import click

from tidegate.extras import missing_extra
from tidegate.pipelines.errors import OTHER, USAGE, TidegateError
from tidegate.pipelines.failures import in_words, is_of_store, is_system_failure, remedy_for, with_line, with_remedy
from tidegate.pipelines.observe.report.plain_text import plain, plain_cell
from tidegate.pipelines.rendering import command, spelled_as
from tidegate.pipelines.run.parent import end_with_parent
from tidegate.pipelines.storage.credentials import masked

_MODULES = {"demo": "demo", "flights": "init", "init": "init", "schema": "init", "setup": "init"}
"""Commands that prepare a project or a machine, or show an example, each with its module. `Project` has the others."""


class _Commands(click.Group):
    """The commands of a project, of one of its name spaces, or both, each made when it is called."""

    def __init__(self, *args: Any, words: tuple[str, ...] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self._words = words

    def list_commands(self, ctx: click.Context) -> list[str]:
        declared = _declared()
        more = () if self._words else (*declared.namespaces(), *_MODULES)
        return sorted({*declared.verbs(*self._words), *more})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if not self._words and cmd_name in _MODULES:
            command: click.Command = getattr(import_module(f"{__name__}.{_MODULES[cmd_name]}"), cmd_name)
            return command
        declared = _declared()
        if (method := declared.verbs(*self._words).get(cmd_name)) is not None:
            made: click.Command = declared.command_of((*self._words, cmd_name), method)
            return made
        if not self._words and (kind := declared.namespaces().get(cmd_name)) is not None:
            return _Commands(cmd_name, words=(cmd_name,), help=declared.Documented.of(kind).plain)
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Click itself truncates each sentence at the end of its line.
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(1000)) for name, command in commands.items() if command]
            )


def _declared() -> ModuleType:
    # `main` first sets how often Python collects garbage, which takes an eighth of the time of these imports.
    return import_module(f"{__name__}.declared")


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="tidegate", prog_name="tidegate")
def cli() -> None:
    """Exact, Flink-grade windows for Spark and Delta Lake.

    You define a pipeline once, in Python, and name it in tidegate.toml. These commands run it as a backfill or as a
    stream, and inspect its snapshots and results.

    Exit codes: 0 done, 2 usage, 3 refused, 4 another driver holds the lease, 5 quality, 1 anything else.
    """


_NEW_OBJECTS = 50_000
"""Number of allocations between two garbage collections. With Python's default of 700, collecting takes an eighth of a
check's import time.
"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command and end the process with its exit code."""
    gc.set_threshold(_NEW_OBJECTS)
    _open_closed_streams()
    end_with_parent()
    given = sys.argv[1:] if arguments is None else arguments
    end_process(run(given))


def _open_closed_streams() -> None:
    """Open the standard streams that the parent closed, or files of tables would get their numbers."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - it stays open


def end_process(code: int) -> NoReturn:
    """Run the functions registered with `atexit`, then end the process immediately with an exit code.

    After Spark's process was killed, native libraries may crash while Python shuts down, and the process would end with
    their exit code.
    """
    try:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            # The reader of a pipe, such as `head`, may have closed it.
            with suppress(OSError, ValueError):
                stream.flush()
    finally:
        os._exit(code)


def run(arguments: list[str]) -> int:
    """Run the command, and return its exit code."""
    with spelled_as(command):
        return _run(arguments)


def _run(arguments: list[str]) -> int:
    try:
        cli.main(arguments, prog_name="tidegate", standalone_mode=False)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as asked:
        click.echo(asked.ctx.get_help() if asked.ctx else "", err=False)
        return 0
    except click.ClickException as error:
        return _report(arguments, error, _usage(error), USAGE)
    except (KeyboardInterrupt, click.Abort):
        click.echo("stopped", err=True)
        return 130
    except TidegateError as error:
        return _report(arguments, error, str(error), error.exit_code)
    except Exception as error:
        if (missing := missing_extra(error)) is not None:
            return _report(arguments, missing, str(missing), missing.exit_code)
        # Errors from `windowing` are about values that the user passed. Comparing the name avoids importing it.
        if type(error).__module__ == "tidegate.windowing.errors":
            return _report(arguments, error, str(error), USAGE)
        if isinstance(error, OSError) and remedy_for(error) is not None:
            return _report(arguments, error, with_remedy(error), OTHER)
        more = "" if "--debug" in arguments else ". Give --debug for the traceback"
        return _report(arguments, error, f"{_unexpected(error)}{more}", OTHER)
    return 0


def _usage(error: click.ClickException) -> str:
    """Return the message of a usage error, with a suggestion or a hint for an unknown option or command."""
    message = error.format_message()
    if isinstance(error, click.MissingParameter) and error.param is not None and error.param.name == "pipeline":
        return f"{message} {_pipelines(error.ctx)}"
    if isinstance(error, click.MissingParameter) and error.ctx is not None:
        return f"{message} See `{error.ctx.command_path} --help`"
    if not isinstance(error, click.NoSuchOption | click.exceptions.NoSuchCommand) or error.possibilities:
        return message
    command = error.ctx.command_path if error.ctx else "tidegate"
    # Click does not know the names of lazily loaded commands.
    named = error.command_name if isinstance(error, click.exceptions.NoSuchCommand) else ""
    if error.ctx is not None and (close := get_close_matches(named, _names(error.ctx), 1)):
        return f"{message} Did you mean {close[0]!r}?"
    misplaced = isinstance(error, click.NoSuchOption) and error.ctx is not None and error.ctx.parent is None
    after = " Give options after the command." if misplaced else ""
    return f"{message}{after} `{command} --help` lists the commands and options"


def _pipelines(ctx: click.Context | None) -> str:
    """Return the names of the project's pipelines, or the reason why they can't be listed."""
    # Help needs no tidegate.toml, so its reader is imported only here.
    from tidegate.pipelines.definition.config import load_config

    try:
        # Click parses options before it reports missing arguments, so --config is already read.
        config = load_config(ctx.params.get("config_file") if ctx else None)
    except TidegateError as error:
        return f"The project's pipelines can't be listed: {error}"
    faults = "".join(f". Faulty: {faults}" for faults in config.faulty.values())
    return f"Give a pipeline: {config.names}{faults}"


def _names(ctx: click.Context) -> list[str]:
    return ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else []


def _unexpected(error: Exception) -> str:
    """Return the message of an unexpected error: its type and text, and a remedy if there is one."""
    words = in_words(error)
    if is_of_store(error):
        return f"the object store failed: {with_remedy(error)}. Nothing committed is lost: run the command again"
    named = words if is_system_failure(error) and not isinstance(error, OSError) else f"{type(error).__name__}: {words}"
    named = with_line(named, error)
    return ". ".join(filter(None, (named, remedy_for(error))))


def _report(arguments: list[str], error: Exception, message: str, code: int) -> int:
    message = masked(message)
    if "--debug" in arguments and not isinstance(error, click.ClickException):
        click.echo(plain(masked("".join(traceback.format_exception(error)))), err=True, nl=False)
    if "--json" in arguments:
        # Most commands load it anyway, but help doesn't need it.
        from tidegate.pipelines.project.cli.screen import error_as_json

        # The failure may be that of standard output itself.
        with suppress(OSError):
            click.echo(error_as_json(error, message, code))
            return code
    # Airflow shows the last line that begins like this as the reason. Only click's own messages span several lines.
    shown = plain(message) if isinstance(error, click.ClickException) else plain_cell(message)
    click.echo(f"tidegate: {shown}", err=True)
    return code
