"""A backfill that crashes after any step of an epoch: the next start ends as if nothing had happened.
test_stream_crashes.py shows the effect of missing protections.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lake import DAY0, LOCAL, Lake, Row, at, session_pipeline
from tests.recovery.arrivals import STEPS, Crash, differences, outcome
from tidegate.pipelines.epoch import commit as commit_step
from tidegate.pipelines.epoch import operate as operate_step
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.stages import manifest_of
from tidegate.pipelines.run.backfill import backfill
from tidegate.pipelines.run.intervals import cut, parse_slice

if TYPE_CHECKING:
    from tidegate.pipelines.epoch.plan import EpochPlan
    from tidegate.pipelines.ledger.manifest import Interval, Manifest

pytestmark = pytest.mark.recovery

START, END = DAY0, DAY0 + timedelta(days=3)

PIPELINE = session_pipeline(timedelta(minutes=30))


def arriving(lake: Lake) -> Iterator[Interval]:
    """The days one after the other; each day's rows arrive once, before its interval runs. After a crash the backfill
    begins with the day that was running. Every day has a null key, a null time, and a row for the day before, which is
    too late.
    """
    loaded = lake.folder / "loaded"
    begun = int(loaded.read_text()) if loaded.exists() else 0
    days = list(enumerate(cut(START, END, parse_slice("1d"))))
    for day, interval in days[max(0, begun - 1) :]:
        if begun <= day:
            draw = random.Random(day)
            begin = START + timedelta(days=day)
            rows: list[Row] = [
                (f"user{draw.randrange(8)}", begin + timedelta(minutes=draw.randrange(1440)), draw.randrange(50))
                for _ in range(120)
            ]
            rows += [(None, begin, 1), (f"user{day}", None, 2), (f"late{day}", begin - timedelta(hours=20), 3)]
            lake.append(*rows)
            loaded.write_text(str(day + 1))
        yield interval


def published(lake: Lake) -> dict[str, list[str]]:
    """Return everything that readers can see, except the clock of the run; the position has the id of the source."""
    found = outcome(lake, PIPELINE, ("processing_time", "watermark_lag_ms"))
    return {table: rows for table, rows in found.items() if table != "position"}


def run(lake: Lake, tell: Callable[[str], None] = lambda step: None) -> None:
    with lake.driver(LOCAL, PIPELINE, tell) as driver:
        list(backfill(driver, arriving(lake)))


def crash_after(lake: Lake, step: str, epoch: int = 2) -> None:
    seen: list[str] = []

    def tell(done: str) -> None:
        seen.append(done)
        if done == step and seen.count(step) == epoch:
            raise Crash

    with pytest.raises(Crash):
        run(lake, tell)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    lake = Lake(tmp_path_factory.mktemp("undisturbed"))
    run(lake)
    found = published(lake)
    assert all(found[table] for table in ("results", "late", "rejects", "epochs"))
    return found


# `make test` crashes before the commit, and in test_stream_crashes.py after each step of a stream.
@pytest.mark.first(1)
@pytest.mark.parametrize("step", sorted(STEPS, key=lambda step: step not in ("operated", "committed")))
def test_a_crash_after_any_step_changes_nothing(lake: Lake, undisturbed: dict[str, list[str]], step: str) -> None:
    crash_after(lake, step)
    run(lake)
    assert differences(published(lake), undisturbed) == {}


def _publish_first(self: Driver, plan: EpochPlan) -> Manifest:
    """The planted bug: results are published before the snapshot that covers them is committed."""
    outcomes = operate_step.operate(self.engine, plan)
    manifest = manifest_of(commit_step.new_epoch(plan, outcomes, {}))
    plan.tables.create(plan.bound.table_schemas)
    self.publish(manifest)
    self.tell("published first")
    return commit_step.commit(plan, outcomes, {})


def test_what_arrives_between_a_crash_and_the_next_start_is_in_the_results(lake: Lake) -> None:
    """Only a committed snapshot fixes an epoch's slice."""
    crash_after(lake, "operated")
    lake.append(("new", at("12:00", day=1), 7))
    run(lake)
    assert "new" in {row["user"] for row in lake.latest(PIPELINE).to_pylist()}


def test_results_that_went_out_before_their_snapshot_are_noticed_by_the_next_start(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would miss what arrives in the meantime."""
    with monkeypatch.context() as planted:
        planted.setattr(Driver, "run", _publish_first)
        crash_after(lake, "published first")
    lake.append(("new", at("12:00", day=1), 7))
    with pytest.raises(Refused, match="ends at epoch 1, but epoch 2 was committed to results, late, rejects, epochs"):
        run(lake)


def test_files_of_an_attempt_that_was_not_committed_are_read_by_nobody(lake: Lake) -> None:
    crash_after(lake, "operated")
    left = {path.name for path in Path(lake.path("sessions/results")).glob("*.parquet")}
    run(lake)
    tables = lake.tables(PIPELINE)
    listed = set(tables.open("results").file_uris())
    orphans = {name for name in left if not any(uri.endswith(name) for uri in listed)}
    assert orphans
    assert len(lake.rows(PIPELINE, "results")) == sum(
        int(row["fired_on_time"]) for row in lake.rows(PIPELINE, "epochs").to_pylist()
    )
