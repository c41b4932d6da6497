"""What a process function or a join puts out, as rows of table results: checked against the declared types."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.pipelines.tables import results
from tidegate.windowing.compute import Compute, IntervalJoin, Windows
from tidegate.windowing.declared import declared_array
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.operators.records import ElementResult, SideOutput
from tidegate.windowing.operators.two_inputs import SIDES

if TYPE_CHECKING:
    from tidegate.pipelines.epoch.shard import ShardJob


def element_columns(job: ShardJob, records: Sequence[ElementResult | SideOutput]) -> dict[str, Any]:
    """The columns of records, without those that are the same for all rows of an epoch; times in milliseconds.

    Raises:
        IllegalArgument: a result is no mapping of the declared columns, or a side output was not declared.
    """
    schema = job.schemas[results.NAME]
    tags = {} if isinstance(job.compute, IntervalJoin) else dict(getattr(job.compute, "function").side_outputs)  # noqa: B009
    named = [field for field in schema if field.name not in {*job.key.names, *results.ELEMENT_RESERVED}]
    main = {field.name for field in named} - set(tags)
    keys = [job.key.columns_of(record.key) for record in records]
    rows = [_row(record, main, tags) for record in records]
    columns: dict[str, Any] = {name: [key[i] for key in keys] for i, name in enumerate(job.key.names)}
    columns["output"] = [record.tag if isinstance(record, SideOutput) else None for record in records]
    declared = declared_types(job.compute)
    for field in named:
        values = [row.get(field.name) for row in rows]
        what = f"side output {field.name!r}" if field.name in tags else f"result column {field.name!r}"
        columns[field.name] = declared_array(what, values, field.type, declared.get(field.name))
    return columns


def declared_types(compute: Compute) -> dict[str, pa.DataType]:
    """The type of each result column and side output as the user wrote it; nothing of what is not declared."""
    outputs = {} if isinstance(compute, Windows | IntervalJoin) else compute.function.side_outputs
    fields = compute.result_type if isinstance(compute.result_type, pa.StructType) else ()
    return {field.name: field.type for field in fields} | dict(outputs)


def _row(record: ElementResult | SideOutput, main: set[str], tags: Mapping[str, pa.StructType]) -> Mapping[str, Any]:
    value = record.value
    if isinstance(record, SideOutput):
        if record.tag not in tags:
            raise IllegalArgument("tag", record.tag, f"declare it in side_outputs; there are {sorted(tags)}")
        check_names(f"side output {record.tag!r}", value, {field.name for field in tags[record.tag]})
        return {record.tag: value}
    if isinstance(value, tuple) and main == set(SIDES):
        return dict(zip(SIDES, value, strict=True))
    check_names("result", value, main)
    row: Mapping[str, Any] = value
    return row


def check_names(what: str, value: Any, names: Collection[str]) -> None:
    """Refuse a result that is no mapping, or has a name that is not declared.

    Raises:
        IllegalArgument: names the result and what is declared.
    """
    if not isinstance(value, Mapping):
        raise IllegalArgument(what, value, f"give a mapping with {sorted(names)}, as its type is declared")
    if unknown := sorted(set(value) - set(names), key=str):
        raise IllegalArgument(what, value, f"{unknown[0]!r} is not declared; there are {sorted(names)}")
