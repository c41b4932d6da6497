"""Rename a pipeline's tables. Starts no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from tidegate.pipelines.definition.branches import check_no_branches
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.names import check_name
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import LeaseHeld, UsageError
from tidegate.pipelines.ledger.backups.renamed import copy_tables, finish, remove_tables, unfinished
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease, read_lease
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Answer, Shown
from tidegate.pipelines.project.savepoints import backups_of
from tidegate.pipelines.run.work_folder import FilesOfRuns


@dataclass(frozen=True, slots=True)
class RenamedTables(Answer):
    """Tables that were renamed.

    Args:
        old: the old name.
        epoch: the newest epoch.
        run_id: the run that produced it.
        pipeline: the new name.
        copied: number of bytes that were copied.
        files: number of files of old runs that were removed.
        backups: names of the backups that were made under the old name.
        warehouse: location of all tables.
    """

    old: str
    epoch: int
    run_id: str
    pipeline: str
    copied: int
    files: int
    backups: tuple[str, ...]
    warehouse: str
    for_people = ("warehouse",)

    def shown(self) -> Iterator[Shown]:
        old, new, uri = self.old, self.pipeline, self.warehouse
        yield (
            f"{old} is now {new}, at epoch {self.epoch}; {self.copied} bytes were copied. The next run continues from "
            "there"
        )
        yield "change its readers:"
        yield (
            f"- paths of tables: {uri}/{new}/results instead of {uri}/{old}/results, and so on; their ids and versions "
            "are the same"
        )
        yield (
            f"- assets in Airflow: tidegate://{new}/results and tidegate://{new}/state, named {new}__...; DAGs that "
            f"are scheduled by those of {old} no longer run"
        )
        yield f"- DAGs: those of {new} are new; Airflow keeps the runs of the old DAGs under their old ids"
        yield f"- metrics, alarms and lineage: their label is now {new}"
        for name in self.backups:
            yield f"- backup {name} was made of {old}: it can only restore a pipeline of that name"


def rename(config: Config, old: str, new: str) -> RenamedTables:
    """Rename the tables of a pipeline. To continue an interrupted call, repeat it."""
    _check_names(config, old, new)
    after = PipelineTables.of(config, new)
    before = PipelineTables(warehouse_of(config), old)
    if not before.exist and unfinished(after) is None:
        done = f" Pipeline {new!r} exists: was it already renamed?" if after.exist else ""
        raise UsageError(f"there are no tables of pipeline {old!r} in warehouse {after.warehouse.uri}.{done}")
    check_no_branches(before.warehouse, old, "a branch belongs to the pipeline that it is named after")
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
    backups = backups_of(config, old)
    return RenamedTables(
        **asdict(renamed), pipeline=new, copied=copied, files=files, backups=backups, warehouse=after.warehouse.uri
    )


def _check_names(config: Config, old: str, new: str) -> None:
    """Check that code and tidegate.toml already have the new name, so that no run under the old name can begin.

    Raises:
        UsageError: they don't, or a name is not valid.
    """
    for name in (old, new):
        try:
            check_name(name)
        except ValueError as error:
            raise UsageError(f"pipeline {error}") from error
    steps = f"change [pipelines.{old}] to [pipelines.{new}] there, and the name of its Pipeline in the code to {new!r}"
    if old == new:
        raise UsageError(f"{old!r} is both the old and the new name: give two names")
    if config.values and (old in config.values or new not in config.values):
        fault = f"still has pipeline {old!r}" if old in config.values else f"has no pipeline {new!r}"
        raise UsageError(f"the project {fault}: first change the name of its Pipeline in the code to {new!r}")
    if old in config.declared:
        raise UsageError(f"{config.file} still has [pipelines.{old}]: first {steps}. Then run the command again")
    if new not in config.declared:
        raise UsageError(f"{config.file} has no [pipelines.{new}]: first {steps}. Then run the command again")
    value = config.values.get(new) or config.load(config.entry(new).object, f"pipelines.{new}.object")
    if isinstance(value, Pipeline) and value.name == old:
        raise UsageError(
            f"pipelines.{new}.object = {config.entry(new).object!r}: that Pipeline is still named {old!r}. First "
            f"change it to name={new!r} in the code, then run the command again"
        )
    load_pipeline(config, new)


def _check_ended(before: PipelineTables) -> None:
    """Refuse a running pipeline; no command can end it by its old name, because tidegate.toml no longer has that name.

    Raises:
        LeaseHeld: the pipeline is running.
    """
    holder = read_lease(before)
    if holder is not None and holder.is_alive(system_clock()):
        raise LeaseHeld(
            f"pipeline {before.pipeline!r} is being driven by {holder}: pause its DAGs in Airflow, and end the run by "
            "Ctrl-C or SIGTERM to its process. The lease of a dead process expires on its own. Nothing was changed"
        )
