"""All counters of an epoch: what each one means, and where it is stored and shown.

In every epoch, events_in = on_time + late + no_window + rejected + dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter of an epoch.

    Args:
        name: name in manifests and in table epochs.
        meaning: comment of the column in table epochs.
        label: label in the run report; empty if the report does not show the counter.
        by_task: True if the tasks count it, for each shard; False if the driver does.
        by_shard: True if table epochs also has it for each range of key groups.
        is_fate: True if it counts one of the possible outcomes of the rows that were read; each row has exactly one
            outcome.
        changes_state: True if the state of a shard may have changed when the counter is not 0.
        is_kept: True if manifests and table epochs store it.
    """

    name: str
    meaning: str
    label: str = ""
    by_task: bool = True
    by_shard: bool = False
    is_fate: bool = False
    changes_state: bool = False
    is_kept: bool = True


COUNTERS = (
    Counter("elements", "elements that operators processed", changes_state=True, is_kept=False),
    Counter("fed", "elements that waited and were then passed to their function", changes_state=True, is_kept=False),
    Counter("events_in", "rows read", "Events in", by_task=False),
    Counter("on_time", "rows that a window accepted", "On time", by_shard=True, is_fate=True),
    Counter("late", "rows in the late table", "Late", by_shard=True, is_fate=True),
    Counter("no_window", "rows that belong to no window", "No window", by_shard=True, is_fate=True),
    Counter("rejected", "rows in the rejects table", "Rejected", by_task=False, is_fate=True),
    Counter("dropped", "rows for which `where` was not true", "Dropped by where", by_task=False, is_fate=True),
    Counter("fired_early", "early panes", "Fired early", by_shard=True, changes_state=True),
    Counter("fired_on_time", "on-time panes", "Fired on time", by_shard=True, changes_state=True),
    Counter("fired_late", "late panes", "Fired late", by_shard=True, changes_state=True),
    Counter("retracted", "panes retracted", "Retracted", by_shard=True, changes_state=True),
    Counter("timers_registered", "timers set"),
    Counter("timers_fired", "timers that fired", changes_state=True),
    Counter("timers_deleted", "timers deleted before they fired"),
    Counter("open_windows", "windows in the snapshot", by_shard=True),
    Counter("reopened", "late rows that were added to their windows", by_shard=True),
    Counter(
        "never_emitted",
        "elements in windows that were removed before a pane showed them",
        by_shard=True,
    ),
    Counter(
        "rows_out",
        "rows written to table results",
        "Rows out",
        by_task=False,
    ),
    Counter(
        "versions_skipped",
        "versions of the source that were skipped because they removed rows",
        "Versions skipped",
        by_task=False,
    ),
    Counter(
        "rows_deleted",
        "rows deleted from the source; added rows are in events_in",
        "Rows deleted",
        by_task=False,
    ),
    Counter("deleted_in_windows", "rows deleted from the source that windows had counted", by_shard=True),
)
"""All counters. Late panes count as changes of the state: a source commit's end emits them without element or timer."""

KEPT = tuple(counter for counter in COUNTERS if counter.is_kept)
OF_TASKS = tuple(counter.name for counter in KEPT if counter.by_task)
OF_SHARDS = tuple(counter.name for counter in KEPT if counter.by_shard)
CHANGES = tuple(counter.name for counter in COUNTERS if counter.changes_state)
FATES = tuple(counter.name for counter in COUNTERS if counter.is_fate)

FILTERED = tuple(name for name in FATES if name not in ("on_time", "late"))
"""The outcomes, except lateness, of rows that no window accepted."""
FIRED = ("fired_early", "fired_on_time", "fired_late")
"""Counters of panes, by timing."""
RETRACTED = "retracted"
REOPENED = "reopened"
NEVER_EMITTED = "never_emitted"
ROWS_OUT = "rows_out"
VERSIONS_SKIPPED = "versions_skipped"
ROWS_DELETED = "rows_deleted"
DELETED_IN_WINDOWS = "deleted_in_windows"


def fired(counters: Mapping[str, int]) -> int:
    """Return the number of panes of all timings."""
    return sum(counters[name] for name in FIRED)


def filtered(counters: Mapping[str, int]) -> int:
    """Return the number of rows that no window accepted and that are not late."""
    return sum(counters[name] for name in FILTERED)
