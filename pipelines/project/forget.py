"""The erasure of keys, named or selected by a condition, from everything that Tidegate stores. Starts no JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.forget import Forgotten
from tidegate.pipelines.ledger.snapshots.forget import forget as run
from tidegate.pipelines.ledger.snapshots.head import read_snapshot, required
from tidegate.pipelines.ledger.snapshots.recovery import trusted_head
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.keys import NULL, key_of_texts, texts_of_key
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import COUNT, NAMES, NUMBER, OBJECT, TEXT, Column, Columns, Table
from tidegate.pipelines.project.keys_where import SelectedKeys, keys_where
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import spelled
from tidegate.pipelines.run.work_folder import FilesOfRuns
from tidegate.pipelines.sources.base import ChangingSource
from tidegate.pipelines.sources.open_source import open_source

_SAVEPOINT = "savepoint "


@dataclass(frozen=True, slots=True)
class Erased(Facts):
    """Keys that were erased, in one epoch.

    Args:
        epoch: epoch of the erasure; None if nothing held a key, so nothing changed.
        rows: number of erased rows by table; for a savepoint, by `savepoint NAME`.
        files: number of reports, pages, logs and alarms that were removed.
        savepoints: names of the savepoints, which no longer contain the keys.
        keys: the keys, each with its parts as strings.
        shared: keys that were not erased, because only some of their rows meet the condition.
        searched: the tables in which the condition was evaluated; empty without a condition.
        not_searched: the reason why a source could not be searched, by source.
    """

    pipeline: str
    epoch: int | None
    rows: dict[str, int]
    files: int
    savepoints: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...]
    shared: tuple[tuple[str, ...], ...] = ()
    searched: tuple[str, ...] = ()
    not_searched: dict[str, str] = field(default_factory=dict)

    facts: ClassVar[Columns] = (
        Column("pipeline", TEXT),
        Column("epoch", NUMBER),
        Column("files", COUNT),
        Column("savepoints", NAMES),
        Column("searched", NAMES),
        Column("not_searched", OBJECT),
    )
    holds: ClassVar[Mapping[str, Columns]] = {
        "rows": (Column("table", TEXT, "in"), Column("rows", COUNT)),
        "keys": (Column("key", NAMES, value=tuple),),
        "shared": (Column("key", NAMES, value=tuple),),
    }

    def tables(self) -> Iterator[Table]:
        rows = [{"table": name, "rows": count} for name, count in self.rows.items()]
        yield Table(
            "rows",
            self.holds["rows"],
            rows,
            f"nothing in {self.pipeline} was changed"
            if self.epoch is None
            else f"erased by epoch {self.epoch} of {self.pipeline}",
        )
        chosen = f"keys that meet the condition in {', '.join(self.searched)}"
        yield Table("keys", self.holds["keys"], self.keys, chosen, is_shown=bool(self.searched))
        yield Table(
            "shared",
            self.holds["shared"],
            self.shared,
            "not erased: these keys also have rows that don't meet the condition, and their windows hold all of "
            "them. Erase such a key by name; or delete the rows from the source, which corrects its windows with "
            "changes='correct'",
            is_shown=bool(self.shared),
        )

    def remarks(self) -> Iterator[str]:
        # A key without rows may be misspelled, or may remain only in older files.
        if self.keys and self.rows and not any(self.rows.values()):
            key = "; ".join(map(", ".join, self.keys))
            yield (
                f"no row has the key {key}: check that it is spelled as in the data (a null is {NULL})"
                if self.epoch is None
                else f"no row has the key {key} any longer, but older snapshots or files, or an interrupted "
                "erasure, may have left traces of it: these are removed"
            )
        if self.files:
            yield f"{self.files} reports, pages, run logs and alarms were removed too"
        if self.savepoints:
            yield f"the savepoints are kept, without the key: {', '.join(self.savepoints)}"
        yield (
            "savepoints in other places, and pipelines that were restored from this one, may still contain the key: "
            f"{spelled(Remedy(Act.DELETE_SAVEPOINT, self.pipeline))} with its place, and "
            f"{spelled(Remedy(Act.FORGET, key=None))}"
        )
        for source, reason in self.not_searched.items():
            yield f"source {source} was not searched for keys: {reason}"


def selected_keys(config: Config, pipeline: str, where: str) -> Erased:
    """Return the keys that a condition selects, as an erasure that changed nothing.

    Raises:
        UsageError: the text is not a condition, or no table has its columns.
        Refused: the pipeline has no snapshot.
    """
    tables = PipelineTables.of(config, pipeline)
    head = find_snapshot(tables, "latest")
    selected = keys_where(config, tables, load_pipeline(config, pipeline), head, where)
    return _erased(config, pipeline, Forgotten(None, {}), 0, selected)


def check_keys(config: Config, pipeline: str, keys: Sequence[tuple[str, ...]]) -> None:
    """Check that strings are keys of a pipeline.

    Raises:
        UsageError: the strings of one are not a key.
        Refused: the pipeline has no snapshot.
    """
    load_pipeline(config, pipeline)
    head = find_snapshot(PipelineTables.of(config, pipeline), "latest")
    for key in keys:
        key_of_texts(head.key, key)


def forget(config: Config, pipeline: str, keys: Sequence[tuple[str, ...]], where: str | None = None) -> Erased:
    tables, value = PipelineTables.of(config, pipeline), load_pipeline(config, pipeline)
    head = find_snapshot(tables, "latest")
    for key in keys:
        key_of_texts(head.key, key)
    selected = SelectedKeys(list(dict.fromkeys(keys)))
    with Lease(tables, "forget", system_clock):
        check_read_before_forgetting(tables, value)
        if where is not None:
            selected = keys_where(config, tables, value, required(tables, trusted_head(tables)), where)
        if not selected.keys:
            forgotten, files = Forgotten(None, {}), 0
        else:
            texts = [texts_of_key(key_of_texts(head.key, key), key) for key in selected.keys]
            forgotten = run(tables, value, selected.keys, system_clock())
            files = FilesOfRuns(config, pipeline, texts).erase(only_if_named=forgotten.epoch is None)
    return _erased(config, pipeline, forgotten, files, selected)


def _erased(config: Config, pipeline: str, forgotten: Forgotten, files: int, selected: SelectedKeys) -> Erased:
    return Erased(
        pipeline,
        forgotten.epoch,
        forgotten.rows,
        files,
        tuple(name.removeprefix(_SAVEPOINT) for name in forgotten.rows if name.startswith(_SAVEPOINT)),
        tuple(selected.keys),
        tuple(selected.shared),
        tuple(selected.searched),
        selected.not_searched,
    )


def check_read_before_forgetting(tables: PipelineTables, pipeline: Pipeline) -> None:
    """Refuse to forget a key while a stream has several unread versions and one of them changed rows.

    With a single unread version, only rows that the source still has can reappear. A backfill reads only the newest
    version.

    Raises:
        Refused: the source must be read first; the message says how.
    """
    head = read_snapshot(tables)
    table = pipeline.source.table
    if head is None or getattr(pipeline.source, "changes", None) != "correct" or table not in head.manifest.positions:
        return
    position = head.manifest.positions[table]
    unread = _unread(tables, pipeline, position) if position.frontier is None else ()
    if len(unread) > 1:
        raise Refused(
            f"stream {pipeline.name!r} has not read versions {unread[0]} to {unread[-1]} of source {table} yet, which "
            "changed rows. If an older one of them has the key, reading it would bring the key back, so nothing was "
            "erased",
            Remedy(Act.READ_ON, pipeline.name),
        )


def _unread(tables: PipelineTables, pipeline: Pipeline, position: Position) -> tuple[int, ...]:
    """Return the unread versions with data if one of them changed rows; otherwise none."""
    # A source that can no longer be read can't bring the key back.
    with suppress(Refused):
        log = open_source(pipeline.source, tables.warehouse)
        log.check(position)
        commits = list(log.unread(position.version))
        if commits and commits[0].changes and position.files and commits[0].version == position.version + 1:
            # Its correction is complete; only the watermark has yet to move.
            commits = commits[1:]
        if isinstance(log, ChangingSource) and any(commit.changes for commit in commits):
            return tuple(commit.version for commit in commits)
    return ()
