"""Where the tables are: one rule for paths, one way to open, one way to read and write files.

Tasks write through the same store that the driver commits to. Reading goes through pyarrow's own
file system where there is one: a short process that reads through deltalake's may abort at exit.
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
"""Rows that are read at a time."""


@dataclass(frozen=True)
class Warehouse:
    """A folder or URI that holds tables.

    Args:
        uri: an absolute path, or a URI of an object store.
        options: storage options in deltalake's spelling.
    """

    uri: str
    # They hold the keys of the object store, which belong into no log.
    options: dict[str, str] = field(default_factory=dict, repr=False)

    def path(self, *parts: str) -> str:
        """The path of a table below the warehouse; an absolute path or URI stays as it is."""
        if parts and ("://" in parts[0] or parts[0].startswith("/")):
            return "/".join(parts)
        return "/".join((self.uri.rstrip("/"), *parts))

    @property
    def is_local(self) -> bool:
        """Whether the tables are on a file system of this machine (or a shared mount)."""
        return "://" not in self.uri or self.uri.startswith("file://")

    def exists(self, path: str) -> bool:
        """Whether there is a Delta table at a path."""
        return DeltaTable.is_deltatable(path, self.options or None)

    def open(self, path: str, version: int | None = None) -> DeltaTable:
        """Open a Delta table, at its head or at a version."""
        return DeltaTable(path, version=version, storage_options=self.options or None)

    def log(self, path: str) -> DeltaLog:
        """The log of the Delta table at a path."""
        return DeltaLog(*self.filesystem(f"{path}/{FOLDER}"))

    def filesystem(self, path: str) -> tuple[fs.FileSystem, str]:
        """The file system of a path, and the path's root within it."""
        if self.is_local:
            return fs.LocalFileSystem(), path.removeprefix("file://")
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(path, self.options)), ""

    def write_parquet(self, path: str, name: str, table: pa.Table, **options: Any) -> int:
        """Write a Parquet file into a table's folder; its size in bytes. The file is not committed."""
        import pyarrow.parquet as pq

        filesystem, root = self.filesystem(path)
        target = f"{root}/{name}" if root else name
        if isinstance(filesystem, fs.LocalFileSystem):
            filesystem.create_dir(root, recursive=True)
        # Statistics of floats mislead readers about NaN, so only plain columns of other types have any.
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
        # Its name in the folder follows with those of the other files, before they are committed.
        self.make_durable(path, [name], folder=False)
        return int(filesystem.get_file_info(target).size)

    def make_durable(self, path: str, names: Sequence[str] = (), folder: bool = True) -> None:
        """Let files of a folder, and their names in it, outlive a power loss; object stores do so by themselves."""
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
        """Let a commit to a table outlive a power loss: its log entry, and the checkpoint that came with it."""
        if not self.is_local:
            return
        log = f"{path}/{FOLDER}"
        names = (entry_name(version), checkpoint_name(version), LAST_CHECKPOINT)
        self.make_durable(log, [name for name, size in self.sizes(log, names).items() if size is not None])

    def sizes(self, path: str, names: Sequence[str]) -> dict[str, int | None]:
        """Size of each file of a table's folder, None where there is no such file."""
        filesystem, root = self.filesystem(path)
        infos = filesystem.get_file_info([f"{root}/{name}" if root else name for name in names])
        return {
            name: int(info.size) if info.type == fs.FileType.File else None
            for name, info in zip(names, infos, strict=True)
        }

    def names(self, path: str) -> dict[str, int]:
        """The files in a table's folder, those in folders below it left out, with their sizes."""
        filesystem, root = self.filesystem(path)
        infos = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True))
        return {info.base_name: int(info.size) for info in infos if info.type == fs.FileType.File}

    def folders(self, path: str) -> list[str]:
        """Names of the folders in a folder."""
        filesystem, root = self.filesystem(path)
        infos = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True))
        return sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)

    def copy_file(self, source: str, name: str, target: str, as_name: str) -> None:
        """Copy a file from one table's folder to another's.

        Raises:
            Refused: it is not there.
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
        """Remove a file from a table's folder; nothing must list it any more."""
        filesystem, root = self.filesystem(path)
        filesystem.delete_file(f"{root}/{name}" if root else name)

    def delete_folder(self, path: str) -> None:
        """Remove a folder and all that is in it; fine if there is none."""
        filesystem, root = self.filesystem(path)
        infos = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
        # The log goes last: until then the folder is still known for what it is.
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
        """Rows of some files of a table; columns that a file does not have are null.

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
        """The rows of `read_files`, a few at a time. Raises as that does."""
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
        # Commands that read only the log should not wait for this import.
        import pyarrow.dataset as ds

        filesystem, root = self.filesystem(path)
        paths = [f"{root}/{name}" if root else name for name in names]
        # A bit that fell over on disk must not become a wrong window.
        checked = ds.ParquetFileFormat(
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        )
        return ds.dataset(paths, schema=schema, format=checked, filesystem=filesystem)


def _unreadable(path: str, error: Exception) -> Refused:
    return Refused(
        f"a file of table {path} can't be read: {in_words(error)}. If it is damaged, restore a savepoint or a snapshot "
        "whose files are whole; docs/operations/recovery.md has the way on for each table"
    )


def warehouse_of(config: Config) -> Warehouse:
    """The warehouse that tidegate.toml names."""
    return Warehouse(config.warehouse_uri, dict(config.storage_options))


def arrow_schema(table: DeltaTable) -> pa.Schema:
    """The table's schema in Arrow's types."""
    return pa.schema(table.schema().to_arrow())


def path_of(table: DeltaTable) -> str:
    """Where a table is: a local path as the file system spells it, or a URI."""
    uri = table.table_uri.rstrip("/")
    return unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri


def active_files(table: DeltaTable) -> list[dict[str, Any]]:
    """The table's files, one dict each: path, size_bytes, num_records, min.<column>, max.<column>."""
    files: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return files


def read_table(
    warehouse: Warehouse, table: DeltaTable, columns: list[str] | None = None, where: pc.Expression | None = None
) -> pa.Table:
    """All rows of a table at the version it was opened at. The one way in which we read tables."""
    path = path_of(table)
    names = [file["path"] for file in active_files(table)]
    return warehouse.read_files(path, names, arrow_schema(table), columns, where)
