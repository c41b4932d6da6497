"""Late rows reopened after OPTIMIZE and VACUUM of a source that was read to its end, with no row since."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import DeltaTable

from tests.lake import DAY0, LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.reopen import lake_rows
from tests.pipelines.reopen.lake_rows import LakeRows, reopen
from tidegate.pipelines import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.reopen.recompute_rows import SourceRows
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.testing.rows import event_millis
from tidegate.windowing.time import Millis


class RowsOfItsVersion(LakeRows):
    """The rows of the version that production reads them at, whose files may be others than its commits added."""

    @cached_property
    def rows(self) -> list[tuple[int, Millis, dict[str, Any]]]:
        """Version, event time and columns."""
        position = SourceRows(cast("Any", None), self.source, self.head, self.tables)._position
        source = self.source.bound.pipeline.source
        names = [file.path for file in self.source.log.active(source.timestamp, position.version)]
        path = self.source.log.path
        rows = self.source.warehouse.read_files(path, names, self.source.bound.source).to_pylist()
        timed = [(event_millis(source, row[source.timestamp]), row) for row in rows]
        return [(position.version, time, row) for time, row in timed if time is not None]


@pytest.fixture
def rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A source whose files are all others than those that were read; ann's second row came too late."""
    monkeypatch.setattr(lake_rows, "LakeRows", RowsOfItsVersion)
    return Lake(tmp_path)


def streamed(lake: Lake, pipeline: Pipeline) -> None:
    for time in ("10:10", "15:10", "10:20", "16:00"):
        lake.append(("ann", at(time), 1))
    lake.stream(LOCAL, pipeline, files=1)
    assert lake.rows(pipeline, "late").num_rows == 1
    handle = DeltaTable(lake.path("events"))
    handle.optimize.compact()
    handle.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


@pytest.mark.parametrize("make", [hourly_pipeline, session_pipeline])
def test_they_are_taken_in_from_the_version_that_holds_the_same_rows(rewritten: Lake, make: Any) -> None:
    pipeline = make()
    streamed(rewritten, pipeline)
    made = reopen(rewritten, pipeline)
    assert made is not None
    assert made.counters["reopened"] == 1
    rewritten.backfill(LOCAL, make(name="fresh"), DAY0, at("15:00"))
    closed = [row for row in rewritten.final(pipeline).to_pylist() if row["window_start"] < at("15:00")]
    fresh = rewritten.final(make(name="fresh")).to_pylist()
    names = ("user", "window_start", "window_end", "events", "total")
    assert [[row[name] for name in names] for row in closed] == [[row[name] for name in names] for row in fresh]


def test_a_position_that_stays_before_the_maintenance_is_found(
    rewritten: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed(rewritten, hourly_pipeline())
    monkeypatch.setattr(SourceLog, "settled", lambda log, version: version)
    with pytest.raises(Refused, match="compacted and vacuumed since it was read"):
        reopen(rewritten, hourly_pipeline())
