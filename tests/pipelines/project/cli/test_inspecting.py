"""Commands that only inspect (runs, why, late summary), and stop, which only sends a request."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.lake import Clock, Lake, at, session_pipeline
from tests.pipelines.by_hand import ByHand, HandPlan
from tests.pipelines.project.cli.project import CODE, CORRECTING, TOML, Project
from tests.pipelines.quiet import quiet_pipeline
from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.ask.explain import explanation_of
from tidegate.pipelines.epoch.event_times import CommitStep
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.manifest import PartitionWatermark
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.project.cli import run
from tidegate.windowing import IntervalJoin, WatermarkStrategy
from tidegate.windowing.time import MAX_TIMESTAMP, show_millis, to_millis
from tidegate.windowing.watermarks import PunctuatedWatermarks


def test_runs_shows_what_went_in_and_came_out_of_each_epoch(project: Project) -> None:
    by_hand = project.by_hand
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("11:00"))
    by_hand.epoch(("bob", at("10:00"), 1), ("cem", at("11:30"), 1), watermark=at("11:30"))
    runs = project.data("runs", "sessions")
    assert [(run["epoch"], run["events_in"], run["late"], run["open_windows"]) for run in runs] == [
        (2, 2, 1, 1),
        (1, 1, 0, 0),
    ]
    assert len(project.data("runs", "sessions", "--limit", "1")) == 1
    project.says(0, "2024-03-01T11:30:00Z", "runs", "sessions")


def test_late_rows_are_counted_by_reason_with_how_late_they_were(project: Project) -> None:
    by_hand = project.by_hand
    by_hand.epoch(("ann", at("12:00"), 1), watermark=at("12:00"))
    late = [(f"user{minutes}", at("12:00") - timedelta(minutes=minutes), 1) for minutes in range(31, 131)]
    by_hand.epoch(*late, watermark=at("12:01"))
    told = project.data("late", "summary", "sessions")
    (group,) = told["groups"]
    assert (told["rows"], group["reason"], group["rows"], group["windows"]) == (100, "late", 100, 100)
    assert (group["median"], group["p95"], group["largest"]) == (81 * 60_000, 126 * 60_000, 130 * 60_000)
    _, shown = project.tidegate("late", "summary", "sessions")
    assert ("1.35 h" in shown, "2.17 h" in shown) == (True, True), "for people, in hours"
    by_user = project.data("late", "summary", "sessions", "--by", "user")["groups"]
    assert len(by_user) == 100
    assert sum(group["rows"] for group in by_user) == 100
    project.says(2, "no column 'usr'; the columns are user, at, value", "late", "summary", "sessions", "--by", "usr")


def test_late_rows_behind_the_end_of_input_are_no_length_of_time_late(project: Project) -> None:
    project.by_hand.epoch(("ann", at("12:00"), 1), watermark=at("12:00"))
    plan = project.by_hand.planned([], at("12:30"))
    ended = HandPlan(replace(plan.plan, steps=(CommitStep(plan.plan.clock, MAX_TIMESTAMP),)), ())
    publish(project.by_hand.tables, project.by_hand.committed(ended))
    late = project.by_hand.planned([("bob", at("14:00"), 1)], at("15:00"))
    late = HandPlan(replace(late.plan, steps=ended.plan.steps), late.rows)
    publish(project.by_hand.tables, project.by_hand.committed(late))
    project.says(0, "after the end of input", "late", "summary", "sessions")
    shown = project.says(0, "epochs of sessions (3 of 3)", "runs", "sessions")
    assert (shown.count("end of input"), shown.count("2024-03-01T12:00:00Z")) == (2, 1)
    project.says(0, "end of input", "runs", "sessions", "--limit", "1")


def test_late_rows_of_old_epochs_are_removed_and_still_counted(project: Project) -> None:
    by_hand = project.by_hand
    by_hand.epoch(("ann", at("12:00"), 1), watermark=at("12:00"))
    by_hand.epoch(("bob", at("10:00"), 1), ("cem", at("10:00"), 2), watermark=at("12:00"))
    nothing = [{"table": "late", "rows": 0}, {"table": "rejects", "rows": 0}]
    assert project.data("late", "prune", "sessions", "--days", "36500") == {"pipeline": "sessions", "removed": nothing}
    code, told = project.tidegate("late", "prune", "sessions", "--days", "1")
    assert (code, told.split()[-4:]) == (0, ["late", "2", "rejects", "0"])
    assert project.data("late", "summary", "sessions")["rows"] == 0
    assert [(run["kind"], run["late"]) for run in project.data("runs", "sessions")] == [
        ("prune", 0),
        ("stream", 2),
        ("stream", 0),
    ]


def test_why_names_the_partition_that_holds_event_time_back_and_for_how_long(project: Project) -> None:
    quiet = PartitionWatermark(watermark=to_millis(at("10:00")), last_commit=to_millis(at("10:05")))
    lively = PartitionWatermark(watermark=to_millis(at("12:00")), last_commit=to_millis(at("12:05")))
    idle = PartitionWatermark(watermark=to_millis(at("09:00")), idle=True, aligned=False)
    project.by_hand.epoch(
        ("ann", at("11:00"), 1), watermark=at("10:00"), partitions={"JFK": lively, "LGA": quiet, "EWR": idle}
    )
    told = project.data("why", "sessions")
    assert [(partition["name"], partition["holds"]) for partition in told["partitions"]] == [
        ("LGA", True),
        ("JFK", False),
        ("EWR", False),
    ]
    (window,) = told["windows"]
    assert window["missing"] == 90 * 60_000 - 1
    reason, because = window["reason"], window["reason"]["because"]
    assert (reason["kind"], reason["at"]) == ("watermark", to_millis(at("11:30")) - 1)
    assert (because["kind"], because["partition"], because["at"]) == ("held_back", "LGA", to_millis(at("10:00")))
    text = project.says(0, "idle: the watermark does not wait for it", "why", "sessions")
    assert "holds the watermark back by 2 h, until its next event; no idle timeout is set" in text


def test_why_tells_when_a_quiet_partition_will_be_idle_and_when_the_next_timer_is_due(project: Project) -> None:
    strategy = "WatermarkStrategy.for_monotonous_timestamps().with_idleness(timedelta(minutes=10))"
    project.rewrite(f"session_pipeline(watermark={strategy})")
    quiet = PartitionWatermark(watermark=to_millis(at("10:00")), last_commit=to_millis(at("10:05")))
    project.by_hand.epoch(("ann", at("11:00"), 1), watermark=at("10:00"), partitions={"": quiet})
    told = project.data("why", "sessions")
    assert told["partitions"][0]["idle_from"] == to_millis(at("10:15")) + 1
    assert told["next_timers"] == {"event": to_millis(at("11:30")) - 1, "processing": None}
    assert told["watermark_lag_ms"] == project.by_hand.head().manifest.watermark_lag
    project.says(0, "until 2024-03-01T10:15", "why", "sessions")


def test_a_source_whose_clock_is_ahead_has_had_rows_just_now(project: Project) -> None:
    ahead = PartitionWatermark(watermark=to_millis(at("10:00")), last_commit=to_millis(at("10:05", day=365_000)))
    project.by_hand.epoch(("ann", at("11:00"), 1), watermark=at("10:00"), partitions={"": ahead})
    assert [partition["quiet"] for partition in project.data("why", "sessions")["partitions"]] == [0]


def test_why_of_a_key_tells_its_late_rows_that_no_window_holds(project: Project) -> None:
    by_hand = project.by_hand
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("12:00"))
    by_hand.epoch(("ann", at("10:00"), 2), ("bob", at("10:00"), 2), watermark=at("12:00"))
    assert project.data("why", "sessions", "--key", "ann")["late_rows"] == 1
    project.says(0, ": `tidegate late reopen sessions` adds them to their windows", "why", "sessions", "--key", "ann")
    assert project.data("late", "summary", "sessions")["groups"][0]["windows"] == 2, "one of each key"


def test_why_does_not_offer_to_reopen_late_rows_that_can_not_be(project: Project) -> None:
    by_hand = project.by_hand
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("12:00"))
    by_hand.epoch(("ann", at("10:00"), 2), watermark=at("12:00"))
    aggregate = "aggregate={'events': Count(), 'total': Sum('value')}"
    windows = f"Windows(EventTimeSessionWindows.with_gap(1_800_000), CountTrigger.of(2), {aggregate})"
    project.rewrite(f"session_pipeline(compute={windows})")
    project.says(
        0,
        "1; they can't be reopened",
        "why",
        "sessions",
        "--key",
        "ann",
    )
    project.says(3, "trigger CountTrigger", "late", "reopen", "sessions")


def test_why_of_one_key_tells_its_windows_and_what_fired_last(project: Project) -> None:
    by_hand = project.by_hand
    by_hand.epoch(("ann", at("10:00"), 1), ("bob", at("10:00"), 1), watermark=at("11:00"))
    by_hand.epoch(("ann", at("12:00"), 1), ("bob", at("12:10"), 1), watermark=at("12:00"))
    told = project.data("why", "sessions", "--key", "ann")
    assert [window["key"] for window in told["windows"]] == [{"user": "ann"}]
    assert told["last_fired"] == {
        "epoch": 1,
        "window_start": "2024-03-01T10:00:00+00:00",
        "window_end": "2024-03-01T10:30:00+00:00",
        "pane": 0,
        "timing": "on_time",
        "retracted": None,
    }
    fired = "2024-03-01T10:00:00Z to 2024-03-01T10:30:00Z, pane 0 (on_time), in epoch 1"
    project.says(0, fired, "why", "sessions", "--key", "ann")
    assert project.data("why", "sessions", "--key", "nobody")["windows"] == []
    project.says(2, "the key has 1 column, user", "why", "sessions", "--key", "ann", "--key", "JFK")


@pytest.mark.parametrize("command", [("why", "sessions"), ("late", "reopen", "sessions")], ids=" ".join)
def test_a_key_that_is_no_value_of_its_column_is_a_usage_error(project: Project, command: tuple[str, ...]) -> None:
    project.rewrite("session_pipeline(key=('value',))")
    by_hand = ByHand(project.folder, session_pipeline(key=("value",)))
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    code, told = project.tidegate(*command, "--key", "abc")
    assert code == 2
    assert told == (
        "tidegate: 'abc' is not a value of key column 'value', which has type bigint: give a 64-bit integer, "
        "such as 42\n"
    )


@pytest.mark.parametrize(
    ("interval", "end", "command"),
    [
        ((at("00:00"), at("00:00", 1)), "", "--start 2024-03-02T00:00:00Z --end 2024-03-03T00:00:00Z"),
        ((at("18:00"), at("00:00", 1)), "", "--start 2024-03-02T00:00:00Z --end 2024-03-02T06:00:00Z"),
        (
            (at("00:00"), at("00:00", 1)),
            "end = 2024-03-02T12:00:00\n",
            "--start 2024-03-02T00:00:00Z --end 2024-03-02T12:00:00Z",
        ),
        ((at("00:00"), at("00:00", 1)), "end = 2024-03-02\n", "--end-of-input"),
    ],
    ids=["a day", "six hours", "up to the end", "after the end"],
)
def test_why_in_a_backfill_gives_the_whole_command_once(
    project: Project, interval: tuple[datetime, datetime], end: str, command: str
) -> None:
    with (project.folder / "tidegate.toml").open("a") as toml:
        toml.write(end)
    by_hand = project.by_hand
    rows = [(user, at("23:50"), 1) for user in ("ann", "bob")]
    by_hand.epoch(*rows, watermark=at("00:00", 1), kind="backfill", interval=interval)
    _, text = project.tidegate("why", "sessions")
    given = f"`tidegate backfill sessions {command}`"
    assert text.count("tidegate backfill") == text.count(given) == 1, text
    reasons = [window["reason"]["because"] for window in project.data("why", "sessions")["windows"]]
    assert {f"`{reason['remedy']['command']}`" for reason in reasons} == {given}


def test_why_of_a_key_that_never_came_says_so(project: Project) -> None:
    by_hand = project.by_hand
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("12:00"))
    unseen = r"no table has a row of it: check that it is spelled as in the data (a null is \N). Events that `where`"
    assert unseen not in project.tidegate("why", "sessions", "--key", "ann")[1]
    code, text = project.tidegate("why", "sessions", "--key", "anne")
    assert (code, unseen in text) == (0, True), text


def test_why_of_a_negative_key_names_a_trace_that_runs(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.rewrite("session_pipeline(key=('value',))")
    Lake(project.folder).append(("ann", at("10:00"), -5))
    project.tidegate("stream", "sessions", "--available-now")
    project.says(0, "see `tidegate trace sessions -- -5`", "why", "sessions", "--key", "-5")
    monkeypatch.chdir(project.folder)
    assert run(["trace", "sessions", "--", "-5"]) == 0


def test_why_says_that_the_window_that_fired_last_was_retracted(project: Project) -> None:
    project.rewrite(CORRECTING)
    lake = Lake(project.folder)
    lake.append(("ann", at("10:00"), 1), ("bob", at("16:00"), 1))
    project.tidegate("stream", "sessions", "--available-now")
    DeltaTable(lake.path("events")).delete("user = 'ann'")
    project.tidegate("stream", "sessions", "--available-now")
    assert project.data("why", "sessions", "--key", "ann")["last_fired"]["retracted"] == 2
    project.says(0, "in epoch 1, retracted in epoch 2", "why", "sessions", "--key", "ann")


def test_why_tells_when_all_partitions_are_idle(project: Project) -> None:
    idle = PartitionWatermark(watermark=to_millis(at("10:00")), idle=True)
    project.by_hand.epoch(("ann", at("11:00"), 1), watermark=at("10:00"), partitions={"": idle})
    (window,) = project.data("why", "sessions")["windows"]
    assert window["reason"]["because"]["kind"] == "idle"


def test_nothing_holds_event_time_back_after_the_end_of_input(project: Project) -> None:
    source = PartitionWatermark(watermark=to_millis(at("10:00")))
    plan = project.by_hand.planned([("ann", at("11:00"), 1)], at("12:00"), partitions={"": source})
    ended = HandPlan(replace(plan.plan, steps=(CommitStep(plan.plan.clock, MAX_TIMESTAMP),)), ())
    publish(project.by_hand.tables, project.by_hand.committed(ended))
    assert [partition["holds"] for partition in project.data("why", "sessions")["partitions"]] == [False]
    assert "holds the watermark back" not in project.tidegate("why", "sessions")[1]


def test_why_tells_a_window_that_fired_and_waits_for_late_elements(project: Project) -> None:
    project.rewrite("session_pipeline(allowed_lateness=timedelta(hours=2))")
    by_hand = project.by_hand
    by_hand.pipeline = session_pipeline(allowed_lateness=timedelta(hours=2))
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("11:00"))
    (window,) = project.data("why", "sessions")["windows"]
    assert (window["fired"], window["lateness_left"]) == (1, 90 * 60_000 - 1)
    assert (window["reason"]["kind"], window["reason"]["at"]) == ("late_elements", to_millis(at("12:30")) - 1)
    project.says(
        0, "it has fired, and accepts late elements until the watermark is 2024-03-01T12:29", "why", "sessions"
    )


def test_stop_reaches_the_driver_and_says_so_when_there_is_none(project: Project) -> None:
    project.says(3, "pipeline 'sessions' has no running driver", "driver", "stop", "sessions")
    with Lease(project.by_hand.tables, "stream", Clock()) as lease:
        told = project.says(
            4, "(stream) was asked to stop, but its epoch did not end", "driver", "stop", "sessions", "--patience", "0"
        )
        assert "(stream) to stop after its current epoch" in told
        assert lease.stop_requested


def test_results_are_shown_in_a_zone_with_the_local_date(project: Project) -> None:
    project.by_hand.epoch(("ann", at("23:30"), 1), watermark=at("23:30", 1))
    (row,) = project.data("results", "sessions", "--local", "Europe/Berlin")
    assert (row["window_start"], row["window_date"]) == ("2024-03-02T00:30:00+01:00", "2024-03-02")
    code, told = project.tidegate("results", "sessions", "--local", "Europe/Berlin")
    assert (code, "2024-03-02T00:30:00+01:00 to 2024" in told, "window_date" in told) == (0, True, True), told
    assert "window_date" not in project.data("results", "sessions")[0]
    assert "unknown zone 'Mars'" in project.tidegate("results", "sessions", "--local", "Mars")[1]


@pytest.fixture(scope="module")
def two_epochs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    by_hand = ByHand(tmp_path_factory.mktemp("quiet"), quiet_pipeline())
    by_hand.epoch(("ann", at("10:00"), 1), ("bob", at("10:05"), 2), watermark=at("10:01"))
    by_hand.epoch(("ann", at("10:30"), 4), watermark=at("10:12"))
    return by_hand.folder


@pytest.fixture
def quiet(project: Project, two_epochs: Path) -> Project:
    """A project with the pipeline `quiet`, and two epochs of it."""
    toml = Path(project.folder / "tidegate.toml")
    toml.write_text(TOML + '\n[pipelines.quiet]\nobject = "of_the_project:quiet"\nstart = 2024-03-01\n')
    (project.folder / "of_the_project.py").write_text(
        CODE + "\nfrom tests.pipelines.quiet import quiet_pipeline\n\nquiet = quiet_pipeline()\n"
    )
    shutil.copytree(two_epochs, project.folder, dirs_exist_ok=True)
    return project


def test_results_are_what_the_function_put_out(quiet: Project) -> None:
    (row,) = quiet.data("results", "quiet")
    assert (row["user"], row["total"], row["event_time"]) == ("ann", 5, "2024-03-01T10:10:00+00:00")
    for view in ("final", "latest", "all"):
        quiet.says(0, f"{view} results of quiet (1 of 1)", "results", "quiet", "--view", view)
    assert "WHERE NOT `stale`" in quiet.data("tables", "query", "quiet")["sql"]


def test_why_tells_what_each_key_waits_for(quiet: Project) -> None:
    told = quiet.data("why", "quiet", "--key", "bob")
    (bob,) = told["windows"]
    assert bob["reason"]["kind"] == "watermark"
    assert show_millis(bob["reason"]["at"]).startswith("2024-03-01T10:15")
    assert quiet.data("why", "quiet", "--key", "ann")["last_fired"]["epoch"] == 2
    quiet.says(0, "a result, in epoch 2", "why", "quiet", "--key", "ann")
    quiet.says(0, "keys (2 of 2", "why", "quiet")


def test_snapshots_are_shown_and_compared(quiet: Project) -> None:
    shown = quiet.data("snapshots", "show", "quiet")["windows"]
    assert {row["user"]: row["user_state"] for row in shown} == {"ann": {"total": 5}, "bob": {"total": 2}}
    for command, told in (
        (("snapshots", "show", "quiet"), "total 5"),
        (("snapshots", "diff", "quiet", "1", "2"), "user_state"),
        (("runs", "quiet"), "stream"),
    ):
        quiet.says(0, told, *command)


def test_explain_says_what_the_function_is_and_keeps(quiet: Project) -> None:
    # The rows are made by hand, so there is no source, and the explanation ends with 3.
    code, shown = quiet.tidegate("explain", "quiet", "--json")
    told = json.loads(shown)
    assert code == 3
    assert told["operator"] == {"name": "row", "reason": "KeyedProcess sees elements one by one, with state and timers"}
    assert told["order"].startswith(
        "the result depends on the order of arrival (a process function with time_sorted=False)"
    )
    steps = [step["does"] for step in told["steps"]]
    assert any("Quiet" in step and "timers" in step for step in steps), steps
    assert any("state (total)" in step for step in steps)


def test_explain_says_how_two_sources_become_one() -> None:
    explanation = explanation_of(
        Pipeline(
            name="paid",
            source=DeltaSource("orders", timestamp="ordered_at"),
            key=("customer",),
            watermark=WatermarkStrategy.for_bounded_out_of_orderness(5),
            compute=IntervalJoin.between(-300_000, 900_000),
            right=Input(source=DeltaSource("payments", timestamp="at"), key=("payer",)),
        )
    )
    steps = [step.does for step in explanation.steps]
    assert (
        "commits of both sources by commit time (left first if equal); the watermark is the smaller of the two"
        in steps[0]
    )
    assert [step.split(":")[0] for step in steps[1:3]] == ["read the files of orders", "read the files of payments"]
    assert "right - left from -5 min to 15 min" in " ".join(steps)
    assert explanation.order.startswith("the result depends on the set of elements")


def test_explain_tells_of_a_generator_that_sees_every_event() -> None:
    own = WatermarkStrategy.for_generator(lambda: PunctuatedWatermarks(lambda event, timestamp: timestamp))
    explained = explanation_of(replace(quiet_pipeline(), watermark=own))
    told = "the events of events, by commit and time, through your watermark generator"
    assert any(told in step.does for step in explained.steps)
    assert not any(told in step.does for step in explanation_of(quiet_pipeline()).steps)
