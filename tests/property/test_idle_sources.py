"""Data, maintenance, runs and the cleanup of the source's log in any order: no row is lost, and nothing is refused."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.commit_times import vacuum_with_no_hours
from tests.lake import DAY0, LOCAL, Lake, hourly_pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.delta.log import SourceLog

DAY = 86_400_000

STEPS = st.lists(st.sampled_from(["data", "vacuum", "optimize", "alter", "run", "clean"]), min_size=3, max_size=9)


def vacuumed(table: str) -> None:
    """The commit without data that Spark's VACUUM writes, and the removal of compacted files."""
    handle = DeltaTable(table)
    properties = CommitProperties(custom_metadata={"what": "VACUUM END"})
    handle.create_write_transaction([], "append", handle.schema(), commit_properties=properties)
    vacuum_with_no_hours(table)


def without_log(table: str, until: int) -> None:
    """Remove the log entries up to a version, as Delta's own cleanup does after a checkpoint."""
    handle = DeltaTable(table)
    handle.create_checkpoint()
    for entry in Path(table, "_delta_log").glob("*.json"):
        if entry.stem.isdigit() and int(entry.stem) <= min(until, handle.version() - 1):
            entry.unlink()


def live(steps: list[str]) -> None:
    """Run the steps, then once more; cleanups and vacuums come when a run has read everything."""
    with tempfile.TemporaryDirectory() as folder:
        lake, pipeline, session = Lake(Path(folder)), hourly_pipeline(), LOCAL
        rows = 0
        seen = -1
        table = lake.path("events")
        for step in ["data", "run", *steps, "data", "run"]:
            lake.clock.now += DAY
            if step == "data":
                lake.append(("ann", DAY0 + timedelta(hours=rows), 1))
                rows += 1
            elif step == "run":
                lake.stream(session, pipeline)
                seen = DeltaTable(table).version()
            elif step == "clean":
                without_log(table, seen)
            elif step == "optimize":
                DeltaTable(table).optimize.compact()
            elif step == "alter":
                DeltaTable(table).alter.set_table_properties({"delta.checkpointInterval": str(50 + lake.clock.now % 7)})
            elif seen == DeltaTable(table).version():
                vacuumed(table)
        assert sum(lake.rows(pipeline, "epochs")["events_in"].to_pylist()) == rows
        assert lake.snapshot(pipeline).manifest.positions["events"].version == DeltaTable(table).version()


@pytest.mark.long
@settings(max_examples=10)
@example(["alter", "alter", "run", "clean"])
@given(STEPS)
def test_a_source_may_be_quiet_for_longer_than_its_log_is_kept(steps: list[str]) -> None:
    live(steps)


def test_a_position_that_stays_before_maintenance_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SourceLog, "settled", lambda log, version: version)
    with pytest.raises(Refused, match="the log entry of version 1 no longer exists"):
        live(["alter", "alter", "run", "clean"])
