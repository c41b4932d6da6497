"""Opening a Delta table as a source: what the error of the Delta library means, and the remedy for it.

A table can't be opened because it is missing, because this user or machine can't reach it, because it has a feature
that the library does not support, because its log is damaged, or because the library can't read an undamaged log.
"""

from __future__ import annotations

import re
from pathlib import Path

import deltalake
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.failures import in_words, remedy_for
from tidegate.pipelines.sources.base import MissingSource
from tidegate.pipelines.storage.delta_log import FOLDER
from tidegate.pipelines.storage.warehouse import Warehouse

OPENING = (DeltaError, ValueError)
"""Errors of the Delta library when it opens a table; it raises ValueError for a null in a NOT NULL partition column."""

_UNKNOWN_FEATURE = re.compile(
    r"^(?!.*does not have the required).*(?:unsupported|not supported|catalog-managed)", re.I | re.S
)
"""Matches errors about a feature that the library does not support, but not about a feature that the table lacks."""


def open_table(warehouse: Warehouse, path: str) -> DeltaTable:
    """Open a source table at its newest version.

    Raises:
        MissingSource: there is no table.
        Refused: the table can't be opened; the message says whether that is due to access, a feature, or damage.
    """
    try:
        return warehouse.open(path)
    except TableNotFoundError as error:
        folder = Path(path)
        is_other = folder.is_dir() and any(folder.iterdir()) and not (folder / FOLDER).exists()
        raise MissingSource(
            f"source table {path} {'is not a Delta table' if is_other else 'does not exist'}: create it first, or "
            "correct `table` of the pipeline's source, or `warehouse` in tidegate.toml"
        ) from error
    except OPENING as error:
        if Path(path).is_file():
            raise MissingSource(
                f"source table {path} is a file: write its rows to a Delta table, and name its folder"
            ) from error
        raise Refused(
            f"source table {path} can't be opened: {why_closed(warehouse, path, error)}; nothing in the pipeline has "
            "changed"
        ) from error


def why_closed(warehouse: Warehouse, path: str, error: Exception, version: int | None = None) -> str:
    """Return why a table can't be opened at a version (None: the newest), with the remedy.

    Raises:
        OSError: its log can't be read either, for a reason such as a missing permission.
    """
    reason = in_words(error)
    if remedy := remedy_for(error):
        return f"{reason}. {remedy}"
    if _UNKNOWN_FEATURE.search(str(error)):
        return (
            f"{reason}. Neither the tasks nor Spark can read a source with this feature: drop it (ALTER TABLE ... DROP "
            "FEATURE), or copy the rows into a table without it (CREATE TABLE ... AS SELECT)"
        )
    try:
        warehouse.log(path).check(version)
    except (FileNotFoundError, ValueError) as damage:
        return f"{damage}. Restore its log from a copy"
    return (
        f"the Delta library (deltalake {deltalake.__version__}) can't read it, although its log is not damaged: "
        f"{reason}. Copy the rows into another table with a tool that can, such as Spark (CREATE TABLE ... AS SELECT), "
        "and use that table"
    )
