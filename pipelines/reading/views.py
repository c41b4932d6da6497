"""Views of a pipeline's tables, as rows of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import results
from tidegate.pipelines.reading.places import Files, bits_by_file, without
from tidegate.pipelines.reading.reached import Reached

STALE_AND_EPOCH = ("epoch", "stale")
"""Columns that say if a row counts."""


@dataclass(frozen=True)
class FileRows:
    """Rows of one file.

    Args:
        name: path of the file in its table.
        size: its bytes.
        kept: one bit for each row, set for the rows that belong to the view; None for all.
        op: a value that replaces that of column `op`; None leaves it.
    """

    name: str
    size: int
    kept: bytes | None = None
    op: str | None = None


@dataclass(frozen=True)
class View:
    """Rows of a table.

    Args:
        files: files that have the rows.
        where: an expression that the rows satisfy; None for all.
        until: the epoch whose later marks of reopened rows are left out; None for none.
    """

    files: tuple[FileRows, ...]
    where: pc.Expression | None = None
    until: int | None = None


def all_rows(files: Files, where: pc.Expression | None) -> View:
    """Return the rows of every file that satisfy an expression."""
    return View(tuple(FileRows(file["path"], file["size_bytes"]) for file in files.active), where)


def latest(files: Files, key: Sequence[str], until: Reached) -> View:
    """Return the newest pane of each window that is not retracted; rows that are no panes all count."""
    view = all_rows(files, until.shown())
    if not results.has_panes(files.schema):
        return view
    windows = windows_with_several_panes(files, until)
    if not len(windows):
        return view
    candidates = files.places(
        [*identity(key), *STALE_AND_EPOCH],
        lambda rows: pc.and_(pc.is_in(rows["window_id"], value_set=windows), pa.array(until.shows(rows))),
    )
    replaced = without(candidates, results.newest(candidates, key))
    masks = bits_by_file(replaced, files)
    return View(
        tuple(
            FileRows(file.name, file.size, _inverted(masks[number]) if number in masks else None)
            for number, file in enumerate(view.files)
        ),
        view.where,
    )


def final(files: Files, key: Sequence[str], until: Reached) -> View:
    """Return those of the latest rows that no later event can change."""
    view = latest(files, key, until)
    condition = until.final() if results.has_panes(files.schema) else None
    return view if condition is None or view.where is None else View(view.files, view.where & condition)


def identity(key: Sequence[str]) -> list[str]:
    """Return the columns that identify a pane, and `op`."""
    return [*key, "window_id", "pane", "op"]


def windows_with_several_panes(files: Files, until: Reached, among: pa.Array | None = None) -> pa.Array:
    """Return the ids of windows of which a pane is not the first, or is retracted."""
    later = (pc.field("epoch") <= until.epoch) & ((pc.field("pane") > 0) | (pc.field("op") == "-"))
    if among is not None:
        later &= pc.field("window_id").isin(among)
    return files.some(files.with_later_panes()).rows(["window_id"], later)["window_id"].unique()


def _inverted(bits: bytes) -> bytes:
    return np.invert(np.frombuffer(bits, np.uint8)).tobytes()
