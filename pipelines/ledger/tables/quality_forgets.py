"""Erasure of a key from table `quality`: its examples, and texts that contain a part of the key."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction

from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.files import remove_action
from tidegate.pipelines.ledger.tables.keys import KeyTexts, names_key, names_part
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.ledger.tables.table_log import leave_newest
from tidegate.pipelines.storage.delta_log import FOLDER, actions_in
from tidegate.pipelines.storage.warehouse import active_files, read_table

_TEXTS = ("observed", "about", "limits", "description")
"""Text columns that may contain a part of a key, because a check saw it or a user's suite names it."""

_EXAMPLE = ", such as "
"""Text before an example in `observed`, in rows of older tidegate versions. Newer rows have `examples` instead."""


def forget_examples(tables: PipelineTables, key: KeyTexts, only_if_named: bool = False) -> None:
    """Remove the examples of all checks, including those in files of killed checks.

    Any other text that contains a part of the key is emptied. `only_if_named` leaves the table unchanged unless a file
    contains all parts of the key.
    """
    if not tables.warehouse.exists(tables.path(quality.NAME)) or (only_if_named and not _are_named(tables, key)):
        return
    quality.mend(tables)
    listed: list[str] = []

    def change(handle: DeltaTable) -> tuple[pa.Table | None, list[RemoveAction]]:
        # A check that wrote one of these files earlier can't commit it after this change.
        listed[:] = tables.warehouse.names(tables.path(quality.NAME))
        rows = read_table(tables.warehouse, handle)
        schema = rows.schema
        cleaned = pa.Table.from_pylist([_without_key(row, key) for row in rows.to_pylist()], schema=schema)
        if cleaned.equals(rows):
            return None, []
        return cleaned, [remove_action(file) for file in active_files(handle)]

    # The statistics in old log entries contain the smallest and largest text of a file.
    leave_newest(tables, quality.NAME, quality.commit_change(tables, change), listed)


def _without_key(row: dict[str, Any], key: KeyTexts) -> dict[str, Any]:
    """Return a row of the table without examples, and without texts that contain a part of a key."""
    cleaned = row | {"examples": None} if "examples" in row else {**row}
    if row["suite"] != quality.ACKNOWLEDGED:
        cleaned["observed"] = row["observed"] and row["observed"].partition(_EXAMPLE)[0]
    named = [name for name in _TEXTS if cleaned.get(name) and names_part(cleaned[name], key)]
    cleaned |= dict.fromkeys(named, "")
    if "observed" in named and "observed_number" in row:
        cleaned["observed_number"] = None
    return cleaned


def _are_named(tables: PipelineTables, key: KeyTexts) -> bool:
    """Return True if a file contains all parts of the key in an observation or an example, or can't be read."""
    path = tables.path(quality.NAME)
    log = f"{path}/{FOLDER}"
    files = [(folder, name) for folder in (path, log) for name in tables.warehouse.names(folder)]
    texts = (_shown(tables, folder, name) for folder, name in files)
    return any(text is None or names_key(text, key) for text in texts)


def _shown(tables: PipelineTables, folder: str, name: str) -> str | None:
    """Return the texts in a file of the table or its log; None if the file can't be read."""
    import pyarrow.parquet as pq

    filesystem, root = tables.warehouse.filesystem(folder)
    with filesystem.open_input_file(f"{root}/{name}" if root else name) as file:
        try:
            if name.endswith(".parquet"):
                opened = pq.ParquetFile(file)
                # Statistics in a log contain the smallest and largest text.
                columns = {*_TEXTS, "examples", "add"} & {*opened.schema_arrow.names}
                return str(opened.read(sorted(columns)).to_pylist())
            return "".join(json.dumps(action["add"]) for action in actions_in(file.read()) if "add" in action)
        except (pa.ArrowException, OSError, ValueError):
            return None
