"""Whether new code can go on from a snapshot: what a restore is checked against, field by field."""

from __future__ import annotations

from pipelines.binding import BoundPipeline
from pipelines.errors import Refused
from pipelines.snapshots.manifest import Manifest


def check_restorable(bound: BoundPipeline, manifest: Manifest) -> None:
    """Refuse a snapshot that this pipeline can't go on from.

    Raises:
        Refused: key, contents, trigger state, user state or max_parallelism differ; the message names
            the field, both values and the way out.
    """
    now, then = bound.schemas, manifest.schemas
    differences: list[tuple[str, object, object]] = [
        (f"key column {name!r}", then.key.get(name), now.key.get(name)) for name in {**then.key, **now.key}
    ]
    if list(then.key) != list(now.key):
        differences.append(("order of the key columns", list(then.key), list(now.key)))
    differences.append(("max_parallelism", manifest.max_parallelism, bound.pipeline.max_parallelism))
    for field in ("contents", "trigger_state", "user_state"):
        old, new = getattr(then, field), getattr(now, field)
        differences += [
            (f"{field.replace('_', ' ')} {name!r}", old.get(name), new.get(name)) for name in {**old, **new}
        ]
    for what, old, new in differences:
        if old != new:
            raise Refused(
                f"pipeline {manifest.pipeline!r} can't go on from epoch {manifest.epoch}: {what} is "
                f"{_shown(old)} in the snapshot and {_shown(new)} in the code. "
                "Give the pipeline another name and backfill it, or take the change back"
            )


def _shown(value: object) -> object:
    return "absent" if value is None else value
