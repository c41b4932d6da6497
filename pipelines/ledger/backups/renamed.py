"""A pipeline's tables under another name: copied like the tables of a backup, for a rename or for a branch.

The name is in each manifest, in the transaction of each epoch and in the names of the tables. Everything else is copied
unchanged: versions, ids, snapshots and savepoints. After a rename, the old tables are removed once the new ones are
complete; until then a note in the new folder marks the rename as unfinished, and the same calls continue it.

A branch is created while a driver may be running. It lists the data files of the pipeline's tables as its own: each is
hard-linked into the branch's folder if the file system can do that, or copied within an object store. So a cleanup of
one never removes a file that the other needs. The note in the folder is written last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.pipelines.definition import state
from tidegate.pipelines.definition.branches import BranchNote, read_note, remove_note, write_note
from tidegate.pipelines.definition.columns import with_values
from tidegate.pipelines.errors import Refused, TidegateError
from tidegate.pipelines.ledger.backups.cut import Cut, CutMoved, TableCut, cut_now, make_tables, taken
from tidegate.pipelines.ledger.snapshots.head import Snapshot, read_snapshot, required
from tidegate.pipelines.ledger.snapshots.recovery import recover, trusted_head
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import FOLDER as SAVEPOINTS
from tidegate.pipelines.ledger.snapshots.savepoint import broken_savepoints, find_snapshot
from tidegate.pipelines.ledger.tables.files import FOOTER
from tidegate.pipelines.ledger.tables.pipeline_tables import LEASE, REQUESTS, PipelineTables
from tidegate.pipelines.storage.delta_log import SIDECARS, Action, actions_in, is_entry, statistics_in
from tidegate.windowing.time import Millis

_NOTE = "renamed.json"

_TRIES = 5
"""Number of attempts to take a consistent cut while cleanups remove files."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """The note of an unfinished rename: the old name, the newest epoch that was copied, and that epoch's run."""

    old: str
    epoch: int
    run_id: str


def unfinished(new: PipelineTables) -> Renamed | None:
    """Return the note of an unfinished rename to this name that has already copied tables, or None."""
    folder = new.warehouse.path(new.pipeline)
    if _NOTE not in new.warehouse.names(folder):
        return None
    return Renamed(**json.loads(new.warehouse.read_file(folder, _NOTE)))


def copy_tables(
    old: PipelineTables, new: PipelineTables, check_lease: Callable[[], None] = lambda: None
) -> tuple[Renamed, int]:
    """Copy the tables under the new name. Return the note, and the number of bytes that were copied.

    The caller holds the leases of both names.

    Raises:
        Refused: the new name has other tables, the old tables can't be copied, or an epoch was added to them after an
            earlier call had copied them.
        LeaseHeld: this command hung, and another one is using one of the names.
    """
    note, folder = unfinished(new), new.warehouse.path(new.pipeline)
    if note is not None and note.old != old.pipeline:
        raise Refused(
            f"{new.pipeline} is an unfinished copy of pipeline {note.old!r}: first run `tidegate rename {note.old} "
            f"{new.pipeline}`"
        )
    copy = None if note is None else _readable_head(new)
    if note is not None and copy is not None and copy.manifest.epoch >= note.epoch:
        head = _readable_head(old)
        if head is not None and (head.manifest.epoch, head.manifest.run_id) != (note.epoch, note.run_id):
            raise Refused(
                f"{old.pipeline} was run after it had been copied to {new.pipeline}: remove the folder {folder} and "
                f"run the command again, or keep {new.pipeline} as it is and remove the folder "
                f"{old.warehouse.path(old.pipeline)}"
            )
        return note, 0
    try:
        required(old, recover(old))
        if broken := broken_savepoints(old):
            raise Refused(f"savepoint {broken[0].name!r} can't be read: {broken[0].reason}. Repair or delete it")
        cut = cut_now(old)
    except Refused as error:
        raise Refused(
            f"the tables of {old.pipeline} can't be copied, and nothing was removed: {error}. To run commands on "
            f"{old.pipeline}, restore its old name in the code and in tidegate.toml"
        ) from error
    _check_free(new, cut)
    cuts = [_WithName(old, new, table, check_lease).cut() for table in cut.tables]
    if (table := taken(new, cuts)) is not None:
        raise _exists(new, table)
    note = Renamed(old.pipeline, cut.manifest.epoch, cut.manifest.run_id)
    copied = make_tables(new, cuts[:-1], old.path, check_lease)
    check_lease()
    new.warehouse.replace_file(folder, _NOTE, json.dumps(asdict(note)).encode())
    new.warehouse.make_durable(folder)
    copied += make_tables(new, cuts[-1:], old.path, check_lease)
    _check_same(cut, new)
    return note, copied


def remove_tables(old: PipelineTables, check_lease: Callable[[], None] = lambda: None) -> None:
    """Remove everything under the old name except its lease, which the caller holds."""
    folder = old.warehouse.path(old.pipeline)
    for table in sorted(old.warehouse.folders(folder), key=lambda name: name != state.NAME):
        if table != LEASE:
            check_lease()
            old.warehouse.delete_folder(f"{folder}/{table}")


def finish(old: PipelineTables, new: PipelineTables) -> None:
    """Remove the lease of the old name, which nobody holds, its empty folder, and the note."""
    folder = old.warehouse.path(old.pipeline)
    old.warehouse.delete_folder(old.path(LEASE))
    if not (old.warehouse.folders(folder) or old.warehouse.names(folder)):
        old.warehouse.delete_folder(folder)
    new.warehouse.delete_file(new.warehouse.path(new.pipeline), _NOTE)


def _readable_head(tables: PipelineTables) -> Snapshot | None:
    """Return the newest snapshot, or None if its table is incomplete: not yet copied, or partly removed."""
    try:
        return read_snapshot(tables)
    except Refused:
        return None


def _check_free(new: PipelineTables, cut: Cut) -> None:
    """Refuse a name whose folder does not come from such a copy; `taken` checks folders that do."""
    folder = new.warehouse.path(new.pipeline)
    present = {*new.warehouse.folders(folder), *new.warehouse.links(folder)} - {SAVEPOINTS}
    present |= {f"{SAVEPOINTS}/{name}" for name in new.warehouse.folders(f"{folder}/{SAVEPOINTS}")}
    if others := present - {LEASE, REQUESTS, _NOTE, *(table.name for table in cut.tables)}:
        raise _exists(new, min(others))


def _exists(new: PipelineTables, table: str) -> Refused:
    return Refused(
        f"pipeline {new.pipeline!r} exists: {new.path(table)} is not a copy that an interrupted rename left. Give "
        f"another name; or, if nothing in the folder {new.warehouse.path(new.pipeline)} is needed, remove it and run "
        "the command again. Nothing was removed"
    )


def _check_same(cut: Cut, new: PipelineTables) -> None:
    """Compare the copy with the original: its logs open, and the newest epoch, versions and files are the same."""
    trusted_head(new)
    copied = cut_now(new)
    expected = cut.manifest.model_copy(update={"pipeline": new.pipeline})
    tables = [[(table.name, table.version, table.files.keys()) for table in each.tables] for each in (cut, copied)]
    if copied.manifest != expected or tables[0] != tables[1]:
        raise Refused(
            f"the copy of {cut.manifest.pipeline} at {new.warehouse.path(new.pipeline)} differs from it: does "
            "something else write there? Nothing was removed. Remove that folder and run the command again"
        )


@dataclass(frozen=True, slots=True)
class _WithName:
    """One table of a cut, under the new name."""

    old: PipelineTables
    new: PipelineTables
    table: TableCut
    check_lease: Callable[[], None]

    def cut(self) -> TableCut:
        """Return the table with the new name in its log, after writing changed copies of the files with manifests.

        Files that only speed up Delta are left out, because they describe the old log.
        """
        entries = {
            name: _read(name, content)
            for name, content in self.table.log.items()
            if is_entry(name) or ".checkpoint." in name or name.startswith(SIDECARS)
        }
        manifests = self._manifests(row for rows, _ in entries.values() for row in rows)
        sizes = {file: self._write_manifest(file) for file in sorted(manifests & self.table.files.keys())}
        log: dict[str, bytes] = {}
        # A checkpoint contains the sizes of its sidecars.
        for name in sorted(entries, key=lambda name: not name.startswith(SIDECARS)):
            rows, schema = entries[name]
            log[name] = _written([self._with_name(row, sizes, log) for row in rows], schema)
        files = {name: size for name, size in self.table.files.items() if name not in sizes}
        return replace(self.table, log=log, files=files)

    def _manifests(self, rows: Iterable[Action]) -> set[str]:
        """Return the files that contain a manifest, according to the statistics in the log."""
        if self.table.name != state.NAME and not self.table.name.startswith(f"{SAVEPOINTS}/"):
            return set()
        added = {add["path"]: statistics_in(add) for row in rows if (add := row.get("add"))}
        return {
            unquote(path)
            for path, statistics in added.items()
            if statistics.get("minValues", {}).get("key_group") == state.MANIFEST_KEY_GROUP
        }

    def _write_manifest(self, file: str) -> int:
        with self.old.warehouse.open_file(self.old.path(self.table.name), file) as opened:
            rows = pq.ParquetFile(opened).read()
        texts = [text and _json(self._record(json.loads(text))) for text in rows["manifest"].to_pylist()]
        renamed = with_values(rows, "manifest", pa.array(texts, rows["manifest"].type))
        self.check_lease()
        return self.new.warehouse.write_parquet(self.new.path(self.table.name), file, renamed).size

    def _record(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return a manifest, or its short form, with the new name, unless it is another pipeline's savepoint."""
        return {**record, "pipeline": self.new.pipeline} if record.get("pipeline") == self.old.pipeline else record

    def _with_name(self, row: Action, sizes: dict[str, int], sidecars: dict[str, bytes]) -> Action:
        """Return an entry's action, or a row of a checkpoint, with the new name and the new file sizes."""
        renamed = {**row}
        if (transaction := row.get("txn")) and transaction["appId"] == self.old.application:
            renamed["txn"] = {**transaction, "appId": self.new.application}
        if metadata := row.get("metaData"):
            renamed["metaData"] = {**metadata, "name": self._title(metadata.get("name"))}
        if isinstance(record := (info := row.get("commitInfo") or {}).get("tidegate"), dict):
            renamed["commitInfo"] = {**info, "tidegate": self._record(record)}
        for kind in ("add", "remove"):
            if (file := row.get(kind)) and (size := sizes.get(unquote(file["path"]))) is not None:
                # The file was written again, so it has another footer.
                stats = statistics_in(file)
                stats.pop(FOOTER, None)
                renamed[kind] = {**file, "size": size, **({"stats": json.dumps(stats)} if stats else {})}
        if sidecar := row.get("sidecar"):
            renamed["sidecar"] = {**sidecar, "sizeInBytes": len(sidecars[f"{SIDECARS}/{sidecar['path']}"])}
        return renamed

    def _title(self, title: str | None) -> str | None:
        prefix = f"{self.old.pipeline}."
        is_ours = title is not None and title.startswith(prefix)
        return f"{self.new.pipeline}.{title.removeprefix(prefix)}" if title and is_ours else title


def _read(name: str, content: bytes) -> tuple[list[Action], pa.Schema | None]:
    """Return the rows of a log file, and the schema if it is Parquet."""
    if not name.endswith(".parquet"):
        return actions_in(content), None
    rows = pq.read_table(pa.BufferReader(content))
    return rows.to_pylist(), rows.schema


def _written(rows: list[Action], schema: pa.Schema | None) -> bytes:
    if schema is None:
        return "".join(f"{_json(row)}\n" for row in rows).encode()
    target = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema), target)
    return bytes(target.getvalue())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def make_branch(
    tables: PipelineTables,
    branch: PipelineTables,
    target: str,
    settings: Mapping[str, Millis],
    now: Millis,
    check_lease: Callable[[], None] = lambda: None,
) -> BranchNote:
    """Create a branch, and return its note. The caller holds the lease of the branch; the pipeline may be running.

    The remains of an interrupted call are removed first. The branch starts from `target`: `latest`, an epoch, or
    `savepoint:NAME`.

    Raises:
        UsageError: there is no such snapshot.
        Refused: the tables can't be copied.
        TidegateError: cleanups removed parts of every cut.
    """
    begins_at = find_snapshot(tables, target).manifest
    _copy_as_branch(tables, branch, check_lease)
    head = find_snapshot(branch, "latest").manifest
    if target == "latest":
        begins_at = head
    elif (head.epoch, head.run_id) != (begins_at.epoch, begins_at.run_id):
        check_lease()
        head = restore(branch, find_snapshot(branch, target), now)
    table_id = str(branch.open(state.NAME).metadata().id)
    note = BranchNote(dict(settings), begins_at.epoch, head.run_id, begins_at.line, head.epoch, table_id, now)
    check_lease()
    write_note(branch.warehouse, branch.pipeline, note)
    return note


def _copy_as_branch(tables: PipelineTables, branch: PipelineTables, check_lease: Callable[[], None]) -> None:
    for _ in range(_TRIES):
        remove_tables(branch, check_lease)
        try:
            cut = cut_now(tables)
            cuts = [_WithName(tables, branch, table, check_lease).cut() for table in cut.tables]
            make_tables(branch, cuts, tables.path, check_lease, share=True)
            if cut.is_whole(tables):
                return
        except CutMoved:
            continue
        except Refused as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
    raise TidegateError(
        f"cleanups of {tables.pipeline} removed files while they were listed, {_TRIES} times: no branch was created. "
        "Run the command again"
    )


def remove_branch(branch: PipelineTables, check_lease: Callable[[], None] = lambda: None) -> None:
    """Remove a branch except its lease, which the caller holds. An interrupted call can be repeated."""
    remove_note(branch.warehouse, branch.pipeline)
    remove_tables(branch, check_lease)


def remove_folder(branch: PipelineTables) -> None:
    """Remove the folder of a removed branch, with its lease, which nobody holds."""
    if read_note(branch.warehouse, branch.pipeline) is None and not branch.exist:
        branch.warehouse.delete_folder(branch.path(LEASE))
        branch.warehouse.delete_folder(branch.warehouse.path(branch.pipeline))
