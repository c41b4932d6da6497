"""A position moves over commits of its source that have no data, and over no others."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable

from tests.commit_times import vacuum_with_no_hours
from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.counting import counting
from tidegate.pipelines import DeltaSource, Input
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing import IntervalJoin


def maintain(lake: Lake) -> None:
    """A commit without data, as a nightly VACUUM writes it."""
    handle = DeltaTable(lake.path("events"))
    properties = CommitProperties(custom_metadata={"what": "VACUUM END"})
    handle.create_write_transaction([], "append", handle.schema(), commit_properties=properties)


def test_rows_of_a_version_can_be_read_again_after_optimize_and_vacuum(lake: Lake) -> None:
    lake.append(("ann", at("01:00"), 1))
    lake.append(("ann", at("02:00"), 1))
    lake.stream(LOCAL, hourly_pipeline())
    read = lake.snapshot(hourly_pipeline()).manifest.positions["events"]
    DeltaTable(lake.path("events")).optimize.compact()
    vacuum_with_no_hours(lake.path("events"))
    log = SourceLog(Warehouse(str(lake.folder)), lake.path("events"))
    with pytest.raises(
        Refused, match=r"compacted and vacuumed since it was read\. Read the source's newer versions first"
    ):
        log.active("at", read.version)
    assert log.settled(read.version) == log.head
    assert sum(file.rows or 0 for file in log.active("at", log.settled(read.version))) == 2
    # The remedy that the message names.
    lake.clock.now += 120_000
    lake.stream(LOCAL, hourly_pipeline())
    assert lake.snapshot(hourly_pipeline()).manifest.positions["events"].version == log.head


def test_a_position_does_not_go_on_over_data_nor_over_what_removed_some(lake: Lake) -> None:
    lake.append(("ann", at("01:00"), 1))
    maintain(lake)
    lake.append(("ann", at("02:00"), 1))
    assert SourceLog(Warehouse(str(lake.folder)), lake.path("events")).settled(0) == 1
    DeltaTable(lake.path("events")).delete("user = 'ann'")
    assert SourceLog(Warehouse(str(lake.folder)), lake.path("events")).settled(2) == 2
    pipeline = hourly_pipeline()
    following = OpenInput.open(LOCAL, lake.tables(pipeline), pipeline).next_commit(0)
    assert following.version == 2


def test_a_clock_that_need_not_be_recorded_is_where_a_day_of_maintenance_is_to_be_passed(lake: Lake) -> None:
    pipeline = hourly_pipeline(checkpoint_interval=timedelta(days=400))
    lake.append(("ann", at("01:00"), 1))
    (made,) = lake.stream(LOCAL, pipeline)
    maintain(lake)
    assert lake.stream(LOCAL, pipeline) == []
    lake.clock.now += 90_000_000
    (passed,) = lake.stream(LOCAL, pipeline)
    assert (passed.kind, passed.positions["events"].version) == ("clock", made.positions["events"].version + 1)
    lake.clock.now += 900_000_000
    assert lake.stream(LOCAL, pipeline) == [], "nothing is left to pass, so no epoch is made in vain"


def test_a_join_whose_quiet_side_is_past_its_retention_goes_on(lake: Lake) -> None:
    """Maintenance commits to both sides, data only to one, and Delta cleans the log of the other."""
    prices = Input(source=DeltaSource("prices", timestamp="at"))
    pipeline = counting(compute=IntervalJoin.between(timedelta(0), timedelta(hours=1)), right=prices)

    def positions() -> dict[str, int]:
        found = lake.snapshot(pipeline).manifest.positions
        return {table: position.version for table, position in found.items()}

    for table in ("events", "prices"):
        lake.append(("ann", at("01:00"), 1), table=table)
    lake.stream(LOCAL, pipeline)
    assert positions() == {"events": 0, "prices": 0}
    for _ in range(3):
        maintain(lake)
    lake.append(("ann", at("02:00"), 1), table="prices")
    lake.clock.now += 90_000_000
    lake.stream(LOCAL, pipeline)
    assert positions() == {"events": 3, "prices": 1}
    maintain(lake)
    DeltaTable(lake.path("events")).create_checkpoint()
    for version in range(4):
        Path(lake.path("events"), "_delta_log", f"{version:020d}.json").unlink()
    lake.append(("ann", at("03:00"), 1), table="prices")
    lake.stream(LOCAL, pipeline)
    assert positions()["prices"] == 2
    with pytest.raises(Refused, match="the log entry of version 1 no longer exists"):
        OpenInput.open(LOCAL, lake.tables(pipeline), pipeline).commits(0)
