"""`stream --restore none`: a new timeline from the beginning of the source; it begins with its first commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.lake import LOCAL, Lake
from tests.recovery.arrivals import PIPELINE, Crash, commit_to, outcome, run, source_of
from tidegate.pipelines import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.run.next_commits import EpochLimits
from tidegate.pipelines.run.stream import Stream

OWN = ("timeline", "epoch", "parent")


def anew(lake: Lake, pipeline: Pipeline = PIPELINE, crash_after: str | None = None) -> list[Manifest]:
    """Stream from the beginning of the source; the manifests of its epochs."""
    made: list[Manifest] = []

    def tell(step: str) -> None:
        if step == crash_after:
            raise Crash

    with lake.driver(LOCAL, pipeline, tell) as driver:  # type: ignore[arg-type]
        Stream(driver, made.append, EpochLimits(files=1), anew=True).run_available()
    return made


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A stream that has read three commits."""
    lake = source_of(tmp_path, commits=2)
    run(LOCAL, lake)
    return lake


def test_it_gives_what_the_stream_gave_on_a_new_timeline_without_a_row_of_the_old_one(lake: Lake) -> None:
    before, last = outcome(lake, without=OWN), lake.snapshot(PIPELINE).manifest
    made = anew(lake)
    assert (made[0].epoch, made[0].timeline, made[0].parent) == (last.epoch + 1, last.timeline + 1, None)
    assert made[0].line == ((made[0].epoch, made[0].epoch),)
    assert outcome(lake, without=OWN) == before
    assert {row["timeline"] for row in lake.rows(PIPELINE, "results").to_pylist()} == {last.timeline + 1}


def test_until_its_first_commit_the_old_timeline_is_untouched(lake: Lake) -> None:
    before = outcome(lake)
    with pytest.raises(Crash):
        anew(lake, crash_after="operated")
    assert outcome(lake) == before
    commit_to(lake, 9)
    run(LOCAL, lake)
    assert lake.snapshot(PIPELINE).manifest.timeline == 1


def test_a_crash_after_its_first_commit_goes_on_with_the_new_timeline(lake: Lake) -> None:
    before = outcome(lake, without=OWN)
    with pytest.raises(Crash):
        anew(lake, crash_after="committed")
    run(LOCAL, lake)
    assert lake.snapshot(PIPELINE).manifest.timeline == 2
    assert outcome(lake, without=OWN) == before


def test_a_snapshot_of_the_old_timeline_can_still_be_restored(lake: Lake) -> None:
    from tidegate.pipelines.ledger.snapshots.restore import restore
    from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot

    before, last = outcome(lake, without=OWN), lake.snapshot(PIPELINE).manifest.epoch
    anew(lake)
    tables = lake.tables(PIPELINE)
    restore(tables, find_snapshot(tables, str(last)), lake.clock())
    assert outcome(lake, without=OWN)["results"] == before["results"]


def test_what_is_fixed_for_a_timeline_is_free_again(lake: Lake) -> None:
    other = replace(PIPELINE, max_parallelism=16, key=("value",), watermark_by="value")
    with pytest.raises(Refused, match="key column 'user' is string in the snapshot and absent in the code"):
        run(LOCAL, lake, pipeline=other)
    made = anew(lake, other)
    assert (made[-1].max_parallelism, set(made[-1].schemas.key)) == (16, {"value"})
