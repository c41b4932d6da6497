"""`tidegate forget` erases a key from everything that tidegate keeps. Starts no JVM."""

from __future__ import annotations

import click

from tidegate.pipelines.backups.backup import list_backups
from tidegate.pipelines.cli.screen import Screen, table, with_screen
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.run.driver import system_clock
from tidegate.pipelines.run.lease import Lease
from tidegate.pipelines.run.work_folder import FilesOfRuns
from tidegate.pipelines.snapshots.find import find_snapshot
from tidegate.pipelines.snapshots.forget import Forgotten
from tidegate.pipelines.snapshots.forget import forget as run
from tidegate.pipelines.storage import Warehouse, arrow_schema
from tidegate.pipelines.tables.key_groups import key_schema
from tidegate.pipelines.tables.key_texts import texts_of_key
from tidegate.pipelines.tables.keys import NULL, key_of_texts
from tidegate.pipelines.tables.pipeline_tables import PipelineTables

_SAVEPOINT = "savepoint "


@click.command()
@click.argument("pipeline")
@click.argument("key", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Don't ask.")
@with_screen
def forget(screen: Screen, pipeline: str, key: tuple[str, ...], yes: bool) -> None:
    r"""Erase KEY (one value for each key column) from state, results, late, rejects and savepoints of PIPELINE.

    In a key, \N is a null.
    Older snapshots go too, since they may hold it; a key that nothing ever held changes nothing. Erase the key
    from the source yourself: rows that are still there come back with a backfill.
    """
    from tidegate.pipelines.definition.load import load_pipeline
    from tidegate.pipelines.run.corrections import check_read_before_forgetting

    tables = screen.tables(pipeline)
    value = load_pipeline(screen.config(), pipeline)
    head = find_snapshot(tables, "latest")
    schema = key_schema(arrow_schema(head.handle), tuple(head.manifest.schemas.key))
    texts = texts_of_key(key_of_texts(schema, key), key)
    if not yes:
        _ask(f"erase {', '.join(key)} and every older snapshot of {pipeline}?")
    with Lease(tables, "forget", system_clock):
        check_read_before_forgetting(tables, value)
        forgotten = run(tables, value, key, system_clock())
        held = forgotten.epoch is not None
        files = FilesOfRuns(screen.config(), pipeline, texts).erase(only_if_named=not held)
    savepoints = [name.removeprefix(_SAVEPOINT) for name in forgotten.rows if name.startswith(_SAVEPOINT)]
    backups = _backups(screen, pipeline)
    title = f"erased by epoch {forgotten.epoch} of {pipeline}" if held else f"nothing of {pipeline} was changed"
    screen.show(
        {
            "pipeline": pipeline,
            "epoch": forgotten.epoch,
            "rows": forgotten.rows,
            "files": files,
            "savepoints": savepoints,
            "backups": backups,
        },
        table(title, ("in", "rows"), forgotten.rows.items(), ("rows",)),
        *_remarks(forgotten, key),
        *([f"{files} reports, pages, logs of runs and alarms were removed too"] if files else []),
        *([f"the savepoints stay, and don't have the key any more: {', '.join(savepoints)}"] if savepoints else []),
        *(
            f"backup {name} was made before and may have the key: `tidegate backup delete {pipeline} {name}`"
            for name in backups
        ),
    )


def _backups(screen: Screen, pipeline: str) -> list[str]:
    """Return the names of the pipeline's backups in the place that tidegate.toml names."""
    uri = screen.config().backups_uri
    if uri is None:
        return []
    place = PipelineTables(Warehouse(uri, screen.tables(pipeline).warehouse.options), pipeline)
    return [backup.name for backup in list_backups(place)]


def _remarks(forgotten: Forgotten, key: tuple[str, ...]) -> list[str]:
    """Return a line that says what no row means: a misspelt key, or one of which only older files may have known."""
    if any(forgotten.rows.values()):
        return []
    shown = ", ".join(key)
    if forgotten.epoch is None:
        return [f"no row has the key {shown}: check that it is spelt as in the data (a null is {NULL})"]
    left = "an older snapshot or file may have had it, or an earlier `tidegate forget` may have been interrupted"
    return [f"no row had the key {shown} any more, but {left}: these are removed"]


def _ask(question: str) -> None:
    """Ask a question, and return if the answer is yes.

    Raises:
        UsageError: nobody is there to answer.
        click.Abort: the answer is no.
    """
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort as error:
        # click turns the end of input and Ctrl-C into the same error.
        if isinstance(error.__context__, EOFError):
            raise UsageError(
                "forget asks for a confirmation, and nobody can answer in this terminal: give --yes"
            ) from error
        raise
