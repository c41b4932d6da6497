"""Views of a pipeline whose epochs a test runs by hand, and the rows that a reader gets from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from tests.lake import at, session_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.observe.reading.reached import Reached
from tidegate.pipelines.observe.reading.target import TABLES, Target
from tidegate.pipelines.observe.reading.views import OP, View
from tidegate.pipelines.storage.warehouse import arrow_schema
from tidegate.windowing import Count, EventTimeSessionWindows, Sum, Windows

Counted = TypeVar("Counted", bound=Counter[tuple[object, ...]])


def target_of(by_hand: ByHand, view: str) -> Target:
    """A view of the pipeline, without a tidegate.toml."""
    schema = arrow_schema(by_hand.tables.newest(TABLES[view]))
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
    """Return the rows that were added between two times, and those that were removed."""
    first, last = (Reached(**asdict(moment)) for moment in (start, end))
    rows = rows_of(target, target.changes(first, last))
    signs = rows["op"].to_pylist()
    came, left = (counted(rows.filter(pa.array([sign == op for sign in signs], pa.bool_()))) for op in "+-")
    return came, left


def project(folder: Path, *pipelines: str, warehouse: str = "warehouse", more: str = "") -> Path:
    """The tidegate.toml of pipelines whose epochs a test runs by hand."""
    file = folder / "tidegate.toml"
    tables = "".join(f'[pipelines.{name}]\nobject = "m:p"\nstart = "2024-03-01"\n' for name in pipelines)
    file.write_text(f'warehouse = "{warehouse}"\n{more}{tables}')
    return file


def visits_of(folder: Path) -> ByHand:
    """Pipeline `visits`: sessions that fired, grew and merged; some final, some not."""
    windows = Windows(
        EventTimeSessionWindows.with_gap(timedelta(minutes=30)),
        allowed_lateness=timedelta(hours=2),
        aggregate={"events": Count(), "total": Sum("value")},
    )
    project(folder, "visits")
    made = ByHand(folder, session_pipeline(compute=windows, name="visits"))
    made.epoch(("ann", at("10:00"), 1), ("ann", at("10:50"), 2), ("bob", at("10:00"), 3), watermark=at("11:30"))
    made.epoch(("ann", at("10:25"), 4), ("zoë", at("11:00"), 5), watermark=at("11:31"))
    made.epoch(("bob", at("10:10"), 6), ("cem", at("12:00"), 7), watermark=at("12:45"))
    return made
