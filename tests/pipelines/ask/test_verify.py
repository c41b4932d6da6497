"""Results that prove themselves: a correct pipeline verifies, and each planted error is found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from shutil import copytree, rmtree
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.commit_times import vacuum_with_no_hours
from tests.expectations.broken import broken_in
from tests.lake import DAY0, LOCAL, Lake, at, hourly_pipeline, record_footer, session_pipeline
from tests.pipelines.ask.test_advise import BOUNDS, COMMITS, dated, drawn_pipeline
from tests.pipelines.project.cli.project import Project as CommandLine
from tests.property.event_windows import EVENT_TIME, MINUTE
from tests.recovery.arrivals import copy_of
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.ask.verify import Verified
from tidegate.pipelines.correct.request import Selection
from tidegate.pipelines.errors import QualityFailed, Refused, UsageError
from tidegate.pipelines.ledger.tables.compaction import drop_old_epochs
from tidegate.pipelines.observe.inspect.overview import pipeline_overview
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import (
    Accumulation,
    ApproxQuantile,
    Count,
    CountTrigger,
    Max,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    Sum,
    TimeEvictor,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.time import to_millis


def verified(lake: Lake, pipeline: Pipeline, **options: Any) -> Verified:
    return lake.project(pipeline).verify(pipeline.name, **{"sample": "all", **options})


@pytest.mark.first(1)
@pytest.mark.parametrize("windows", sorted({*EVENT_TIME} - {"early"}))
@settings(max_examples=3, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(COMMITS, BOUNDS, BOUNDS, st.sampled_from([None, 20, 60]), st.booleans())
def test_what_a_run_publishes_verifies(
    windows: str, commits: Any, bound: int, lateness: int, idleness: int | None, by_user: bool
) -> None:
    pipeline = drawn_pipeline(windows, bound, lateness, idleness, by_user)
    with TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        dated(lake, commits)
        lake.stream(LOCAL, pipeline, commits=2)
        outcome = verified(lake, pipeline)
        assert outcome.faults == ()
        assert outcome.why_unverifiable is None
        assert outcome.windows == len(lake.latest(pipeline))


TEN_MINUTES = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(minutes=10))


HOURS = hourly_pipeline(watermark=TEN_MINUTES)


def lived(lake: Lake, pipeline: Pipeline = HOURS) -> Pipeline:
    """A backfill, a stream with late rows, and rows that are reopened."""
    users = [f"user {number}" for number in range(12)]
    lake.append(*((user, at("00:10"), number) for number, user in enumerate(users)))
    lake.append(*((user, at("05:00"), 2) for user in users))
    lake.backfill(LOCAL, pipeline, DAY0, DAY0 + timedelta(hours=6), "3h")
    lake.append(*((user, at("00:15"), 5) for user in users[:3]), *((user, at("13:00"), 6) for user in users))
    lake.append(*((user, at("20:00"), 7) for user in users))
    lake.stream(LOCAL, pipeline, commits=1)
    lake.append(*((user, at("12:50"), 9) for user in users[5:7]), *((user, at("23:00"), 8) for user in users))
    lake.stream(LOCAL, pipeline)
    return pipeline


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A life of hours without any error."""
    lake = Lake(tmp_path_factory.mktemp("right") / "lake")
    assert verified(lake, lived(lake)).success
    return lake


@pytest.fixture
def life(right: Lake, tmp_path: Path) -> Lake:
    """A copy of it that a test may damage."""
    return copy_of(right, tmp_path / "life")


def test_a_long_life_verifies_and_the_sample_is_that_of_its_seed(life: Lake) -> None:
    life.reopen(LOCAL, HOURS)
    whole = verified(life, HOURS)
    assert (whole.faults, whole.keys, whole.unverifiable) == ((), 12, 0)
    assert whole.late_rows == 5
    part = verified(life, HOURS, sample="30%", seed=7)
    assert part == verified(life, HOURS, sample=0.3, seed=7)
    assert 0 < part.keys < 12
    assert verified(life, HOURS, sample="0.001%").keys >= 1
    life.project(HOURS).restore("hours", 3)
    assert verified(life, HOURS).faults == ()


def test_windows_of_a_savepoint_from_another_warehouse_are_unverifiable_and_later_ones_verify(
    life: Lake, tmp_path: Path
) -> None:
    project, other = life.project(HOURS), Lake(tmp_path / "other")
    project.savepoints.create("hours", "moved")
    for moved in ("events", "hours/savepoints/moved"):
        copytree(life.path(moved), other.path(moved))
    project = other.project(HOURS)
    project.restore("hours", "savepoint:moved")
    other.append(("user 1", at("23:30"), 3), ("user 2", at("25:30"), 4))
    project.stream("hours")
    whole = verified(other, HOURS)
    assert (whole.faults, whole.unverifiable) == ((), len(other.latest(HOURS)))
    assert "is a restore, for example of a savepoint from another warehouse" in str(whole.why_unverifiable)
    assert verified(other, HOURS, new=True).faults == ()
    other.append(("user 1", at("27:30"), 3))
    project.stream("hours")
    new = verified(other, HOURS, new=True)
    assert (new.faults, new.unverifiable, new.windows) == ((), 0, 1)


def test_open_windows_that_share_slices_are_compared_whole(lake: Lake) -> None:
    windows = SlidingEventTimeWindows.of(timedelta(hours=3), timedelta(hours=1))
    pipeline = hourly_pipeline(
        watermark=TEN_MINUTES, compute=Windows(windows, aggregate={"events": Count(), "total": Sum("value")})
    )
    lived(lake, pipeline)
    assert lake.snapshot(pipeline).manifest.slices
    assert verified(lake, pipeline).faults == ()
    lake.reopen(LOCAL, pipeline)
    assert verified(lake, pipeline).faults == ()


def change(lake: Lake, pipeline: Pipeline, table: str, changed: Callable[[pa.Table], pa.Table]) -> None:
    """Rewrite the rows of a table's files and the checksums in its log, as anybody with access to them could."""
    folder = Path(lake.path(f"{pipeline.name}/{table}"))
    handle = DeltaTable(str(folder))
    for name in handle.file_uris():
        file = Path(name)
        before, written = pq.read_table(file), file.read_bytes()
        after = changed(before)
        if not after.equals(before):
            pq.write_table(after, file)
            record_footer(folder, file.name, written)


def set_where(rows: pa.Table, column: str, where: pa.ChunkedArray, value: Any) -> pa.Table:
    place = rows.schema.get_field_index(column)
    new = pc.if_else(where, pa.scalar(value, rows.schema.field(column).type), rows[column])
    return rows.set_column(place, rows.schema.field(column), new)


def six_of(user: str, rows: pa.Table) -> pa.ChunkedArray:
    return pc.and_(pc.equal(rows["user"], user), pc.equal(rows["total"], 6))


def flip_a_result(rows: pa.Table) -> pa.Table:
    return set_where(rows, "total", six_of("user 4", rows), 600)


def change_state(rows: pa.Table) -> pa.Table:
    if "user" not in rows.schema.names:
        return rows
    name = next(name for name in rows.schema.names if "total" in name)
    return set_where(rows, name, pc.fill_null(pc.equal(rows["user"], "user 6"), False), 77)


def edit_an_epoch(rows: pa.Table) -> pa.Table:
    return set_where(rows, "on_time", pc.equal(rows["epoch"], 3), 1_000)


def put_in_a_foreign_manifest(rows: pa.Table) -> pa.Table:
    if "user" in rows.schema.names:
        return rows
    texts = [re.sub(r'"run_id":"\w+"', '"run_id":"of another lineage"', text) for text in rows["manifest"].to_pylist()]
    return rows.set_column(rows.schema.get_field_index("manifest"), rows.schema.field("manifest"), pa.array(texts))


Fault = tuple[str, Callable[[pa.Table], pa.Table], tuple[str, str | None]]
FAULTS: list[list[Fault]] = [
    [
        ("results", flip_a_result, ("value", "user 4")),
        ("results", lambda rows: rows.filter(pc.invert(six_of("user 5", rows))), ("missing", "user 5")),
        ("state", change_state, ("state", "user 6")),
        ("late", lambda rows: rows.slice(1), ("late", None)),
        ("epochs", edit_an_epoch, ("epoch", None)),
    ],
    [("state", put_in_a_foreign_manifest, ("manifest", None))],
    [
        (
            "epochs",
            lambda rows: set_where(rows, "run_id", pc.equal(rows["epoch"], 3), "of another lineage"),
            ("manifest", None),
        )
    ],
]
"""Faults, each with its kind and the key that has it: those of one list are planted together."""


@pytest.mark.parametrize("faults", FAULTS, ids=["rows", "a manifest", "a run"])
def test_each_planted_fault_is_found(faults: list[Fault], life: Lake) -> None:
    for table, plant, _ in faults:
        change(life, HOURS, table, plant)
    outcome = verified(life, HOURS)
    assert {expected for *_, expected in faults} <= {(fault.kind, fault.key.get("user")) for fault in outcome.faults}
    with pytest.raises(QualityFailed) as failure:
        outcome.require()
    assert failure.value.exit_code == 5


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"evictor": TimeEvictor.of(15 * MINUTE)}, "TimeEvictor.* leaves out elements"),
        ({"trigger": CountTrigger.of(1)}, "CountTrigger.* fires at times other than the end of a window"),
        ({"accumulation": Accumulation.DISCARDING}, "each pane holds only a part of its window"),
    ],
    ids=lambda part: next(iter(part)) if isinstance(part, dict) else "",
)
def test_windows_that_the_plain_rules_cannot_compute_are_unverifiable(
    lake: Lake, part: dict[str, Any], why: str
) -> None:
    compute = Windows(TumblingEventTimeWindows.of(60 * MINUTE), aggregate={"total": Sum("value")}, **part)
    pipeline = hourly_pipeline(compute=compute)
    lake.append(("ann", at("10:00"), 1), ("ann", at("12:30"), 2))
    lake.stream(LOCAL, pipeline)
    outcome = verified(lake, pipeline)
    assert (outcome.windows, outcome.faults) == (0, ())
    assert re.search(why, str(outcome.why_unverifiable))


def test_manifests_whose_files_another_program_removed_are_named_and_the_rest_is_verified(life: Lake) -> None:
    before = verified(life, HOURS)
    vacuum_with_no_hours(life.path("hours/state"))
    outcome = verified(life, HOURS)
    assert (outcome.success, outcome.windows) == (True, before.windows)
    assert outcome.manifests + len(outcome.unreadable_manifests) == before.manifests
    assert outcome.manifests < before.manifests
    assert f"not checked: {outcome.unreadable_manifests[0]}" in " ".join(outcome.lines())


def test_windows_whose_source_rows_are_gone_are_unverifiable(life: Lake) -> None:
    DeltaTable(life.path("events")).optimize.compact()
    vacuum_with_no_hours(life.path("events"))
    # The order of arrival is lost with the files, but the rows are still there.
    compacted = verified(life, HOURS)
    assert (compacted.faults, compacted.windows) == ((), len(life.latest(HOURS)))
    for uri in DeltaTable(life.path("events")).file_uris():
        Path(uri).unlink()
    outcome = verified(life, HOURS)
    assert (outcome.windows, outcome.faults) == (0, ())
    assert outcome.unverifiable >= len(life.latest(HOURS))
    assert "no longer in the source" in str(outcome.why_unverifiable)
    assert outcome.require() is outcome
    rmtree(life.path("events"))
    without = verified(life, HOURS)
    assert (without.windows, without.faults, without.unverifiable) == (0, (), len(life.latest(HOURS)))
    # What does not need the source is still checked.
    change(life, HOURS, "epochs", edit_an_epoch)
    assert {fault.kind for fault in verified(life, HOURS).faults} == {"epoch"}


@pytest.mark.long
@pytest.mark.parametrize("changes", ["refuse", "correct"])
def test_windows_closed_by_code_with_less_lateness_stay_closed_until_they_are_recomputed(
    changes: Any, lake: Lake
) -> None:
    def pipeline(hours: int) -> Pipeline:
        source = DeltaSource("events", timestamp="at", changes=changes)
        return hourly_pipeline(source=source, allowed_lateness=timedelta(hours=hours))

    def late(minute: int) -> None:
        lake.append(*((user, at(f"10:{minute}"), minute) for user in ("ann", "bob", "cem")))
        lake.stream(LOCAL, longer)
        assert (verified(lake, longer).faults, verified(lake, longer).unverifiable) == ((), 0)

    longer = pipeline(24)
    lake.append(("ann", at("10:10"), 1), ("bob", at("10:10"), 2), ("cem", at("10:10"), 3))
    lake.append(("ann", at("13:00"), 4))
    lake.stream(LOCAL, pipeline(0))
    late(20)
    lake.reopen(LOCAL, longer, Selection(key=("ann",)))
    late(30)
    if changes == "correct":
        DeltaTable(lake.path("events")).update(predicate="user = 'cem' and value = 3", updates={"value": "30"})
    late(40)
    open_again = {"ann", "cem"} if changes == "correct" else {"ann"}
    assert {row["user"] for row in lake.rows(longer, "late").to_pylist() if row["at"] == at("10:40")} == (
        {"ann", "bob", "cem"} - open_again
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "newer",
    [
        hourly_pipeline(aggregate={"events": Count(), "total": Sum("value"), "largest": Max("value")}),
        hourly_pipeline(aggregate={"events": Count(), "total": Sum("twice")}, columns={"twice": "value * 2"}),
        replace(
            hourly_pipeline(),
            compute=Windows(
                SlidingEventTimeWindows.of(timedelta(hours=2), timedelta(hours=1)),
                aggregate={"events": Count(), "total": Sum("value")},
            ),
        ),
    ],
    ids=["added", "expression", "size"],
)
def test_windows_of_older_code_are_unverifiable_where_the_present_code_computes_others(
    newer: Pipeline, lake: Lake
) -> None:
    older = hourly_pipeline()
    lake.append(("ann", at("10:10"), 1), ("ann", at("13:30"), 2))
    lake.stream(LOCAL, older)
    lake.append(("ann", at("13:40"), 3), ("ann", at("20:10"), 4), ("ann", at("23:50"), 5))
    lake.stream(LOCAL, newer)
    outcome = verified(lake, newer)
    assert outcome.faults == ()
    assert outcome.unverifiable >= 2
    assert "they were computed by other code, which ran up to epoch 1" in str(list(outcome.shown()))
    change(lake, newer, "results", lambda rows: set_where(rows, "total", pc.equal(rows["epoch"], 2), 700))
    assert to_millis(at("20:00")) in {fault.start for fault in verified(lake, newer).faults}


@pytest.mark.long
@pytest.mark.parametrize("gap", [15, 60])
def test_sessions_that_older_code_began_with_another_gap_are_unverifiable(gap: int, lake: Lake) -> None:
    older, newer = session_pipeline(), session_pipeline(gap * MINUTE)
    lake.append(("ann", at("10:10"), 1), ("ann", at("13:30"), 2))
    lake.stream(LOCAL, older)
    lake.append(("ann", at("13:55"), 3), ("ann", at("20:10"), 4), ("ann", at("23:50"), 5))
    lake.stream(LOCAL, newer)
    assert verified(lake, newer).faults == ()
    change(lake, newer, "results", lambda rows: set_where(rows, "total", pc.equal(rows["epoch"], 2), 700))
    assert len(verified(lake, newer).faults) == 1


def flip_the_newest_result(rows: pa.Table) -> pa.Table:
    return set_where(rows, "total", pc.and_(pc.equal(rows["user"], "user 4"), pc.equal(rows["total"], 7)), 700)


def test_what_was_verified_is_not_read_again(life: Lake) -> None:
    lake, pipeline = life, HOURS
    first = verified(lake, pipeline, new=True)
    assert (first.after, first.faults, first.windows) == (None, (), len(lake.latest(pipeline)))
    epoch = lake.snapshot(pipeline).manifest.epoch
    late, hour = ("user 4", at("20:10"), 7), [(f"user {number}", at("04:00", 1), 1) for number in range(12)]
    lake.append(late, *hour)
    lake.stream(LOCAL, pipeline)
    change(lake, pipeline, "results", flip_a_result)
    # The earlier windows are wrong now, but they were right when they were verified.
    second = verified(lake, pipeline, new=True)
    assert (second.after, second.faults) == (epoch, ())
    assert second.windows == sum(row["epoch"] > epoch for row in lake.latest(pipeline).to_pylist()) > 0
    assert verified(lake, pipeline, new=True).windows == 0
    lake.append(("user 4", at("10:00", 1), 7))
    lake.append(("user 4", at("20:00", 1), 1))
    lake.stream(LOCAL, pipeline)
    change(lake, pipeline, "results", flip_the_newest_result)
    for _ in range(2):
        wrong = verified(lake, pipeline, new=True)
        assert "value" in {fault.kind for fault in wrong.faults}, "it is not noted as verified"


@pytest.mark.long
def test_with_a_budget_one_new_epoch_is_sampled_and_the_next_one_once_epochs_have_taken_long_enough(life: Lake) -> None:
    epochs = life.snapshot(HOURS).manifest.epoch
    change(life, HOURS, "results", flip_a_result)
    (wrong,) = {row["epoch"] for row in life.rows(HOURS, "results").to_pylist() if row["total"] == 600}
    found = {}
    for seed in (0, 4, 21):
        outcome = verified(life, HOURS, budget=1, seed=seed)
        assert outcome.after is not None
        found[outcome.epoch] = not outcome.success
        assert outcome.after < outcome.epoch <= epochs
        # It took longer than zero epochs.
        waiting = verified(life, HOURS, budget=1)
        assert (waiting.windows, waiting.success) == (0, True)
        assert waiting.due_in
        assert waiting.due_in > 0
        rmtree(life.path("hours/quality"))
    assert len(found) == 3
    assert [epoch for epoch, is_wrong in found.items() if is_wrong] == [wrong], found
    assert "due after" in str(next(waiting.shown()))
    with pytest.raises(UsageError, match="--new verifies all new epochs, and --budget one of them"):
        verified(life, HOURS, budget=1, new=True)


@pytest.mark.long
def test_a_key_that_was_forgotten_verifies_by_its_later_rows(life: Lake) -> None:
    project = life.project(HOURS)
    project.forget("hours", ("user 1",))
    assert verified(life, HOURS, new=True).faults == ()
    life.append(("user 1", at("05:00", 1), 1), ("user 2", at("05:10", 1), 1))
    life.append(("user 1", at("09:00", 1), 1))
    life.stream(LOCAL, HOURS, commits=1)
    for new in (True, False):
        outcome = verified(life, HOURS, new=new)
        assert (outcome.faults, outcome.unverifiable) == ((), 0)
    # A lost window of the key is found among the windows of later rows.
    change(life, HOURS, "results", lambda rows: rows.filter(pc.not_equal(rows["user"], "user 1")))
    assert {fault.kind for fault in verified(life, HOURS).faults} == {"missing"}
    # The mark of the key is removed with its snapshot.
    project.tables.vacuum("hours", snapshots=1, days=0)
    without = verified(life, HOURS)
    assert without.faults == ()
    assert without.why_unverifiable == "rows of their key may be from before it was forgotten"


def test_windows_reopened_after_their_key_was_forgotten_are_unverifiable(lake: Lake) -> None:
    """The source still has rows from before, and a reopened window is computed from the source."""
    lake.append(("ann", at("10:10"), 1), ("end", at("14:00"), 0))
    lake.stream(LOCAL, HOURS)
    lake.project(HOURS).forget("hours", ("ann",))
    lake.append(("ann", at("10:20"), 2))
    lake.stream(LOCAL, HOURS)
    lake.reopen(LOCAL, HOURS)
    outcome = verified(lake, HOURS)
    assert outcome.faults == ()
    assert outcome.why_unverifiable == "rows of their key may be from before it was forgotten"


@pytest.mark.long
def test_a_restore_to_before_a_key_was_forgotten_does_not_bring_it_back(life: Lake) -> None:
    project = life.project(HOURS)
    project.savepoints.create("hours", "before")
    project.forget("hours", ("user 1",))
    project.restore("hours", "savepoint:before")
    life.append(("user 1", at("05:00", 1), 1), ("user 2", at("09:00", 1), 1))
    life.stream(LOCAL, HOURS)
    outcome = verified(life, HOURS)
    assert (outcome.faults, outcome.unverifiable) == ((), 0)
    (late,) = [row for row in life.latest(HOURS).to_pylist() if row["user"] == "user 1"]
    assert late["window_start"] == at("05:00", 1)
    change(life, HOURS, "results", lambda rows: rows.filter(pc.not_equal(rows["user"], "user 1")))
    assert {fault.kind for fault in verified(life, HOURS).faults} == {"missing"}


HALF_HOURS = Windows(
    SlidingEventTimeWindows.of(timedelta(hours=1), timedelta(minutes=30)),
    aggregate={"events": Count(), "total": Sum("value")},
)


def missed(lake: Lake) -> Pipeline:
    """Rows of two users that one window missed, while the next one accepted them."""
    pipeline = hourly_pipeline(
        compute=HALF_HOURS, watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(0))
    )
    lake.append(("end", at("11:05"), 0))
    lake.append(("ann", at("10:50"), 1), ("bob", at("10:50"), 2), ("end", at("14:00"), 0))
    lake.stream(LOCAL, pipeline, commits=1)
    return pipeline


def test_windows_that_missed_a_row_verify_before_and_after_a_reopening(lake: Lake) -> None:
    pipeline = missed(lake)
    assert verified(lake, pipeline).faults == ()
    lake.reopen(LOCAL, pipeline)
    assert len(lake.latest(pipeline).filter(pc.field("window_start") == at("10:00"))) == 2
    assert (verified(lake, pipeline).faults, verified(lake, pipeline).unverifiable) == ((), 0)
    change(
        lake,
        pipeline,
        "results",
        lambda rows: rows.set_column(rows.schema.get_field_index("total"), "total", pa.array([9] * len(rows))),
    )
    assert len(verified(lake, pipeline).faults) == len(lake.latest(pipeline))


@pytest.mark.first(1)
@pytest.mark.parametrize("oldest", [5, 4], ids=["a stream", "the forget"])
def test_what_epochs_did_that_table_epochs_has_dropped_is_unknown(lake: Lake, oldest: int) -> None:
    """A late row that was reopened and pruned, and a key that was forgotten, longer ago than `retain_history_days`."""
    lake.append(("ann", at("10:10"), 1), ("bob", at("10:10"), 1), ("end", at("14:00"), 0))
    lake.append(("ann", at("10:20"), 2))
    lake.stream(LOCAL, HOURS)
    lake.reopen(LOCAL, HOURS)
    project, tables = lake.project(HOURS), lake.tables(HOURS)
    project.late.prune("hours", days=0)
    project.forget("hours", ("bob",))
    lake.append(("cem", at("15:10"), 4), ("end", at("20:00"), 0))
    lake.stream(LOCAL, HOURS)
    lake.append(("cem", at("21:10"), 4), ("end", at("23:30"), 0))
    lake.stream(LOCAL, HOURS)
    project.tables.vacuum("hours", snapshots=1, days=0)
    assert drop_old_epochs(tables, lake.clock() + 1_000_000, oldest, lake.clock() + 1_000_000) == oldest - 1
    outcome = verified(lake, HOURS)
    assert (outcome.faults, bool(outcome.unverifiable)) == ((), True)
    change(lake, HOURS, "results", lambda rows: rows.filter(pc.not_equal(rows["window_start"], at("21:00"))))
    kinds = [fault.kind for fault in verified(lake, HOURS).faults]
    assert kinds == (["missing"] if oldest == 5 else [])


def test_sessions_that_a_reopening_joined_without_a_late_row_verify(lake: Lake) -> None:
    """Ann's second session was opened when the first was closed already; only a row of bob is late."""
    pipeline = session_pipeline(watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(0)))
    lake.append(("ann", at("10:00"), 1), ("end", at("10:35"), 0))
    lake.append(("ann", at("10:20"), 2), ("end", at("12:00"), 0))
    lake.append(("bob", at("10:00"), 4))
    lake.stream(LOCAL, pipeline, commits=1)
    assert len(lake.latest(pipeline).filter(pc.field("user") == "ann")) == 2
    assert verified(lake, pipeline).faults == ()
    lake.reopen(LOCAL, pipeline)
    assert len(lake.latest(pipeline).filter(pc.field("user") == "ann")) == 1
    assert (verified(lake, pipeline).faults, verified(lake, pipeline).unverifiable) == ((), 0)


@pytest.mark.long
@pytest.mark.parametrize("is_known", [True, False])
def test_a_forgotten_key_does_not_come_back_by_a_reopening(lake: Lake, is_known: bool) -> None:
    """The source has its rows, and a window missed one of them; the marks of the key are removed with the snapshot."""
    pipeline = missed(lake)
    project = lake.project(pipeline)
    project.forget("hours", ("ann",))
    if not is_known:
        lake.append(("end", at("16:00"), 0))
        lake.stream(LOCAL, pipeline)
        project.tables.vacuum("hours", snapshots=1, days=0)
    lake.reopen(LOCAL, pipeline)
    rows = lake.rows(pipeline, "results")
    assert "ann" not in rows["user"].to_pylist()
    assert len(rows.filter(pc.field("window_start") == at("10:00"))) == is_known
    assert verified(lake, pipeline).faults == ()


def compacted(table: DeltaTable) -> None:
    table.optimize.compact()


CORRECTED = hourly_pipeline(source=DeltaSource("events", timestamp="at", changes="correct"))


def test_rows_whose_correction_moved_the_watermark_count_once(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1), ("bob", at("11:00"), 2))
    lake.stream(LOCAL, CORRECTED)
    DeltaTable(lake.path("events")).update(predicate="value = 2", updates={"at": "at + interval '5 hours'"})
    lake.append(("bob", at("19:00"), 4))
    lake.stream(LOCAL, CORRECTED)
    assert [row["kind"] for row in lake.rows(CORRECTED, "epochs").sort_by("epoch").to_pylist()][:2] == [
        "stream",
        "change",
    ]
    outcome = verified(lake, CORRECTED).require()
    assert (outcome.windows, outcome.unverifiable) == (2, 0)


def test_rows_from_before_the_first_interval_are_in_no_window_after_a_correction_either(lake: Lake) -> None:
    lake.append(("ann", at("08:30"), 1), ("ann", at("10:30"), 1), ("ann", at("12:30"), 1))
    lake.backfill(LOCAL, CORRECTED, at("10:00"), at("13:00"), "3h")
    DeltaTable(lake.path("events")).update(updates={"value": "value + 1"})
    lake.stream(LOCAL, CORRECTED)
    lake.append(("ann", at("19:00"), 4))
    lake.stream(LOCAL, CORRECTED)
    outcome = verified(lake, CORRECTED).require()
    assert (outcome.windows, outcome.unverifiable) == (2, 0)


def test_a_late_row_is_distinguished_from_a_row_on_time_with_the_same_time(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1), ("end", at("13:00"), 0))
    lake.stream(LOCAL, CORRECTED)
    lake.append(("ann", at("10:00"), 5), ("ann", at("10:00"), -5))
    lake.stream(LOCAL, CORRECTED)
    DeltaTable(lake.path("events")).update(predicate="value = 0", updates={"value": "2"})
    lake.stream(LOCAL, CORRECTED)
    assert len(lake.rows(CORRECTED, "late")) == 2
    outcome = verified(lake, CORRECTED).require()
    assert (outcome.windows, outcome.unverifiable) == (1, 0)


def test_the_pane_of_a_session_that_was_merged_stands_until_the_merged_session_fires(lake: Lake) -> None:
    pipeline = session_pipeline(
        allowed_lateness=60 * MINUTE, watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(0))
    )
    lake.append(("ann", at("10:00"), 1), ("end", at("10:40"), 0))
    lake.stream(LOCAL, pipeline)
    lake.append(("ann", at("10:20"), 2))
    lake.stream(LOCAL, pipeline)
    assert [row["total"] for row in lake.latest(pipeline).to_pylist()] == [1]
    assert verified(lake, pipeline).require().windows == 1
    lake.append(("end", at("11:00"), 0))
    lake.stream(LOCAL, pipeline)
    assert {row["total"] for row in lake.latest(pipeline).to_pylist()} >= {3}
    assert verified(lake, pipeline).require().unverifiable == 0


def test_open_windows_without_an_aggregate_that_code_has_added_since_are_read(lake: Lake) -> None:
    """Slices of several rows are merged, including the added aggregate."""
    sliding = SlidingEventTimeWindows.of(timedelta(hours=2), timedelta(hours=1))
    before, after = (
        replace(hourly_pipeline(), compute=Windows(sliding, aggregate=aggregate))
        for aggregate in ({"events": Count()}, {"events": Count(), "again": Count()})
    )
    lake.append(("ann", at("10:10"), 1), ("ann", at("11:10"), 1))
    lake.stream(LOCAL, before)
    assert verified(lake, after).faults == ()


def test_late_rows_from_before_the_first_interval_are_not_reopened_from_files_that_were_compacted(lake: Lake) -> None:
    """Otherwise they would be marked as reopened without being in a window."""
    pipeline = hourly_pipeline()
    lake.append(("ann", at("08:10"), 1), ("ann", at("10:30"), 1))
    lake.backfill(LOCAL, pipeline, at("10:00"), at("12:00"), "2h")
    lake.append(("ann", at("08:20"), 2), ("ann", at("10:40"), 2), ("end", at("20:00"), 0))
    lake.stream(LOCAL, pipeline)
    lake.append(("ann", at("08:40"), 4), ("ann", at("10:50"), 4))
    lake.stream(LOCAL, pipeline)
    compacted(DeltaTable(lake.path("events")))
    with pytest.raises(Refused, match=r"before 2024-03-01T10:00:00Z.*Reopen those from 2024-03-01T10:00:00Z on"):
        lake.reopen(LOCAL, pipeline)
    assert broken_in(lake.tables(pipeline), pipeline) == set()
    lake.reopen(LOCAL, pipeline, Selection(None, to_millis(at("10:00")), to_millis(at("13:00"))))
    totals = {row["window_start"]: row["total"] for row in lake.latest(pipeline).to_pylist()}
    assert totals[at("10:00")] in (5, 7)
    assert broken_in(lake.tables(pipeline), pipeline) == set()


def test_windows_with_rows_that_the_current_code_leaves_out_are_unverifiable(lake: Lake) -> None:
    lake.append(("ann", at("10:10"), 5), ("bob", at("10:05"), 1))
    lake.stream(LOCAL, hourly_pipeline())
    newer = hourly_pipeline(where="value <> 1")
    lake.append(("bob", at("10:08"), 2), ("ann", at("13:06"), 2), ("bob", at("20:00"), 1), ("bob", at("20:00"), 2))
    lake.stream(LOCAL, newer)
    outcome = verified(lake, newer)
    assert outcome.faults == ()
    assert outcome.why_unverifiable == "they were computed by other code, which ran up to epoch 1"
    assert (outcome.windows, outcome.unverifiable) == (2, 1)


def test_a_window_that_code_corrected_which_was_undone_is_unverifiable(lake: Lake) -> None:
    source = DeltaSource("events", timestamp="at", changes="correct")
    before, undone = hourly_pipeline(source=source, where="value <> 2"), hourly_pipeline(source=source)
    lake.append(("ann", at("10:10"), 1), ("ann", at("10:20"), 2), ("ann", at("12:30"), 3))
    lake.stream(LOCAL, before)
    DeltaTable(lake.path("events")).delete("value = 1")
    lake.stream(LOCAL, undone)
    outcome = verified(lake, before)
    assert outcome.faults == ()
    assert outcome.why_unverifiable == "they were computed by other code, which ran up to epoch 2"


@pytest.mark.parametrize(("lateness", "shown"), [(10, []), (40, [at("10:30")])])
def test_a_fired_session_that_grew_is_retracted_if_it_would_look_final(
    lateness: int, shown: list[datetime], lake: Lake
) -> None:
    """The row at 10:29 extends the session to 10:59, and the watermark is at 10:35."""
    pipeline = session_pipeline(
        allowed_lateness=lateness * MINUTE, watermark=WatermarkStrategy.for_monotonous_timestamps()
    )
    for user, time in (("ann", "10:00"), ("bob", "10:35"), ("ann", "10:29")):
        lake.append((user, at(time), 1))
    lake.stream(LOCAL, pipeline)
    assert [row["window_end"] for row in lake.latest(pipeline).to_pylist()] == shown
    assert verified(lake, pipeline).faults == ()


@pytest.mark.first(1)
@pytest.mark.parametrize("is_compacted", [False, True])
def test_windows_whose_late_rows_were_pruned_are_unverifiable(is_compacted: bool, lake: Lake) -> None:
    pipeline = hourly_pipeline()
    for rows in (
        [("ann", at("10:05"), 1), ("ann", at("12:30"), 2)],
        [("ann", at("10:10"), 5), ("ann", at("13:30"), 2)],
    ):
        lake.append(*rows)
        lake.stream(LOCAL, pipeline)
    lake.project(pipeline).late.prune("hours", days=0)
    if is_compacted:
        compacted(DeltaTable(lake.path("events")))
    lake.append(("ann", at("20:00"), 3), ("ann", at("23:00"), 3))
    lake.stream(LOCAL, pipeline)
    outcome = verified(lake, pipeline)
    assert outcome.faults == ()
    assert outcome.why_unverifiable == "late rows from before epoch 3 were pruned"
    change(lake, pipeline, "results", lambda rows: set_where(rows, "total", pc.equal(rows["total"], 3), 700))
    assert [fault.start for fault in verified(lake, pipeline).faults] == [to_millis(at("20:00"))]


def test_a_derived_key_is_not_looked_for_in_late_rows_that_have_a_column_of_its_name(lake: Lake) -> None:
    pipeline = hourly_pipeline(columns={"user": "upper(user)"}, parallelism=2)
    lake.append(("ann", at("10:05"), 1), ("ann", at("12:30"), 2))
    lake.stream(LOCAL, pipeline)
    lake.append(*((f"user {number}", at("10:10"), 1) for number in range(10)), ("ann", at("13:30"), 2))
    lake.stream(LOCAL, pipeline)
    outcome = verified(lake, pipeline)
    assert outcome.faults == ()
    # Each late row is unverifiable, and so would be wrong windows of its key. Those of other keys are compared.
    assert (outcome.windows, outcome.unverifiable) == (1, 10)
    assert "table late lacks the key columns" in str(outcome.why_unverifiable)
    assert broken_in(lake.tables(pipeline), pipeline) == set()
    change(lake, pipeline, "results", lambda rows: set_where(rows, "total", pc.equal(rows["total"], 1), 700))
    assert [fault.key for fault in verified(lake, pipeline).faults] == [{"user": "ANN"}]


def test_code_that_can_not_continue_has_unverifiable_windows_and_no_trace_of_another_key(lake: Lake) -> None:
    lake.append(("ann", at("10:05"), 1), ("ann", at("12:30"), 2))
    lake.stream(LOCAL, hourly_pipeline())
    newer = hourly_pipeline(aggregate={"events": Count()})
    assert "contents 'acc_total' is int64 in the snapshot" in str(verified(lake, newer).why_unverifiable)
    other_key = hourly_pipeline(key=("name",), columns={"name": "upper(user)"})
    with pytest.raises(Refused, match="key column 'user' is string in the snapshot and absent in the code"):
        lake.project(other_key).trace("hours", ("ANN",))


def test_a_column_of_the_source_that_no_epoch_has_read_yet_is_null_in_rejected_rows(lake: Lake) -> None:
    pipeline = hourly_pipeline()
    lake.append(("ann", at("10:05"), 1))
    lake.append(("ann", at("10:05", day=90_000), 2))
    lake.stream(LOCAL, pipeline)
    assert lake.rows(pipeline, "rejects")["reason"].to_pylist() == ["timestamp_ahead_of_commit"]
    DeltaTable(lake.path("events")).optimize.compact()
    vacuum_with_no_hours(lake.path("events"))
    wider = pa.table({"user": ["ann"], "at": [at("20:00")], "value": [3], "more": ["x"]})
    write_deltalake(lake.path("events"), wider, mode="append", schema_mode="merge")
    assert verified(lake, pipeline).faults == ()


def test_an_aggregate_that_no_epoch_has_computed_yet_is_not_read_from_the_state(lake: Lake) -> None:
    lake.append(("ann", at("10:05"), 1))
    lake.stream(LOCAL, hourly_pipeline())
    newer = hourly_pipeline(
        aggregate={"events": Count(), "total": Sum("value"), "middle": ApproxQuantile("value", 0.5)}
    )
    assert verified(lake, newer).faults == ()


def test_windows_that_the_plain_rules_do_not_tell_are_unverifiable(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1))
    by_clock = Windows(ProcessingTimeSessionWindows.with_gap(MINUTE), aggregate={"events": Count()})
    pipeline = replace(hourly_pipeline(), compute=by_clock)
    lake.stream(LOCAL, pipeline)
    assert "does not compute `Windows` of event time" in str(verified(lake, pipeline).why_unverifiable)


def test_the_command_ends_with_exit_code_5(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    project = CommandLine.make(lake.folder, capsys)
    lake.append(("ann", at("10:00"), 1), ("ann", at("13:00"), 2))
    lake.stream(LOCAL, session_pipeline())
    assert project.tidegate("verify", "sessions", "--sample", "all")[0] == 0
    assert project.data("verify", "sessions", "--seed", "3")["success"] is True
    change(lake, session_pipeline(), "epochs", lambda rows: set_where(rows, "on_time", pc.equal(rows["epoch"], 1), 9))
    code, told = project.tidegate("verify", "sessions", "--json")
    assert code == 5
    assert json.loads(told)["faults"][0]["kind"] == "epoch"
    assert project.tidegate("verify", "sessions", "--sample", "2")[0] == 2


@pytest.mark.parametrize("share", ["0", "101%", "some", 0, -1])
def test_a_share_that_is_none_is_refused(share: Any, lake: Lake) -> None:
    with pytest.raises(UsageError, match="give a share such as 1%, or all"):
        verified(lake, session_pipeline(), sample=share)


@pytest.mark.first(1)
@pytest.mark.parametrize("step", ["committed", "published late"])
def test_an_epoch_that_was_killed_before_it_was_published_is_not_verified_nor_counted(lake: Lake, step: str) -> None:
    pipeline, planned = hourly_pipeline(), list[str]()
    lake.append(("ann", at("10:00"), 1), ("ann", at("12:30"), 2))
    project = lake.project(pipeline)
    project.stream("hours")
    lake.append(("ann", at("10:05"), 1), ("ann", at("14:30"), 1))

    def kill(done: str) -> None:
        planned.extend([done] if done == "planned" else [])
        if planned and done == step:
            raise InterruptedError

    with pytest.raises(InterruptedError), lake.driver(LOCAL, pipeline, kill) as driver:
        Stream(driver, lambda epoch: None, EpochLimits()).run_available()
    assert project.verify("hours", sample="all").require().epoch == 1
    trace = project.trace("hours", ("ann",))
    assert (trace.epoch, len(trace.elements), len(trace.panes)) == (1, 2, 1)
    assert project.late.summary("hours").rows == sum(epoch["late"] for epoch in project.runs("hours").epochs) == 0
    behind = project.why("hours")
    assert (behind.published, behind.epoch) == (1, 2)
    assert "up to epoch 1: the next run publishes epoch 2" in str(behind)
    (lake.folder / "tidegate.toml").write_text('[pipelines.hours]\nobject = "no:code"\nstart = 2024-03-01\n')
    (listed,) = project.list().pipelines
    assert listed.watermark is not None
    shown = pipeline_overview(lake.folder / "tidegate.toml", "hours")
    assert (shown["epoch"], shown["watermark"]) == (1, to_millis(listed.watermark))
    project.stream("hours")
    assert project.verify("hours", sample="all").require().epoch >= 2
    assert project.why("hours").published == project.why("hours").epoch
