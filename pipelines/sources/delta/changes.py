"""What the actions of a version did to the rows of a Delta table, especially UPDATE, DELETE, MERGE and RESTORE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.sources.commits import ChangedFiles, SourceFile
from tidegate.pipelines.sources.delta.reader import ADDED_ROWS, DELETED, DELETED_BESIDE, DELETED_ROWS, PARTITION, SIDE
from tidegate.pipelines.sources.delta.table_facts import details_of
from tidegate.pipelines.storage.delta_log import Action, commit_info, statistics_in
from tidegate.windowing.time import Millis

_File: TypeAlias = tuple[str, str]
"""Path and deletion vector of a file. With another vector, the file has other rows."""


def changes_data(action: Action) -> bool:
    """Return True if an action adds or removes rows, rather than only rewriting them."""
    return any(kind in action and action[kind].get("dataChange", True) for kind in ("add", "remove"))


def commit_time(actions: list[Action]) -> Millis:
    """Return the commit's own time. File times are the last resort, because copying a table changes them."""
    for action in actions:
        info = action.get("commitInfo", {})
        if time := info.get("inCommitTimestamp") or info.get("timestamp"):
            return int(time)
    return max((action["add"]["modificationTime"] for action in actions if "add" in action), default=0)


def _number_stored(add: Action) -> int | None:
    """Return the number of rows in the statistics of an add action, including those that a deletion vector removes."""
    rows = statistics_in(add).get("numRecords")
    return None if rows is None else int(rows)


def added_file(path: str, add: Action, written: Millis) -> SourceFile:
    """Return the file of an add action, with its number of rows without those that a deletion vector removes."""
    stored = _number_stored(add)
    rows = None if stored is None else stored - int((add.get(DELETED) or {}).get("cardinality", 0))
    return SourceFile(path, written, rows=rows, stored=stored, details=details_of(add), size=int(add["size"]))


def removes_data(actions: Sequence[Action]) -> bool:
    """Return True if a commit removed or changed rows, rather than only rewriting them."""
    return any(remove.get("dataChange", True) for remove in _all(actions, "remove"))


def refusal_of(path: str, version: int, actions: Sequence[Action]) -> Refused:
    """Return the error for a version that removed or changed rows."""
    operation = commit_info(actions).get("operation")
    return Refused(
        f"source table {path} is not append-only: version {version} ({operation or 'unknown operation'}) removed or "
        "changed rows that may have been read. Give the pipeline's DeltaSource changes='correct', which corrects the "
        "windows of these rows (joins and functions don't support it), or changes='ignore', which skips such "
        "versions. Or compute from the table as it is now",
        Remedy(Act.RERUN_ALL),
        Remedy(Act.NEW_NAME),
    )


@dataclass(frozen=True, slots=True)
class Changes:
    """The commits between two versions of a table, in order.

    `path_of` converts a file's path in the log to its path in the file system. `earlier` returns the add actions of the
    older version by path, for removals without partition values.
    """

    commits: Sequence[Sequence[Action]]
    path_of: Callable[[str], str]
    earlier: Callable[[], Mapping[str, Action]]

    def cheapest(self, sizes: Callable[[list[str]], Mapping[str, int | None]]) -> ChangedFiles:
        """Return the files with the deleted and added rows, from the change feed if that means reading fewer bytes.

        The change feed is not used if one of its files is missing: the files of both versions may still exist. `sizes`
        returns file sizes by path, None for a missing file.
        """
        changed, fed = self.files(), self.fed()
        if fed is None or fed.size >= changed.size:
            return changed
        present = sizes([file.path for file in (*fed.deleted, *fed.added)])
        return changed if None in present.values() else fed

    def files(self) -> ChangedFiles:
        """Return the files in which the two versions differ.

        A file that was added and removed again in between is in neither list. Files that OPTIMIZE rewrote are left out
        if no other commit touched them.
        """
        deleted: dict[_File, SourceFile] = {}
        added: dict[_File, SourceFile] = {}
        rewritten: list[tuple[set[_File], set[_File]]] = []
        earlier = cache(self.earlier)
        for actions in self.commits:
            removes, appends = set[_File](), set[_File]()
            for remove in _all(actions, "remove"):
                file = (self.path_of(remove["path"]), _vector(remove))
                removes.add(file)
                if added.pop(file, None) is None:
                    deleted[file] = self._deleted(remove, earlier)
            for add in _all(actions, "add"):
                file = (self.path_of(add["path"]), _vector(add))
                if not removes and not add.get("dataChange", True):
                    # Statistics and row ids are written by adding an existing file again.
                    continue
                appends.add(file)
                if deleted.pop(file, None) is None:
                    added[file] = self._appended(add, actions)
            if removes and not removes_data(actions):
                rewritten.append((removes, appends))
        for removes, appends in rewritten:
            if removes <= deleted.keys() and appends <= added.keys():
                for file in removes:
                    del deleted[file]
                for file in appends:
                    del added[file]
        return _without_rows_of_both(deleted, added)

    def _deleted(self, remove: Action, earlier: Callable[[], Mapping[str, Action]]) -> SourceFile:
        path, details = self.path_of(remove["path"]), details_of(remove)
        if remove.get(PARTITION) is None and path in earlier():
            details |= {name: value for name, value in details_of(earlier()[path]).items() if name == PARTITION}
        return SourceFile(path, 0, stored=_number_stored(remove), details=details, size=remove.get("size"))

    def _appended(self, add: Action, actions: Sequence[Action]) -> SourceFile:
        # Rows of an append are checked against the time of its commit, as usual. Other files contain rows of older
        # commits.
        is_append = add.get("dataChange", True) and not removes_data(actions)
        written = commit_time([*actions]) if is_append else add["modificationTime"]
        return added_file(self.path_of(add["path"]), add, written)

    def fed(self) -> ChangedFiles | None:
        """Return the files with the deleted and added rows, using the change feed where possible.

        If a commit wrote files of the feed, they contain all of its changes. For other commits, such as appends and
        deletions of whole files, the changes are in the files that they added and removed. Return None if no
        commit wrote files of the feed.
        """
        deleted: list[SourceFile] = []
        added: list[SourceFile] = []
        unfed: list[Sequence[Action]] = []
        newer: dict[str, Action] = {}
        is_fed = False

        def take_unfed() -> None:
            files = Changes(unfed, self.path_of, lambda: {**self.earlier(), **newer}).files()
            deleted.extend(files.deleted)
            added.extend(files.added)
            newer.update((self.path_of(add["path"]), add) for actions in unfed for add in _all(actions, "add"))
            unfed.clear()

        for actions in self.commits:
            if not (fed := _all(actions, "cdc")):
                unfed.append(actions)
                continue
            take_unfed()
            is_fed = True
            adds = _all(actions, "add")
            newer.update((self.path_of(add["path"]), add) for add in adds)
            # Event times are checked against the time at which the rows were written, never before the first file.
            written = min((add["modificationTime"] for add in adds), default=commit_time([*actions]))
            for file in fed:
                path, details, size = self.path_of(file["path"]), details_of(file), file.get("size")
                for side, files in ((DELETED_ROWS, deleted), (ADDED_ROWS, added)):
                    files.append(SourceFile(path, written, details={**details, SIDE: side}, size=size))
        if not is_fed:
            return None
        take_unfed()
        return ChangedFiles(*_without_files_of_both(deleted, added), by_feed=True)


def _all(actions: Sequence[Action], kind: str) -> list[Action]:
    return [action[kind] for action in actions if kind in action]


def _without_files_of_both(
    deleted: Sequence[SourceFile], added: Sequence[SourceFile]
) -> tuple[tuple[SourceFile, ...], tuple[SourceFile, ...]]:
    """Return the files except those that were both added and removed as a whole."""

    def whole(file: SourceFile) -> _File | None:
        is_part = SIDE in file.details or DELETED_BESIDE in file.details
        return None if is_part else (file.path, _vector(file.details))

    left = Counter(filter(None, map(whole, added))) & Counter(filter(None, map(whole, deleted)))

    def rest(files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
        both, kept = left.copy(), []
        for file in files:
            name = whole(file)
            if name is not None and both[name]:
                both[name] -= 1
            else:
                kept.append(file)
        return tuple(kept)

    return rest(deleted), rest(added)


def _without_rows_of_both(deleted: Mapping[_File, SourceFile], added: Mapping[_File, SourceFile]) -> ChangedFiles:
    """Return the files. If a file's deletion vector changed, only rows that exactly one of the two removes are read."""
    sides = [{path: file for (path, _), file in side.items()} for side in (deleted, added)]
    parts: list[tuple[SourceFile, ...]] = []
    for side, beside in (sides, sides[::-1]):
        files = []
        for path, file in side.items():
            if path not in beside:
                files.append(file)
            elif vector := beside[path].details.get(DELETED):
                files.append(replace(file, details={**file.details, DELETED_BESIDE: vector}))
        parts.append(tuple(files))
    deleted_in_part, added_in_part = parts
    return ChangedFiles(deleted_in_part, added_in_part)


def _vector(action: Mapping[str, Any]) -> str:
    """Return the unique id of a file's deletion vector, or "" for none.

    Writers may describe the same vector differently, for example with or without an offset of null.
    """
    vector = action.get(DELETED)
    return f"{vector.get('storageType')}{vector.get('pathOrInlineDv')}@{vector.get('offset') or 1}" if vector else ""
