"""Whether new code can go on from a snapshot: what a restore is checked against, field by field."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.binding import BoundPipeline
from pipelines.errors import Refused
from pipelines.snapshots.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """A field in which a snapshot and the code differ, so that the code can't go on from it.

    Args:
        field: in words.
        then: what the snapshot has; None where it has nothing.
        now: what the code has.
    """

    field: str
    then: object
    now: object

    def __str__(self) -> str:
        return f"{self.field} is {_shown(self.then)} in the snapshot and {_shown(self.now)} in the code"


def incompatibilities(bound: BoundPipeline, manifest: Manifest) -> list[Incompatibility]:
    """Every field that keeps the code from going on from a snapshot; none where it can."""
    now, then = bound.schemas, manifest.schemas
    compared: list[tuple[str, object, object]] = [
        (f"key column {name!r}", then.key.get(name), now.key.get(name)) for name in {**then.key, **now.key}
    ]
    compared.append(("order of the key columns", list(then.key), list(now.key)))
    compared.append(("namespace", then.namespace, now.namespace))
    compared.append(("max_parallelism", manifest.max_parallelism, bound.pipeline.max_parallelism))
    for field in ("contents", "trigger_state", "user_state"):
        old, new = getattr(then, field), getattr(now, field)
        compared += [(f"{field.replace('_', ' ')} {name!r}", old.get(name), new.get(name)) for name in {**old, **new}]
    return [Incompatibility(field, old, new) for field, old, new in compared if old != new]


def check_restorable(bound: BoundPipeline, manifest: Manifest) -> None:
    """Refuse a snapshot that this pipeline can't go on from.

    Raises:
        Refused: key, contents, trigger state, user state or max_parallelism differ; the message names
            the field, both values and the way out.
    """
    for difference in incompatibilities(bound, manifest):
        raise Refused(
            f"pipeline {manifest.pipeline!r} can't go on from epoch {manifest.epoch}: {difference}. "
            "Give the pipeline another name and backfill it, or take the change back"
        )


def _shown(value: object) -> object:
    return "absent" if value is None else value
