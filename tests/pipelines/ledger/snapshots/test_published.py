"""Between the commit of an epoch and its publication, readers and sensors see the epoch before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import at
from tests.pipelines.project.cli.project import Project
from tidegate.pipelines.errors import OTHER, Refused, TidegateError
from tidegate.pipelines.ledger.manifest import StaleInterval
from tidegate.pipelines.ledger.snapshots import published
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.snapshots.publish import publish, publish_table
from tidegate.pipelines.ledger.snapshots.published import newest_published, pin_epoch, require_published
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.observe.inspect.status import PipelineStatus, read_status


@pytest.fixture
def project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Project:
    """A published epoch: a session of ann, final from 10:30 on."""
    made = Project.make(tmp_path, capsys)
    made.by_hand.epoch(("ann", at("10:00"), 1), watermark=at("11:40"))
    return made


def final(project: Project) -> list[tuple[Any, ...]]:
    return [(row["user"], row["events"]) for row in project.data("results", "sessions")]


def status(project: Project) -> PipelineStatus:
    return read_status(project.folder / "tidegate.toml", "sessions")


def test_an_epoch_counts_once_every_table_has_it(project: Project) -> None:
    by_hand = project.by_hand
    by_hand.epoch(("ann", at("12:00"), 1), watermark=at("12:20"))
    before, pinned = status(project), pin_epoch(by_hand.tables)
    assert final(project) == [("ann", 1)]
    made = by_hand.committed(by_hand.planned([("ann", at("12:10"), 1), ("bob", at("12:40"), 1)], at("15:00")))
    for table in PUBLISHED:
        assert final(project) == [("ann", 1)], "what one table has already is not looked at either"
        assert status(project) == before
        assert not status(project).is_past(at("13:00"))
        half = pin_epoch(by_hand.tables)
        assert (half.snapshot.manifest, half.read("results")) == (pinned.snapshot.manifest, pinned.read("results"))
        with pytest.raises(Refused, match="epoch 3 of sessions is not published yet"):
            pin_epoch(by_hand.tables, made.epoch)
        publish_table(by_hand.tables, made, table)
    assert sorted(final(project)) == [("ann", 1), ("ann", 2), ("bob", 1)]
    assert status(project).is_past(at("13:00"))
    assert status(project).epoch == made.epoch
    assert pin_epoch(by_hand.tables).snapshot.manifest == made


def test_an_epoch_that_is_published_while_the_newest_one_is_pinned_is_left_out(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand = project.by_hand
    second = by_hand.committed(by_hand.planned([("bob", at("12:00"), 1)], at("15:00")))
    real = published.published_epoch

    def published_epoch(tables: PipelineTables) -> int:
        epoch = real(tables)
        publish(tables, second)
        return epoch

    monkeypatch.setattr(published, "published_epoch", published_epoch)
    assert pin_epoch(by_hand.tables).snapshot.manifest.epoch == 1
    assert pin_epoch(by_hand.tables).snapshot.manifest == second


def test_before_the_first_epoch_is_published_nothing_stands(tmp_path: Path, capsys: Any) -> None:
    project = Project.make(tmp_path, capsys)
    by_hand = project.by_hand
    first = by_hand.committed(by_hand.planned([("ann", at("10:00"), 1)], at("12:00")))
    assert newest_published(by_hand.tables) is None
    assert status(project) == PipelineStatus("sessions")
    with pytest.raises(Refused, match="epoch 1 of sessions is not published yet, and it is the first one"):
        require_published(by_hand.tables, by_hand.head())
    with pytest.raises(Refused, match="epoch 1 of sessions is not published yet"):
        pin_epoch(by_hand.tables)
    publish(by_hand.tables, first)
    assert status(project).epoch == 1
    assert pin_epoch(by_hand.tables).snapshot.manifest == first


def test_a_version_that_only_gave_the_table_a_column_is_passed_over(project: Project) -> None:
    by_hand = project.by_hand
    state = by_hand.tables.open("state")
    by_hand.tables.widen({"state": pa.schema([*pa.schema(state.schema().to_arrow()), ("more", pa.int64())])})
    by_hand.committed(by_hand.planned([("bob", at("12:00"), 1)], at("15:00")))
    snapshot = newest_published(by_hand.tables)
    assert isinstance(snapshot, Snapshot)
    assert snapshot.manifest.epoch == 1


def test_while_an_epoch_takes_rows_away_event_time_is_not_past_what_it_goes_back_to(project: Project) -> None:
    by_hand, first = project.by_hand, project.by_hand.head()
    by_hand.epoch(("ann", at("13:00"), 2), watermark=at("15:00"))
    assert status(project).is_past(at("14:00"))
    again = StaleInterval(start=0, end=1, epochs=(2,))
    third = by_hand.committed(by_hand.planned([], at("12:00"), parent=first, stale=(again,)))
    publish_table(by_hand.tables, third, "results")
    assert not status(project).is_past(at("14:00"))
    assert status(project).epoch == 2, "nothing newer is there"
    assert final(project) == [("ann", 1)]
    for epoch in (None, 1):
        with pytest.raises(TidegateError, match=r"epoch 3 of sessions .* is removing rows right now") as refused:
            pin_epoch(by_hand.tables, epoch)
        assert refused.value.exit_code == OTHER, "a moment later it is done: worth a retry"
    publish(by_hand.tables, third)
    assert pin_epoch(by_hand.tables).epochs["epoch"].to_pylist() == [1, 3]
    assert (status(project).epoch, status(project).is_past(at("12:00"))) == (3, True)
