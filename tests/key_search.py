"""Search for a key in every file below a folder, in every form in which a file may contain it."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.pipelines.ledger.tables.keys import KeyTexts, texts_of_key


def texts(*parts: str) -> KeyTexts:
    """Return the ways in which a key of strings may be written."""
    return texts_of_key(tuple(map(pa.scalar, parts)), parts)


def files_with(key: str, *folders: Path) -> list[str]:
    """Return every file whose name or content contains the key, as paths relative to their folder."""
    return [
        str(file.relative_to(folder))
        for folder in folders
        for file in sorted(folder.rglob("*"))
        if file.is_file() and any(key in text for text in _texts(str(file.relative_to(folder)), file.read_bytes()))
    ]


def _texts(name: str, content: bytes) -> Iterator[str]:
    """Yield the name and the content of a file, also as JSON, HTML, URLs and Parquet encode text."""
    yield unquote(name)
    text = content.decode(errors="replace")
    yield text
    # What JSON and reprs escape. Other backslashes stay as they are.
    yield content.decode("raw_unicode_escape", errors="replace").encode(errors="replace").decode(errors="replace")
    yield html.unescape(text)
    yield unquote(text)
    if content[:4] == content[-4:] == b"PAR1":
        yield from _of_parquet(content)


def _of_parquet(content: bytes) -> Iterator[str]:
    """Yield all values of a Parquet file, nested ones too, its dictionaries, its statistics and its metadata."""
    opened = pq.ParquetFile(pa.BufferReader(content))
    yield str(opened.metadata.metadata)
    yield str(opened.schema)
    leaves = []
    for group in range(opened.num_row_groups):
        for index in range(opened.metadata.num_columns):
            column = opened.metadata.row_group(group).column(index)
            leaves.append(column.path_in_schema)
            if column.statistics is not None and column.statistics.has_min_max:
                yield f"{column.statistics.min} {column.statistics.max}"
    yield str(opened.read().to_pylist())
    # A dictionary may have values that no row refers to.
    coded = pq.ParquetFile(pa.BufferReader(content), read_dictionary=sorted(set(leaves)))
    for group in range(coded.num_row_groups):
        for column in coded.read_row_group(group).columns:
            for chunk in column.chunks:
                yield from _dictionaries(chunk)


def _dictionaries(array: pa.Array) -> Iterator[str]:
    if pa.types.is_dictionary(array.type):
        yield str(array.dictionary.to_pylist())
    elif pa.types.is_struct(array.type):
        for index in range(array.type.num_fields):
            yield from _dictionaries(array.field(index))
    elif pa.types.is_map(array.type):
        yield from _dictionaries(array.keys)
        yield from _dictionaries(array.items)
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        yield from _dictionaries(array.values)
