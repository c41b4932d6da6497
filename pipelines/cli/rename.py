"""`tidegate rename` gives a pipeline's tables another name. Starts no JVM."""

from __future__ import annotations

from dataclasses import asdict

import click

from tidegate.pipelines.backups.backup import list_backups
from tidegate.pipelines.backups.renamed import copy_tables, finish, remove_tables, unfinished
from tidegate.pipelines.cli.screen import Screen, with_screen
from tidegate.pipelines.config import Config
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import LeaseHeld, UsageError
from tidegate.pipelines.names import check_name
from tidegate.pipelines.run.driver import system_clock
from tidegate.pipelines.run.lease import Lease, read_lease
from tidegate.pipelines.run.work_folder import FilesOfRuns
from tidegate.pipelines.storage import Warehouse
from tidegate.pipelines.tables.pipeline_tables import PipelineTables


@click.command()
@click.argument("old")
@click.argument("new")
@with_screen
def rename(screen: Screen, old: str, new: str) -> None:
    """Give the tables of pipeline OLD the name NEW, with all snapshots, savepoints and checks.

    First end the runs of OLD, and change its name in the code and in tidegate.toml. The tables are copied and
    compared, then the old ones are removed, with the reports and pages of checks of OLD. An interrupted rename is
    continued by the same command.
    """
    config = screen.config()
    _check_names(config, old, new)
    after = screen.tables(new)
    before = PipelineTables(after.warehouse, old)
    if not before.exist and unfinished(after) is None:
        done = f" There is a pipeline {new!r}: was it renamed already?" if after.exist else ""
        raise UsageError(f"there are no tables of pipeline {old!r} in warehouse {after.warehouse.uri}.{done}")
    _check_ended(before)
    with Lease(after, "rename", system_clock) as ours:
        with Lease(before, "rename", system_clock) as theirs:

            def check() -> None:
                ours.check()
                theirs.check()

            renamed, copied = copy_tables(before, after, check)
            remove_tables(before, check)
            files = FilesOfRuns(config, old, ()).remove()
        ours.check()
        finish(before, after)
    uri = after.warehouse.uri
    backups = _backups(config, before)
    screen.show(
        {**asdict(renamed), "pipeline": new, "copied": copied, "files": files, "backups": backups},
        f"{old} is now {new}, at epoch {renamed.epoch}; {copied} bytes were copied. The next run goes on from there",
        "what reads it must change:",
        f"- paths of tables: {uri}/{new}/results in place of {uri}/{old}/results, and so the others; their ids and "
        "versions are the same",
        f"- assets in Airflow: tidegate://{new}/results and tidegate://{new}/state, named {new}__...; DAGs that are "
        f"scheduled by those of {old} wait for nothing now",
        f"- DAGs: those of {new} are new, and Airflow keeps the runs of {old}'s under their old ids",
        f"- metrics, alarms and lineage: their label is {new} from now on",
        *(f"- backup {name} was made of {old}: it brings back only a pipeline of that name" for name in backups),
    )


def _check_names(config: Config, old: str, new: str) -> None:
    """Check that code and tidegate.toml have the new name already, so that no run of the old name begins meanwhile.

    Raises:
        UsageError: they have not, or a name is not valid.
    """
    for name in (old, new):
        try:
            check_name(name)
        except ValueError as error:
            raise UsageError(f"pipeline {error}") from error
    steps = f"change [pipelines.{old}] to [pipelines.{new}] there, and the name of its Pipeline in the code to {new!r}"
    if old == new:
        raise UsageError(f"{old!r} is the old name and the new one: give two names")
    if old in config.pipelines:
        raise UsageError(f"{config.file} still has [pipelines.{old}]: first {steps}. Then run the command again")
    if new not in config.pipelines:
        raise UsageError(f"{config.file} has no [pipelines.{new}]: first {steps}. Then run the command again")
    value = config.load(config.entry(new).object, f"pipelines.{new}.object")
    if isinstance(value, Pipeline) and value.name == old:
        raise UsageError(
            f"pipelines.{new}.object = {config.entry(new).object!r}: that Pipeline is still named {old!r}. First give "
            f"it name={new!r} in the code, then run the command again"
        )
    load_pipeline(config, new)


def _check_ended(before: PipelineTables) -> None:
    """Refuse a pipeline that is running; no command by its old name can end it, because tidegate.toml has it no more.

    Raises:
        LeaseHeld: it is.
    """
    holder = read_lease(before)
    if holder is not None and holder.is_alive(system_clock()):
        raise LeaseHeld(
            f"pipeline {before.pipeline!r} is being driven by {holder}: pause its DAGs in Airflow, and end the run by "
            "Ctrl-C or SIGTERM to its process. The lease of a dead process ends by itself. Nothing was changed"
        )


def _backups(config: Config, before: PipelineTables) -> list[str]:
    if config.backups_uri is None:
        return []
    place = PipelineTables(Warehouse(config.backups_uri, before.warehouse.options), before.pipeline)
    return [backup.name for backup in list_backups(place)]
