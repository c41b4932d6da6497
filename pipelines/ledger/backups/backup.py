"""Backups of a pipeline: created while a driver runs, listed, and removed. A file is copied once for all backups.

For each pipeline, the backup location holds a pool of data files and, for each backup, a list of its files (with the
content of the logs) and a description. The description is written last: without it, there is no backup.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.names import check_name
from tidegate.pipelines.errors import LeaseHeld, Refused, TidegateError, UsageError
from tidegate.pipelines.ledger.backups.cut import Cut, CutMoved, TableCut, cut_now, make_tables, taken
from tidegate.pipelines.ledger.manifest import library_version
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import Millis

BACKUPS, POOL = "backups", "files"
"""A pipeline's folders in the backup location."""

LATEST = "latest"
"""Name that stands for the newest backup."""

_ASIDE = ".removed"
"""Suffix of a file of the pool that is about to be deleted."""

CONTENT = pa.schema(
    [
        pa.field("table", pa.string(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("content", pa.binary()),
    ]
)
"""A row for each file of a backup; `content` is null for data files, which are in the pool."""

_FORMAT = 1
_TRIES = 5
"""Number of attempts to take a consistent cut while cleanups remove files. Each copies only what the previous ones did
not.
"""


@dataclass(frozen=True, slots=True)
class Backup:
    """A complete backup of a pipeline as of the newest epoch in it: its data files, and the version of each table.

    Times are int64 epoch milliseconds, sizes are bytes.
    """

    name: str
    pipeline: str
    epoch: int
    timeline: int
    watermark: Millis
    created_at: Millis
    files: int
    size: int
    library_version: str
    versions: dict[str, int]
    format: int = _FORMAT


def create_backup(
    tables: PipelineTables,
    place: PipelineTables,
    name: str,
    now: Millis,
    check_lease: Callable[[], None] = lambda: None,
) -> tuple[Backup, int]:
    """Copy the newest published epoch of a pipeline; return the backup and the number of bytes that were copied.

    The caller holds the lease of the backup location; the pipeline itself may be running.

    Raises:
        UsageError: the name is not valid, or is taken.
        Refused: the pipeline has no published epoch, or a file is missing.
        LeaseHeld: this command hung while another one used the backup location.
        TidegateError: cleanups removed parts of every cut.
    """
    try:
        check_name(name)
    except ValueError as error:
        raise UsageError(f"backup {error}") from error
    if name == LATEST:
        raise UsageError(f"backup name {LATEST!r} stands for the newest backup: give another name")
    if name in _names(place):
        raise UsageError(f"backup {name!r} of {tables.pipeline} exists in {place.warehouse.uri}: give another name")
    copied, cut = 0, None
    for _ in range(_TRIES):
        try:
            cut = cut_now(tables)
            copied += _copy(tables, place, cut)
            if cut.is_whole(tables):
                check_lease()
                backup = _describe(place, cut, name, now)
                _check_pool(tables, place, cut, name)
                return backup, copied
        except CutMoved:
            continue
    raise TidegateError(
        f"cleanups of {tables.pipeline} removed files while they were being copied, {_TRIES} times: no backup was "
        "created. Run the command again: it copies only the files that are new since then"
    )


def list_backups(place: PipelineTables) -> list[Backup]:
    """Return the backups of a pipeline, newest first."""
    return sorted((_read(place, name) for name in _names(place)), key=lambda backup: -backup.created_at)


def find_backup(place: PipelineTables, name: str) -> Backup:
    """Return the backup of this name, or the newest backup for `latest`."""
    backups = list_backups(place)
    for backup in backups:
        if name in (backup.name, LATEST):
            return backup
    names = ", ".join(backup.name for backup in backups) or "none"
    raise UsageError(f"no backup {name!r} of {place.pipeline} in {place.warehouse.uri}; its backups: {names}")


def delete_backups(place: PipelineTables, names: Iterable[str], check_lease: Callable[[], None] = lambda: None) -> int:
    """Remove backups, and the files of the pool that no other backup needs. Return how many files were removed.

    The caller holds the lease of the backup location, and `check_lease` reads the lease table: a host whose clock is
    ahead may take a lease that is still valid here.

    Raises:
        LeaseHeld: this command hung while another one used the backup location.
    """
    for name in names:
        check_lease()
        place.warehouse.delete_file(place.path(BACKUPS), f"{name}.json")
    left = _names(place)
    for file in place.warehouse.names(place.path(BACKUPS)):
        check_lease()
        # This is the file list of a backup that was just removed, or whose command was killed.
        if file.removesuffix(".json").removesuffix(".parquet") not in left:
            place.warehouse.delete_file(place.path(BACKUPS), file)
    needed = {
        (row["table"], row["name"]) for name in left for row in content_of(place, name, ("table", "name")).to_pylist()
    }
    gone = 0
    for folder in _pool_folders(place):
        for file in _put_back(place, folder):
            if (folder, file) not in needed:
                check_lease()
                _remove(place, f"{POOL}/{folder}", file, check_lease)
                gone += 1
    return gone


def _put_back(place: PipelineTables, folder: str) -> dict[str, int]:
    """Put back the files of the pool that a killed command had set aside. Return the names and sizes of all files.

    A new backup may rely on them: its command may have seen them before they were set aside.
    """
    path = place.path(f"{POOL}/{folder}")
    aside = [file for file in place.warehouse.names(path) if file.endswith(_ASIDE)]
    for file in aside:
        if file.removesuffix(_ASIDE) not in place.warehouse.names(path):
            place.warehouse.move_file(path, file, path, file.removesuffix(_ASIDE))
    return place.warehouse.names(path)


def _remove(place: PipelineTables, folder: str, file: str, check_lease: Callable[[], None]) -> None:
    """Remove a file of the pool, unless this command hung: a new backup may then rely on the file."""
    path, aside = place.path(folder), f"{file}{_ASIDE}"
    if not place.warehouse.move_file(path, file, path, aside):
        return
    try:
        check_lease()
    except LeaseHeld:
        place.warehouse.move_file(path, aside, path, file)
        raise
    place.warehouse.delete_file(path, aside)


def content_of(place: PipelineTables, name: str, columns: Iterable[str] = CONTENT.names) -> pa.Table:
    """Return the files of a backup, one row each."""
    return place.warehouse.read_files(place.path(BACKUPS), [f"{name}.parquet"], CONTENT, list(columns))


def _copy(tables: PipelineTables, place: PipelineTables, cut: Cut) -> int:
    """Copy the files of a cut that are not in the pool, and return their size in bytes."""
    missing: list[tuple[str, str, str, str]] = []
    size = 0
    for table in cut.tables:
        source, target = tables.path(table.name), place.path(f"{POOL}/{table.name}")
        present = place.warehouse.names(target)
        new = {name: length for name, length in table.files.items() if present.get(name) != length}
        missing += [(source, name, target, name) for name in new]
        size += sum(new.values())
    try:
        tables.warehouse.copy_files(missing)
    except Refused as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise CutMoved(str(error)) from error
        raise
    for target in {target for _, _, target, _ in missing}:
        place.warehouse.make_durable(target)
    return size


def _check_pool(tables: PipelineTables, place: PipelineTables, cut: Cut, name: str) -> None:
    """Withdraw a backup with missing files: another command may have removed them before the backup became visible.

    Once the backup is visible, its description protects the files.
    """
    listed = f"{name}.parquet" in place.warehouse.names(place.path(BACKUPS))
    for table in cut.tables:
        present = place.warehouse.names(place.path(f"{POOL}/{table.name}"))
        if not listed or any(present.get(file) != size for file, size in table.files.items()):
            place.warehouse.delete_file(place.path(BACKUPS), f"{name}.json")
            raise TidegateError(
                f"another command removed files of backup {name!r} of {tables.pipeline} while this one hung: no backup "
                "was created. Run the command again"
            )


def _describe(place: PipelineTables, cut: Cut, name: str, now: Millis) -> Backup:
    manifest = cut.manifest
    backup = Backup(
        name=name,
        pipeline=manifest.pipeline,
        epoch=manifest.epoch,
        timeline=manifest.timeline,
        watermark=manifest.watermark,
        created_at=now,
        files=sum(len(table.files) for table in cut.tables),
        size=sum(sum(table.files.values()) for table in cut.tables),
        library_version=library_version(),
        versions={table.name: table.version for table in cut.tables},
    )
    rows = pa.Table.from_pylist([row for table in cut.tables for row in _rows(table)], CONTENT)
    place.warehouse.write_parquet(place.path(BACKUPS), f"{name}.parquet", rows)
    place.warehouse.replace_file(place.path(BACKUPS), f"{name}.json", json.dumps(asdict(backup)).encode())
    place.warehouse.make_durable(place.path(BACKUPS))
    return backup


def _rows(table: TableCut) -> Iterator[dict[str, object]]:
    of_table = {"table": table.name, "version": table.version}
    for name, content in table.log.items():
        yield {**of_table, "name": name, "size": len(content), "content": content}
    for name, size in table.files.items():
        yield {**of_table, "name": name, "size": size, "content": None}


def _names(place: PipelineTables) -> list[str]:
    """Return the names of the complete backups."""
    files = place.warehouse.names(place.path(BACKUPS))
    return sorted(file.removesuffix(".json") for file in files if file.endswith(".json"))


def _read(place: PipelineTables, name: str) -> Backup:
    described = json.loads(place.warehouse.read_file(place.path(BACKUPS), f"{name}.json"))
    if described["format"] != _FORMAT:
        raise Refused(
            f"backup {name!r} of {place.pipeline} in {place.warehouse.uri} has format {described['format']}, but this "
            f"tidegate reads {_FORMAT}: a newer version wrote it. Use that version"
        )
    return Backup(**described)


def _pool_folders(place: PipelineTables) -> Iterator[str]:
    """Yield the folders of the pool that contain files, such as `state` and `savepoints/NAME`."""
    for folder in place.warehouse.folders(place.path(POOL)):
        yield folder
        yield from (f"{folder}/{below}" for below in place.warehouse.folders(place.path(f"{POOL}/{folder}")))


def restore_backup(tables: PipelineTables, place: PipelineTables, backup: Backup) -> int:
    """Restore the tables of a pipeline from a backup. Return the number of bytes that were copied.

    The caller holds the lease of the pipeline.

    Raises:
        Refused: there are tables other than those of an interrupted call, or a file of the backup is missing.
    """
    rows = content_of(place, backup.name)
    cuts = [_cut(rows, name, version) for name, version in backup.versions.items()]
    if (table := taken(tables, cuts)) is not None:
        raise Refused(
            f"there is a table {tables.path(table)}: a backup is restored only where the pipeline has no tables. "
            f"Move the folder {tables.warehouse.path(tables.pipeline)} away, and run the command again. To go back "
            f"within intact tables, use `tidegate restore {tables.pipeline}` with a snapshot"
        )
    for cut in cuts:
        pool = place.path(f"{POOL}/{cut.name}")
        stored = _put_back(place, cut.name)
        if lost := sorted(file for file, size in cut.files.items() if stored.get(file) != size):
            raise Refused(
                f"{len(lost)} files of the backup are missing or truncated in {pool}, the first is {lost[0]}: nothing "
                f"of table {cut.name} was restored. Restore another backup: `tidegate backup list {tables.pipeline}`"
            )
    return make_tables(tables, cuts, lambda name: place.path(f"{POOL}/{name}"))


def _cut(rows: pa.Table, name: str, version: int) -> TableCut:
    of_table = rows.filter(pc.field("table") == name)
    content = pc.field("content")
    log = {row["name"]: row["content"] for row in of_table.filter(content.is_valid()).to_pylist()}
    files = {row["name"]: row["size"] for row in of_table.filter(content.is_null()).to_pylist()}
    return TableCut(name, version, log, files)
