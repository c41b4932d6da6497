"""Checksums of Parquet footers: the format has checksums for the pages of a file, but not for its footer.

A flipped bit in a footer may change the number of rows, the statistics by which row groups are skipped, or the place of
a column, without any error when the file is read.
"""

from __future__ import annotations

from typing import Protocol

from xxhash import xxh3_64_hexdigest

_END = 8
"""Number of bytes after a footer: its length in four bytes, and a mark."""


class Readable(Protocol):
    """An open file of which parts can be read."""

    def size(self) -> int:
        """Return the size in bytes."""

    def seek(self, position: int, /) -> int:
        """Move to a position from the start."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes."""


def footer_checksum(file: Readable) -> str:
    """Return the checksum of a file's footer and of all bytes after it, as 16 hexadecimal digits.

    If the stored length of the footer is damaged, the checksum covers other bytes, so it differs.
    """
    size = file.size()
    file.seek(max(size - _END, 0))
    end = file.read(_END)
    length = min(int.from_bytes(end[:4], "little") + _END, size)
    file.seek(size - length)
    return str(xxh3_64_hexdigest(file.read(length)))
