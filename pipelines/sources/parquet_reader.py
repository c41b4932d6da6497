"""Reader of a source's Parquet files: it opens a file, checks it against its source, and returns its row groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.failures import in_words
from tidegate.pipelines.sources.base import FileGone
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.source_parquet import FileColumns, SourceParquet
from tidegate.pipelines.sources.stored_fields import fields_of
from tidegate.pipelines.storage.warehouse import Warehouse, is_local

ColumnsOf: TypeAlias = Callable[[int], FileColumns]
"""Returns the columns of a file by the number of its rows."""


@dataclass(frozen=True, slots=True)
class Remedies:
    """Remedies for a missing and for an unreadable file, at the end of messages that begin with the source."""

    source: str
    gone: str
    unreadable: str


@dataclass(frozen=True, slots=True)
class ParquetReader:
    """Reader of plain Parquet files, whose columns have the names of the source."""

    warehouse: Warehouse
    folder: str
    columns: pa.Schema
    remedies: Remedies

    @contextmanager
    def open(self, part: FilePart) -> Iterator[SourceParquet]:
        stored = {field.name: field for field in fields_of(self.columns)}
        columns = FileColumns(self.columns, stored, {}, np.zeros(0, np.int64))
        with open_parquet(self.warehouse, self.folder, part, lambda rows: columns, self.remedies) as file:
            yield file


@contextmanager
def open_parquet(
    warehouse: Warehouse, folder: str, part: FilePart, columns_of: ColumnsOf, remedies: Remedies
) -> Iterator[SourceParquet]:
    """Open a Parquet file of a source. `columns_of` returns the columns of the file by the number of its rows.

    Raises:
        Refused: the file is missing or damaged, has a different number of rows, or was written with another calendar.
    """
    # Commands that only read the log should not wait for this import.
    import pyarrow.parquet as pq

    filesystem, root = warehouse.filesystem(folder)
    file = f"{remedies.source}: file {part.path}"
    try:
        with filesystem.open_input_file(f"{root}/{part.path}" if root else part.path) as stream:
            metadata = pq.read_metadata(stream)
            if part.rows is not None and metadata.num_rows != part.rows:
                raise Refused(
                    f"{file} has {metadata.num_rows} rows, but the log says {part.rows}: it was replaced. Restore the "
                    "committed file"
                )
            columns = columns_of(metadata.num_rows)
            yield SourceParquet(
                pq.ParquetFile(
                    stream,
                    metadata=metadata,
                    read_dictionary=columns.dictionaries(metadata.schema.to_arrow_schema()),
                    pre_buffer=not is_local(folder),
                    coerce_int96_timestamp_unit="us",
                    page_checksum_verification=True,
                ),
                columns,
            )
    except FileNotFoundError as error:
        raise FileGone(f"{file} is missing: {remedies.gone}") from error
    except (OSError, pa.ArrowException) as error:
        raise Refused(f"{file} can't be read: {in_words(error)}. {remedies.unreadable}") from error
