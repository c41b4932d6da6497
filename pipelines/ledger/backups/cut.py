"""Copies of all tables of a pipeline as of one epoch: read while a driver runs, and turned back into tables.

A backup stores such a cut, and a rename changes the name in it. Both turn it into tables with `make_tables`.

An epoch is first committed to table `state`, then published to the other tables one by one. So each table is cut
at its last version without a later epoch. Files and log entries never change, so the cut needs no lease. A cleanup may
remove some of them in the meantime; `is_whole` notices that, and the backup makes a new cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from tidegate.pipelines.definition import state
from tidegate.pipelines.errors import Refused, TidegateError
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.head import require_snapshot
from tidegate.pipelines.ledger.snapshots.published import require_published
from tidegate.pipelines.ledger.snapshots.recovery import trusted_head
from tidegate.pipelines.ledger.snapshots.savepoint import FOLDER as SAVEPOINTS
from tidegate.pipelines.ledger.snapshots.savepoint import list_savepoints
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.files import epoch_of
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.storage import delta_log
from tidegate.pipelines.storage.warehouse import active_files


class CutMoved(TidegateError):
    """A cleanup removed a part of the cut while it was being read."""


@dataclass(frozen=True, slots=True)
class TableCut:
    """One table up to the last version in the cut: the content of each file of its log, and its data files.

    `name` is the table's folder below the pipeline's folder, such as `state` or `savepoints/NAME`. Sizes are in bytes.
    """

    name: str
    version: int
    log: dict[str, bytes] = field(repr=False)
    files: dict[str, int] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Cut:
    """All tables of a pipeline as of one epoch. `state`, whose existence marks a pipeline as run, is last."""

    manifest: Manifest
    tables: tuple[TableCut, ...]

    def is_whole(self, tables: PipelineTables) -> bool:
        """Return True if no log has lost an entry since: a cleanup removes entries before it removes files."""
        return all(set(cut.log) - {delta_log.LAST_CHECKPOINT} <= _log_names(tables, cut.name) for cut in self.tables)


def cut_now(tables: PipelineTables) -> Cut:
    """Return the tables as of the newest epoch that every table has.

    Raises:
        Refused: there is no such epoch, a data file of a table is missing, or a table lacks what was committed to it.
        CutMoved: a cleanup is running, so a later try may succeed.
    """
    # A copy with missing rows would become the newest backup, and could displace older ones.
    trusted_head(tables)
    # Table quality is cut first, so it has no check of a later epoch.
    has_checks = tables.warehouse.exists(tables.path(quality.NAME))
    checks = [_table(tables, quality.NAME, tables.newest(quality.NAME).version())] if has_checks else []
    snapshot = require_published(tables, require_snapshot(tables))
    epoch = snapshot.manifest.epoch
    published = [
        _table(tables, name, _version_with(tables, name, epoch), epoch) for name in tables.with_windows(PUBLISHED)
    ]
    savepoints = []
    for entry in list_savepoints(tables):
        version = tables.warehouse.open(entry.path).version()
        savepoints.append(_table(tables, f"{SAVEPOINTS}/{entry.name}", version))
    return Cut(
        snapshot.manifest,
        (*savepoints, *checks, *published, _table(tables, state.NAME, snapshot.version, epoch)),
    )


def _version_with(tables: PipelineTables, table: str, epoch: int) -> int:
    """Return the last version of a published table before the first epoch that is later than this one."""
    log, last = tables.warehouse.log(tables.path(table)), tables.newest(table).version()
    for version in range(last, -1, -1):
        try:
            transactions = [action["txn"] for action in log.actions(version) if "txn" in action]
        except FileNotFoundError:
            break
        epochs = [each["version"] for each in transactions if each["appId"] == tables.application]
        if epochs and max(epochs) <= epoch:
            break
        if epochs:
            last = version - 1
    return last


def _table(tables: PipelineTables, name: str, version: int, epoch: int | None = None) -> TableCut:
    """Read the log of a table up to a version, and list its data files, except those of epochs after `epoch`."""
    path = tables.path(name)
    log, noted = tables.warehouse.log(path), f"{path}/{delta_log.FOLDER}"
    names = _log_names(tables, name)
    wanted = {each for each in names if (of := delta_log.version_of(each)) is None or of <= version}
    _check_opens(path, wanted, version)
    try:
        content = {each: log.read(each) for each in sorted(wanted)}
    except FileNotFoundError:
        raise CutMoved(f"a cleanup removed entries in the log of table {path}") from None
    if tables.warehouse.sizes(noted, [delta_log.LAST_CHECKPOINT])[delta_log.LAST_CHECKPOINT] is not None:
        hint = log.read(delta_log.LAST_CHECKPOINT)
        if json.loads(hint)["version"] <= version:
            content[delta_log.LAST_CHECKPOINT] = hint
    links = tables.warehouse.links(path)
    files = {
        each: size
        for each, size in tables.warehouse.names(path).items()
        if each.endswith(".parquet") and (epoch is None or (epoch_of(each) or 0) <= epoch) and each not in links
    }
    cut = TableCut(name, version, content, files)
    _check_files(tables, cut)
    return cut


def _log_names(tables: PipelineTables, name: str) -> set[str]:
    """Return the files of a table's log that belong to a version, and the files that those refer to."""
    folder = f"{tables.path(name)}/{delta_log.FOLDER}"
    entries = {each for each in tables.warehouse.names(folder) if delta_log.version_of(each) is not None}
    second_format = any(".checkpoint." in each and not each.endswith(".checkpoint.parquet") for each in entries)
    sidecars = tables.warehouse.names(f"{folder}/{delta_log.SIDECARS}") if second_format else {}
    return entries | {f"{delta_log.SIDECARS}/{each}" for each in sidecars}


def _check_opens(path: str, names: Collection[str], version: int) -> None:
    """Raise CutMoved if a version can't be opened from the files of a log."""
    checkpoints = [older for older in delta_log.checkpoint_versions(names) if delta_log.checkpoint_files(names, older)]
    if set(range(max(checkpoints, default=-1) + 1, version + 1)) - set(delta_log.entry_versions(names)):
        raise CutMoved(f"a cleanup removed entries in the log of table {path}")


def _check_files(tables: PipelineTables, cut: TableCut) -> None:
    path = tables.path(cut.name)
    active = {
        str(file["path"]): int(file["size_bytes"]) for file in active_files(tables.warehouse.open(path, cut.version))
    }
    for name, size in active.items():
        if cut.files.get(name) != size:
            if not set(cut.log) - {delta_log.LAST_CHECKPOINT} <= _log_names(tables, cut.name):
                raise CutMoved(f"a cleanup removed files of table {path}")
            fault = "is missing" if name not in cut.files else f"has {cut.files[name]} bytes, not {size}"
            fault = "is a symbolic link" if name in tables.warehouse.links(path) else fault
            raise Refused(
                f"file {name} of table {path} {fault}: a copy of it would be incomplete. Older backups are kept; "
                "docs/operations/recovery.md says what to do for each table"
            )


def taken(tables: PipelineTables, cuts: Sequence[TableCut]) -> str | None:
    """Return a table that does not come from an interrupted `make_tables` with these cuts, or None if there is none.

    A complete table `state` counts as one, because that call was not interrupted.
    """
    for cut in cuts:
        # A killed process may have left part of a file.
        present = {name for name in log_files(tables, cut.name) if not name.endswith(".tmp")}
        log = tables.warehouse.log(tables.path(cut.name))
        is_whole = cut.name == state.NAME and cut.log.keys() <= present
        if is_whole or any(name not in cut.log or log.read(name) != cut.log[name] for name in present):
            return cut.name
    return None


def make_tables(
    tables: PipelineTables,
    cuts: Sequence[TableCut],
    folder_of: Callable[[str], str],
    check_lease: Callable[[], None] = lambda: None,
    share: bool = False,
) -> int:
    """Create tables from cuts. Return the number of bytes that were copied.

    Data files come first and logs last, with table `state` at the very end: its entries, newest first, then its
    checkpoints, newest last. A log without its oldest entry, or without the checkpoint that replaces older ones, can't
    be opened. So no command mistakes incomplete tables for complete ones, and after an interruption the same call
    continues. The last of the cuts is `state`. With `share`, data files are hard links where the file system can do
    that.
    """
    copied = sum(_bring_files(tables, cut, folder_of(cut.name), share) for cut in cuts)
    for cut in cuts:
        folder = f"{tables.path(cut.name)}/{delta_log.FOLDER}"
        present = log_files(tables, cut.name)
        for entry in sorted(cut.log, key=_order):
            if entry not in present:
                check_lease()
                within, _, file = f"{folder}/{entry}".rpartition("/")
                tables.warehouse.replace_file(within, file, cut.log[entry])
        tables.warehouse.make_durable(folder)
    return copied


def _order(name: str) -> tuple[int, int]:
    """Return a log file's rank in the order of writing. The file that names the newest checkpoint comes first."""
    if name == delta_log.LAST_CHECKPOINT or name.startswith(delta_log.SIDECARS):
        return 0, 0
    return (1, -(delta_log.version_of(name) or 0)) if delta_log.is_entry(name) else (2, delta_log.version_of(name) or 0)


def log_files(tables: PipelineTables, table: str) -> set[str]:
    """Return the files of a table's log, by their paths in it."""
    folder = f"{tables.path(table)}/{delta_log.FOLDER}"
    below = {f"{delta_log.SIDECARS}/{each}" for each in tables.warehouse.names(f"{folder}/{delta_log.SIDECARS}")}
    return below | tables.warehouse.names(folder).keys()


def _bring_files(tables: PipelineTables, cut: TableCut, source: str, share: bool) -> int:
    target = tables.path(cut.name)
    present = tables.warehouse.names(target)
    missing = [file for file, size in cut.files.items() if present.get(file) != size]
    tables.warehouse.copy_files([(source, file, target, file) for file in missing], share)
    if missing:
        tables.warehouse.make_durable(target)
    return sum(cut.files[file] for file in missing)
