"""Builds the tables of an outcome from the records of a row operator, which has checked the results of user code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.windowing.compute import Compute, Join, Windows
from tidegate.windowing.epochs.outcome import LATE_COLUMNS, no_late, result_table
from tidegate.windowing.errors import IllegalArgument, UnsupportedOperation
from tidegate.windowing.keys import KeySchema, window_identity
from tidegate.windowing.operators.records import ElementResult, LateElement, SideOutput, WindowPair, WindowResult
from tidegate.windowing.operators.two_inputs import LEFT, RIGHT, SIDES
from tidegate.windowing.windows import start_and_end


@dataclass(frozen=True)
class ResultColumns:
    """The result columns of a computation, including side outputs, and the type of the values of each by tag."""

    fields: pa.StructType
    side_outputs: Mapping[str, pa.StructType]

    @classmethod
    def of(cls, compute: Compute, fields: pa.StructType | None = None) -> ResultColumns:
        """Return the result columns of a computation. By default, they are the declared ones.

        Raises:
            IllegalArgument: `fields` is None and nothing is declared.
        """
        side_outputs = {} if isinstance(compute, Windows | Join) else dict(compute.function.side_outputs)
        if fields is None:
            result = compute.result_type if isinstance(compute.result_type, pa.StructType) else ()
            declared = {field.name: field.type for field in result} | side_outputs
            if not declared:
                raise IllegalArgument("fields", None, "give the type of a result row: the computation declares none")
            fields = pa.struct(list(declared.items()))
        return cls(fields, side_outputs)

    def columns(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
        """Return the columns of result rows by name."""
        return {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in self.fields}

    def row(self, record: ElementResult | SideOutput) -> Mapping[str, Any]:
        """Return the row of an output of a process function or join.

        Raises:
            IllegalArgument: a side output was not declared.
        """
        value = record.value
        if isinstance(record, SideOutput):
            if record.tag not in self.side_outputs:
                tags = sorted(self.side_outputs)
                raise IllegalArgument("tag", record.tag, f"declare it in side_outputs; declared are {tags}")
            return {record.tag: value}
        if isinstance(value, WindowPair):
            # The columns are microseconds, and Arrow reads an int as microseconds. A datetime ends with the year 9999.
            start, end = (bound * 1000 for bound in value.window)
            return {"window_start": start, "window_end": end, LEFT: value.left, RIGHT: value.right}
        if isinstance(value, tuple):
            return dict(zip(SIDES, value, strict=True))
        row: Mapping[str, Any] = value
        return row


def panes_of(records: Sequence[WindowResult], key: KeySchema, results: ResultColumns) -> pa.Table:
    """Return results of windows in the format of `Outcome.panes`."""
    hashes = {owner: key.hash_of(owner) for owner in {record.key for record in records}}
    bounds = [start_and_end(record.window) for record in records]
    ids = [window_identity(hashes[record.key], *(record.identity or (0, 0))) for record in records]
    return result_table(
        key,
        _keys(records, key),
        results.columns([record.value for record in records]),
        window_id=pa.array(ids, pa.int64()),
        window_start=pa.array([start for start, _ in bounds], pa.int64()),
        window_end=pa.array([end for _, end in bounds], pa.int64()),
        pane=pa.array([record.pane for record in records], pa.int32()),
        timing=pa.array([record.timing.value for record in records], pa.string()),
        op=pa.array([record.op for record in records], pa.string()),
        watermark=pa.array([record.watermark for record in records], pa.int64()),
    )


def outputs_of(records: Sequence[ElementResult | SideOutput], key: KeySchema, results: ResultColumns) -> pa.Table:
    """Return results of functions and joins in the format of `Outcome.outputs`."""
    tags = [record.tag if isinstance(record, SideOutput) else None for record in records]
    return result_table(
        key,
        _keys(records, key),
        results.columns([results.row(record) for record in records]),
        timestamp=pa.array([record.timestamp for record in records], pa.int64()),
        output=pa.array(tags, pa.string()),
    )


def late_of(records: Sequence[LateElement], rows: Sequence[int]) -> pa.Table:
    """Return late elements in the format of `Outcome.late`."""
    if not records:
        return no_late()
    bounds = [start_and_end(record.window) for record in records]
    columns = {
        "row": rows,
        "reason": [record.reason for record in records],
        "watermark": [record.watermark for record in records],
        "window_start": [start for start, _ in bounds],
        "window_end": [end for _, end in bounds],
    }
    return pa.table(columns, schema=LATE_COLUMNS)


def refuse_side_outputs(outputs: Sequence[ElementResult | SideOutput]) -> None:
    """Refuse the side outputs of a window's function."""
    for record in outputs:
        tag = record.tag if isinstance(record, SideOutput) else None
        raise UnsupportedOperation(
            f"side output {tag!r}: all panes of a pipeline have one type, so windows can't have side outputs. Yield a "
            "result with a column for the kind, or create another pipeline"
        )


def _keys(records: Sequence[WindowResult | ElementResult | SideOutput], key: KeySchema) -> list[pa.Array]:
    keys = [key.columns_of(record.key) for record in records]
    return [pa.array([values[i] for values in keys], kind) for i, kind in enumerate(key.types)]
