"""Late rows reopened after OPTIMIZE and VACUUM of a source that was read to its end, with no row since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.lake import DAY0, LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tidegate.pipelines import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.delta.log import SourceLog


def streamed(lake: Lake, pipeline: Pipeline) -> None:
    for time in ("10:10", "15:10", "10:20", "16:00"):
        lake.append(("ann", at(time), 1))
    lake.stream(LOCAL, pipeline, files=1)
    assert lake.rows(pipeline, "late").num_rows == 1
    handle = DeltaTable(lake.path("events"))
    handle.optimize.compact()
    handle.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


@pytest.mark.parametrize("make", [hourly_pipeline, session_pipeline])
def test_they_are_taken_in_from_the_version_that_holds_the_same_rows(tmp_path: Path, make: Any) -> None:
    rewritten, pipeline = Lake(tmp_path), make()
    streamed(rewritten, pipeline)
    made = rewritten.reopen(LOCAL, pipeline)
    assert made is not None
    assert made.counters["reopened"] == 1
    rewritten.backfill(LOCAL, make(name="fresh"), DAY0, at("15:00"))
    closed = [row for row in rewritten.final(pipeline).to_pylist() if row["window_start"] < at("15:00")]
    fresh = rewritten.final(make(name="fresh")).to_pylist()
    names = ("user", "window_start", "window_end", "events", "total")
    assert [[row[name] for name in names] for row in closed] == [[row[name] for name in names] for row in fresh]


def test_a_position_that_stays_before_the_maintenance_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = Lake(tmp_path)
    streamed(rewritten, hourly_pipeline())
    monkeypatch.setattr(SourceLog, "settled", lambda log, version: version)
    with pytest.raises(Refused, match="compacted and vacuumed since it was read"):
        rewritten.reopen(LOCAL, hourly_pipeline())
