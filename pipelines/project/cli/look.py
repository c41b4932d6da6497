"""Commands that inspect a pipeline without changing it, and its checks. They start no JVM."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from tidegate.extras import is_installed
from tidegate.pipelines.observe.report.answer import Answer
from tidegate.pipelines.observe.report.plain_text import plain
from tidegate.pipelines.project.cli.screen import Screen, command, key_of, limit_option

if TYPE_CHECKING:
    from tidegate.pipelines.project.results import Format, View


@command("list", of_pipeline=False)
def list_pipelines(screen: Screen) -> Answer:
    """Show all pipelines of the project: mode, watermark, lag and last check of each."""
    return screen.project().list()


@command()
@click.option(
    "--view",
    type=click.Choice(["final", "latest", "windows", "all"]),
    default="final",
    show_default=True,
    help="final: windows that can no longer change; latest: the newest result of each window; windows: table windows; "
    "all: every pane.",
)
@click.option(
    "--where", help="Only rows that satisfy a condition in Spark SQL, such as \"clicks > 3 AND user = 'ann'\"."
)
@click.option(
    "--limit", type=click.IntRange(min=0), help="How many to show; 0 for all. Default: 20, or all with --format."
)
@click.option("--sort", help="Column to sort by, largest first. Default: by window end or event time, newest first.")
@click.option("--sql", is_flag=True, help="Print the view as a query that you can run or save as a view.")
@click.option(
    "--dialect",
    type=click.Choice(["duckdb", "spark", "standard"]),
    help="Engine of --sql, by default spark. Spark, and DuckDB with its extension delta, need no catalog; standard "
    "needs --schema.",
)
@click.option(
    "--schema", help="Schema of the tables in the engine's catalog, such as lake.visits; without it, --sql uses paths."
)
@click.option(
    "--local",
    metavar="ZONE",
    help="Show times in this zone, such as Europe/Berlin, with the local date on which each window begins.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["csv", "jsonl", "parquet", "arrow"]),
    help="Write all rows in this format, to standard output or to the file given by --to.",
)
@click.option("--to", type=click.Path(path_type=Path, dir_okay=False), help="File for --format; replaced if it exists.")
def results(
    screen: Screen,
    pipeline: str,
    view: View,
    where: str | None,
    limit: int | None,
    sort: str | None,
    sql: bool,
    dialect: str | None,
    schema: str | None,
    local: str | None,
    format_: Format | None,
    to: Path | None,
) -> Answer | None:
    """Show the windows of PIPELINE, or the results of its process function or join."""
    if to is not None and format_ is None:
        raise click.BadParameter("give --format too", param_hint="--to")
    if format_ is not None and (sql or screen.json or screen.output is not None):
        raise click.BadParameter("leave out --sql, --json and --output", param_hint="--format")
    if not sql:
        if dialect is not None or schema is not None:
            option = "--schema" if dialect is None else "--dialect"
            raise click.BadParameter("only for a query: also give --sql", param_hint=option)
        most = limit if limit is not None or format_ is not None else 20
        answer = screen.project().results(pipeline, view=view, where=where, limit=most or None, sort=sort, local=local)
        if format_ is None:
            return answer
        answer.write(to or _bytes_of_terminal(format_), format_)
        return None
    if view != "final":
        table = "windows" if view == "windows" else "results"
        raise click.BadParameter(f"--sql prints the query for final windows: query table {table}", param_hint="--view")
    if where is not None:
        raise click.BadParameter("--sql prints the whole view: add the condition to the query", param_hint="--where")
    if local is not None:
        raise click.BadParameter("--sql prints times as they are stored, in UTC", param_hint="--local")
    query = screen.project().results_sql(pipeline, dialect=dialect or "spark", schema=schema)
    screen.show({"sql": query})
    if not screen.json:
        # The console would wrap the lines.
        click.echo(plain(query))
    return None


def _bytes_of_terminal(format_: str) -> BinaryIO:
    """Return standard output for writing rows, unless the format is not for a terminal."""
    if sys.stdout.isatty() and format_ in ("parquet", "arrow"):
        raise click.BadParameter(f"{format_} is not for a terminal: give --to FILE", param_hint="--format")
    return sys.stdout.buffer


@command()
@limit_option(20)
@click.option("--stale", is_flag=True, help="Also show epochs whose results were replaced.")
def runs(screen: Screen, pipeline: str, limit: int, stale: bool) -> Answer:
    """Show the epochs of PIPELINE, newest first: their events, results and durations."""
    return screen.project().runs(pipeline, limit=limit or None, stale=stale)


@command()
@click.option(
    "--key",
    multiple=True,
    help="Only windows of this key; give the option once for each key column, in order; \\N is a null.",
)
@limit_option(10, "How many windows to show; 0 for all.")
def why(screen: Screen, pipeline: str, key: tuple[str, ...], limit: int) -> Answer:
    """Show why windows of PIPELINE have not fired: what each one waits for, and what holds event time back."""
    return screen.project().why(pipeline, key=key_of(key), limit=limit or None)


@command()
@click.option("--bound", multiple=True, help="A bound on out-of-orderness to evaluate, such as 10min; may be repeated.")
@click.option("--lateness", multiple=True, help="An allowed lateness to evaluate; with --bound, every combination.")
@click.option("--idleness", multiple=True, help="An idle timeout of source partitions to evaluate.")
@click.option("--gap", multiple=True, help="A session gap to evaluate.")
@click.option("--from-version", type=click.IntRange(min=0), default=0, help="First version of the source to read.")
@click.option(
    "--page", is_flag=True, help="Write the result with its curve as a page next to the run reports, which link to it."
)
@click.option("--to", "to", type=click.Path(path_type=Path, dir_okay=False), help="Write the page to this file.")
def advise(screen: Screen, pipeline: str, **options: Any) -> Answer:
    """Show what other bounds, lateness, idle timeouts and gaps would have done to the rows of PIPELINE's source.

    The rows are read as a stream would read them from the beginning, but no epoch runs. The numbers of late rows are
    exact. Without values, the command chooses some from the rows.
    """
    return screen.project().advise(pipeline, **options)


@command()
@click.argument("key", nargs=-1)
@click.option("--window", help="Only the window that starts at this time, such as 2024-03-01T06:00:00Z.")
@limit_option(100, "How many of the newest lines of each table to show; 0 for all.")
@click.option("--page", is_flag=True, help="Write the trace as a page with a timeline, next to the run reports.")
@click.option("--to", "to", type=click.Path(path_type=Path, dir_okay=False), help="Write the page to this file.")
def trace(screen: Screen, pipeline: str, key: tuple[str, ...], **options: Any) -> Answer:
    r"""Show what happened to KEY of PIPELINE: its rows, watermarks, windows, panes and late rows, in order.

    KEY has the values of the key columns, in order; \N is a null.
    """
    limit = options.pop("limit") or None
    return screen.project().trace(pipeline, key_of(key) or (), limit=limit, **options)


@command()
@click.option("--sample", default="1%", show_default=True, help="Share of the keys to sample, or `all`.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the sample. Default: the number of the epoch.")
@click.option("--new", is_flag=True, help="Verify only what was published since the last `verify --new` that passed.")
@click.option(
    "--budget",
    help="Verify one new epoch, if the last such verification took at most this share of the time of all epochs since "
    "then, such as 2%.",
)
def verify(screen: Screen, pipeline: str, **options: Any) -> Answer:
    """Recompute windows of PIPELINE from its source, and compare them with what is published.

    All windows of the sampled keys are recomputed by a plain implementation of the rules, without the operators. The
    state and the late rows of these keys are compared too. All late rows, epochs and retained manifests are checked
    against each other. If something differs, the command ends with exit code 5.
    """
    return screen.project().verify(pipeline, **options)


@command()
def explain(screen: Screen, pipeline: str) -> Answer:
    """Check PIPELINE, and show how it runs: the operator, why it was chosen, and the steps of an epoch.

    Errors that would end a run are reported without Spark where possible: missing columns and functions, conditions
    that are not boolean, types that don't fit.
    """
    return screen.project().explain(pipeline)


@command()
@click.option(
    "--command",
    type=click.Choice(["drive", "quality"]),
    default="drive",
    show_default=True,
    help="Show the datasets of this command. drive: one that computes windows, such as backfill or stream; quality: "
    "the check of the tables.",
)
@click.option(
    "--since", help="Count the output of epochs that began at this time or later, such as 2024-03-01T06:00:00Z."
)
@click.option("--until", help="With --since: count only epochs that began before this time.")
def lineage(screen: Screen, pipeline: str, **options: Any) -> Answer:
    """Show the datasets of PIPELINE by their OpenLineage names, and the source columns of each column of its tables.

    With --json, the output has the datasets with all their facets. Nothing is sent anywhere.
    """
    return screen.project().lineage(pipeline, **options)


@command()
@click.option("--epoch", type=int, help="Report on the run of this epoch. Default: the newest.")
@click.option(
    "--key",
    multiple=True,
    callback=lambda context, option, key: "/".join(key) if key else None,
    help="Key whose windows the timeline shows; give the option once for each key column, in order, or its columns "
    "joined by /; \\N is a null. Default: the busiest key.",
)
@click.option("--window", help="Also draw the key's window that starts at this time: rows, watermark, panes.")
@click.option(
    "--to",
    "to",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write. Default: a file among the artifacts.",
)
def report(screen: Screen, pipeline: str, **options: Any) -> Answer:
    """Write the report of a run of PIPELINE as one self-contained HTML page."""
    return screen.project().report(pipeline, **options)


class _Quality(click.Command):
    """The check of a pipeline, or `quality acknowledge PIPELINE`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        # A pipeline may have that name; its check takes only options.
        if args[:1] == ["acknowledge"] and len(args) > 1 and (args[1] == "--help" or not args[1].startswith("-")):
            return acknowledge.make_context(f"{info_name} acknowledge", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@command(cls=_Quality)
@click.option("--epoch", type=int, help="Check the snapshot of this epoch. Default: the newest.")
@click.option("--all", is_flag=True, help="Check every current window, and read every file.")
@click.option(
    "--partitions",
    type=click.Choice(["hour", "day", "month"]),
    help="Also return the keys of the partitions whose final windows changed, by the start of the windows in UTC.",
)
@click.option("--since", help="Count only changes since an earlier check: the JSON of `mark` in its result.")
@click.option("--report", is_flag=True, help="Also write the run report, regardless of the outcome.")
def quality(screen: Screen, pipeline: str, **options: Any) -> Answer:
    """Check the tables of PIPELINE as of an epoch.

    The check applies Tidegate's own rules to all tables, and the suite that tidegate.toml names to the windows that
    became final since the last check that passed. If a critical expectation does not hold, the
    command ends with exit code 5; a warning only marks the run. An expectation that can't be evaluated is an error of
    the suite, and the exit code is 2.

    `tidegate quality acknowledge PIPELINE --where CONDITION --reason TEXT` lets known bad windows pass.
    """
    project = screen.project()
    if is_installed("great_expectations"):
        from tidegate.expectations.lean_import import import_lean

        import_lean()
    return project.quality(pipeline, **options)


@command()
@click.option("--where", required=True, help="SQL condition on columns of the final windows.")
@click.option("--reason", required=True, help="Why these windows may pass; the reason is stored and shown.")
def acknowledge(screen: Screen, pipeline: str, where: str, reason: str) -> Answer:
    """Let known bad windows of PIPELINE pass its own suite from now on.

    The suite skips the windows that satisfy the condition, as they are now: a window whose result changes is checked
    again.
    """
    return screen.project().quality_acknowledge(pipeline, where=where, reason=reason)
