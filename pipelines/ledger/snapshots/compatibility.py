"""Comparison of a snapshot with new code, field by field: unchanged, to migrate, or incompatible."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.columns import quoted
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.definition.recorded import Schemas
from tidegate.pipelines.definition.window_shape import kept_facts
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.head import Snapshot, read_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.storage.warehouse import arrow_schema
from tidegate.windowing.compute import Windows
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.sides import RIGHT, SIDES
from tidegate.windowing.state.migration import FormatDifference, StateFormat, differences, is_held, taken_over
from tidegate.windowing.state.rows import KEPT_WHOLE, REST
from tidegate.windowing.type_names import name_of

_DECIMAL = re.compile(r"decimal128\((\d+), (\d+)\)")
_NEW_NAME = "Give the pipeline another name and backfill it, or undo the change"
_OTHERWISE = f"{_NEW_NAME[0].lower()}{_NEW_NAME[1:]}"
_COMPUTED_AGAIN = (
    "Windows are computed again from the rows of the source, so their rows keep their event times and keys: "
    f"{_OTHERWISE}"
)


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """A difference between a snapshot and the code that keeps the code from using the snapshot.

    A value is None if there is none.
    """

    field: str
    then: object
    now: object
    remedy: str = _NEW_NAME
    remedies: tuple[Remedy, ...] = ()

    def __str__(self) -> str:
        return f"{self.field} is {_shown(self.then)} in the snapshot and {_shown(self.now)} in the code"


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The differences between a snapshot and the code.

    Migrations are changes that the next epoch makes to the state. Incompatibilities keep the code from using the
    snapshot. Notes are changes that don't affect the state.
    """

    migrations: tuple[str, ...]
    incompatibilities: tuple[Incompatibility, ...]
    notes: tuple[str, ...] = ()

    def check(self, pipeline: str, epoch: int) -> None:
        """Refuse the snapshot if there are incompatibilities. The message names fields, values and remedies."""
        if self.incompatibilities:
            reasons = "; ".join(f"{each}. {each.remedy}" for each in self.incompatibilities)
            raise Refused(
                f"the code of pipeline {pipeline!r} can't continue from epoch {epoch}: {reasons}",
                *(remedy for each in self.incompatibilities for remedy in each.remedies),
            )


def compare(bound: BoundPipeline, manifest: Manifest) -> Compatibility:
    """Compare each field of a snapshot with the code, and group the differences by their consequences."""
    now, then = bound.schemas, manifest.schemas
    whole: list[tuple[str, object, object]] = [
        (f"key column {name!r}", then.key.get(name), now.key.get(name)) for name in {**then.key, **now.key}
    ]
    whole.append(("order of the key columns", list(then.key), list(now.key)))
    whole.append(("namespace", then.namespace, now.namespace))
    whole.append(("max_parallelism", manifest.max_parallelism, bound.pipeline.max_parallelism))
    # The contents of a window that has fired are all its elements, or only those since its newest pane. Windows that
    # overlap hold the same elements, which a session that they merge into would count again.
    fields = {"accumulation": "accumulation", "merges": "compute.assigner: whether it forms sessions"}
    kept = kept_facts(bound.pipeline)
    for name, field in fields.items():
        if (old := getattr(manifest, name)) is not None and name in kept:
            whole.append((field, old, kept[name]))
    refused = [Incompatibility(field, old, new) for field, old, new in whole if old != new]
    if (placed := manifest.placed_by) is not None and (places := kept.get("placed_by")) is not None:
        restart = (Remedy(Act.RESTART, bound.pipeline.name),)
        named = {each.field for each in refused}
        refused += [
            Incompatibility(field, placed.get(field), places.get(field), _COMPUTED_AGAIN, restart)
            for field in {**placed, **places}
            if placed.get(field) != places.get(field) and field not in named
        ]
    old_format, new_format = format_of(then, bound), StateFormat.of(bound.state)
    migrations = []
    for difference in differences(old_format, new_format):
        if difference.part.startswith("key") or difference.part == "namespace":
            continue
        change = taken_over(difference, old_format, new_format, left_behind(bound.pipeline))
        if change is None:
            remedy = _remedy(bound, difference)
            refused.append(Incompatibility(difference.field, difference.found, difference.expected, remedy))
        elif change:
            migrations.append(change)
    return Compatibility(tuple(migrations), tuple(refused), _notes(bound.pipeline, manifest))


def migration_of(bound: BoundPipeline, manifest: Manifest) -> StateFormat | None:
    """Return the format from which state rows must be migrated, or None if no migration is necessary."""
    return format_of(manifest.schemas, bound) if compare(bound, manifest).migrations else None


def format_of(schemas: Schemas, bound: BoundPipeline) -> StateFormat:
    """Return the format of a snapshot's state rows, in the form that windowing compares."""
    return StateFormat(
        key=dict(schemas.key),
        namespace=bound.state.namespace,
        contents=_types(schemas.contents),
        trigger_state=_types(schemas.trigger_state),
        user_state=_types(schemas.user_state),
        result=_types(schemas.result),
    )


def left_behind(pipeline: Pipeline) -> frozenset[str]:
    """Return the names that a pipeline drops from its state. An aggregate's contents column has the prefix `acc_`."""
    return frozenset(pipeline.dropped) | {f"acc_{name}" for name in pipeline.dropped}


def check_restorable(bound: BoundPipeline, manifest: Manifest) -> None:
    """Refuse a snapshot that this pipeline can't use even after a migration.

    The message names the field, both values and the remedy.
    """
    compare(bound, manifest).check(manifest.pipeline, manifest.epoch)


def check_left_behind(tables: PipelineTables, bound: BoundPipeline, manifest: Manifest) -> None:
    """Refuse a name in `dropped` that the code still computes, or that the pipeline never had.

    A dropped result keeps its column in table results, but a dropped state leaves no trace. So if the code or the
    snapshot has states, an unknown name may be a state that was dropped earlier.
    """
    now = _names(format_of(bound.schemas, bound))
    then = _names(format_of(manifest.schemas, bound)) | (
        set(arrow_schema(tables.newest(results.NAME)).names) if tables.exist else set()
    )
    has_states = bool(bound.state.user_state or manifest.schemas.user_state or manifest.schemas.trigger_state)
    for name in bound.pipeline.dropped:
        field = f"dropped of pipeline {bound.pipeline.name!r} names {name!r}"
        if name in now:
            raise Refused(f"{field}, which the code still computes: take it out of dropped=, or out of compute")
        if name not in then and not has_states:
            droppable = sorted(_names(format_of(manifest.schemas, bound)) - now)
            instead = (
                f"the snapshot has {droppable}, which the code no longer computes"
                if droppable
                else "the snapshot has nothing left to drop"
            )
            left = [each for each in droppable if each not in bound.pipeline.dropped]
            remedy = f"Name {' or '.join(map(repr, left))} instead" if left else "Take it out of dropped="
            raise Refused(f"{field}, but neither its snapshot nor its results have that column: {instead}. {remedy}")


def _names(format_: StateFormat) -> set[str]:
    """Return the names of aggregates, states and result columns, as written in `dropped`."""
    parts = (format_.contents, format_.trigger_state, format_.user_state, format_.result)
    return {name.removeprefix("acc_") for part in parts for name in part if not name.startswith(REST)}


def ready(tables: PipelineTables, bound: BoundPipeline, head: Snapshot | None) -> Snapshot | None:
    """Add the columns that the code needs to the tables, before an epoch is planned; return the head.

    Raises:
        Refused: the code can't use the head, `dropped` has a wrong name, or a column has a different type.
    """
    if head is not None:
        check_restorable(bound, head.manifest)
        check_left_behind(tables, bound, head.manifest)
    if tables.exist and tables.widen(bound.table_schemas):
        return read_snapshot(tables)
    return head


def _remedy(bound: BoundPipeline, difference: FormatDifference) -> str:
    if is_held(difference) and difference.expected is None:
        return f"Elements that wait for the watermark would be lost: keep time_sorted=True. Or: {_OTHERWISE}"
    if difference.expected is None:
        return (
            f"Name it in the pipeline, dropped=({_dropped_as(difference)!r},), keep computing it, or give the pipeline "
            "another name and backfill it"
        )
    if difference.found is not None and (columns := _columns_of(bound.pipeline, difference)):
        then = {name: _type_before(bound, difference, name) for name in columns}
        casts = {name: f"try_cast({quoted(name)} as {kind})" for name, kind in then.items() if kind is not None}
        return (
            "If the type in the source changed, cast the column to its old type, where values that don't fit become "
            f"null{f': columns={casts}' if casts else ''}. If the aggregate changed, give the new one another name, "
            f"and name this one in the pipeline, dropped=({_dropped_as(difference)!r},). Or: {_OTHERWISE}"
        )
    if difference.name in KEPT_WHOLE:
        side = "right." if difference.name == RIGHT else ""
        return (
            "The state keeps whole elements: if a column of the source has another type now, cast it to its old type "
            f"under its name, {side}columns={{...}}. Or: {_OTHERWISE}"
        )
    return _NEW_NAME


def _dropped_as(difference: FormatDifference) -> str:
    """Return the name to list in `dropped`: for the contents column of an aggregate, that of the aggregate."""
    return difference.name.removeprefix("acc_")


def _notes(pipeline: Pipeline, manifest: Manifest) -> tuple[str, ...]:
    sides = ("",) if pipeline.right is None else SIDES
    return tuple(
        f"watermark_by of {part.source.table} is {part.watermark_by!r} now, so its source partitions start again at "
        "the watermark"
        for part, side in zip(pipeline.inputs, sides, strict=True)
        if not manifest.are_partitioned_by(side, part.watermark_by)
    )


def _columns_of(pipeline: Pipeline, difference: FormatDifference) -> list[str]:
    """Return the source columns that the aggregate of a contents column reads, or nothing for other differences."""
    aggregates = pipeline.compute.aggregate if isinstance(pipeline.compute, Windows) else None
    if not isinstance(aggregates, Mapping):
        return []
    name = _dropped_as(difference)
    return list(aggregates[name].columns) if name in aggregates else []


_INTEGERS = (pa.int64(), pa.int32(), pa.int16(), pa.int8())
_SIMPLE = (*_INTEGERS, pa.float64(), pa.float32(), pa.string(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"))


def _type_before(bound: BoundPipeline, difference: FormatDifference, column: str) -> str | None:
    """Return the type of a source column with which the aggregate has the state of the snapshot, as SQL writes it.

    Of several such types it is the widest. It is None if there is none, or if the column has that type now.
    """
    assert isinstance(bound.pipeline.compute, Windows)
    aggregates = bound.pipeline.compute.aggregate
    assert isinstance(aggregates, Mapping)
    aggregate, schema = aggregates[_dropped_as(difference)], bound.inputs[0].derived
    place = schema.get_field_index(column)
    sizes = [(int(precision), int(scale)) for precision, scale in _DECIMAL.findall(str(difference.found))]
    # A sum has ten digits more than its column.
    decimals = [pa.decimal128(p - more, s) for p, s in sizes for more in (10, 0) if p - more >= max(s, 1)]
    for kind in (*_SIMPLE, *decimals):
        try:
            function = aggregate.bind(schema.set(place, pa.field(column, kind)))
        except IllegalArgument:
            continue
        if str(function.accumulator_type) == difference.found:
            return None if kind == schema.field(place).type else name_of(kind)
    return None


def _types(texts: dict[str, str]) -> dict[str, str | None]:
    return {name: None if text == "None" else text for name, text in texts.items()}


def _shown(value: object) -> object:
    return "absent" if value is None else value
