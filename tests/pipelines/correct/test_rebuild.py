"""The files of a change were vacuumed before a backfill read it: the intervals from its first row on run again."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dateutil.relativedelta import relativedelta
from deltalake import write_deltalake

from tests.commit_times import vacuum_with_no_hours
from tests.expectations.broken import broken_in
from tests.lake import EVENTS, LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.correct.lakes import CORRECTING, HOURS, SESSIONS, Crash, crash_after
from tests.pipelines.correct.walks import operator
from tests.remedies import remedy_of
from tidegate.pipelines import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.run.backfill import backfill
from tidegate.pipelines.run.intervals import cut
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.windowing.time import from_millis

LATENESS = hourly_pipeline(source=CORRECTING, allowed_lateness=timedelta(hours=2))


def rows(day: int, *values: int) -> pa.Table:
    """Rows of two users from midnight on, so that sessions cross it from the day before."""
    given = [
        {"user": user, "at": at("00:00", day) + timedelta(minutes=25 * number), "value": value}
        for number, value in enumerate(values)
        for user in ("ann", "bob")
    ]
    late = [{"user": "ann", "at": at("23:50", day), "value": values[0]}]
    return pa.Table.from_pylist([*given, *late], schema=EVENTS)


def overwrite(lake: Lake, day: int, *values: int) -> None:
    """Overwrite a day with other rows."""
    kind = 'Timestamp(Microsecond, Some("UTC"))'
    first, last = (f"arrow_cast('{at('00:00', number):%Y-%m-%dT%H:%M:%SZ}', '{kind}')" for number in (day, day + 1))
    write_deltalake(
        lake.path("events"), rows(day, *values), mode="overwrite", predicate=f"at >= {first} and at < {last}"
    )


def vacuumed(lake: Lake) -> None:
    vacuum_with_no_hours(lake.path("events"))


def run(lake: Lake, pipeline: Pipeline, start: datetime, end: datetime, tell: Any = None, **options: bool) -> list[str]:
    """Run days; return their states."""
    with lake.driver(LOCAL, pipeline, *(() if tell is None else (tell,))) as driver:
        return [done.state for done in backfill(driver, cut(start, end, relativedelta(days=1)), **options)]


def final(lake: Lake, pipeline: Pipeline) -> list[str]:
    windows = lake.final(pipeline).select(["user", "window_start", "window_end", "total"])
    return sorted(map(str, windows.to_pylist()))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    for day in range(1, 5):
        write_deltalake(lake.path("events"), rows(day, day, 10 * day), mode="append")
    return lake


def refused(lake: Lake, pipeline: Pipeline, act: Act) -> tuple[datetime, datetime]:
    """Return the interval of the remedy that the error of a backfill's next day names, and that of the day again."""
    for _ in range(2):
        with pytest.raises(Refused, match="VACUUM removed them") as error:
            run(lake, pipeline, at("00:00", 4), at("00:00", 5))
    return interval_of(remedy_of(error, act))


def interval_of(remedy: Remedy) -> tuple[datetime, datetime]:
    assert remedy.start is not None
    assert remedy.end is not None
    return from_millis(remedy.start), from_millis(remedy.end)


LONG = pytest.mark.long


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("pipeline", "kind"),
    [
        pytest.param(HOURS, "columnar", id="hours-columnar"),
        pytest.param(HOURS, "row", marks=LONG, id="hours-row"),
        pytest.param(SESSIONS, "columnar", marks=LONG, id="sessions-columnar"),
        pytest.param(SESSIONS, "row", id="sessions-row"),
        pytest.param(LATENESS, "columnar", marks=LONG, id="lateness-columnar"),
        pytest.param(LATENESS, "row", marks=LONG, id="lateness-row"),
    ],
)
def test_a_vacuumed_change_is_computed_again_from_its_first_day_on(lake: Lake, pipeline: Pipeline, kind: str) -> None:
    with operator(kind):
        run(lake, pipeline, at("00:00", 1), at("00:00", 4))
        overwrite(lake, 2, 7, 8, 9)
        vacuumed(lake)
        start, end = refused(lake, pipeline, Act.RERUN_FROM)
        assert (start, end) == (at("00:00", 2), at("00:00", 3))
        before = lake.snapshot(pipeline).manifest.epoch
        assert run(lake, pipeline, start, end, again=True, and_following=True) == ["done", "done"]
        epochs = {row["epoch"] for row in lake.rows(pipeline, "results").to_pylist() if not row["stale"]}
        assert min(epochs) == 1, "what the first day published stays"
        assert max(epochs) > before
        run(lake, pipeline, at("00:00", 4), at("00:00", 5))
        fresh = replace(pipeline, name="fresh")
        run(lake, fresh, at("00:00", 1), at("00:00", 5))
        assert final(lake, pipeline) == final(lake, fresh)
        assert broken_in(lake.tables(pipeline), pipeline) == set()


@pytest.mark.parametrize(
    "step",
    [
        "committed",
        *(pytest.param(step, marks=LONG) for step in ("planned", "operated", "published results", "published epochs")),
    ],
)
def test_a_run_that_ends_at_any_step_is_done_by_the_next(lake: Lake, step: str) -> None:
    run(lake, SESSIONS, at("00:00", 1), at("00:00", 4))
    overwrite(lake, 2, 7, 8, 9)
    vacuumed(lake)
    with pytest.raises(Crash):
        run(lake, SESSIONS, at("00:00", 2), at("00:00", 3), crash_after(step), again=True, and_following=True)
    run(lake, SESSIONS, at("00:00", 2), at("00:00", 3), again=True, and_following=True)
    fresh = replace(SESSIONS, name="fresh")
    run(lake, fresh, at("00:00", 1), at("00:00", 4))
    assert final(lake, SESSIONS) == final(lake, fresh)
    assert broken_in(lake.tables(SESSIONS), SESSIONS) == set()


def test_an_interval_behind_the_first_changed_row_is_refused_again(lake: Lake) -> None:
    run(lake, HOURS, at("00:00", 1), at("00:00", 4))
    overwrite(lake, 2, 7, 8, 9)
    vacuumed(lake)
    with pytest.raises(Refused) as error:
        run(lake, HOURS, at("00:00", 3), at("00:00", 4), again=True)
    assert interval_of(remedy_of(error, Act.RERUN_FROM))[0] == at("00:00", 2)


@pytest.mark.long
def test_without_statistics_everything_is_to_be_run_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    run(lake, HOURS, at("00:00", 1), at("00:00", 4))
    overwrite(lake, 2, 7, 8, 9)
    vacuumed(lake)
    differing = SourceLog.differing

    def unbounded(self: SourceLog, after: int, timestamp: str, until: int | None = None) -> Any:
        changed = differing(self, after, timestamp, until)
        return replace(changed, deleted=tuple(replace(file, oldest=None, newest=None) for file in changed.deleted))

    monkeypatch.setattr(SourceLog, "differing", unbounded)
    assert refused(lake, HOURS, Act.RERUN_ALL)[0] == at("00:00", 1)
    assert run(lake, HOURS, at("00:00", 1), at("00:00", 2), again=True, and_following=True) == ["done"] * 3
    fresh = replace(HOURS, name="fresh")
    run(lake, fresh, at("00:00", 1), at("00:00", 4))
    assert final(lake, HOURS) == final(lake, fresh)


def test_after_another_correction_everything_is_to_be_run_again(lake: Lake) -> None:
    run(lake, HOURS, at("00:00", 1), at("00:00", 3))
    overwrite(lake, 1, 5)
    run(lake, HOURS, at("00:00", 3), at("00:00", 4))
    overwrite(lake, 2, 7, 8, 9)
    vacuumed(lake)
    assert refused(lake, HOURS, Act.RERUN_ALL) == (at("00:00", 1), at("00:00", 2))
