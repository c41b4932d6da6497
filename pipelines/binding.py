"""A pipeline bound to the columns of its source: types of key, state and results, all checked.

Everything that can be wrong about columns and types is found here, before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from pipelines.config import Config
from pipelines.errors import Refused
from pipelines.fingerprint import fingerprint
from pipelines.pipeline import DeltaSource, Pipeline
from pipelines.snapshots.manifest import Schemas
from pipelines.tables import epochs, late, rejects, results, state
from pipelines.tables.columns import to_delta
from windowing.aggregates import AggregateColumns
from windowing.assigners import GapColumn, MergingWindowAssigner
from windowing.compute import Windows
from windowing.errors import IllegalArgument
from windowing.keys import KeySchema
from windowing.operators.window.snapshot import state_schema
from windowing.panes import PanePolicy
from windowing.state.rows import StateSchema
from windowing.triggers import EventTimeTrigger


@dataclass(frozen=True)
class BoundPipeline:
    """A pipeline and the types that follow from its source.

    Args:
        pipeline: the value.
        source: columns of the source table.
        derived: columns after `columns=`.
        used: columns that the computation reads, in order.
        windows: what to compute, with bound aggregates.
        key: names and types of the key columns.
        results: type of one result row.
        state: columns of the state rows.
    """

    pipeline: Pipeline
    source: pa.Schema
    derived: pa.Schema
    used: tuple[str, ...]
    windows: Windows
    key: KeySchema
    results: pa.StructType
    state: StateSchema

    @property
    def panes(self) -> PanePolicy:
        """Panes as pipelines have them: withdrawn when merged, late ones coalesced per source commit."""
        return PanePolicy(self.windows.accumulation, withdraw_merged=True, coalesce_late=True)

    @property
    def may_split_commits(self) -> bool:
        """Whether an epoch may end inside a source commit, because the order within one can't show.

        It shows in sessions: an element that is too late by itself may join a session that an element
        of the same commit extended before.
        """
        windows = self.windows
        return (
            windows.assigner.is_event_time
            and not isinstance(windows.assigner, MergingWindowAssigner)
            and isinstance(windows.trigger, EventTimeTrigger | None)
            and windows.evictor is None
            and isinstance(windows.aggregate, Mapping | AggregateColumns)
        )

    @property
    def table_schemas(self) -> dict[str, pa.Schema]:
        """The schema of each of the pipeline's tables."""
        return {
            state.NAME: state.schema(self.state),
            results.NAME: results.schema(self.key, self.results),
            late.NAME: late.schema(self.source),
            rejects.NAME: rejects.schema(self.source),
            epochs.NAME: epochs.SCHEMA,
        }

    @property
    def schemas(self) -> Schemas:
        """What a later restore is checked against."""
        return Schemas(
            key=_texts(zip(self.key.names, self.key.types, strict=True)),
            namespace="time_window",
            contents=_texts(self.state.contents),
            trigger_state=_texts(self.state.trigger_state),
            user_state=_texts(self.state.user_state),
        )

    @property
    def fingerprint(self) -> str:
        """Changes with anything that could change a result."""
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
            self.schemas.model_dump(),
        )


def bind(pipeline: Pipeline, source: pa.Schema, derived: pa.Schema) -> BoundPipeline:
    """Check a pipeline against the columns of its source.

    Raises:
        Refused: a column is missing, or has a type that can't serve; the message names it.
        IllegalArgument, UnsupportedOperation: a type that an aggregate or key can't take.
    """
    check_timestamp(pipeline.source, derived)
    for field, names in (
        ("key", pipeline.key),
        ("watermark_by", [pipeline.watermark_by] if pipeline.watermark_by else []),
    ):
        for name in names:
            _require(pipeline, derived, name, field)
    windows, used = _bind_windows(pipeline, derived)
    key = KeySchema(pipeline.key, tuple(to_delta(derived.field(name).type) for name in pipeline.key))
    value_type = pa.struct([pa.field(name, to_delta(derived.field(name).type)) for name in used])
    result = windows.result_type if windows.reduce is None or windows.process is not None else value_type
    if not isinstance(result, pa.StructType) or any(result.field(i).type is None for i in range(result.num_fields)):
        raise IllegalArgument(
            "compute.process.result_type",
            result,
            "declare the Arrow struct type of a result row, so that results can go to a table",
        )
    _check_result_names(pipeline, result)
    panes = PanePolicy(windows.accumulation, withdraw_merged=True, coalesce_late=True)
    return BoundPipeline(
        pipeline, source, derived, used, windows, key, result, state_schema(windows, key, value_type, panes)
    )


def bind_to_source(config: Config, pipeline: Pipeline) -> BoundPipeline:
    """Check a pipeline against its source as it is now; Spark is started only for the types of derived columns.

    Raises:
        Refused: there is no such source, or as `bind` does.
    """
    from pipelines.sources.log import SourceLog
    from pipelines.storage import arrow_schema, warehouse_of

    warehouse = warehouse_of(config)
    path = warehouse.path(pipeline.source.table)
    log = SourceLog(warehouse, path)
    if not pipeline.columns:
        source = arrow_schema(warehouse.open(path, log.head))
        return bind(pipeline, source, source)
    from pipelines.session import start_session
    from pipelines.sources.frames import SourceFrames

    session = start_session(config, f"check {pipeline.name}")
    try:
        return bind(pipeline, *SourceFrames(session, path, pipeline).schemas(log.head))
    finally:
        session.stop()


def check_timestamp(source: DeltaSource, schema: pa.Schema) -> None:
    """Refuse a timestamp column that is missing or can't be read as a time without guessing."""
    if source.timestamp not in schema.names:
        raise Refused(
            f"source.timestamp = {source.timestamp!r}: table {source.table!r} has no such column; it has {schema.names}"
        )
    kind = schema.field(source.timestamp).type
    if pa.types.is_timestamp(kind):
        if kind.tz is None and source.zone is None:
            raise Refused(
                f"source.timestamp = {source.timestamp!r} is TIMESTAMP_NTZ, a wall-clock time: name its zone, "
                f"DeltaSource(..., zone='America/New_York')"
            )
        return
    if pa.types.is_integer(kind):
        if source.unit is None:
            raise Refused(
                f"source.timestamp = {source.timestamp!r} has type {kind}: say what it counts, "
                "DeltaSource(..., unit='ms')"
            )
        return
    raise Refused(
        f"source.timestamp = {source.timestamp!r} has type {kind}, not a time: derive one, for example "
        f"columns={{'event_time': 'try_to_timestamp({source.timestamp})'}} and timestamp='event_time'"
    )


def _bind_windows(pipeline: Pipeline, derived: pa.Schema) -> tuple[Windows, tuple[str, ...]]:
    windows = pipeline.compute
    if isinstance(windows.aggregate, Mapping) and windows.process is None:
        needed = {column for aggregate in windows.aggregate.values() for column in aggregate.columns}
        for column in needed:
            _require(pipeline, derived, column, "compute.aggregate")
        gap = getattr(windows.assigner, "gap_of", None)
        if isinstance(gap, GapColumn):
            _require(pipeline, derived, gap.column, "compute.assigner.gap_of")
            needed.add(gap.column)
        schema = pa.schema([field.with_type(to_delta(field.type)) for field in derived])
        bound = replace(windows, aggregate=AggregateColumns.of(windows.aggregate, schema))
        return bound, tuple(name for name in derived.names if name in needed)
    used = derived.names if pipeline.uses is None else pipeline.uses
    for column in used:
        _require(pipeline, derived, column, "uses")
    if isinstance(windows.aggregate, Mapping):
        schema = pa.schema([field.with_type(to_delta(field.type)) for field in derived])
        windows = replace(windows, aggregate=AggregateColumns.of(windows.aggregate, schema))
    return windows, tuple(used)


def _require(pipeline: Pipeline, schema: pa.Schema, column: str, field: str) -> None:
    if column not in schema.names:
        raise Refused(
            f"{field} of pipeline {pipeline.name!r}: table {pipeline.source.table!r} has no column {column!r}; "
            f"it has {schema.names}"
        )


def _check_result_names(pipeline: Pipeline, result: pa.StructType) -> None:
    names = {result.field(i).name for i in range(result.num_fields)}
    for taken, what in ((results.RESERVED, "a column of table results"), (set(pipeline.key), "a key column")):
        if clash := sorted(names & taken):
            raise IllegalArgument("compute.aggregate", clash[0], f"that is the name of {what}: give the result another")
    if clash := sorted(
        set(pipeline.key) & (results.RESERVED | set(state.schema(StateSchema(KeySchema((), ()))).names))
    ):
        raise IllegalArgument("key", clash[0], "that is the name of a column of ours: rename it in columns=")


def _texts(fields: object) -> dict[str, str]:
    return {name: str(kind) for name, kind in fields}  # type: ignore[attr-defined]
