"""0 done, 2 usage, 3 refused, 4 lease held, 1 anything else; the same message for people and for programs."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import click
import psutil
import pytest
from deltalake import write_deltalake

from tests.lake import EVENTS, Clock, Lake, at
from tests.pipelines.project.cli.project import Project
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.project.cli import cli, run
from tidegate.pipelines.storage.artifacts import ArtifactsInFolder
from tidegate.pipelines.storage.shared_folder import SharedFolder

DAY = ("--start", "2024-03-01", "--end", "2024-03-02")


OF_A_PIPELINE = (
    "backfill {} --start 2024-03-01 --end 2024-03-02; plan {} --start 2024-03-01 --end 2024-03-02; "
    "stream {} --available-now; late reopen {}; snapshots list {}; snapshots show {}; results {}; snapshots diff {} 1; "
    "snapshots check {}; savepoints create {} a; savepoints list {}; savepoints delete {} a; restore {} 1; "
    "tables vacuum {}; tables optimize {}; forget {} ann --yes; runs {}; why {}; late summary {}; "
    "late prune {} --days 1; driver stop {}; driver unlock {}; driver alive {}"
)
NEEDS_A_SNAPSHOT = (
    "results {}; snapshots show {}; snapshots diff {} latest; snapshots check {}; savepoints create {} a; "
    "restore {} latest; tables vacuum {}; forget {} ann --yes; why {}"
)
CHANGES_TABLES = "restore {} 1; tables vacuum {}; tables optimize {}; forget {} a --yes"


def of(pipeline: str, commands: str) -> list[list[str]]:
    """The commands of a list, for a pipeline."""
    return [command.format(pipeline).split() for command in commands.split("; ")]


def test_an_unknown_pipeline_is_a_usage_error_that_names_those_there_are(project: Project) -> None:
    for command in of("nobody", OF_A_PIPELINE):
        assert "sessions" in project.says(2, "unknown pipeline 'nobody'", *command)


def test_what_needs_a_snapshot_is_refused_before_there_is_one(project: Project) -> None:
    for command in of("sessions", NEEDS_A_SNAPSHOT):
        project.says(3, "tidegate backfill sessions", *command)
    assert not (project.folder / "warehouse").exists()


def test_what_changes_tables_waits_for_no_lease_but_ends_with_4(project: Project) -> None:
    project.by_hand.hours(10)
    with Lease(project.by_hand.tables, "stream", Clock()):
        for command in of("sessions", CHANGES_TABLES):
            project.says(4, f"process {os.getpid()}", *command)


USAGE: list[tuple[str, str, str]] = [
    ("backfill sessions --start 2024-03-02 --end 2024-03-01", "--start", ""),
    ("backfill sessions --start 2024-03-01 --end 2024-03-01", "--start", ""),
    ("backfill sessions --start 2024-02-30 --end 2024-03-01", "--start", ""),
    ("backfill sessions --start 2024-03-01 --end soon", "--end", ""),
    ("backfill sessions --start 2024-02-29 --end 2024-03-01", "--start", "set an earlier `start` of"),
    ("backfill sessions --start 2024-03-01 --end 2024-03-02 --slice 1y", "--slice", ""),
    ("backfill sessions --start 2024-03-01", "--end", ""),
    ("backfill sessions --start 2024-03-01 --end 2024-03-02 --silce 1d", "--silce", ""),
    ("plan sessions", "give --start and --end", ""),
    ("stream sessions --interval=5s --end-of-input", "needs --available-now", ""),
    ("stream sessions --available-now --max-bytes-per-epoch much", "--max-bytes-per-epoch 'much'", ""),
    ("stream sessions --interval often", "--interval", ""),
    ("late reopen sessions --start soon", "--start", ""),
    ("late reopen sessions --start 2024-03-02 --end 2024-03-01", "--end is not after --start", ""),
    ("late reopen sessions --key ann --key bob", "the key has 1 column, user", ""),
    ("results sessions --limit -1", "--limit", ""),
    ("runs sessions --limit -1", "--limit", ""),
    ("why sessions --limit -1", "--limit", ""),
    ("backfil", "'backfil'", "Did you mean 'backfill'?"),
    ("go", "'go'", "`tidegate --help` lists the commands and options"),
    ("--limit 3 runs sessions", "'--limit'", "Give options after the command."),
    ("stream sessions --dry-run", "'--dry-run'", "`tidegate stream --help` lists the commands and options"),
    ("restore sessions", "name the snapshot to restore", "latest, an epoch, or savepoint:NAME"),
    ("late sum sessions", "'sum'", "Did you mean 'summary'?"),
    ("restore sessions 17", "'17'", "`tidegate backfill sessions --start START --end END`"),
    ("restore sessions 17", "no snapshot yet", "For a savepoint, give savepoint:NAME"),
    ("restore sessions --from ../elsewhere", "--from: name '../elsewhere'", ""),
    ("savepoints create sessions first --to warehouse/copies", "is inside the warehouse", ""),
    ("restore sessions --from sessions", "--from names 'sessions' itself", ""),
    ("restore sessions 1 --from others --at elsewhere", "give savepoint:NAME", ""),
    ("restore sessions 1 --tables", "give savepoint:NAME", ""),
    ("restore sessions savepoint:first --tables --keep-stale", "leave out the other options", ""),
    ("restore sessions", "give --restart", ""),
    ("restore sessions latest --dry-run", "--dry-run", ""),
    ("restore sessions latest --restart", "leave out TARGET", ""),
    ("results sessions --to f", "give --format too", ""),
    ("results sessions --format csv --json", "leave out --json and --output", ""),
    ("tables query sessions --dialect oracle", "--dialect", ""),
]
"""Impossible commands: what each message names, and the remedy."""


@pytest.mark.parametrize(("command", "named", "remedy"), USAGE)
def test_what_can_not_be_is_one_line_with_the_remedy_before_anything_is_written(
    project: Project, command: str, named: str, remedy: str
) -> None:
    code, told = project.tidegate(*command.split())
    assert (code, named in told, remedy in " ".join(told.split())) == (2, True, True), told
    assert len(told.splitlines()) == 1, told
    assert not (project.folder / "warehouse").exists()


def test_a_first_run_that_leaves_out_what_lies_since_the_start_is_refused(project: Project) -> None:
    later = ("--start", "2024-03-02", "--end", "2024-03-03")
    told = project.says(3, "set a later `start` of pipelines.sessions", "plan", "sessions", *later)
    assert "run the intervals in between with --fill-gaps" in " ".join(told.split())
    assert not (project.folder / "warehouse").exists()


def test_late_rows_of_what_sees_the_order_of_arrival_are_refused_before_spark_starts(project: Project) -> None:
    windows = "Windows(TumblingEventTimeWindows.of(1000), CountTrigger.of(2), aggregate={'n': Count()})"
    project.rewrite(f"hourly_pipeline('sessions', compute={windows})")
    project.says(3, "trigger CountTrigger", "late", "reopen", "sessions")


def test_programs_get_the_error_as_json_on_the_same_exit_code(project: Project) -> None:
    code, told = project.tidegate("results", "sessions", "--json")
    assert code == 3
    error = json.loads(told)
    assert (error["error"], error["exit_code"]) == ("Refused", 3)
    assert "has no snapshot yet" in error["message"]


def test_a_lease_held_by_another_driver_is_4_and_starts_no_spark(project: Project) -> None:
    write_deltalake(str(project.folder / "warehouse" / "events"), EVENTS.empty_table())
    clock = Clock()
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with Lease(project.by_hand.tables, "stream", clock):
        code, told = project.tidegate("backfill", "sessions", *DAY)
    assert code == 4
    assert f"process {os.getpid()}" in told
    assert {child.pid for child in psutil.Process().children(recursive=True)} == before


@pytest.mark.parametrize("folder", ["work", "warehouse"])
def test_a_folder_that_can_not_be_made_is_a_usage_error_that_names_the_setting(project: Project, folder: str) -> None:
    """A file in its place stops root as well."""
    (project.folder / folder).write_text("")
    project.says(2, f"`{folder}` in tidegate.toml", "backfill", "sessions", *DAY)


def test_an_unexpected_error_is_1_and_one_line_unless_debug_asks_for_more(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.pipelines.project.project.load_config", lambda file: 1 / 0)
    code, told = project.tidegate("runs", "sessions")
    raised = re.escape("tidegate: ZeroDivisionError: division by zero (") + r"\S*test_exit_codes.py:\d+ in <lambda>\)"
    assert code == 1
    assert re.fullmatch(rf"{raised}. Give --debug for the traceback\n", told), told
    code, told = project.tidegate("runs", "sessions", "--debug")
    assert (code, "Traceback" in told) == (1, True)
    assert re.fullmatch(raised, told.splitlines()[-1]), told


def test_what_the_system_lacks_is_1_with_the_way_out_and_the_place(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.by_hand.hours(10)

    def fail(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ArtifactsInFolder, "change", fail)
    code, text = project.tidegate("tables", "vacuum", "sessions")
    assert (code, "make room for the warehouse and the work folder" in text, text.count("\n")) == (1, True, 1), text
    assert f"the lease of pipeline 'sessions' can't be taken in {project.folder}/warehouse/sessions/lease" in text


def test_a_file_that_can_not_be_written_is_1_with_its_name_and_the_way_out(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = project.folder / "missing" / "answer.json"
    told = project.says(1, f"--output {place} can't be written: ", "list", "--output", str(place))
    assert "Give --debug" not in told

    def fail(*given: object) -> None:
        raise OSError(28, "No space left on device")

    project.by_hand.hours(10)
    monkeypatch.setattr(SharedFolder, "move", fail)
    report = project.folder / "work" / "reports" / "sessions" / "epoch-000001.html"
    told = project.says(1, str(report), "report", "sessions")
    assert "make room for the warehouse and the work folder" in told
    assert "Give --debug" not in told


def test_a_lost_library_at_the_end_of_the_process_changes_no_exit_code(tmp_path: Path) -> None:
    """As after Spark's process was killed: something crashes while Python shuts down."""
    script = (
        "import atexit, os, signal, sys\n"
        "from tidegate.pipelines.project.cli import end_process\n"
        "class Native:\n"
        "    def __del__(self, kill=os.kill, process=os.getpid()): kill(process, signal.SIGSEGV)\n"
        "atexit.register(lambda: print('registered'))\n"
        "native = Native()\n"
        "print('told', end='')\n"
        "end_process(3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (3, "toldregistered\n")
    crashed = subprocess.run(
        [sys.executable, "-c", script.replace("end_process(3)", "sys.exit(3)")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
    )
    assert crashed.returncode < 0, "the crash is real"


@pytest.mark.parametrize(
    ("streams", "code", "told"),
    [
        ("<&- >&- 2>&-", 0, ""),
        ("--json >/dev/full", 1, "tidegate: [Errno 28] No space left on device. The disk is full"),
    ],
)
def test_closed_and_full_streams(project: Project, streams: str, code: int, told: str) -> None:
    command = f'exec "{sys.executable}" -m tidegate runs sessions --config "{project.folder}/tidegate.toml" {streams}'
    project.by_hand.hours(10)
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr.startswith(told)) == (code, "", True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_every_command(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run(arguments) == 0
    told = capsys.readouterr().out
    for command in ("backfill", "demo", "results", "snapshots", "stream"):
        assert f"  {command}  " in told
    assert told.partition("Commands:")[2].count("...") == 0, "no sentence is cut off"


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for command in cli.list_commands(click.Context(cli)):
        assert run([command, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"Usage: tidegate {command}")


@pytest.mark.long
def test_listing_snapshots_in_a_process_of_its_own_ends_with_0_in_about_a_second(project: Project) -> None:
    project.by_hand.hours(10)
    command = [sys.executable, "-m", "tidegate", "snapshots", "list", "sessions", "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    used = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, cwd=project.folder, env=environment, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert (done.returncode, done.stderr) == (0, "")
        assert [snapshot["epoch"] for snapshot in json.loads(done.stdout)] == [1]
    # Seconds of processor time: wall time depends on what else the machine does.
    assert min(used) < 1.5, used


CODE = """
from dataclasses import replace
from tests.lake import session_pipeline
from tidegate.windowing import Count, Max, Sum

sessions = session_pipeline({options})
sessions = replace(sessions, compute=replace(sessions.compute, aggregate={aggregate}){more})
"""
SAME = "dict(events=Count(), total=Sum('value'))"


@pytest.fixture
def ran(project: Project) -> Project:
    """A pipeline with an open session, over an existing source table."""
    Lake(project.folder).append(("ann", at("10:00"), 1))
    assert EVENTS.names == ["user", "at", "value"]
    project.by_hand.hours(10)
    return project


def with_code(project: Project, aggregate: str = SAME, options: str = "", more: str = "") -> None:
    code = CODE.format(aggregate=aggregate, options=options, more=more)
    (project.folder / "of_the_project.py").write_text(code)


def test_the_same_code_goes_on(ran: Project) -> None:
    told = ran.data("snapshots", "check", "sessions")
    assert (told["compatible"], told["same_code"], told["migrations"]) == (True, True, [])


def test_a_start_at_the_beginning_of_the_source_needs_no_snapshot(ran: Project) -> None:
    told = ran.data("snapshots", "check", "sessions", "none")
    assert (told["compatible"], told["epoch"]) == (True, None)


def test_an_added_and_a_dropped_aggregate_are_migrations(ran: Project) -> None:
    with_code(ran, "dict(events=Count(), largest=Max('value'))", more=", dropped=('total',)")
    told = ran.data("snapshots", "check", "sessions")
    assert told["same_code"] is False
    assert sorted(told["migrations"]) == ["'largest' is null for windows that are already open", "'total' is dropped"]
    ran.says(0, "the next epoch migrates the state", "snapshots", "check", "sessions")


def test_every_field_that_is_refused_is_named_with_a_way_out(ran: Project) -> None:
    with_code(ran, "dict(events=Count())", options="max_parallelism=64")
    told = ran.says(
        3,
        "max_parallelism is 128 in the snapshot and 64 in the code. Give the pipeline another name",
        "snapshots",
        "check",
        "sessions",
    )
    assert "contents 'acc_total' is" in told
    assert "dropped=(" in told
