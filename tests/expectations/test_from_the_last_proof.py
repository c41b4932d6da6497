"""A check continues from the last one that passed: it reads only what is new, and finds as much as a check of all rows.
Windows are checked by the code of their epoch: gap, size, offset and lateness may change between epochs. The suite of a
pipeline checks every window that became final since the last passed check, and none twice.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import great_expectations as gx
import great_expectations.expectations as gxe
import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from tests.expectations.broken import broken_by_rules, broken_in
from tests.expectations.test_quality_command import PIPELINES, USERS
from tests.lake import DAY0, LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import START_OF_DRIVER, ByHand, Row
from tidegate.expectations.neighbours import NewWindows
from tidegate.expectations.pinned import Pinned, pin
from tidegate.expectations.suites import suites, windows_suite
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition import epochs, late, results
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, prune, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.compaction import COMPACTION, compact
from tidegate.pipelines.storage.warehouse import Warehouse, read_table
from tidegate.windowing import (
    CalendarEventTimeWindows,
    Count,
    CountTrigger,
    CumulateEventTimeWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.time import to_millis

NOW = 1_800_000_000_000


def checked(by_hand: ByHand) -> tuple[Pinned, str]:
    """Check the newest epoch; return what was read, and the outcome. Table quality records it as after a real check."""
    pinned = pin(by_hand.tables, by_hand.pipeline, rows_at_a_time=20)
    failed = broken_by_rules(pinned)
    proof, timeline = None if failed else pinned.proves.to_json(), pinned.manifest.timeline
    about = (uuid.uuid4().hex, datetime.now(UTC), timeline, pinned.manifest.epoch, "all", "all", "", "critical")
    row = quality.QualityRow(*about, not failed, "", 0, 0, 0, proof=proof)
    quality.append(by_hand.tables, [row])
    return pinned, ", ".join(sorted(f"{expectation} ({suite})" for suite, expectation in failed)) or "passed"


def epoch(by_hand: ByHand, number: int, draw: random.Random) -> None:
    """Rows up to five and a half hours behind the watermark."""
    rows: list[Row] = [
        (draw.choice(USERS), at("00:00") + timedelta(hours=number + 2, minutes=draw.randint(-300, 59)), 1)
        for _ in range(12)
    ]
    by_hand.epoch(*rows, watermark=at("00:30") + timedelta(hours=number + 2))


def looked_at(pinned: Pinned) -> int:
    return sum(len(rows) for rows in pinned.panes())


@pytest.mark.first(2)
@pytest.mark.parametrize("epochs", [5, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", PIPELINES)
def test_right_tables_pass_from_each_check_to_the_next(name: str, epochs: int, tmp_path: Path) -> None:
    by_hand, draw = ByHand(tmp_path, PIPELINES[name]()), random.Random(name)
    for number in range(1, epochs + 1):
        epoch(by_hand, number, draw)
        pinned, state = checked(by_hand)
        assert state == "passed"
        assert pinned.scope.since == (number - 1 or None)
        assert (pinned.scope.proof is None) == (number == 1)
        if number == epochs - 3:
            compact(by_hand.tables, results.NAME)


def test_what_a_check_proved_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    read: list[str] = []
    batches = Warehouse.read_batches

    def read_batches(warehouse: Warehouse, path: str, names: Any, *given: Any, **more: Any) -> Any:
        read.extend(name for name in names if path.endswith("results"))
        return batches(warehouse, path, names, *given, **more)

    monkeypatch.setattr(Warehouse, "read_batches", read_batches)
    files = []
    for number in range(1, 6):
        by_hand.epoch(*((user, at(f"{number + 5}:10"), 1) for user in USERS), watermark=at(f"{number + 6}:30"))
        read.clear()
        pinned, state = checked(by_hand)
        assert state == "passed"
        files.append(len(read))
    assert max(files[2:]) <= 2 * files[1], "however many epochs there were before"
    assert looked_at(pinned) == len(USERS)


@pytest.mark.long
@pytest.mark.first(1)
@pytest.mark.parametrize("kept", [0, 40, -1], ids=["empty", "cut within a line", "cut between two lines"])
def test_after_damage_to_the_newest_entry_of_checks_the_next_one_goes_on_from_the_check_before(
    tmp_path: Path, kept: int
) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    for number in (1, 2, 3):
        by_hand.epoch(("ann", at(f"{number + 5}:10"), 1), watermark=at(f"{number + 6}:30"))
        assert checked(by_hand)[1] == "passed"
    entry = max(Path(by_hand.tables.path(quality.NAME), "_delta_log").glob("*.json"))
    content = entry.read_bytes()
    entry.write_bytes(content[:kept] if kept >= 0 else b"".join(content.splitlines(keepends=True)[:kept]))
    by_hand.epoch(("ann", at("09:10"), 1), watermark=at("10:30"))
    pinned, state = checked(by_hand)
    assert (state, pinned.scope.since) == ("passed", 2)
    assert quality.newest_passed(by_hand.tables, range(9)) == 4
    assert sorted(quality.read(by_hand.tables)["epoch"].to_pylist()) == [1, 2, 4]


def a_restore(by_hand: ByHand) -> None:
    restore(by_hand.tables, find_snapshot(by_hand.tables, "3"), NOW)


def a_restore_that_keeps_stale_rows(by_hand: ByHand) -> None:
    restore(by_hand.tables, find_snapshot(by_hand.tables, "3"), NOW, keep_stale=True)


def a_forgotten_key(by_hand: ByHand) -> None:
    with Lease(by_hand.tables, "forget", lambda: NOW):
        forget(by_hand.tables, by_hand.pipeline, [["ann"]], NOW)


def pruned_late_rows(by_hand: ByHand) -> None:
    prune(by_hand.tables, NOW, NOW)


def a_vacuum(by_hand: ByHand) -> None:
    compact(by_hand.tables, results.NAME)
    with Lease(by_hand.tables, "vacuum", lambda: NOW):
        vacuum(by_hand.tables, Retention(snapshots=1, age=0), NOW)


TAKES_AWAY = (a_restore, a_restore_that_keeps_stale_rows, a_forgotten_key, pruned_late_rows, a_vacuum)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("happens", "name"),
    [
        # Each action and each pipeline once; all combinations in the long form.
        pytest.param(happens, name, marks=() if first == second else pytest.mark.long)
        for first, happens in enumerate(TAKES_AWAY)
        for second, name in enumerate(PIPELINES)
    ],
)
def test_after_rows_were_taken_away_all_are_looked_at_and_then_only_new_ones_again(
    happens: Callable[[ByHand], None], name: str, tmp_path: Path
) -> None:
    by_hand, draw = ByHand(tmp_path, PIPELINES[name]()), random.Random(name)
    for number in range(1, 5):
        epoch(by_hand, number, draw)
        assert checked(by_hand)[1] == "passed"
    happens(by_hand)
    for number in range(5, 7):
        pinned, state = checked(by_hand)
        assert state == "passed"
        if number == 5:
            assert pinned.scope.proof is None
        epoch(by_hand, number, draw)
    assert checked(by_hand)[0].scope.proof is not None


def test_changed_code_is_looked_at_as_a_whole(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    by_hand.epoch(("ann", at("10:10"), 1), watermark=at("12:00"))
    checked(by_hand)
    by_hand.pipeline = hourly_pipeline(allowed_lateness=timedelta(hours=1))
    by_hand.epoch(("ann", at("13:10"), 1), watermark=at("16:00"))
    assert checked(by_hand)[1] == "passed", "windows of older epochs waited less"
    by_hand.epoch(("ann", at("15:10"), 1), ("ann", at("17:10"), 1), watermark=at("19:00"))
    pinned, state = checked(by_hand)
    assert state == "passed"
    assert pinned.scope.proof is not None
    assert pinned.proves.lateness == 3_600_000


def a_late_pane_twice(by_hand: ByHand) -> None:
    rows = by_hand.rows(results.NAME)
    newest = next(row for row in rows.to_pylist() if row["epoch"] == 4)
    again = pa.Table.from_pylist([newest], schema=rows.schema)
    # A planted error of our own: what other writers add is refused before the next epoch.
    ours = CommitProperties(custom_metadata={COMPACTION: results.NAME})
    write_deltalake(by_hand.tables.path(results.NAME), again, mode="append", commit_properties=ours)


@pytest.mark.long
def test_an_error_in_what_is_new_is_found_and_held_against_every_later_check(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline(allowed_lateness=timedelta(hours=3)))
    for number in range(4):
        rows = [("ann", at(f"{10 + number}:10"), 1), ("ann", at(f"{max(10, 9 + number)}:20"), 1)]
        by_hand.epoch(*rows, watermark=at(f"{11 + number}:30"))
        if number < 3:
            assert checked(by_hand)[1] == "passed"
    a_late_pane_twice(by_hand)
    for _ in range(2):
        pinned, told = checked(by_hand)
        assert pinned.scope.proof is not None
        assert pinned.scope.proof.epoch == 3
        for found in ("expect_compound_columns_to_be_unique (panes)", "expect_column_pair_values_to_be_equal (ledger)"):
            assert found in told
        by_hand.epoch(("ann", at("15:10"), 1), watermark=at("16:30"))


def test_an_older_row_that_is_lost_is_found_by_its_commit(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    for hour in (10, 12):
        by_hand.epoch(("ann", at(f"{hour}:10"), 1), watermark=at(f"{hour + 1}:30"))
        assert checked(by_hand)[1] == "passed"
    version = by_hand.tables.open(results.NAME).version()
    by_hand.tables.open(results.NAME).delete("epoch = 1")
    pinned, told = checked(by_hand)
    assert pinned.scope.proof is not None
    assert "expect_files_to_be_of_our_commits (files)" in told
    by_hand.tables.open(results.NAME).restore(version)
    assert checked(by_hand)[1] == "passed"


def test_a_quality_table_of_an_older_tidegate_gets_the_column(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    by_hand.epoch(("ann", at("10:10"), 1), watermark=at("12:00"))
    _, state = checked(by_hand)
    rows = quality.read(by_hand.tables).drop_columns(["proof"])
    path = by_hand.tables.path(quality.NAME)
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")
    assert "proof" not in quality.read(by_hand.tables).column_names
    by_hand.epoch(("ann", at("13:10"), 1), watermark=at("15:00"))
    pinned, state = checked(by_hand)
    assert (pinned.scope.since, pinned.scope.proof, state) == (1, None, "passed"), "nothing vouches for what it saw"
    by_hand.epoch(("ann", at("16:10"), 1), watermark=at("18:00"))
    assert checked(by_hand)[0].scope.proof is not None
    assert len(by_hand.rows(late.NAME)) == 0


def minutes(number: int) -> timedelta:
    return timedelta(minutes=number)


def _sessions(draw: random.Random) -> object:
    return EventTimeSessionWindows.with_gap(minutes(draw.choice([5, 30, 60])))


def _hours(draw: random.Random) -> object:
    return TumblingEventTimeWindows.of(minutes(draw.choice([30, 60])), minutes(draw.choice([0, 15])))


def _sliding(draw: random.Random) -> object:
    slide = draw.choice([10, 20])
    return SlidingEventTimeWindows.of(
        minutes(slide * draw.choice([1, 3])), minutes(slide), minutes(draw.choice([0, 5]))
    )


def _aligned(draw: random.Random) -> object:
    """Windows with a grid or without one."""
    others = [CumulateEventTimeWindows.of(minutes(60), minutes(20)), CalendarEventTimeWindows.days("Europe/Berlin")]
    return draw.choice([_hours(draw), _sliding(draw), *others])


KINDS = {"aligned": _aligned, "sessions": _sessions, "hours": _hours, "sliding": _sliding}


def code(assigner: object, lateness: int = 0) -> Pipeline:
    compute = Windows(assigner, aggregate={"events": Count()}, allowed_lateness=minutes(lateness))  # type: ignore[arg-type]
    return replace(session_pipeline(), compute=compute)


def lived(folder: Path, kind: Callable[[random.Random], object], seed: int, check: Callable[[ByHand], None]) -> ByHand:
    """A pipeline of five epochs, each run by different code."""
    draw = random.Random(seed)
    hand = ByHand(folder)
    for hour in range(8, 13):
        hand.pipeline = code(kind(draw), draw.choice([0, 30]))
        texts = [f"{hour + draw.choice([0, 0, 1]):02}:{draw.randrange(60):02}" for _ in range(6)]
        rows = [(draw.choice(["ann", "bob"]), at(text), 1) for text in texts]
        hand.epoch(*rows, watermark=at(f"{hour + 1:02}:{draw.randrange(60):02}"))
        check(hand)
    return hand


@pytest.mark.first(1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_windows_of_before_a_change_break_nothing(kind: str, seed: int, tmp_path: Path) -> None:
    """Neither does a check of all rows, nor one that continues from the last one."""

    def check(hand: ByHand) -> None:
        assert broken_by_rules(pin(hand.tables, hand.pipeline, everything=True)) == set()
        assert checked(hand)[1] == "passed"

    lived(tmp_path, KINDS[kind], seed, check)


def test_a_window_does_not_fit_a_later_code(tmp_path: Path) -> None:
    hand = ByHand(tmp_path, code(TumblingEventTimeWindows.of(minutes(60))))
    hand.epoch(("ann", at("10:10"), 1), watermark=at("12:00"))
    hand.pipeline = code(TumblingEventTimeWindows.of(minutes(30)))
    hand.epoch(("ann", at("12:10"), 1), watermark=at("14:00"))
    rows = hand.rows("results").to_pylist()
    early = next(row for row in rows if row["epoch"] == 1)
    early["window_end"] = early["window_start"] + minutes(30)
    planted = hand.rows("results").from_pylist(rows, schema=hand.rows("results").schema)
    write_deltalake(hand.tables.path("results"), planted, mode="overwrite")
    assert ("final windows", "expect_windows_to_be_aligned") in broken_in(hand.tables, hand.pipeline)


def test_a_retraction_repeats_the_lateness_of_the_code_that_emitted_its_pane(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.append(("ann", at("10:10"), 1), ("ann", at("14:00"), 1))
    lake.stream(LOCAL, hourly_pipeline())
    lake.append(("ann", at("10:20"), 1))
    later = hourly_pipeline(allowed_lateness=minutes(30))
    lake.stream(LOCAL, later)
    lake.reopen(LOCAL, later)
    waits = [
        row["final_at"] - row["window_end"] for row in lake.rows(later, "results").to_pylist() if row["epoch"] == 3
    ]
    assert len({*waits}) == 2
    assert broken_in(lake.tables(later), later) == set()


def test_epochs_of_an_older_version_count_as_those_of_the_next_that_kept_its_shape(tmp_path: Path) -> None:
    hand = ByHand(tmp_path, code(TumblingEventTimeWindows.of(minutes(60))))
    for hour in ("10", "12"):
        hand.epoch(("ann", at(f"{hour}:10"), 1), watermark=at(f"{hour}:59"))
    hand.pipeline = code(TumblingEventTimeWindows.of(minutes(30)))
    hand.epoch(("ann", at("14:10"), 1), watermark=at("16:00"))
    old = read_table(hand.warehouse, hand.tables.open("epochs")).to_pylist()
    for row in old:
        row[epochs.SHAPE] = None if row["epoch"] == 1 else row[epochs.SHAPE]
    schema = read_table(hand.warehouse, hand.tables.open("epochs")).schema
    write_deltalake(hand.tables.path("epochs"), hand.rows("epochs").from_pylist(old, schema=schema), mode="overwrite")
    assert not [each for each in broken_in(hand.tables, hand.pipeline) if each[0] == "final windows"]


@pytest.fixture
def streamed(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> ByHand:
    """A stream of four epochs, each of which makes the window of the previous epoch final."""
    by_hand = ByHand(tmp_path, templates=tmp_path_factory.getbasetemp() / "templates")
    by_hand.hours(10, 12, 14, 16)
    return by_hand


def check(by_hand: ByHand, epoch: int, *, passes: bool, severity: str = "critical") -> None:
    """Record in table quality the outcome of a check of an epoch."""
    number = len(quality.read(by_hand.tables))
    moment, rule = DAY0 + timedelta(seconds=number), ("panes", "expect_panes_to_be_dense", "user")
    row = quality.QualityRow(f"check {number}", moment, 1, epoch, *rule, severity, passes, "", 1, 1, 1)
    quality.append(by_hand.tables, [row])


def fresh(by_hand: ByHand, epoch: int | None = None) -> Pinned:
    return pin(by_hand.tables, by_hand.pipeline, epoch)


def starts(found: Pinned) -> list[str]:
    return sorted(f"{start:%H:%M}" for start in found.fresh["window_start"])


def test_windows_of_all_epochs_since_a_check_are_new_to_the_next(streamed: ByHand) -> None:
    assert starts(fresh(streamed)) == ["10:00", "12:00", "14:00"], "before the first check every final window is new"
    check(streamed, 2, passes=True)
    found = fresh(streamed)
    assert (found.since, starts(found)) == (2, ["12:00", "14:00"])
    assert starts(fresh(streamed, 3)) == ["12:00"]
    assert starts(fresh(streamed, 2)) == ["10:00"], "to the same check again what it saw is new"


def test_without_new_windows_the_own_suite_is_not_run(streamed: ByHand) -> None:
    own = gx.ExpectationSuite(name="own", expectations=[gxe.ExpectColumnMeanToBeBetween(column="total", min_value=0)])
    first = windows_suite("new final windows", own, NewWindows(fresh(streamed), "day"))
    assert first
    assert [suite.table for suite in suites(fresh(streamed), first) if suite.is_own] == ["new final windows: own"]
    check(streamed, 4, passes=True)
    streamed.epoch(watermark=at("16:00"))
    found = fresh(streamed)
    assert found.fresh_windows == 0
    assert windows_suite("new final windows", own, NewWindows(found, "day")) is None


@pytest.mark.long
@pytest.mark.parametrize(("severity", "since"), [("critical", 2), ("warning", 3), ("info", 3)])
def test_what_a_check_held_back_is_new_to_the_next_and_what_it_only_marked_is_not(
    severity: str, since: int, streamed: ByHand
) -> None:
    check(streamed, 2, passes=True)
    check(streamed, 3, passes=False, severity=severity)
    assert fresh(streamed).since == since


def test_of_several_checks_of_an_epoch_the_last_one_counts(streamed: ByHand) -> None:
    check(streamed, 3, passes=False)
    check(streamed, 3, passes=True)
    assert fresh(streamed).since == 3
    check(streamed, 3, passes=False)
    assert fresh(streamed).since is None


def test_a_window_that_was_out_before_the_check_and_final_after_it_is_new(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, session_pipeline(allowed_lateness=timedelta(hours=1)))
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("11:00"))
    check(by_hand, 1, passes=True)
    by_hand.epoch(watermark=at("13:00"))
    found = fresh(by_hand)
    assert found.fresh["epoch"].tolist() == [1]
    assert starts(found) == ["10:00"]


@pytest.mark.first(2)
@pytest.mark.parametrize("windows", [TumblingEventTimeWindows.of(timedelta(hours=1)), GlobalWindows.create()], ids=str)
@pytest.mark.parametrize("watermark", [WatermarkStrategy.no_watermarks(), None], ids=["no watermark", "a watermark"])
def test_windows_that_the_end_of_input_makes_final_are_new_though_they_fired_before(
    windows: WindowAssigner, watermark: WatermarkStrategy | None, lake: Lake
) -> None:
    compute = Windows(windows, trigger=CountTrigger.of(1), aggregate={"events": Count()})
    pipeline = hourly_pipeline(compute=compute, **({} if watermark is None else {"watermark": watermark}))
    project, tables = lake.project(pipeline), lake.tables(pipeline)
    lake.append(("ann", at("10:00"), 1))
    project.stream("hours")
    assert project.quality.check("hours").success
    project.stream("hours", end_of_input=True)
    found = pin(tables, pipeline)
    assert (found.since, found.fresh["epoch"].tolist()) == (1, [1])


def test_a_check_on_a_line_that_a_restore_left_says_nothing(streamed: ByHand) -> None:
    for epoch in (2, 4):
        check(streamed, epoch, passes=True)
    restore(streamed.tables, find_snapshot(streamed.tables, "3"), START_OF_DRIVER)
    streamed.epoch(("eve", at("14:30"), 1), watermark=at("16:00"))
    found = fresh(streamed)
    assert (found.since, starts(found)) == (2, ["12:00", "14:00", "14:30"])


def test_the_event_time_of_a_backfill_is_that_of_all_intervals_since(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    for day in range(3):
        by_hand.epoch(
            ("ann", at("10:00", day), 1),
            watermark=at("00:00", day + 1),
            kind="backfill",
            interval=(at("00:00", day), at("00:00", day + 1)),
        )
    check(by_hand, 1, passes=True)
    assert fresh(by_hand).interval == {"start": to_millis(at("00:00", 1)), "end": to_millis(at("00:00", 3))}
    check(by_hand, 2, passes=True)
    assert fresh(by_hand).interval == {"start": to_millis(at("00:00", 2)), "end": to_millis(at("00:00", 3))}
