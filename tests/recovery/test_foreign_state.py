"""Rows of table `state` that another writer changed: the next run is refused, and continues after a restore."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.commit_times import vacuum_with_no_hours
from tests.lake import LOCAL, Lake, assert_same_windows, at, hourly_pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.run.stream import Stream

pytestmark = pytest.mark.recovery

PIPELINE = hourly_pipeline(allowed_lateness=timedelta(hours=3))
REFUSED = r"changed rows of table .*/state: tidegate did not make its version .*Go back to the newest snapshot"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A pipeline after two runs, with open windows of two users."""
    lake = Lake(tmp_path / "lake")
    for moment in ("10:00", "11:10"):
        lake.append(("ann", at(moment), 1), ("bob", at(moment), 2))
        lake.stream(LOCAL, PIPELINE)
    return lake


def state_of(lake: Lake) -> DeltaTable:
    return DeltaTable(lake.tables(PIPELINE).path("state"))


def another_row(lake: Lake) -> None:
    rows = state_of(lake).to_pyarrow_table().filter(pc.field("user") == "ann").slice(0, 1)
    write_deltalake(lake.tables(PIPELINE).path("state"), rows, mode="append")


HARMS: dict[str, Callable[[Lake], object]] = {
    "UPDATE": lambda lake: state_of(lake).update({"acc_events": "acc_events + 1"}, predicate="user = 'ann'"),
    "DELETE": lambda lake: state_of(lake).delete("user = 'ann'"),
    "INSERT": another_row,
    "DELETE of the manifest": lambda lake: state_of(lake).delete("key_group < 0"),
    "UPDATE and OPTIMIZE": lambda lake: (
        state_of(lake).update({"acc_events": "acc_events + 1"}, predicate="user = 'ann'"),
        state_of(lake).optimize.compact(),
    ),
}


@pytest.mark.first(2)
@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_the_next_run_is_refused_and_continues_from_the_restored_snapshot(
    lake: Lake, harm: Callable[[Lake], object]
) -> None:
    before = lake.snapshot(PIPELINE).manifest.epoch
    harm(lake)
    lake.append(("ann", at("11:20"), 1), ("zoe", at("20:00"), 0))
    with pytest.raises(Refused, match=REFUSED):
        lake.stream(LOCAL, PIPELINE)
    project = lake.project(PIPELINE)
    assert project.restore("hours", "latest").to_dict()["epoch"] == before + 1
    lake.stream(LOCAL, PIPELINE)
    other = hourly_pipeline("other", allowed_lateness=timedelta(hours=3))
    lake.stream(LOCAL, other)
    assert_same_windows(lake.latest(PIPELINE), lake.latest(other))
    assert project.verify("hours", sample="all").to_dict()["faults"] == []


def test_a_running_stream_is_refused_too(lake: Lake) -> None:
    made: list[Manifest] = []
    with lake.driver(LOCAL, PIPELINE) as driver:
        stream = Stream(driver, made.append)
        stream.begin()
        HARMS["UPDATE"](lake)
        lake.append(("ann", at("11:20"), 1))
        with pytest.raises(Refused, match=REFUSED):
            stream.poll(lambda: False)
    assert made == []


def test_all_is_computed_again_if_the_files_of_the_newest_snapshot_are_gone(lake: Lake) -> None:
    HARMS["UPDATE"](lake)
    vacuum_with_no_hours(lake.tables(PIPELINE).path("state"))
    lake.append(("ann", at("11:20"), 1), ("zoe", at("20:00"), 0))
    with pytest.raises(Refused, match="Compute everything again from the source"):
        lake.stream(LOCAL, PIPELINE)
    project = lake.project(PIPELINE)
    with pytest.raises(Refused):
        project.restore("hours", "latest")
    project.restore("hours", restart=True)
    lake.stream(LOCAL, PIPELINE)
    other = hourly_pipeline("other", allowed_lateness=timedelta(hours=3))
    lake.stream(LOCAL, other)
    assert_same_windows(lake.latest(PIPELINE), lake.latest(other))


@pytest.mark.first(1)
@pytest.mark.parametrize("maintenance", ["OPTIMIZE", "VACUUM", "a property"])
def test_what_moves_no_row_is_no_change(lake: Lake, maintenance: str) -> None:
    if maintenance == "OPTIMIZE":
        state_of(lake).optimize.compact()
    elif maintenance == "VACUUM":
        state_of(lake).vacuum(dry_run=False)
    else:
        state_of(lake).alter.set_table_description("somebody was here")
    lake.append(("ann", at("11:20"), 1))
    lake.stream(LOCAL, PIPELINE)
