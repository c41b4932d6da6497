"""A pipeline, bound to the columns of its source, with the checked types of its key, state and results.

These checks find every error in columns and types before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from tidegate.pipelines.definition import epochs, late, rejects, results, state
from tidegate.pipelines.definition.accepted_times import not_before_of
from tidegate.pipelines.definition.bound_input import (
    BoundInput,
    UnsuitableColumn,
    bound_input,
    joint_events,
    joint_key,
    joint_rows,
    require,
)
from tidegate.pipelines.definition.column_names import check_names
from tidegate.pipelines.definition.columns import quoted, to_delta
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.definition.fingerprint import fingerprint
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.definition.recorded import WINDOWS, Schemas
from tidegate.pipelines.definition.result_types import result_columns
from tidegate.pipelines.definition.user_code import is_own
from tidegate.pipelines.definition.windows import check_partitions
from tidegate.windowing.aggregates import AggregateColumns
from tidegate.windowing.compute import Compute, CoProcess, IntervalJoin, Join, KeyedProcess, Windows
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.functions import AggregateFunction
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.joins import join_schema
from tidegate.windowing.operators.process import process_schema
from tidegate.windowing.operators.window.snapshot import state_schema
from tidegate.windowing.panes import Accumulation, PanePolicy
from tidegate.windowing.sides import LEFT, RIGHT, SIDES
from tidegate.windowing.state.migration import StateFormat
from tidegate.windowing.state.rows import REST, StateSchema
from tidegate.windowing.time import Millis
from tidegate.windowing.type_names import name_of


@dataclass(frozen=True)
class BoundPipeline:
    """A pipeline and the types that follow from its source.

    Args:
        pipeline: the pipeline's value.
        source: columns of a source row, as tables late and rejects store them.
        derived: columns of an event.
        used: columns of an event that the computation reads, in order.
        compute: the computation, with bound aggregates.
        key: names and types of the key columns.
        results: type of one result row.
        state: columns of the state rows.
        inputs: the inputs, each with its own columns. The columns above are those of the events of all inputs together.
        renamed: by table (late, rejects), new names of source columns whose type changed, by original name.
    """

    pipeline: Pipeline
    source: pa.Schema
    derived: pa.Schema
    used: tuple[str, ...]
    compute: Compute
    key: KeySchema
    results: pa.StructType
    state: StateSchema
    inputs: tuple[BoundInput, ...]
    renamed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def lateness(self) -> Millis | None:
        """An element is late if `time + lateness <= watermark`. None if elements are never late.

        For an interval join, elements with a time before the watermark are late. For a process function with
        `time_sorted`, elements at or before the watermark are late, and without it, no element is late. For a window
        join, elements are late only if their windows have also ended.
        """
        if isinstance(self.compute, Windows):
            return self.compute.lateness
        if isinstance(self.compute, KeyedProcess | CoProcess):
            return 0 if self.compute.time_sorted else None
        return 1 if isinstance(self.compute, IntervalJoin) else 0

    @property
    def value_types(self) -> tuple[pa.DataType, ...]:
        """Types of the used columns, as tables store them."""
        return tuple(to_delta(self.derived.field(name).type) for name in self.used)

    @property
    def panes(self) -> PanePolicy:
        """Pane policy of windows. Other computations have no panes and ignore it."""
        return panes_of(self.compute) if isinstance(self.compute, Windows) else PanePolicy()

    @property
    def may_split_commits(self) -> bool:
        """True if an epoch may end inside a source commit, because the order of a commit's rows does not matter.

        The order matters for process functions, for watermark generators that see every event, and for some windows.
        """
        if any(part.reads_events for part in self.inputs) or not isinstance(self.compute, Windows):
            return False
        return self.compute.may_split_commits

    @property
    def table_schemas(self) -> dict[str, pa.Schema]:
        """Columns of each of the pipeline's tables."""
        return {
            state.NAME: state.schema(self.state),
            results.NAME: results.schema(
                self.key,
                self.results,
                results.LEADING if isinstance(self.compute, Windows) else results.ELEMENT_LEADING,
            ),
            late.NAME: late.schema(self.source, self.renamed.get(late.NAME)),
            rejects.NAME: rejects.schema(self.source, self.renamed.get(rejects.NAME)),
            epochs.NAME: epochs.SCHEMA,
        }

    @property
    def schemas(self) -> Schemas:
        """Types of key, state and results for the manifest; a later restore is checked against them."""
        return Schemas(
            key=_texts(zip(self.key.names, self.key.types, strict=True)),
            namespace=WINDOWS if isinstance(self.compute, Windows) else self.state.namespace,
            contents=_texts(self.state.contents),
            trigger_state=_texts(self.state.trigger_state),
            user_state=_texts(self.state.user_state),
            result={name: kind or "" for name, kind in StateFormat.of(self.state).result.items()},
        )

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of everything that can change a result. It is computed once, because each epoch records it."""
        pipeline = self.pipeline
        return fingerprint(
            pipeline.key,
            pipeline.compute,
            pipeline.where,
            pipeline.columns,
            pipeline.null_keys,
            pipeline.source.timestamp,
            pipeline.source.zone,
            pipeline.source.unit,
            pipeline.max_ahead_millis,
            self._format,
            *pipeline.inputs[1:],
            # A source without a bound of its own has the fingerprint that it had before the field existed.
            *([] if pipeline.source.not_before is None else [not_before_of(pipeline.source)]),
            *self._own_aggregates,
            *(() if pipeline.on_error == "stop" else (("on_error", pipeline.on_error),)),
        )

    @property
    def _format(self) -> dict[str, Any]:
        """Columns of the state for the fingerprint, without remainder columns, which the aggregates imply."""
        schemas = self.schemas.model_dump(exclude={"result", "version"})
        contents = {name: kind for name, kind in schemas["contents"].items() if not name.startswith(REST)}
        return {**schemas, "contents": contents}

    @property
    def _own_aggregates(self) -> list[AggregateFunction]:
        """Bound functions of the user's own aggregates. The aggregates' values alone may not reveal their code."""
        given, windows = getattr(self.pipeline.compute, "aggregate", None), self.compute
        if not isinstance(given, Mapping) or not isinstance(windows, Windows):
            return []
        bound = windows.aggregate.functions if isinstance(windows.aggregate, AggregateColumns) else ()
        return [
            function
            for value, function in zip(given.values(), bound, strict=False)
            if is_own(type(value).__module__) or is_own(type(function).__module__)
        ]


def has_windows(compute: Compute) -> bool:
    """Return True if results are windows and each pane of a window replaces the previous one."""
    return isinstance(compute, Windows) and compute.accumulation is not Accumulation.DISCARDING


def no_windows(compute: Compute) -> str | None:
    """Return the reason why the pipeline can't have a table `windows`, or None if it can."""
    if has_windows(compute):
        return None
    what = "panes that hold only parts of windows" if isinstance(compute, Windows) else "results that are not windows"
    return f"no table windows, because it emits {what}"


def check_windows(pipeline: Pipeline, wanted: WindowsTable) -> None:
    """Check that the key and the results of a pipeline fit into table `windows`, if it has one.

    Raises:
        Refused: a key or result has the name of the partition column.
    """
    compute = pipeline.compute
    if isinstance(compute, Windows) and has_windows(compute):
        given = compute.aggregate if isinstance(compute.aggregate, Mapping) else compute.result_type
        names = list(given) if isinstance(given, Mapping) else _names(given) if isinstance(given, pa.StructType) else []
        check_partitions(pipeline.name, [*pipeline.key, *names], wanted)


def panes_of(windows: Windows) -> PanePolicy:
    """Return the pane policy of pipelines: retract merged panes, and emit one late pane for each source commit."""
    return PanePolicy(windows.accumulation, retract_merged=True, coalesce_late=True)


def bind(
    pipeline: Pipeline, source: pa.Schema, derived: pa.Schema, right: tuple[pa.Schema, pa.Schema] | None = None
) -> BoundPipeline:
    """Check a pipeline against the columns of its source.

    Args:
        pipeline: the pipeline's value.
        source: columns of the source table.
        derived: columns after `columns=`.
        right: both schemas of the second input, if there is one.

    Raises:
        Refused: a column is missing, or has a type that its use does not support; the message names it.
        IllegalArgument: the definition is wrong for any types; for example, two columns have the same name.
    """
    compute = pipeline.compute
    if not isinstance(compute, Windows):
        return _bind_elements(pipeline, compute, source, derived, right)
    only = pipeline.inputs[0]
    bound_input(pipeline, only, None, source, derived, ())
    windows, used = _bind_windows(pipeline, compute, derived)
    bound = bound_input(pipeline, only, None, source, derived, used)
    result = windows.result_type if windows.reduce is None or windows.process is not None else bound.value_type
    field = next(name for name in ("process", "reduce", "aggregate") if getattr(windows, name) is not None)
    if not isinstance(result, pa.StructType) or any(result.field(i).type is None for i in range(result.num_fields)):
        raise IllegalArgument(
            f"compute.{field}.result_type" if field != "reduce" else "compute.reduce",
            result,
            "declare the Arrow struct type of a result row, so that results can go to a table",
        )
    rows = state_schema(windows, bound.key, bound.value_type, panes_of(windows))
    _check_names(pipeline, source, result, rows, results.LEADING, f"compute.{field}")
    return BoundPipeline(pipeline, source, derived, used, windows, bound.key, result, rows, (bound,))


def bind_all(pipeline: Pipeline, schemas: Sequence[tuple[pa.Schema, pa.Schema]]) -> BoundPipeline:
    """Bind a pipeline as `bind` does, given each input's source columns and its columns after `columns=`."""
    source, derived = schemas[0]
    return bind(pipeline, source, derived, schemas[1] if len(schemas) > 1 else None)


def _bind_windows(pipeline: Pipeline, windows: Windows, derived: pa.Schema) -> tuple[Windows, tuple[str, ...]]:
    """Return the windows with bound aggregates, and the columns that they read."""
    used = _columns_used(pipeline, windows, derived)
    if isinstance(windows.aggregate, Mapping):
        schema = pa.schema([field.with_type(to_delta(field.type)) for field in derived])
        try:
            windows = replace(windows, aggregate=AggregateColumns.of(windows.aggregate, schema))
        except IllegalArgument as error:
            raise UnsuitableColumn(error.field, error.value, error.remedy) from error
    return windows, tuple(used)


def _columns_used(pipeline: Pipeline, windows: Windows, derived: pa.Schema) -> list[str]:
    needed = list(_columns_of_parts(pipeline, windows, derived))
    if not windows.reads_whole_elements:
        return [name for name in derived.names if name in needed]
    used = list(derived.names if pipeline.uses is None else pipeline.uses)
    if pipeline.uses is None and windows.reduce is not None and windows.process is None:
        # Reduced elements become results, which have the key columns anyway.
        used = [name for name in used if name not in pipeline.key]
    for column in used:
        require(pipeline, derived, column, "uses", pipeline.source)
    return used + [column for column in needed if column not in used]


def _columns_of_parts(pipeline: Pipeline, windows: Windows, derived: pa.Schema) -> Iterator[str]:
    """Yield the columns that named aggregates and the assigner declare as read.

    Raises:
        Refused: a column is missing; the message names it.
    """
    aggregates = windows.aggregate.values() if isinstance(windows.aggregate, Mapping) else ()
    for column in dict.fromkeys(column for aggregate in aggregates for column in aggregate.columns):
        require(pipeline, derived, column, "compute.aggregate", pipeline.source)
        yield column
    gap = windows.assigner.column_of_gaps
    if gap is not None:
        require(pipeline, derived, gap, "compute.assigner.gap_of", pipeline.source)
        _check_gap(derived, gap)
        yield gap


def _check_gap(derived: pa.Schema, column: str) -> None:
    """Refuse a gap column that does not hold whole numbers."""
    kind = derived.field(column).type
    if not pa.types.is_integer(kind):
        whole = f"try_cast({quoted(column)} as bigint)"
        raise UnsuitableColumn(
            "compute.assigner.gap_of",
            column,
            f"it has type {name_of(kind)}; give a column of whole milliseconds, for example "
            f"columns={ {'gap': whole} } and GapColumn('gap')",
        )


def _bind_elements(
    pipeline: Pipeline,
    compute: KeyedProcess | CoProcess | Join,
    source: pa.Schema,
    derived: pa.Schema,
    right: tuple[pa.Schema, pa.Schema] | None,
) -> BoundPipeline:
    """Bind a process function or a join; both get whole elements."""
    if isinstance(compute, KeyedProcess):
        only = bound_input(pipeline, pipeline.inputs[0], None, source, derived)
        result = result_columns(compute, {})
        rows = process_schema(compute, only.key, only.value_type)
        _check_names(
            pipeline, source, result, rows, results.ELEMENT_LEADING, "compute.function.result_type", _names(result)
        )
        return BoundPipeline(pipeline, source, derived, only.used, compute, only.key, result, rows, (only,))
    if right is None:
        raise IllegalArgument("right", None, "also give the columns of the second input's source")
    inputs = tuple(
        bound_input(pipeline, part, side, *schemas)
        for part, side, schemas in zip(pipeline.inputs, SIDES, ((source, derived), right), strict=True)
    )
    key = joint_key(pipeline, inputs)
    sides = {side: part.value_type for side, part in zip(SIDES, inputs, strict=True)}
    for prefix, kind in zip(("", "right."), sides.values(), strict=True):
        if not kind.num_fields:
            raise IllegalArgument(f"{prefix}uses", (), "the state keeps the elements of both inputs: name a column")
    result = result_columns(compute, sides)
    if isinstance(compute, CoProcess):
        rows = process_schema(compute, key, sides[LEFT], sides[RIGHT])
    else:
        rows = join_schema(compute, key, sides[LEFT], sides[RIGHT])
    events, joined = joint_events(key, inputs), joint_rows(key, inputs)
    field = "compute.result_type" if isinstance(compute, Join) else "compute.function.result_type"
    _check_names(pipeline, joined, result, rows, results.ELEMENT_LEADING, field, ("side", *SIDES, *_names(result)))
    used = tuple(name for name in events.names if name not in key.names)
    return BoundPipeline(pipeline, joined, events, used, compute, key, result, rows, inputs)


def _check_names(
    pipeline: Pipeline,
    source: pa.Schema,
    result: pa.StructType,
    rows: StateSchema,
    leading: Sequence[pa.Field],
    field: str,
    reserved: Sequence[str] = (),
) -> None:
    check_names(
        pipeline.key,
        source,
        _names(result),
        of_results=[column.name for column in leading],
        of_state=[*state.schema(replace(rows, key=KeySchema((), ()))).names, *reserved],
        trailing=(late.TRAILING, rejects.TRAILING),
        field=field,
    )


def _names(result: pa.StructType) -> list[str]:
    return [result.field(number).name for number in range(result.num_fields)]


def _texts(fields: object) -> dict[str, str]:
    return {name: str(kind) for name, kind in fields}  # type: ignore[attr-defined]
