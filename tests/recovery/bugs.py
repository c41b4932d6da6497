"""Bugs to plant, one for each protection of the protocol: with it switched off, the crash tests must fail. Each bug
says after which steps a crash reveals it, which is tested too: a protection that matters nowhere would be useless, and
one that matters elsewhere would be misunderstood.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.recovery.arrivals import NOTE, STEPS
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.epoch import commit as commit_step
from tidegate.pipelines.epoch import event_times
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.plan import EpochPlan
from tidegate.pipelines.epoch.shard import ShardOutcome
from tidegate.pipelines.ledger.manifest import DataFile, Manifest
from tidegate.pipelines.ledger.snapshots import publish as publish_step
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.ledger.snapshots.stages import NewEpoch
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing.time import MIN_TIMESTAMP

PLANNED, OPERATED, COMMITTED, RESULTS, LATE, REJECTS, EPOCHS = STEPS


@dataclass(frozen=True)
class Bug:
    """A protection that is switched off.

    Args:
        rule: the rule that no longer holds.
        plant: function that plants the bug.
        shows_after: steps after which a crash and a start with the bug give a wrong outcome.
    """

    rule: str
    plant: Callable[[pytest.MonkeyPatch], None]
    shows_after: frozenset[str]

    def __str__(self) -> str:
        return self.rule


def _no_roll_forward(planted: pytest.MonkeyPatch) -> None:
    planted.setattr(Driver, "recover", lambda self: read_snapshot(self.tables))


def _no_look_at_the_transaction(planted: pytest.MonkeyPatch) -> None:
    planted.setattr(publish_step, "is_published", lambda *ignored: False)


def _a_note_is_trusted(planted: pytest.MonkeyPatch) -> None:
    """Start where a record next to the tables says that the newest completed epoch ended, as a checkpoint would."""
    checked = Stream._positions

    def positions(self: Stream, source: OpenInput) -> tuple[Position, ...]:
        note = Path(self.driver.tables.warehouse.path("")).parent / NOTE
        head = checked(self, source)
        return (Position.model_validate_json(note.read_text()),) if note.exists() else head

    planted.setattr(Stream, "_positions", positions)


def _files_read_are_forgotten(planted: pytest.MonkeyPatch) -> None:
    """Start a run at whole commits; within the run the position is right, or it would never end."""
    checked = Stream._positions

    def positions(self: Stream, source: OpenInput) -> tuple[Position, ...]:
        found = checked(self, source)
        return found if self.driver.times.newest else tuple(at.model_copy(update={"files": 0}) for at in found)

    planted.setattr(Stream, "_positions", positions)


def _event_time_begins_anew(planted: pytest.MonkeyPatch) -> None:
    known = Manifest.parse

    def parse(text: str) -> Manifest:
        return known(text).model_copy(update={"watermark": MIN_TIMESTAMP, "partitions": {}})

    planted.setattr(Manifest, "parse", parse)


def _half_a_commits_times_are_forgotten(planted: pytest.MonkeyPatch) -> None:
    snapshot = event_times._snapshot
    planted.setattr(event_times, "_snapshot", lambda *partition: {**snapshot(*partition), "pending": None})


def _whatever_lies_there_is_published(planted: pytest.MonkeyPatch) -> None:
    """Use the files in the folder, as a job's committer would, and not those that the tasks reported."""
    known = commit_step.new_epoch

    def new_epoch(plan: EpochPlan, outcomes: Sequence[ShardOutcome], *rest: Any) -> NewEpoch:
        made = known(plan, outcomes, *rest)
        folder = Path(plan.tables.path(results.NAME))
        files = tuple(
            DataFile(
                path=file.name,
                size=file.stat().st_size,
                rows=(rows := pq.read_metadata(file).num_rows),
                stats=f'{{"numRecords": {rows}}}',
            )
            for file in sorted(folder.glob(f"{results.NAME}-{plan.epoch:06d}-*.parquet"))
        )
        return replace(made, published=replace(made.published, files={**made.published.files, results.NAME: files}))

    planted.setattr(commit_step, "new_epoch", new_epoch)


BEFORE_THE_COMMIT = frozenset({PLANNED, OPERATED})
UNPUBLISHED = frozenset({COMMITTED, RESULTS, LATE, REJECTS})

BUGS = (
    Bug("recovery rolls forward", _no_roll_forward, UNPUBLISHED),
    Bug("an epoch is published once", _no_look_at_the_transaction, BEFORE_THE_COMMIT | {EPOCHS}),
    Bug("the position is the manifest's", _a_note_is_trusted, UNPUBLISHED | {EPOCHS}),
    Bug("files that were read are part of the position", _files_read_are_forgotten, BEFORE_THE_COMMIT),
    Bug("event time is part of the snapshot", _event_time_begins_anew, frozenset(STEPS)),
    Bug("half a commit's times are part of the snapshot", _half_a_commits_times_are_forgotten, BEFORE_THE_COMMIT),
    Bug("only reported files are published", _whatever_lies_there_is_published, frozenset({OPERATED})),
)
