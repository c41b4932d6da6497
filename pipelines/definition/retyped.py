"""Columns of a source whose type changed: tables late and rejects keep what they have, and get a second column.

A Delta table's column has one type, unless the table has a feature that our commits would need to know. So where
`amount` was an INT and the source has a BIGINT now, the rows from then on have it in `amount_long`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from deltalake import Field, Schema

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.tables import late, rejects
from tidegate.pipelines.tables.pipeline_tables import DeltaType, PipelineTables, merged_type


def with_renamed(bound: BoundPipeline, tables: PipelineTables) -> BoundPipeline:
    """The pipeline with the names under which its tables keep columns of the source whose type changed.

    Raises:
        Refused: a key column changed, by which the rows of a key are found in these tables.
    """
    wanted = {late.NAME: late.schema(bound.source), rejects.NAME: rejects.schema(bound.source)}
    renamed = {}
    for table, schema in wanted.items():
        if tables.warehouse.exists(tables.path(table)):
            known = {field.name: field.type for field in tables.open(table).schema().fields}
            renamed[table] = {
                field.name: _free_name(field, known)
                for field in Schema.from_arrow(schema).fields
                if field.name in known and merged_type(known[field.name], field.type) is None
            }
            _check_key(bound, tables.path(table), renamed[table])
    return replace(bound, renamed={table: names for table, names in renamed.items() if names})


def _check_key(bound: BoundPipeline, table: str, renamed: dict[str, str]) -> None:
    for name in bound.pipeline.key:
        if name in renamed or f"input_{name}" in renamed:
            kind = bound.source.field(name).type if name in bound.source.names else bound.derived.field(name).type
            raise Refused(
                f"key column {name!r} of pipeline {bound.pipeline.name!r} is {kind} in its source now, and table "
                f"{table} has another type: the rows of a key would not be found there. Give the pipeline another name "
                "and backfill it, or take the change back"
            )


def _free_name(field: Field, known: dict[str, DeltaType]) -> str:
    """The name of a further column for a type, which may be there since an earlier run."""
    type_name = getattr(field.type, "type", "")
    base = f"{field.name}_{re.sub('[^a-z0-9]+', '_', str(type_name)).strip('_')}"
    folded = {name.casefold(): kind for name, kind in known.items()}
    name, number = base, 1
    while name.casefold() in folded and merged_type(folded[name.casefold()], field.type) is None:
        number += 1
        name = f"{base}_{number}"
    return name
