"""Source columns whose type changed: tables late and rejects keep the old column and add a second one.

A column of a Delta table has one type, unless the table uses a feature that our commits don't support. So if `amount`
was an INT and is now a BIGINT in the source, new rows have it in `amount_long`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import count

from deltalake import Field, Schema

from tidegate.pipelines.definition import late, rejects
from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.column_names import free_name
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.tables.pipeline_tables import DeltaType, PipelineTables, merged_type


def with_renamed(bound: BoundPipeline, tables: PipelineTables) -> BoundPipeline:
    """Return the pipeline with the names that its tables use for source columns whose type changed.

    Raises:
        Refused: a key column changed its type. Its type is needed to find the rows of a key in these tables.
    """
    wanted = {late.NAME: late.schema(bound.source), rejects.NAME: rejects.schema(bound.source)}
    renamed = {}
    for table, schema in wanted.items():
        if tables.warehouse.exists(tables.path(table)):
            existing = {field.name: field.type for field in tables.look(table).schema().fields}
            renamed[table] = {
                field.name: _free_name(field, existing, {name.casefold() for name in schema.names})
                for field in Schema.from_arrow(schema).fields
                if field.name in existing and merged_type(existing[field.name], field.type) is None
            }
            _check_key(bound, tables.path(table), renamed[table])
    return replace(bound, renamed={table: names for table, names in renamed.items() if names})


def _check_key(bound: BoundPipeline, table: str, renamed: dict[str, str]) -> None:
    for name in bound.pipeline.key:
        if name in renamed or f"input_{name}" in renamed:
            kind = bound.source.field(name).type if name in bound.source.names else bound.derived.field(name).type
            raise Refused(
                f"key column {name!r} of pipeline {bound.pipeline.name!r} is now {kind} in its source, but table "
                f"{table} has another type, so tidegate would not find the rows of a key there. Give the pipeline "
                "another name and backfill it, or undo the change"
            )


def _free_name(field: Field, existing: dict[str, DeltaType], others: set[str]) -> str:
    """Return the name of the additional column for a type. The column may exist since an earlier run."""
    type_name = getattr(field.type, "type", "")
    base = f"{field.name}_{re.sub('[^a-z0-9]+', '_', str(type_name)).strip('_')}"
    mismatched = {name.casefold() for name, kind in existing.items() if merged_type(kind, field.type) is None}
    numbers = count(2)
    return free_name(base, others | mismatched, lambda _: f"{base}_{next(numbers)}")
