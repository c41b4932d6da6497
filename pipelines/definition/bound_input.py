"""An input of a pipeline, bound to the columns of its source, with the types of its key and its elements.

Two inputs share a slice. These are the columns of its events, and of its rows in tables late and rejects:

    event   key columns, tidegate:side, left:amount, left:shop, right:paid     the other side's columns are null
    row     key columns, side, left {...}, right {...}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import pyarrow as pa

from tidegate.pipelines.definition.column_names import check_in_flight
from tidegate.pipelines.definition.columns import field_in_sql, quoted, to_delta
from tidegate.pipelines.definition.event_columns import SIDE
from tidegate.pipelines.definition.names import listed
from tidegate.pipelines.definition.pipeline import Input, Pipeline, SourceDescription
from tidegate.pipelines.errors import Refused
from tidegate.windowing.errors import IllegalArgument, UnsupportedOperation
from tidegate.windowing.keys import KeySchema, column_hash
from tidegate.windowing.sides import SIDES, value_column
from tidegate.windowing.type_names import name_of


class UnsuitableColumn(Refused, IllegalArgument):
    """A column of the source has a type that the computation does not support; see `IllegalArgument` for the fields."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        IllegalArgument.__init__(self, field, value, remedy)
        self.message, self.remedies = str(self.args[0]), ()


@dataclass(frozen=True)
class BoundInput:
    """An input and the columns of its source.

    Args:
        input: the input, with its defaults filled in.
        side: `left` or `right`; None for the only input.
        source: columns of the source table.
        derived: columns after `columns=`.
        used: columns that the computation reads, in order.
    """

    input: Input
    side: str | None
    source: pa.Schema
    derived: pa.Schema
    used: tuple[str, ...]

    @property
    def key(self) -> KeySchema:
        """Names and types of the key columns."""
        return KeySchema(self.input.key, tuple(to_delta(self.derived.field(name).type) for name in self.input.key))

    @property
    def reads_events(self) -> bool:
        """True if the watermark generators must see every event."""
        return self.input.watermark is not None and self.input.watermark.reads_events

    @property
    def value_type(self) -> pa.StructType:
        """Type of an element for the computation."""
        return row_type(self.derived, self.used)


def bound_input(
    pipeline: Pipeline,
    input: Input,  # noqa: A002 - the parameter has the name of the field
    side: str | None,
    source: pa.Schema,
    derived: pa.Schema,
    used: Iterable[str] | None = None,
) -> BoundInput:
    """Check an input against the columns of its source.

    Args:
        pipeline: the pipeline of the input.
        input: the input, with its defaults filled in.
        side: `left` or `right`; None for the only input.
        source: columns of the source table.
        derived: columns after `columns=`.
        used: columns that the computation reads; None for those that `uses` names, or all.

    Raises:
        Refused: a column is missing or has an unusable type; the message names it.
    """
    prefix = "right." if side == "right" else ""
    check_in_flight(input.source.table, derived.names)
    check_timestamp(input.source, derived, prefix)
    by = [] if input.watermark_by is None else [input.watermark_by]
    for field, names in (("key", input.key), ("watermark_by", by)):
        for name in names:
            require(pipeline, derived, name, prefix + field, input.source)
    for name in input.key:
        try:
            column_hash(to_delta(derived.field(name).type), name)
        except UnsupportedOperation as error:
            raise Refused(f"{prefix}key of pipeline {pipeline.name!r}: {error}") from error
    if used is None:
        used = derived.names if input.uses is None else input.uses
        for name in used:
            require(pipeline, derived, name, f"{prefix}uses", input.source)
    return BoundInput(input, side, source, derived, tuple(used))


def row_type(schema: pa.Schema, names: Iterable[str]) -> pa.StructType:
    """Return the type of a struct of these columns, in Delta's types."""
    return pa.struct([pa.field(name, to_delta(schema.field(name).type)) for name in names])


def require(pipeline: Pipeline, schema: pa.Schema, column: str, field: str, source: SourceDescription) -> None:
    """Refuse a missing column.

    Raises:
        Refused: the message names the field that needs the column.
    """
    if column not in schema.names:
        raise Refused(
            f"{field} of pipeline {pipeline.name!r}: table {source.table!r} has no column {column!r}; "
            f"{_instead(schema, column)}"
        )


def _instead(schema: pa.Schema, column: str) -> str:
    """Return advice for a missing column: the column that the user may have meant, or the field of a struct."""
    struct, _, field = column.partition(".")
    if field and struct in schema.names and pa.types.is_struct(schema.field(struct).type):
        derived = {field.rpartition(".")[2]: field_in_sql(column)}
        return f"give the field of the struct a name, columns={derived}, and use that"
    return near_names(column, schema.names)


def near_names(column: str, names: Sequence[str]) -> str:
    """Return advice for a missing column: the name that the user may have meant, and all names."""
    by_lower = {name.lower(): name for name in names}
    close = get_close_matches(column.lower(), by_lower, 1)
    hint = f"did you mean {by_lower[close[0]]!r}? It" if close else "it"
    return f"{hint} has [{listed([repr(name) for name in names])}]"


def check_timestamp(source: SourceDescription, schema: pa.Schema, prefix: str = "") -> None:
    """Refuse a timestamp column that is missing, or whose type does not determine a time."""
    field = f"{prefix}source.timestamp = {source.timestamp!r}"
    if source.timestamp not in schema.names:
        raise Refused(f"{field}: table {source.table!r} has no such column; {_instead(schema, source.timestamp)}")
    kind = schema.field(source.timestamp).type
    if pa.types.is_timestamp(kind):
        if kind.tz is None and source.zone is None:
            raise Refused(
                f"{field} is TIMESTAMP_NTZ, a wall-clock time: name its zone, {_kind(source)}(..., "
                "zone='America/New_York'), or zone='UTC' if its times are in UTC"
            )
        if source.unit is not None:
            is_a = "TIMESTAMP" if kind.tz else "TIMESTAMP_NTZ"
            raise _no_effect(prefix, "unit", source.unit, f"{field} is {is_a}, so it needs no unit")
        if kind.tz is not None and source.zone is not None:
            instant = f"to_utc_timestamp({quoted(source.timestamp)}, '{source.zone}')"
            raise _no_effect(
                prefix,
                "zone",
                source.zone,
                f"{field} is TIMESTAMP, an instant that needs no zone",
                ". If wall-clock times were written there as if they were UTC, derive the instants: "
                f"columns={ {'instant': instant} } and timestamp='instant'",
            )
        return
    if pa.types.is_integer(kind):
        if source.unit is None:
            raise Refused(f"{field} has type {name_of(kind)}: give its unit, {_kind(source)}(..., unit='ms')")
        if source.zone is not None:
            raise _no_effect(prefix, "zone", source.zone, f"{field} counts {source.unit} since 1970 in UTC")
        return
    raise Refused(f"{field} has type {name_of(kind)}, not a time: {_time_from(kind, source.timestamp)}")


def _time_from(kind: pa.DataType, column: str) -> str:
    """Return advice on deriving a time from a column of another type."""
    if pa.types.is_nested(kind):
        return "derive one in columns= from a value in it, such as a field of the struct or an element of the array"
    name = quoted(column)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        instant = f"timestamp_seconds({name})"
    else:
        instant = f"try_to_timestamp({name})"
    return f"derive one, for example columns={ {'event_time': instant} } and timestamp='event_time'"


def _kind(source: SourceDescription) -> str:
    return type(source).__name__


def _no_effect(prefix: str, name: str, value: str, why: str, otherwise: str = "") -> Refused:
    """Return the error for a field of a source that has no effect on its timestamp column."""
    return Refused(f"{prefix}source.{name} = {value!r} has no effect: {why}. Leave {name}= out{otherwise}")


def joint_key(pipeline: Pipeline, inputs: Sequence[BoundInput]) -> KeySchema:
    """Return the key of both inputs, with the names of the first input.

    Raises:
        Refused: a key column has a different type in the second input, so equal keys would not match.
    """
    left, right = (part.key for part in inputs)
    for name, kind, other, other_kind in zip(left.names, left.types, right.names, right.types, strict=True):
        if kind != other_kind:
            raise Refused(
                f"key column {name!r} of pipeline {pipeline.name!r} has type {name_of(kind)} in table "
                f"{inputs[0].input.source.table!r}, and {other!r} has type {name_of(other_kind)} in table "
                f"{inputs[1].input.source.table!r}: equal keys would not match. Cast one in columns=, for example "
                f"columns={ {f'{name}_key': f'cast({quoted(name)} as string)'} }"
            )
    return left


def joint_events(key: KeySchema, inputs: Sequence[BoundInput]) -> pa.Schema:
    """Return the columns of an event of either input."""
    keys = [pa.field(name, kind) for name, kind in zip(key.names, key.types, strict=True)]
    values = [
        pa.field(value_column(side, name), to_delta(part.derived.field(name).type))
        for side, part in zip(SIDES, inputs, strict=True)
        for name in part.used
    ]
    return pa.schema([*keys, pa.field(SIDE, pa.string()), *values])


def joint_rows(key: KeySchema, inputs: Sequence[BoundInput]) -> pa.Schema:
    """Return the columns of a source row of either input."""
    keys = [pa.field(name, kind) for name, kind in zip(key.names, key.types, strict=True)]
    rows = [pa.field(side, pa.struct(list(part.source))) for side, part in zip(SIDES, inputs, strict=True)]
    return pa.schema([*keys, pa.field("side", pa.string()), *rows])
