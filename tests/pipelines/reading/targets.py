"""Views of a pipeline whose epochs a test makes by hand, and the rows that a reader gets of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.reading.reached import Reached
from tidegate.pipelines.reading.rows import OP
from tidegate.pipelines.reading.target import TABLES, Target
from tidegate.pipelines.reading.views import View
from tidegate.pipelines.storage import arrow_schema

Counted = TypeVar("Counted", bound=Counter[tuple[object, ...]])


def target_of(by_hand: ByHand, view: str) -> Target:
    """A view of the pipeline, without a tidegate.toml."""
    schema = arrow_schema(by_hand.tables.look(TABLES[view]))
    if view in ("final", "latest") and OP.name not in schema.names:
        schema = schema.append(OP)
    return Target(by_hand.tables, view, schema, tuple(by_hand.pipeline.key))


def rows_of(target: Target, view: View) -> pa.Table:
    """The rows of a view, or of a batch."""
    batches = list(target.read(view))
    names = target.schema.names
    return pa.Table.from_batches([batch.select(names) for batch in batches]) if batches else target.schema.empty_table()


def changes(
    target: Target, start: Reached, end: Reached, counted: Callable[[pa.Table], Counted]
) -> tuple[Counted, Counted]:
    """The rows that came between two moments, and those that left."""
    first, last = (Reached.from_offset(moment.as_offset()) for moment in (start, end))
    rows = rows_of(target, target.changes(first, last))
    signs = rows["op"].to_pylist()
    came, left = (counted(rows.filter(pa.array([sign == op for sign in signs], pa.bool_()))) for op in "+-")
    return came, left


def project(folder: Path, *pipelines: str, warehouse: str = "warehouse", more: str = "") -> Path:
    """The tidegate.toml of pipelines whose epochs a test makes by hand."""
    file = folder / "tidegate.toml"
    tables = "".join(f'[pipelines.{name}]\nobject = "m:p"\nstart = "2024-03-01"\n' for name in pipelines)
    file.write_text(f'warehouse = "{warehouse}"\n{more}{tables}')
    return file
