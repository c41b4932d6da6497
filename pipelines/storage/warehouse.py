"""The warehouse of the tables: one rule for paths, and one way to open tables and to read and write files.

Tasks write through the same store that the driver commits to. A path itself says whether it is local: a pipeline whose
warehouse is a folder may read a source in a bucket, and vice versa.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.failures import in_words, is_of_store, may_be_intact
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.storage.delta_log import (
    FOLDER,
    LAST_CHECKPOINT,
    DeltaLog,
    checkpoint_name,
    entry_name,
    version_of,
)
from tidegate.pipelines.storage.footers import footer_checksum
from tidegate.pipelines.storage.links import check_no_link, delete_below, link_or_copy, replacing
from tidegate.pipelines.storage.object_files import ObjectFiles, is_without_bucket, object_files, store_failed
from tidegate.pipelines.storage.options import check

if TYPE_CHECKING:
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

_COPIES = 8
"""Number of files that are copied concurrently."""

_BATCH = 65_536
"""Number of rows that are read at a time."""

_DECODED = re.compile(r"%[0-9A-Fa-f]{2}|\\")
"""What deltalake replaces in a local path: escapes of URIs, and the backslash."""


def _check_in_folder(path: str, name: str) -> None:
    """Raise Refused if a name from a log, which others may have written, leads outside the folder of its table."""
    if name.startswith("/") or "://" in name or ".." in name.split("/"):
        raise Refused(
            f"the log of table {path} names a file outside the table's folder, {name!r}: somebody else wrote it",
            Remedy(Act.LIST_SNAPSHOTS),
        )


def _joined(root: str, name: str) -> str:
    # A table may be a whole bucket.
    return f"{root}/{name}" if root else name


class WrittenParquet(NamedTuple):
    """A file that was written: its size in bytes, and the checksum of its footer."""

    size: int
    footer: str


_UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError)
"""Errors of reading a damaged file."""


@dataclass(frozen=True)
class Warehouse:
    """A folder or URI that holds tables.

    Args:
        uri: an absolute path, or a URI of an object store.
        options: storage options as in deltalake.
    """

    uri: str
    # The options contain the keys of the object store, which must not get into a log.
    options: dict[str, str] = field(default_factory=dict, repr=False)

    def path(self, *parts: str) -> str:
        """Return the path of a table below the warehouse; an absolute path or URI is returned unchanged."""
        if parts and ("://" in parts[0] or parts[0].startswith("/")):
            return "/".join(parts)
        return "/".join((self.uri.rstrip("/"), *parts))

    def exists(self, path: str) -> bool:
        """Return True if there is a Delta table at a path; raise OSError if anything other than a folder is there."""
        if is_local(path):
            root = self.filesystem(path)[1]
            try:
                return any(version_of(name) is not None for name in os.listdir(f"{root}/{FOLDER}"))
            except (FileNotFoundError, NotADirectoryError):
                if os.path.isfile(root):
                    raise
                return False
        # deltalake's own check holds Python's lock, so the lease could not be renewed while a store is slow.
        files, key = self.objects(path)
        return files.has(f"{key}/{FOLDER}", lambda name: version_of(name) is not None)

    def open(self, path: str, version: int | None = None) -> DeltaTable:
        """Open a Delta table, at its head or at a version.

        Raises:
            TableNotFoundError: there is no such table.
            DeltaError: it can't be opened.
            StoreFailed: its store does not answer.
        """
        try:
            return DeltaTable(path, version=version, storage_options=self.options_of(path))
        except TableNotFoundError:
            raise
        except (DeltaError, OSError) as error:
            if is_local(path) or not (is_of_store(error) or is_without_bucket(error)):
                raise
            raise store_failed("open table", path, error) from None

    def options_of(self, path: str) -> dict[str, str] | None:
        """Return the storage options of a path. A local file system has none.

        Raises:
            UsageError: an option is wrong, or deltalake would use another path.
        """
        if is_local(path):
            check_local(path)
            return None
        check(path, self.options)
        return self.options

    def log(self, path: str) -> DeltaLog:
        """Return the log of the Delta table at a path."""
        return DeltaLog(*self.filesystem(f"{path}/{FOLDER}"))

    def filesystem(self, path: str) -> tuple[fs.FileSystem, str]:
        """Return the file system of a path, and the path's root within it."""
        if is_local(path):
            return fs.LocalFileSystem(), path.removeprefix("file://")
        files, key = self.objects(path)
        return fs.PyFileSystem(files), key

    def objects(self, path: str) -> tuple[ObjectFiles, str]:
        """Return the files of the object store of a path, and the path's key within it."""
        return object_files(path, self.options)

    def place_of(self, path: str, name: str) -> tuple[fs.FileSystem, str]:
        """Return the file system of a file in a folder, and the file's path within it."""
        filesystem, root = self.filesystem(path)
        return filesystem, _joined(root, name)

    def open_file(self, path: str, name: str) -> pa.NativeFile:
        """Open a file in a folder to read parts of it."""
        filesystem, place = self.place_of(path, name)
        return filesystem.open_input_file(place)

    def read_file(self, path: str, name: str) -> bytes:
        """Return the content of a small file in a folder."""
        filesystem, place = self.place_of(path, name)
        with filesystem.open_input_stream(place) as stream:
            content: bytes = stream.read()
            return content

    def write_parquet(
        self, path: str, name: str, table: pa.Table, *, compression: str = "zstd", **options: Any
    ) -> WrittenParquet:
        """Write a Parquet file into a table's folder. The file is not committed."""
        import pyarrow.parquet as pq

        filesystem, root = self.filesystem(path)
        is_folder = isinstance(filesystem, fs.LocalFileSystem)
        if is_folder:
            filesystem.create_dir(root, recursive=True)
        # A file in a store is built in memory: if writing fails, no part of it may appear.
        target: Any = f"{root}/{name}" if is_folder else pa.BufferOutputStream()
        # Statistics of floats mislead readers about NaN, so only flat columns of other types have statistics.
        described = [
            field.name
            for field in table.schema
            if not pa.types.is_floating(field.type) and not pa.types.is_nested(field.type)
        ]
        pq.write_table(
            table,
            target,
            filesystem=filesystem if is_folder else None,
            compression=compression,
            write_statistics=described,
            write_page_checksum=True,
            **options,
        )
        if not is_folder:
            content = target.getvalue()
            self._put(path, name, content)
            return WrittenParquet(int(content.size), footer_checksum(pa.BufferReader(content)))
        # The folder is synced once for all files, before they are committed.
        self.make_durable(path, [name], folder=False)
        with filesystem.open_input_file(target) as file:
            return WrittenParquet(int(file.size()), footer_checksum(file))

    def replace_file(self, path: str, name: str, content: bytes | pa.Buffer) -> None:
        """Write a file of a folder atomically: a reader sees the old content or the new, never a part."""
        filesystem, root = self.filesystem(path)
        if not isinstance(filesystem, fs.LocalFileSystem):
            self._put(path, name, content)
            return
        filesystem.create_dir(root, recursive=True)
        beside = f"{name}.{uuid.uuid4().hex}.tmp"
        with replacing(f"{root}/{name}", f"{root}/{beside}"):
            with filesystem.open_output_stream(f"{root}/{beside}") as out:
                out.write(content)
            self.make_durable(path, [beside], folder=False)

    def _put(self, path: str, name: str, content: bytes | pa.Buffer) -> None:
        files, key = self.objects(path)
        files.put(f"{key}/{name}", content)

    def make_durable(self, path: str, names: Sequence[str] = (), folder: bool = True) -> None:
        """Sync files of a folder, and the folder, so that they survive a power loss; object stores don't need this."""
        filesystem, root = self.filesystem(path)
        if not isinstance(filesystem, fs.LocalFileSystem):
            return
        for target in (*(f"{root}/{name}" for name in names), *([root] if folder else [])):
            descriptor = os.open(target, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def make_commit_durable(self, path: str, version: int) -> None:
        """Sync the log entry of a commit, and any checkpoint written with it, so that they survive a power loss."""
        if not is_local(path):
            return
        log = f"{path}/{FOLDER}"
        names = (entry_name(version), checkpoint_name(version), LAST_CHECKPOINT)
        self.make_durable(log, [name for name, size in self.sizes(log, names).items() if size is not None])

    def sizes(self, path: str, names: Sequence[str]) -> dict[str, int | None]:
        """Return the size of each named file in a table's folder; None for a file that does not exist."""
        filesystem, root = self.filesystem(path)
        infos = filesystem.get_file_info([_joined(root, name) for name in names])
        return {
            name: int(info.size) if info.type == fs.FileType.File else None
            for name, info in zip(names, infos, strict=True)
        }

    def names(self, path: str) -> dict[str, int]:
        """Return the files in a table's folder with their sizes, without its subfolders."""
        filesystem, root = self.filesystem(path)
        infos = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True))
        return {info.base_name: int(info.size) for info in infos if info.type == fs.FileType.File}

    def folders(self, path: str) -> list[str]:
        """Return the names of the folders in a folder; symbolic links are left out."""
        filesystem, root = self.filesystem(path)
        infos = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True))
        names = sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)
        return [name for name in names if not (is_local(path) and os.path.islink(f"{root}/{name}"))]

    def links(self, path: str) -> set[str]:
        """Return the names of the symbolic links in a folder. An object store has none."""
        if not is_local(path):
            return set()
        _, root = self.filesystem(path)
        return {name for name in os.listdir(root) if os.path.islink(f"{root}/{name}")} if os.path.isdir(root) else set()

    def copy_files(self, files: Iterable[tuple[str, str, str, str]], share: bool = False) -> None:
        """Copy files concurrently.

        Args:
            files: arguments of `copy_file` for each file.
            share: as in `copy_file`.
        """
        todo = [(*file, share) for file in files]
        if len(todo) == 1:
            # Starting a thread takes longer than a small copy.
            self.copy_file(*todo[0])
            return
        with ThreadPoolExecutor(_COPIES) as threads:
            for _ in threads.map(lambda file: self.copy_file(*file), todo):
                pass

    def copy_file(self, source: str, name: str, target: str, as_name: str, share: bool = False) -> None:
        """Copy a file from one table's folder to another's.

        Args:
            source: folder of the file.
            name: its name.
            target: folder of the copy.
            as_name: name of the copy.
            share: True makes a hard link instead of a copy where the file system supports it. The content stays until
                both names are deleted.

        Raises:
            Refused: the file does not exist, is a symbolic link or would be written through one, or its name leads
                outside the folder.
        """
        _check_in_folder(source, name)
        for path in (f"{source}/{name}", f"{target}/{as_name}"):
            self.check_no_link(path)
        reading, read_root = self.filesystem(source)
        writing, write_root = self.filesystem(target)
        original, copy = f"{read_root}/{name}", f"{write_root}/{as_name}"
        try:
            if isinstance(writing, fs.LocalFileSystem):
                writing.create_dir(write_root, recursive=True)
                # The temporary name has a data file's suffix, so that vacuum removes what a killed command leaves
                # behind. An earlier copy may be a hard link to the original, so it must not be overwritten in place.
                beside = f"copying-{uuid.uuid4().hex}-{as_name}"
                with replacing(copy, f"{write_root}/{beside}"):
                    link_or_copy(reading, original, f"{write_root}/{beside}", share)
            elif reading == writing:
                # The store copies the file itself.
                reading.copy_file(original, copy)
            else:
                with reading.open_input_stream(original) as reader:
                    self._put(target, as_name, reader.read())
        except FileNotFoundError as error:
            raise Refused(
                f"file {name} of table {source} is missing: it was removed while it was being copied. Run the command "
                "again"
            ) from error

    def move_file(self, path: str, name: str, target: str, as_name: str) -> bool:
        """Move a file within the warehouse, replacing any file of that name; return False if it is missing.

        Raises:
            Refused: a symbolic link in a path leads to another folder.
        """
        for folder in (path, target):
            self.check_no_link(folder)
        filesystem, root = self.filesystem(path)
        _, target_root = self.filesystem(target)
        if self.sizes(path, [name])[name] is None:
            return False
        if isinstance(filesystem, fs.LocalFileSystem):
            filesystem.create_dir(target_root, recursive=True)
            filesystem.move(f"{root}/{name}", f"{target_root}/{as_name}")
        else:
            # A store has no rename.
            self.copy_file(path, name, target, as_name)
            self.delete_file(path, name)
        return True

    def delete_file(self, path: str, name: str) -> None:
        """Remove a file from a table's folder; no version of the table may still list it.

        A missing file is not an error: a delayed cleanup may find that another cleanup has already removed it.

        Raises:
            Refused: its name, or a symbolic link in the path, leads outside the folder.
        """
        _check_in_folder(path, name)
        self.check_no_link(path)
        filesystem, place = self.place_of(path, name)
        # Stores don't report that a file is missing.
        with suppress(FileNotFoundError):
            filesystem.delete_file(place)

    def delete_folder(self, path: str) -> None:
        """Remove a folder and its content. If it is a link, only the link is removed. A missing folder is not an error.

        Raises:
            Refused: a symbolic link in the path leads to another folder.
        """
        self.check_no_link(path.rpartition("/")[0])
        filesystem, root = self.filesystem(path)
        # The log is removed last, so that the folder is recognised as a table until then.
        if isinstance(filesystem, fs.LocalFileSystem):
            delete_below(root, last=FOLDER)
            return
        infos = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
        for info in sorted(infos, key=lambda info: FOLDER in info.path):
            if info.type == fs.FileType.File:
                filesystem.delete_file(info.path)

    def check_no_link(self, path: str) -> None:
        if is_local(path):
            check_no_link(self.uri.removeprefix("file://"), path.removeprefix("file://"))

    def read_files(
        self,
        path: str,
        names: Sequence[str],
        schema: pa.Schema,
        columns: list[str] | None = None,
        where: pc.Expression | None = None,
    ) -> pa.Table:
        """Read rows of named files of a table. A column that a file does not have is null.

        Raises:
            Refused: a file is missing or damaged; the error names the table.
            OSError: it can't be read for another reason, such as a missing permission.
        """
        if not names:
            wanted = [schema.field(name) for name in (schema.names if columns is None else columns)]
            return pa.schema(wanted, schema.metadata).empty_table()
        try:
            return self._dataset(path, names, schema).to_table(
                columns=columns, filter=where, use_threads=is_local(path)
            )
        except _UNREADABLE as error:
            raise unreadable(path, error) from error

    def read_batches(
        self,
        path: str,
        names: Sequence[str],
        schema: pa.Schema,
        columns: list[str] | None = None,
        where: pc.Expression | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `read_files` in batches. The errors are the same."""
        if not names:
            return
        try:
            yield from self._dataset(path, names, schema).to_batches(
                columns=columns,
                filter=where,
                batch_size=_BATCH,
                batch_readahead=1,
                fragment_readahead=1,
                use_threads=False,
            )
        except _UNREADABLE as error:
            raise unreadable(path, error) from error

    def open_parquet(self, path: str, name: str, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
        """Open a file of a table for reading some of its row groups.

        Args:
            path: path of the table.
            name: name of the file.
            metadata: the file's footer, if it was read before.

        Raises:
            Refused: the file is missing or damaged.
            OSError: it can't be read for another reason, such as a missing permission.
        """
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(
                self.open_file(path, name),
                metadata=metadata,
                pre_buffer=not is_local(path),
                page_checksum_verification=True,
            )
        except _UNREADABLE as error:
            raise unreadable(path, error) from error

    def _dataset(self, path: str, names: Sequence[str], schema: pa.Schema) -> ds.Dataset:
        # This import is slow, and commands that only read the log don't need it.
        import pyarrow.dataset as ds

        filesystem, root = self.filesystem(path)
        paths = [_joined(root, name) for name in names]
        # Checksums are verified so that a flipped bit on disk can't become a wrong window.
        checked = ds.ParquetFileFormat(
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        )
        return ds.dataset(paths, schema=schema, format=checked, filesystem=filesystem)


def is_local(path: str) -> bool:
    """Return True if a path is in a local file system (or a shared mount)."""
    return "://" not in path or path.startswith("file://")


def check_local(path: str) -> None:
    """Refuse a local path that deltalake would decode twice, and so read from and write to another folder.

    Raises:
        UsageError: the path, with its links followed, has a backslash, or a percent sign before two hex digits.
    """
    place = os.path.realpath(path.removeprefix("file://"))
    if decoded := _DECODED.search(place):
        raise UsageError(
            f"{place}: deltalake can't open tables in a local folder with {decoded[0]!r} in its path. Rename that "
            "folder; a link to it does not help"
        )


def unreadable(path: str, error: Exception) -> Refused:
    """Return the error for a file of a table that can't be read.

    Raises:
        OSError: the given error, if the file itself may be intact, for example because a permission is missing.
    """
    if may_be_intact(error):
        raise error
    *_, pipeline, table = path.rstrip("/").split("/")
    if pipeline == "savepoints":
        return Refused(f"a file of savepoint {path} can't be read: {in_words(error)}. Delete the savepoint")
    return Refused(
        f"a file of table {path} can't be read: {in_words(error)}",
        *([Remedy(Act.LIST_SNAPSHOTS, pipeline)] if table == "state" else ()),
        Remedy(Act.LIST_SAVEPOINTS, pipeline),
        Remedy(Act.RESTART, pipeline),
    )


OURS = "tidegate."
"""Prefix of our own table properties."""


def arrow_schema(table: DeltaTable) -> pa.Schema:
    """Return the table's schema in Arrow types. Its metadata holds our own table properties."""
    properties = table.metadata().configuration
    ours = {name: value for name, value in properties.items() if name.startswith(OURS)}
    return pa.schema(table.schema().to_arrow(), ours or None)


def stored_schema(table: DeltaTable) -> pa.Schema:
    """Return the columns that the files of a table have: all except partition columns, whose values are in the log."""
    partitions = table.metadata().partition_columns
    return pa.schema([field for field in arrow_schema(table) if field.name not in partitions])


def path_of(table: DeltaTable) -> str:
    """Return the location of a table: a local path in the file system's form, or a URI."""
    return unquote(table.table_uri.rstrip("/").removeprefix("file://"))


def active_files(table: DeltaTable, names: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Return the table's files, or those with the given names, as dicts.

    Keys are path, size_bytes, num_records, min.<column> and max.<column>.
    """
    actions = pa.table(table.get_add_actions(flatten=True))
    if names is not None:
        import pyarrow.compute as pc

        actions = actions.filter(pc.is_in(actions["path"], pa.array(names, pa.string())))
    files: list[dict[str, Any]] = actions.to_pylist()
    return files


def read_table(
    warehouse: Warehouse, table: DeltaTable, columns: list[str] | None = None, where: pc.Expression | None = None
) -> pa.Table:
    """Read all rows of a table, at the version that was opened. All reads of a whole table use this function."""
    path = path_of(table)
    names = [file["path"] for file in active_files(table)]
    return warehouse.read_files(path, names, arrow_schema(table), columns, where)
