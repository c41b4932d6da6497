"""Commands that reopen or prune late rows, erase a key, and keep the tables of a pipeline small."""

from __future__ import annotations

from typing import Any, TextIO

import click

from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.observe.report.answer import Answer
from tidegate.pipelines.project.cli.screen import Screen, command, engine_option, key_of, patience_option


@click.group()
def late() -> None:
    """Count, reopen or prune late rows: rows that arrived after their windows had closed."""


@command(group=late)
@click.option("--by", help="Also count by this column of table late: epoch, window_start, or a column of the input.")
def summary(screen: Screen, pipeline: str, by: str | None) -> Answer:
    """Count the late rows of PIPELINE by reason, with how late they were, and how many `late reopen` has added.

    The quantiles show what an allowed lateness would have achieved: with the value in column p95, 95 % of these rows
    would have been on time.
    """
    return screen.project().late_summary(pipeline, by=by)


@command(group=late)
@click.option(
    "--key",
    multiple=True,
    help="Only late rows of this key; give the option once for each key column, in order; \\N is a null.",
)
@click.option(
    "--start",
    help="Only late rows whose window begins at this time or later; without a zone, it is in the pipeline's timezone.",
)
@click.option("--end", help="Only late rows whose window begins before this time.")
@click.option("--strict", is_flag=True, help="Reopen nothing, and end with exit code 3, if a row can't be reopened.")
@click.option("--ask-stream", is_flag=True, hidden=True)
@patience_option("Seconds to wait for a running stream with --available-now, which ends on its own.")
@engine_option
def reopen(screen: Screen, pipeline: str, key: tuple[str, ...], ask_stream: bool, **options: Any) -> Answer:
    """Reprocess late rows of PIPELINE into the windows that they missed: all, or those of a key or time span.

    Only the windows that they belong to are recomputed from the source; their old panes are retracted and new panes
    published, in one epoch. Sessions that a late row connects become one. No row is reopened twice.

    Rows that can't be reopened, for example because source files of their time are missing, stay in table late and are
    listed with the reasons; the others are reopened, in several epochs if need be.

    A continuous stream holds the lease and reopens late rows itself, on the reopen_schedule of tidegate.toml.
    """
    if ask_stream:
        raise UsageError(
            "--ask-stream: a running stream no longer takes requests; it reopens late rows on a schedule. Set "
            f'`reopen_schedule = "0 4 * * *"` in [pipelines.{pipeline}] of tidegate.toml and restart the stream, or '
            "stop the stream and run this command without --ask-stream"
        )
    with screen.running(pipeline) as project:
        return project.late_reopen(pipeline, key=key_of(key), **options)


@command(group=late)
@click.option(
    "--days",
    type=click.IntRange(min=0),
    required=True,
    help="Keep late and rejected rows of epochs up to this age.",
)
def prune(screen: Screen, pipeline: str, days: int) -> Answer:
    """Remove late and rejected rows of old epochs of PIPELINE. Their counts stay in table epochs."""
    return screen.project().late_prune(pipeline, days=days)


@command()
@click.argument("key", nargs=-1)
@click.option(
    "--keys",
    type=click.File(encoding="utf-8"),
    help="Erase the keys in this file (- for standard input): one on each line, with tabs between key columns.",
)
@click.option(
    "--where",
    help="Erase the keys whose rows all meet this condition on columns of the tables or the source: user_id = 7.",
)
@click.option("--dry-run", is_flag=True, help="Show the keys that --where selects; change nothing.")
@click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
def forget(
    screen: Screen,
    pipeline: str,
    key: tuple[str, ...],
    keys: TextIO | None,
    where: str | None,
    dry_run: bool,
    yes: bool,
) -> Answer:
    r"""Erase KEY (one value for each key column) from the tables and savepoints of PIPELINE.

    The tables are state, results, windows, late and rejects.
    Instead of KEY, give several keys with --keys, or select them with --where; they are erased in one epoch. In a key,
    \N is a null. Older snapshots are removed too, because they may hold the keys. If nothing ever held a key, nothing
    changes. Erase the rows from the source yourself: a backfill would read any remaining rows again. With --where, list
    the keys with --dry-run before you do that, because the source's rows tell which keys belong to a person.
    """
    project = screen.project()
    if sum((bool(key), keys is not None, where is not None)) != 1:
        raise UsageError("give a KEY, --keys or --where")
    lines = [] if keys is None else [line.rstrip("\n") for line in keys]
    named = [tuple(line.split("\t")) for line in lines if line] or [key]
    if keys is not None and named == [()]:
        raise UsageError("--keys: the file has no key")
    if dry_run:
        return project.forget(pipeline, key_of(key), keys=None if keys is None else named, where=where, dry_run=True)
    if not yes:
        from tidegate.pipelines.project.forget import check_keys, selected_keys

        if where is None:
            check_keys(project.config, pipeline, named)
        chosen = named if where is None else selected_keys(project.config, pipeline, where).keys
        if chosen:
            shown = "; ".join(map(", ".join, chosen[:_SHOWN]))
            more = f" and {len(chosen) - _SHOWN} more keys" if len(chosen) > _SHOWN else ""
            _ask(f"erase {shown}{more} and every older snapshot of {pipeline}?")
    if where is not None:
        return project.forget(pipeline, where=where)
    return project.forget(pipeline, keys=[of_texts for each in named if (of_texts := key_of(each)) is not None])


_SHOWN = 20
"""Largest number of keys that the question lists."""


def _ask(question: str) -> None:
    """Ask a question, and return whether the answer is yes.

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


@command()
@click.option(
    "--snapshots",
    type=click.IntRange(min=1),
    help="Number of newest snapshots to keep. Default: retain_snapshots of tidegate.toml.",
)
@click.option(
    "--days",
    type=click.IntRange(min=0),
    help="Also keep snapshots up to this age; for a stream, one per hour. Default: retain_days.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed; change nothing.")
def vacuum(screen: Screen, pipeline: str, **options: Any) -> Answer:
    """Remove files of PIPELINE that no retained snapshot, published row or unpublished epoch needs.

    Old logs, runs and reports are removed too. Savepoints are kept. The snapshots that `tidegate snapshot list` shows
    afterwards can be restored.
    """
    return screen.project().vacuum(pipeline, **options)


@command()
def optimize(screen: Screen, pipeline: str) -> Answer:
    """Merge the small files of PIPELINE's tables. No row changes; `vacuum` removes the old files later."""
    return screen.project().optimize(pipeline)


@click.group()
def windows() -> None:
    """Rebuild table windows, which has one row for each window that has a result."""


@command("build", group=windows)
def build_windows(screen: Screen, pipeline: str) -> Answer:
    """Rebuild table windows of PIPELINE from table results.

    The table gets the settings of [pipelines.PIPELINE.windows] in tidegate.toml. Runs fill the table automatically; use
    this command for a pipeline that no longer runs, or after a setting of the table has changed. While the settings are
    being changed, readers see no windows in the table.
    """
    return screen.project().windows_build(pipeline)
