from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.lake import EVENTS, at
from tests.pipelines.project.cli.project import CORRECTING, Project


def two_epochs(project: Project) -> None:
    by_hand = project.by_hand
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    by_hand.epoch(("ann", at("10:20"), 2), ("bob", at("10:25"), 3), watermark=at("10:20"))


def test_snapshots_are_listed_newest_first_with_their_line(project: Project) -> None:
    two_epochs(project)
    listed = project.data("snapshot", "list", "sessions")
    assert [(entry["epoch"], entry["parent"], entry["timeline"]) for entry in listed] == [(2, 1, 1), (1, None, 1)]
    project.says(0, "2024-03-01 10:20", "snapshot", "list", "sessions")


def test_a_snapshot_shows_its_manifest_windows_timers_and_key_groups(project: Project) -> None:
    two_epochs(project)
    shown = project.data("snapshot", "show", "sessions")
    assert shown["manifest"]["epoch"] == 2
    windows = {window["user"]: window for window in shown["windows"]}
    assert windows["ann"]["acc_total"] == 3
    assert len(windows["bob"]["event_time_timers"]) == 1
    assert sum(group["windows"] for group in shown["key_groups"]) == 2
    assert sum(group["event_time_timers"] for group in shown["key_groups"]) == 2


def test_the_position_of_a_stream_has_no_event_time_that_a_backfill_would_have(project: Project) -> None:
    two_epochs(project)
    code, told = project.tidegate("snapshot", "show", "sessions")
    assert (code, "position in events" in told, "event time before" in told) == (0, True, False), told
    project.by_hand.epoch(
        ("ann", at("11:00"), 1), watermark=at("12:00"), kind="backfill", interval=(at("10:00"), at("12:00"))
    )
    assert "event time before 2024-03-01 12:00:00" in project.tidegate("snapshot", "show", "sessions")[1]


def test_an_older_snapshot_is_shown_as_it_was(project: Project) -> None:
    two_epochs(project)
    shown = project.data("snapshot", "show", "sessions", "1")
    assert [(window["user"], window["acc_total"]) for window in shown["windows"]] == [("ann", 1)]


def test_an_epoch_without_a_snapshot_is_a_usage_error_with_those_there_are(project: Project) -> None:
    two_epochs(project)
    project.says(
        2,
        "'9' is not a snapshot of sessions: give latest, savepoint:NAME, or one of the epochs 1, 2",
        "snapshot",
        "show",
        "sessions",
        "9",
    )


def test_results_show_final_windows_unless_asked_for_more(project: Project) -> None:
    two_epochs(project)
    project.by_hand.epoch(watermark=at("10:52"))
    assert [row["user"] for row in project.data("results", "sessions")] == ["ann"]
    assert len(project.data("results", "sessions", "--view", "all")) == 1
    project.says(0, "10:00:00 to 10:50:00", "results", "sessions")


def test_results_can_be_sorted_by_any_column_they_have(project: Project) -> None:
    two_epochs(project)
    project.by_hand.epoch(watermark=at("12:00"))
    assert [row["total"] for row in project.data("results", "sessions", "--sort", "total")] == [3, 3]
    project.says(2, "no column 'totl'; the columns are user, window_id", "results", "sessions", "--sort", "totl")


def test_output_leaves_the_json_in_a_file_whole_or_not_at_all(project: Project, tmp_path: Path) -> None:
    two_epochs(project)
    code, _ = project.tidegate("snapshot", "list", "sessions", "--output", str(tmp_path / "told.json"))
    assert code == 0
    assert len(json.loads((tmp_path / "told.json").read_text())) == 2
    assert not (tmp_path / "told.part").exists()


def test_a_dry_run_says_what_would_become_of_each_interval(project: Project) -> None:
    by_hand = project.by_hand
    by_hand.epoch(
        ("ann", at("10:00"), 1), watermark=at("00:00", 1), kind="backfill", interval=(at("00:00"), at("00:00", 1))
    )
    write_deltalake(str(project.folder / "warehouse" / "events"), EVENTS.empty_table())
    told = project.data(
        "backfill", "sessions", "--start", "2024-03-01", "--end", "2024-03-03", "--slice", "1d", "--dry-run"
    )
    assert [plan["state"].split(":")[0].split(",")[0] for plan in told["planned"]] == ["run before", "would run"]
    told = project.data("backfill", "sessions", "--start", "2024-03-05", "--end", "2024-03-06", "--dry-run")
    assert told["planned"][0]["state"] == "refused: there is a gap before it, which --fill-gaps runs"
    told = project.data(
        "backfill", "sessions", "--start", "2024-03-05", "--end", "2024-03-06", "--fill-gaps", "--dry-run"
    )
    starts = [at("00:00", number).timestamp() * 1000 for number in range(1, 5)]
    assert [(plan["interval"]["start"], plan["state"]) for plan in told["planned"]] == [
        (start, "would run") for start in starts
    ]


def test_a_dry_run_names_the_versions_that_changed_rows(project: Project) -> None:
    project.rewrite(CORRECTING)
    path = str(project.folder / "warehouse" / "events")
    for value in (1, 2):
        rows = pa.Table.from_pylist([{"user": "ann", "at": at("10:00"), "value": value}], schema=EVENTS)
        write_deltalake(path, rows, mode="append")
    day = ("backfill", "sessions", "--start", "2024-03-02", "--end", "2024-03-03", "--dry-run")
    project.by_hand.epoch(
        ("ann", at("10:00"), 1), watermark=at("00:00", 1), kind="backfill", interval=(at("00:00"), at("00:00", 1))
    )
    code, told = project.tidegate(*day)
    assert (code, "rows of the source changed" in told) == (0, False)
    DeltaTable(path).delete("value = 2")
    told = project.says(0, "rows of the source changed in version 2: their windows would be corrected first", *day)
    assert "the changes are read from a comparison of files" in " ".join(told.split())
    assert "would be corrected: 1 deleted, 0 added" in " ".join(told.split())
    (changed,) = project.data(*day)["changed"]
    assert (changed["gone"], changed["came"]) == (1, 0)
    assert changed["interval"] == {"start": 1_709_251_200_000, "end": 1_709_337_600_000}


def test_the_views_come_as_queries_that_need_no_catalog(project: Project) -> None:
    two_epochs(project)
    table = f"delta.`{project.by_hand.tables.path('results')}`"
    for view in ("final", "latest", "all"):
        code, told = project.tidegate("results", "sessions", "--view", view, "--sql")
        assert (code, told.count("\n"), table in told) == (0, 1, True)
    for option, value in (("--dialect", "duckdb"), ("--schema", "lake.visits")):
        project.says(2, f"{option}: only for a query: also give --sql", "results", "sessions", option, value)
    final = project.data("results", "sessions", "--sql")["sql"]
    assert f"FROM delta.`{project.by_hand.tables.path('epochs')}`" in final, "the watermark is that of when it is run"
