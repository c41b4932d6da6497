"""The erasure of a key from everything that Tidegate stores. Starts no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.forget import forget as run
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.keys import NULL, key_of_texts, texts_of_key
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Answer, Grid, Shown
from tidegate.pipelines.project.savepoints import backups_of
from tidegate.pipelines.run.corrections import check_read_before_forgetting
from tidegate.pipelines.run.work_folder import FilesOfRuns

_SAVEPOINT = "savepoint "


@dataclass(frozen=True, slots=True)
class Erased(Answer):
    """A key that was erased.

    Args:
        epoch: epoch of the erasure; None if nothing held the key, so nothing changed.
        rows: number of erased rows by table; for a savepoint, by `savepoint NAME`.
        files: number of reports, pages, logs and alarms that were removed.
        savepoints: names of the savepoints, which no longer contain the key.
        backups: names of the backups, which may still contain it.
        key: the key's parts as strings.
    """

    pipeline: str
    epoch: int | None
    rows: dict[str, int]
    files: int
    savepoints: tuple[str, ...]
    backups: tuple[str, ...]
    key: tuple[str, ...]
    for_people = ("key",)

    def shown(self) -> Iterator[Shown]:
        held = self.epoch is not None
        title = (
            f"erased by epoch {self.epoch} of {self.pipeline}" if held else f"nothing in {self.pipeline} was changed"
        )
        yield Grid(title, ("in", "rows"), list(self.rows.items()), ("rows",))
        # A key without rows may be misspelt, or may remain only in older files.
        if not any(self.rows.values()):
            key = ", ".join(self.key)
            yield (
                f"no row has the key {key} any longer, but older snapshots or files, or an interrupted `tidegate "
                "forget`, may have left traces of it: these are removed"
                if held
                else f"no row has the key {key}: check that it is spelt as in the data (a null is {NULL})"
            )
        if self.files:
            yield f"{self.files} reports, pages, run logs and alarms were removed too"
        if self.savepoints:
            yield f"the savepoints are kept, without the key: {', '.join(self.savepoints)}"
        for name in self.backups:
            yield (f"backup {name} is older and may contain the key: `tidegate backup delete {self.pipeline} {name}`")


def check_key(config: Config, pipeline: str, key: tuple[str, ...]) -> None:
    """Check that strings are a key of a pipeline.

    Raises:
        UsageError: the strings are not a key.
        Refused: the pipeline has no snapshot.
    """
    load_pipeline(config, pipeline)
    head = find_snapshot(PipelineTables.of(config, pipeline), "latest")
    key_of_texts(head.key, key)


def forget(config: Config, pipeline: str, key: tuple[str, ...]) -> Erased:
    tables, value = PipelineTables.of(config, pipeline), load_pipeline(config, pipeline)
    head = find_snapshot(tables, "latest")
    texts = texts_of_key(key_of_texts(head.key, key), key)
    with Lease(tables, "forget", system_clock):
        check_read_before_forgetting(tables, value)
        forgotten = run(tables, value, key, system_clock())
        files = FilesOfRuns(config, pipeline, texts).erase(only_if_named=forgotten.epoch is None)
    savepoints = tuple(name.removeprefix(_SAVEPOINT) for name in forgotten.rows if name.startswith(_SAVEPOINT))
    return Erased(pipeline, forgotten.epoch, forgotten.rows, files, savepoints, backups_of(config, pipeline), key)
