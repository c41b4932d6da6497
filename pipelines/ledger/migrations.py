"""The formats of a pipeline's tables, as one ladder: each step converts manifests of the format before it to its own.

The number of the newest format is the length of the ladder, so a new format is a new step at the end, and a version of
tidegate reads all formats since 0.3. Each manifest has the number of its format, and each table has it as a property,
with the version that wrote it. A version refuses a format that is newer than its own, by naming both versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, TypeAlias

from tidegate.pipelines.errors import Refused

Fields: TypeAlias = dict[str, Any]
"""The fields of a manifest as JSON values."""

FORMAT_PROPERTY = "tidegate.format"
"""Property of each table: the number of the format in which it was created."""

VERSION_PROPERTY = "tidegate.version"
"""Property of each table: the version of tidegate that created it."""


@dataclass(frozen=True, slots=True)
class Migration:
    """A format of manifests.

    Args:
        since: the version of tidegate that introduced the format.
        convert: returns the fields of a manifest of the previous format as those of this one. None for the first
            format, which has no predecessor.
    """

    since: str
    convert: Callable[[Fields], Fields] | None = None


MIGRATIONS: tuple[Migration, ...] = (Migration("0.3.0"),)

FORMAT = len(MIGRATIONS)
"""Number of the format that this version writes."""


@cache
def library_version() -> str:
    """Return the version of this library, which is read from a file."""
    return version("tidegate")


def table_properties() -> dict[str, str]:
    """Return the properties of a new table that name its format and this version."""
    return {FORMAT_PROPERTY: str(FORMAT), VERSION_PROPERTY: library_version()}


def check_table(path: str, properties: Mapping[str, str]) -> None:
    """Refuse a table whose properties name a newer format than this version knows."""
    number = properties.get(FORMAT_PROPERTY, "")
    if number.isdigit() and int(number) > FORMAT:
        raise Refused(f"table {path} {_newer(int(number), properties.get(VERSION_PROPERTY))}")


def converted(fields: Fields, migrations: Sequence[Migration] = MIGRATIONS) -> Fields:
    """Return the fields of a manifest of any format as those of the newest one.

    Raises:
        Refused: the format is newer than the newest of these, or older than 0.3.
    """
    number, writer = fields.get("format"), fields.get("library_version")
    if not isinstance(number, int) or number < 1:
        raise Refused(
            f"the manifest in table state was written by tidegate {writer or 'of an unknown version'}, and tidegate "
            f"{library_version()} reads tables of {MIGRATIONS[0].since} and later versions only. Compute the pipeline "
            "again from its source: give it another name, or move its folder away, and run it"
        )
    if number > len(migrations):
        raise Refused(f"the manifest in table state {_newer(number, writer)}, or restore an earlier snapshot")
    for migration in migrations[number:]:
        assert migration.convert is not None
        fields = migration.convert(fields)
    return {**fields, "format": len(migrations)}


def _newer(number: int, writer: str | None) -> str:
    # Builds between two releases have the version of the next one, with a suffix.
    is_same = writer == library_version()
    this = f"an older build of {writer}" if is_same else f"tidegate {library_version()}"
    wanted = "the newest build" if is_same or writer is None else f"tidegate {writer} or a newer version"
    return (
        f"has format {number}, written by tidegate {writer or 'of an unknown version'}, but this is {this}, which "
        f"reads formats up to {FORMAT}: install {wanted}"
    )
