"""Whether new code can go on from a snapshot, field by field: as it is, after a migration, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import Manifest, Schemas
from tidegate.pipelines.snapshots.head import Snapshot, read_snapshot
from tidegate.pipelines.storage import arrow_schema
from tidegate.pipelines.tables import results
from tidegate.pipelines.tables.columns import quoted
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.compute import Windows
from tidegate.windowing.operators.two_inputs import SIDES
from tidegate.windowing.state.migration import Difference, StateFormat, differences, is_held, taken_over
from tidegate.windowing.state.rows import FORMAT_VERSION, REST

_ANEW = "Give the pipeline another name and backfill it, or take the change back"
_OTHERWISE = f"{_ANEW[0].lower()}{_ANEW[1:]}"


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """A field in which a snapshot and the code differ, so that the code can't go on from it.

    Args:
        field: in words.
        then: what the snapshot has; None where it has nothing.
        now: what the code has.
        way_out: what can be done.
    """

    field: str
    then: object
    now: object
    way_out: str = _ANEW

    def __str__(self) -> str:
        return f"{self.field} is {_shown(self.then)} in the snapshot and {_shown(self.now)} in the code"


@dataclass(frozen=True, slots=True)
class Compatibility:
    """What lies between a snapshot and the code.

    Args:
        migrations: what the next epoch changes in the state, in words; empty where it is taken as it is.
        incompatibilities: what keeps the code from going on; empty where nothing does.
        notes: what changes without touching the state, in words.
    """

    migrations: tuple[str, ...]
    incompatibilities: tuple[Incompatibility, ...]
    notes: tuple[str, ...] = ()


def compare(bound: BoundPipeline, manifest: Manifest) -> Compatibility:
    """Every field in which a snapshot and the code differ, and whether it can be taken over."""
    now, then = bound.schemas, manifest.schemas
    whole: list[tuple[str, object, object]] = [
        (f"key column {name!r}", then.key.get(name), now.key.get(name)) for name in {**then.key, **now.key}
    ]
    whole.append(("order of the key columns", list(then.key), list(now.key)))
    whole.append(("namespace", then.namespace, now.namespace))
    whole.append(("max_parallelism", manifest.max_parallelism, bound.pipeline.max_parallelism))
    refused = [Incompatibility(field, old, new) for field, old, new in whole if old != new]
    if not 1 <= then.version <= FORMAT_VERSION:
        reads = f"1 to {FORMAT_VERSION}"
        refused.append(Incompatibility("version of the state rows", then.version, reads, "Install a newer tidegate"))
    found, expected = format_of(then, bound), StateFormat.of(bound.state)
    migrations = []
    for difference in differences(found, expected):
        if difference.field.startswith("key") or difference.field == "namespace":
            continue
        change = taken_over(difference, found, expected, left_behind(bound.pipeline))
        if change is None:
            refused.append(Incompatibility(*difference, _way_out(bound, difference)))
        elif change:
            migrations.append(change)
    return Compatibility(tuple(migrations), tuple(refused), _notes(bound.pipeline, manifest))


def incompatibilities(bound: BoundPipeline, manifest: Manifest) -> list[Incompatibility]:
    """Every field that keeps the code from going on from a snapshot; none where it can."""
    return list(compare(bound, manifest).incompatibilities)


def migration_of(bound: BoundPipeline, manifest: Manifest) -> StateFormat | None:
    """The format that state rows have to be migrated from; None where they are as the code has them."""
    return format_of(manifest.schemas, bound) if compare(bound, manifest).migrations else None


def format_of(schemas: Schemas, bound: BoundPipeline) -> StateFormat:
    """What the state rows of a snapshot are, as windowing compares them."""
    return StateFormat(
        key=dict(schemas.key),
        namespace=bound.state.namespace,
        contents=_types(schemas.contents),
        trigger_state=_types(schemas.trigger_state),
        user_state=_types(schemas.user_state),
        result=_types(schemas.result),
        version=schemas.version,
    )


def left_behind(pipeline: Pipeline) -> frozenset[str]:
    """The contents and states that a pipeline names as dropped; an aggregate's contents have a prefix."""
    return frozenset(pipeline.dropped) | {f"acc_{name}" for name in pipeline.dropped}


def check_restorable(bound: BoundPipeline, manifest: Manifest) -> None:
    """Refuse a snapshot that this pipeline can't go on from, migrated or not.

    Raises:
        Refused: key, contents, trigger state, user state or max_parallelism differ; the message names
            the field, both values and the way out.
    """
    for difference in compare(bound, manifest).incompatibilities:
        raise Refused(
            f"pipeline {manifest.pipeline!r} can't go on from epoch {manifest.epoch}: {difference}. "
            f"{difference.way_out}"
        )


def check_dropped(tables: PipelineTables, bound: BoundPipeline, manifest: Manifest) -> None:
    """Refuse a name in `dropped` that the code still computes, or that nothing of the pipeline ever had.

    What was left behind before keeps its column in table results. A state leaves no trace, so where the code has
    states an unknown name may be one that was left behind.

    Args:
        tables: the pipeline's.
        bound: the code.
        manifest: of the snapshot that it goes on from.

    Raises:
        Refused: naming the field, the name and the way out.
    """
    now = _names(format_of(bound.schemas, bound))
    then = _names(format_of(manifest.schemas, bound)) | (
        set(arrow_schema(tables.open(results.NAME)).names) if tables.exist else set()
    )
    has_states = bool(bound.state.user_state or manifest.schemas.user_state or manifest.schemas.trigger_state)
    for name in bound.pipeline.dropped:
        field = f"dropped of pipeline {bound.pipeline.name!r} names {name!r}"
        if name in now:
            raise Refused(f"{field}, which the code still computes: take it out of dropped=, or out of compute")
        if name not in then and not has_states:
            known = sorted(_names(format_of(manifest.schemas, bound)) - now)
            instead = f"the snapshot has {known} that the code has not" if known else "there is nothing left to drop"
            raise Refused(
                f"{field}, which no snapshot and no result of it ever had: {instead}. Take it out of dropped="
            )


def _names(format_: StateFormat) -> set[str]:
    """The names of aggregates, states and result columns as a pipeline names them."""
    parts = (format_.contents, format_.trigger_state, format_.user_state, format_.result)
    return {name.removeprefix("acc_") for part in parts for name in part if not name.startswith(REST)}


def ready(tables: PipelineTables, bound: BoundPipeline, head: Snapshot | None) -> Snapshot | None:
    """The head, with the tables given the columns that the code needs; before an epoch is planned.

    Raises:
        Refused: the code can't go on from it, `dropped` has a wrong name, or a column has another type.
    """
    if head is not None:
        check_restorable(bound, head.manifest)
        check_dropped(tables, bound, head.manifest)
    if tables.exist and tables.widen(bound.table_schemas):
        return read_snapshot(tables)
    return head


def _way_out(bound: BoundPipeline, difference: Difference) -> str:
    if is_held(difference) and difference.expected is None:
        return f"Elements wait there for the watermark and would be lost: keep time_sorted=True. Or: {_OTHERWISE}"
    if difference.expected is None:
        return (
            "Name it in dropped=(...) of the pipeline, keep computing it, or give the pipeline another name and "
            "backfill it"
        )
    if difference.found is not None and (columns := _columns_of(bound.pipeline, difference.field)):
        casts = ", ".join(f"{name!r}: 'try_cast({quoted(name)} as TYPE)'" for name in columns)
        return f"Where the source's type changed, read it in the TYPE of before: columns={{{casts}}}. Or: {_OTHERWISE}"
    return _ANEW


def _notes(pipeline: Pipeline, manifest: Manifest) -> tuple[str, ...]:
    sides = ("",) if pipeline.right is None else SIDES
    return tuple(
        f"watermark_by of {one.source.table} is {one.watermark_by!r} now, so its source partitions start anew at the "
        "watermark"
        for one, side in zip(pipeline.inputs, sides, strict=True)
        if not manifest.are_partitioned_by(side, one.watermark_by)
    )


def _columns_of(pipeline: Pipeline, field: str) -> list[str]:
    """The columns of the source that a contents column is made of, where an aggregate reads them."""
    aggregates = pipeline.compute.aggregate if isinstance(pipeline.compute, Windows) else None
    if not isinstance(aggregates, Mapping):
        return []
    name = field.partition("'")[2].rpartition("'")[0].removeprefix("acc_")
    return list(aggregates[name].columns) if name in aggregates else []


def _types(texts: dict[str, str]) -> dict[str, str | None]:
    return {name: None if text == "None" else text for name, text in texts.items()}


def _shown(value: object) -> object:
    return "absent" if value is None else value
