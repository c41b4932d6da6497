"""Manifests of quiet epochs (restore, reopen, forget, prune, reset), which keep state and watermark of a snapshot."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from tidegate.pipelines.manifest import Kind, Line, Manifest, Publish, Shard
from tidegate.pipelines.tables.counters import KEPT
from tidegate.windowing.time import Millis


def quiet_manifest(
    state_of: Manifest,
    kind: Kind,
    epoch: int,
    timeline: int,
    line: Line,
    publish: Mapping[str, Publish],
    now: Millis,
    shards: tuple[Shard, ...] | None = None,
) -> Manifest:
    """Return the manifest of an epoch that takes the state, position and watermark of a snapshot.

    Args:
        state_of: manifest of the snapshot, which becomes the parent.
        kind: kind of the epoch.
        epoch: its number.
        timeline: its timeline.
        line: its ancestors and itself.
        publish: by table, the changes to publish.
        now: the driver's clock, int64 epoch milliseconds.
        shards: ranges of key groups with their open windows; None takes those of the snapshot.
    """
    ranges = tuple(_uncounted(shard) for shard in (state_of.shards if shards is None else shards))
    nothing = dict.fromkeys([counter.name for counter in KEPT], 0)
    update: dict[str, Any] = {
        "timeline": timeline,
        "epoch": epoch,
        "parent": state_of.epoch,
        "line": line,
        "kind": kind,
        "interval": None,
        "counters": nothing | {"open_windows": sum(shard.counters.get("open_windows", 0) for shard in ranges)},
        "shards": ranges,
        "publish": dict(publish),
        "phases": {},
        "run_id": uuid.uuid4().hex,
        "started_at": now,
        "library_version": version("tidegate"),
        "engine": None,
    }
    return state_of.model_copy(update=update)


def _uncounted(shard: Shard) -> Shard:
    """Return a shard with all counters at 0 except its open windows, because a quiet epoch changes nothing else."""
    counters = {name: count if name == "open_windows" else 0 for name, count in shard.counters.items()}
    return shard.model_copy(update={"counters": counters})
