"""The warehouse of the tables: one rule for paths, one way to open a table, one way to read and write files.

Tasks write through the same store that the driver commits to. Local files are read through pyarrow's own file
system: a short process that reads through deltalake's may abort at exit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import fs

from tidegate.pipelines.delta_log import FOLDER, LAST_CHECKPOINT, DeltaLog, checkpoint_name, entry_name
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.failures import in_words

if TYPE_CHECKING:
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    from tidegate.pipelines.config import Config


_BLOCK = 1 << 20

_BATCH = 65_536
"""Number of rows that are read at a time."""


@dataclass(frozen=True)
class Warehouse:
    """A folder or URI that holds tables.

    Args:
        uri: an absolute path, or a URI of an object store.
        options: storage options in deltalake's spelling.
    """

    uri: str
    # The options hold the keys of the object store, which must not get into a log.
    options: dict[str, str] = field(default_factory=dict, repr=False)

    def path(self, *parts: str) -> str:
        """Return the path of a table below the warehouse; an absolute path or URI is returned unchanged."""
        if parts and ("://" in parts[0] or parts[0].startswith("/")):
            return "/".join(parts)
        return "/".join((self.uri.rstrip("/"), *parts))

    @property
    def is_local(self) -> bool:
        """Return True if the tables are on a file system of this machine (or a shared mount)."""
        return "://" not in self.uri or self.uri.startswith("file://")

    def exists(self, path: str) -> bool:
        """Return True if there is a Delta table at a path."""
        return DeltaTable.is_deltatable(path, self.options or None)

    def open(self, path: str, version: int | None = None) -> DeltaTable:
        """Open a Delta table, at its head or at a version."""
        return DeltaTable(path, version=version, storage_options=self.options or None)

    def log(self, path: str) -> DeltaLog:
        """Return the log of the Delta table at a path."""
        return DeltaLog(*self.filesystem(f"{path}/{FOLDER}"))

    def filesystem(self, path: str) -> tuple[fs.FileSystem, str]:
        """Return the file system of a path, and the path's root within it."""
        if self.is_local:
            return fs.LocalFileSystem(), path.removeprefix("file://")
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(path, self.options)), ""

    def write_parquet(self, path: str, name: str, table: pa.Table, **options: Any) -> int:
        """Write a Parquet file into a table's folder, and return its size in bytes. The file is not committed."""
        import pyarrow.parquet as pq

        filesystem, root = self.filesystem(path)
        target = f"{root}/{name}" if root else name
        if isinstance(filesystem, fs.LocalFileSystem):
            filesystem.create_dir(root, recursive=True)
        # Statistics of floats mislead readers about NaN, so only flat columns of other types get statistics.
        described = [
            field.name
            for field in table.schema
            if not pa.types.is_floating(field.type) and not pa.types.is_nested(field.type)
        ]
        pq.write_table(
            table,
            target,
            filesystem=filesystem,
            compression="zstd",
            write_statistics=described,
            write_page_checksum=True,
            **options,
        )
        # The folder is synced once for all files, before they are committed.
        self.make_durable(path, [name], folder=False)
        return int(filesystem.get_file_info(target).size)

    def write_text(self, path: str, name: str, text: str) -> None:
        """Write a small file into a folder. Readers see all of it or nothing."""
        filesystem, root = self.filesystem(path)
        target = f"{root}/{name}" if root else name
        is_local = isinstance(filesystem, fs.LocalFileSystem)
        if is_local:
            filesystem.create_dir(root, recursive=True)
        # An object store shows a file only when it is whole.
        part = f"{target}.part" if is_local else target
        with filesystem.open_output_stream(part) as writer:
            writer.write(text.encode())
        if is_local:
            filesystem.move(part, target)

    def read_text(self, path: str, name: str) -> str:
        """Return the content of a small file in a folder."""
        filesystem, root = self.filesystem(path)
        with filesystem.open_input_stream(f"{root}/{name}" if root else name) as reader:
            text: str = reader.read().decode()
            return text

    def make_durable(self, path: str, names: Sequence[str] = (), folder: bool = True) -> None:
        """Sync files of a folder, and the folder, so that they survive a power loss; object stores need nothing."""
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
        """Sync the log entry of a commit, and the checkpoint that came with it, so that they survive a power loss."""
        if not self.is_local:
            return
        log = f"{path}/{FOLDER}"
        names = (entry_name(version), checkpoint_name(version), LAST_CHECKPOINT)
        self.make_durable(log, [name for name, size in self.sizes(log, names).items() if size is not None])

    def sizes(self, path: str, names: Sequence[str]) -> dict[str, int | None]:
        """Return the size of each named file in a table's folder; None for a file that does not exist."""
        filesystem, root = self.filesystem(path)
        infos = filesystem.get_file_info([f"{root}/{name}" if root else name for name in names])
        return {
            name: int(info.size) if info.type == fs.FileType.File else None
            for name, info in zip(names, infos, strict=True)
        }

    def names(self, path: str) -> dict[str, int]:
        """Return the files in a table's folder with their sizes; folders below it are left out."""
        filesystem, root = self.filesystem(path)
        infos = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True))
        return {info.base_name: int(info.size) for info in infos if info.type == fs.FileType.File}

    def folders(self, path: str) -> list[str]:
        """Return the names of the folders in a folder."""
        filesystem, root = self.filesystem(path)
        infos = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True))
        return sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)

    def copy_file(self, source: str, name: str, target: str, as_name: str) -> None:
        """Copy a file from one table's folder to another's.

        Raises:
            Refused: the file does not exist.
        """
        read_from, read_root = self.filesystem(source)
        write_to, write_root = self.filesystem(target)
        if isinstance(write_to, fs.LocalFileSystem):
            write_to.create_dir(write_root, recursive=True)
        try:
            with (
                read_from.open_input_stream(f"{read_root}/{name}" if read_root else name) as reader,
                write_to.open_output_stream(f"{write_root}/{as_name}" if write_root else as_name) as writer,
            ):
                while block := reader.read(_BLOCK):
                    writer.write(block)
            self.make_durable(target, [as_name], folder=False)
        except FileNotFoundError as error:
            raise Refused(
                f"file {name} of table {source} is missing: it was removed while it was copied. Run the command again"
            ) from error

    def delete_file(self, path: str, name: str) -> None:
        """Remove a file from a table's folder; no version of the table may list it any more."""
        filesystem, root = self.filesystem(path)
        filesystem.delete_file(f"{root}/{name}" if root else name)

    def delete_folder(self, path: str) -> None:
        """Remove a folder with its content; a missing folder is no error."""
        filesystem, root = self.filesystem(path)
        infos = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
        # The log is removed last, so that the folder is recognised as a table until then.
        for info in sorted(infos, key=lambda info: FOLDER in info.path):
            if info.type == fs.FileType.File:
                filesystem.delete_file(info.path)
        if infos and isinstance(filesystem, fs.LocalFileSystem):
            filesystem.delete_dir(root)

    def read_files(
        self,
        path: str,
        names: Sequence[str],
        schema: pa.Schema,
        columns: list[str] | None = None,
        where: pc.Expression | None = None,
    ) -> pa.Table:
        """Read rows of named files of a table; a column that a file does not have is null.

        Raises:
            Refused: a file is missing or unreadable; the error names the table.
        """
        if not names:
            wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
            return wanted.empty_table()
        try:
            return self._dataset(path, names, schema).to_table(columns=columns, filter=where, use_threads=self.is_local)
        except (OSError, pa.ArrowInvalid) as error:
            raise _unreadable(path, error) from error

    def read_batches(
        self,
        path: str,
        names: Sequence[str],
        schema: pa.Schema,
        columns: list[str] | None = None,
        where: pc.Expression | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `read_files` in batches; it raises the same errors."""
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
        except (OSError, pa.ArrowInvalid) as error:
            raise _unreadable(path, error) from error

    def _dataset(self, path: str, names: Sequence[str], schema: pa.Schema) -> ds.Dataset:
        # This import is slow, and commands that read only the log don't need it.
        import pyarrow.dataset as ds

        filesystem, root = self.filesystem(path)
        paths = [f"{root}/{name}" if root else name for name in names]
        # Checksums are verified so that a flipped bit on disk can't become a wrong window.
        checked = ds.ParquetFileFormat(
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        )
        return ds.dataset(paths, schema=schema, format=checked, filesystem=filesystem)


def _unreadable(path: str, error: Exception) -> Refused:
    return Refused(
        f"a file of table {path} can't be read: {in_words(error)}. If it is damaged, restore a savepoint or a snapshot "
        "whose files are complete; docs/operations/recovery.md says what to do for each table"
    )


def warehouse_of(config: Config) -> Warehouse:
    """Return the warehouse that tidegate.toml names."""
    return Warehouse(config.warehouse_uri, dict(config.storage_options))


def arrow_schema(table: DeltaTable) -> pa.Schema:
    """Return the table's schema in Arrow's types."""
    return pa.schema(table.schema().to_arrow())


def path_of(table: DeltaTable) -> str:
    """Return the place of a table: a local path as the file system spells it, or a URI."""
    uri = table.table_uri.rstrip("/")
    return unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri


def active_files(table: DeltaTable) -> list[dict[str, Any]]:
    """Return the table's files, each a dict: path, size_bytes, num_records, min.<column>, max.<column>."""
    files: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return files


def read_table(
    warehouse: Warehouse, table: DeltaTable, columns: list[str] | None = None, where: pc.Expression | None = None
) -> pa.Table:
    """Read all rows of a table, at the version it was opened at. Every read of a whole table comes through here."""
    path = path_of(table)
    names = [file["path"] for file in active_files(table)]
    return warehouse.read_files(path, names, arrow_schema(table), columns, where)
