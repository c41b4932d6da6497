"""The one list of counters: what an epoch counts, what each number means, and where it is kept and shown.

events_in = on_time + late + no_window + rejected + dropped, in every epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter of an epoch.

    Args:
        name: in manifests, and in table epochs where it is kept.
        meaning: comment of its column.
        label: in the run report; empty where it is not shown there.
        by_task: whether the tasks count it, for each shard; else the driver does.
        by_shard: whether table epochs keeps it for each range of key groups too.
        is_fate: whether it is one of the things that become of a row that was read.
        changes_state: whether the state of a shard may have changed where it is not 0.
        is_kept: whether manifests and table epochs keep it.
        is_younger: whether tables of older versions lack it, so that it may be null.
    """

    name: str
    meaning: str
    label: str = ""
    by_task: bool = True
    by_shard: bool = False
    is_fate: bool = False
    changes_state: bool = False
    is_kept: bool = True
    is_younger: bool = False


COUNTERS = (
    Counter("elements", "elements that operators took in", changes_state=True, is_kept=False),
    Counter("fed", "elements that waited and went to their function", changes_state=True, is_kept=False),
    Counter("events_in", "rows read", "Events in", by_task=False),
    Counter("on_time", "rows that a window took", "On time", by_shard=True, is_fate=True),
    Counter("late", "rows in the late table", "Late", by_shard=True, is_fate=True),
    Counter("no_window", "rows that their assigner put nowhere", "No window", by_shard=True, is_fate=True),
    Counter("rejected", "rows in the rejects table", "Rejected", by_task=False, is_fate=True),
    Counter("dropped", "rows for which `where` was not true", "Dropped by where", by_task=False, is_fate=True),
    Counter("fired_early", "early panes", "Fired early", by_shard=True, changes_state=True),
    Counter("fired_on_time", "on-time panes", "Fired on time", by_shard=True, changes_state=True),
    Counter("fired_late", "late panes", "Fired late", by_shard=True, changes_state=True),
    Counter("withdrawn", "panes taken back", "Withdrawn", by_shard=True, changes_state=True),
    Counter("timers_registered", "timers set"),
    Counter("timers_fired", "timers that fired", changes_state=True),
    Counter("timers_deleted", "timers deleted before they fired"),
    Counter("open_windows", "windows in the snapshot", by_shard=True),
    Counter("reopened", "late rows that windows took in after all", by_shard=True, is_younger=True),
    Counter(
        "never_emitted",
        "elements in windows that went away before a pane showed them",
        by_shard=True,
        is_younger=True,
    ),
    Counter(
        "rows_out",
        "rows put out to table results; null where an older version did not count them",
        "Rows out",
        by_task=False,
        is_younger=True,
    ),
)
"""All counters, in the order of table epochs. Late panes change state without element or timer, as a commit ends."""

KEPT = tuple(counter for counter in COUNTERS if counter.is_kept)
OF_TASKS = tuple(counter.name for counter in KEPT if counter.by_task)
OF_SHARDS = tuple(counter.name for counter in KEPT if counter.by_shard)
CHANGES = tuple(counter.name for counter in COUNTERS if counter.changes_state)
FATES = tuple(counter.name for counter in COUNTERS if counter.is_fate)

FILTERED = tuple(name for name in FATES if name not in ("on_time", "late"))
"""The fates of rows that no window took and that are not late."""
FIRED = ("fired_early", "fired_on_time", "fired_late")
"""Panes by their timing."""
RETRACTED = "withdrawn"
REOPENED = "reopened"
NEVER_EMITTED = "never_emitted"
ROWS_OUT = "rows_out"


def fired(counters: Mapping[str, int]) -> int:
    """Return the panes of all timings."""
    return sum(counters[name] for name in FIRED)


def filtered(counters: Mapping[str, int]) -> int:
    """Return the rows that no window took and that are not late."""
    return sum(counters[name] for name in FILTERED)
