"""Deletion vectors: the rows of a data file that were deleted without rewriting the file.

The log describes a vector, which is in a separate file or in the log itself. Format: Delta's protocol, "Deletion Vector
Format"; the bitmap is a 64-bit Roaring bitmap in the portable format.
"""

from __future__ import annotations

import base64
import re
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np

from tidegate.pipelines.sources.rules import Int64s
from tidegate.pipelines.storage.warehouse import Warehouse

_INLINE, _RELATIVE, _ABSOLUTE = "i", "u", "p"
_MAGIC = 1_681_511_377
_VERSION = 1
_UUID_DIGITS = 20
"""Digits of an encoded UUID, at the end of a relative path."""

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
"""Digits of Z85, in which Delta encodes UUIDs and inline vectors."""
_BASE85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
"""Digits of Python's b85, which encodes bytes in the same way as Z85."""
_TO_BASE85 = str.maketrans(_DIGITS, _BASE85)


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """A deletion vector, as an add action describes it.

    Args:
        storage: `i` for a vector in the log, `u` for a file of the table, `p` for a file by its absolute path.
        place: the encoded vector, the encoded UUID after a folder, or a URI.
        offset: first byte of the vector within its file.
        size: bytes of the vector.
        cardinality: number of deleted rows.
    """

    storage: str
    place: str
    offset: int
    size: int
    cardinality: int

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> DeletionVector:
        """Return the deletion vector that an add action describes.

        Raises:
            ValueError: the description is incomplete, or has an unknown storage type.
        """
        try:
            offset = described.get("offset")
            vector = cls(
                str(described["storageType"]),
                str(described["pathOrInlineDv"]),
                1 if offset is None else int(offset),
                int(described["sizeInBytes"]),
                int(described["cardinality"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the log describes it by {dict(described)}, which is incomplete") from error
        if vector.storage not in (_INLINE, _RELATIVE, _ABSOLUTE):
            raise ValueError(f"it has the unknown storage type {vector.storage!r}")
        return vector

    @property
    def file(self) -> str | None:
        """Path of the vector's file, relative to the table or absolute; None for a vector in the log."""
        if self.storage == _INLINE:
            return None
        if self.storage == _ABSOLUTE:
            # Hadoop writes file:/path, Arrow reads file:///path.
            return re.sub(r"^file:/+", "/", unquote(self.place))
        folder, name = self.place[:-_UUID_DIGITS], self.place[-_UUID_DIGITS:]
        file = f"deletion_vector_{uuid.UUID(bytes=_decoded(name))}.bin"
        return f"{folder}/{file}" if folder else file

    def rows(self, warehouse: Warehouse, table: str, rows_of_file: int) -> Int64s:
        """Return the positions of the deleted rows in their data file, ascending.

        Raises:
            FileNotFoundError: the vector's file is missing.
            ValueError: the vector is damaged, or belongs to another file.
        """
        # Tables without deletion vectors are read without this package.
        from pyroaring import BitMap64

        content = _decoded(self.place)[: self.size] if self.storage == _INLINE else self._read(warehouse, table)
        if len(content) != self.size or self.size < 4:
            raise ValueError(f"it has {len(content)} bytes, but the log says {self.size}")
        if (magic := int.from_bytes(content[:4], "little")) != _MAGIC:
            raise ValueError(f"it begins with the number {magic} instead of {_MAGIC}")
        if len(content) < 12:
            raise ValueError("its bitmap is truncated")
        bitmap = BitMap64.deserialize(content[4:])
        if len(bitmap) != self.cardinality:
            raise ValueError(f"it has {len(bitmap)} rows, but the log says {self.cardinality}")
        places: Int64s = np.asarray(bitmap.to_array()).astype(np.int64)
        if len(places) and not 0 <= int(places[-1]) < rows_of_file:
            raise ValueError(f"it deletes row {places[-1]} of a file with {rows_of_file} rows")
        return places

    def _read(self, warehouse: Warehouse, table: str) -> bytes:
        """Return the bytes of a vector in a file, after checking their size and checksum."""
        file = self.file
        assert file is not None
        folder, _, name = file.rpartition("/") if self.storage == _ABSOLUTE else (table, "", file)
        with warehouse.open_file(folder, name) as stream:
            if (version := stream.read(1)) != bytes([_VERSION]):
                raise ValueError(f"its file has version {version!r}, but only version {_VERSION} can be read")
            stream.seek(self.offset)
            content: bytes = stream.read(4 + self.size + 4)
        size, vector, checksum = content[:4], content[4:-4], content[-4:]
        if len(content) != 8 + self.size or int.from_bytes(size, "big") != self.size:
            raise ValueError(f"the size in its file at byte {self.offset} is not {self.size}, as the log says")
        if zlib.crc32(vector) != int.from_bytes(checksum, "big"):
            raise ValueError("its checksum is wrong: the file is damaged")
        return vector


def _decoded(text: str) -> bytes:
    """Decode a string from Z85. Raise ValueError if it is not in Z85."""
    if len(text) % 5 or not set(text) <= set(_DIGITS):
        raise ValueError(f"{text[:40]!r} is not encoded by Z85")
    return base64.b85decode(text.translate(_TO_BASE85))
