"""0 done, 2 usage, 3 refused, 4 lease held, 1 anything else; the same message for people and for programs."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import click
import psutil
import pytest
from deltalake import write_deltalake

from tests.lake import EVENTS, Clock, at
from tests.pipelines.project.cli.project import Project
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.project.cli import cli, run

DAY = ("--start", "2024-03-01", "--end", "2024-03-02")


@pytest.mark.parametrize(
    "command",
    [
        ("backfill", "nobody", *DAY),
        ("backfill", "nobody", *DAY, "--dry-run"),
        ("stream", "nobody", "--available-now"),
        ("late", "reopen", "nobody"),
        ("snapshot", "list", "nobody"),
        ("snapshot", "show", "nobody"),
        ("results", "nobody"),
        ("snapshot", "diff", "nobody", "1"),
        ("snapshot", "check", "nobody"),
        ("savepoint", "create", "nobody", "a"),
        ("savepoint", "list", "nobody"),
        ("savepoint", "delete", "nobody", "a"),
        ("restore", "nobody", "1"),
        ("vacuum", "nobody"),
        ("optimize", "nobody"),
        ("forget", "nobody", "ann", "--yes"),
        ("runs", "nobody"),
        ("why", "nobody"),
        ("late", "summary", "nobody"),
        ("late", "prune", "nobody", "--days", "1"),
        ("stop", "nobody"),
        ("unlock", "nobody"),
    ],
    ids=" ".join,
)
def test_an_unknown_pipeline_is_a_usage_error_that_names_those_there_are(
    project: Project, command: tuple[str, ...]
) -> None:
    code, told = project.tidegate(*command)
    assert code == 2
    assert "unknown pipeline 'nobody'" in told
    assert "sessions" in told


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--start", "2024-03-02", "--end", "2024-03-01"), "--start"),
        (("--start", "2024-03-01", "--end", "2024-03-01"), "--start"),
        (("--start", "2024-02-30", "--end", "2024-03-01"), "--start"),
        (("--start", "2024-03-01", "--end", "soon"), "--end"),
        (("--start", "2024-02-29", "--end", "2024-03-01"), "set an earlier `start` of pipelines.sessions"),
        ((*DAY, "--slice", "1y"), "--slice"),
        (("--start", "2024-03-01"), "--end"),
        ((*DAY, "--silce", "1d"), "--silce"),
    ],
)
def test_bad_times_and_options_are_usage_errors_and_nothing_is_written(
    project: Project, arguments: tuple[str, ...], named: str
) -> None:
    code, told = project.tidegate("backfill", "sessions", *arguments)
    assert (code, named in told) == (2, True), told
    assert not (project.folder / "warehouse").exists()


def test_a_first_run_that_leaves_out_what_lies_since_the_start_is_refused(project: Project) -> None:
    later = ("--start", "2024-03-02", "--end", "2024-03-03")
    code, told = project.tidegate("backfill", "sessions", *later, "--dry-run")
    assert (code, "set a later `start` of pipelines.sessions" in told) == (3, True), told
    assert "run the intervals in between with --fill-gaps" in " ".join(told.split())
    assert not (project.folder / "warehouse").exists()


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (("stream", "sessions", "--available-now", "--max-bytes-per-epoch", "much"), "--max-bytes-per-epoch 'much'"),
        (("stream", "sessions", "--interval", "often"), "--interval"),
        (("late", "reopen", "sessions", "--start", "soon"), "--start"),
        (("late", "reopen", "sessions", "--start", "2024-03-02", "--end", "2024-03-01"), "--end is not after --start"),
        (("late", "reopen", "sessions", "--key", "ann", "--key", "bob"), "the key has 1 column(s), user"),
        (("late", "reopen", "sessions", "--ask-stream"), "reopen_schedule"),
    ],
)
def test_what_can_not_be_is_told_before_spark_starts(project: Project, command: tuple[str, ...], named: str) -> None:
    code, told = project.tidegate(*command)
    assert (code, named in told) == (2, True), told
    assert not (project.folder / "warehouse").exists()


def test_late_rows_of_what_sees_the_order_of_arrival_are_refused_before_spark_starts(project: Project) -> None:
    (project.folder / "of_the_project.py").write_text(
        "from tests.lake import hourly_pipeline\n"
        "from windowing import Count, CountTrigger, TumblingEventTimeWindows, Windows\n"
        "windows = Windows(TumblingEventTimeWindows.of(1000), CountTrigger.of(2), aggregate={'n': Count()})\n"
        "sessions = hourly_pipeline('sessions', compute=windows)\n"
    )
    code, told = project.tidegate("late", "reopen", "sessions")
    assert (code, "trigger CountTrigger" in told) == (3, True), told


@pytest.mark.parametrize("command", ["results", "runs", "why"])
def test_a_negative_limit_is_a_usage_error(project: Project, command: str) -> None:
    code, told = project.tidegate(command, "sessions", "--limit", "-1")
    assert (code, "--limit" in told) == (2, True), told


@pytest.mark.parametrize(
    ("command", "named", "way_out"),
    [
        (("backfil",), "'backfil'", "Did you mean 'backfill'?"),
        (("go",), "'go'", "`tidegate --help` lists the commands and options"),
        (("--limit", "3", "runs", "sessions"), "'--limit'", "Give options after the command."),
        (("stream", "sessions", "--dry-run"), "'--dry-run'", "`tidegate stream --help` lists the commands and options"),
        (("restore", "sessions"), "'TARGET'", "See `tidegate restore --help`"),
        (("late", "sum", "sessions"), "'sum'", "Did you mean 'summary'?"),
        (("restore", "sessions", "17"), "'17'", "first run `tidegate backfill sessions` with --start and --end"),
        (("restore", "sessions", "17"), "no snapshot yet", "For a savepoint, give savepoint:NAME"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else None,
)
def test_an_unknown_word_is_a_usage_error_with_the_way_out(
    project: Project, command: tuple[str, ...], named: str, way_out: str
) -> None:
    code, told = project.tidegate(*command)
    assert (code, named in told, way_out in told) == (2, True, True), told
    assert len(told.splitlines()) == 1, told


def test_a_pipeline_without_a_snapshot_is_refused_with_commands_that_can_be_run(project: Project) -> None:
    code, told = project.tidegate("why", "sessions")
    assert code == 3
    assert "first run `tidegate backfill sessions` with --start and --end" in told
    stream = next(part for part in told.split("`") if part.startswith("tidegate stream"))
    words = stream.split()[1:]
    with click.Context(cli) as ctx:
        command = cli.get_command(ctx, words[0])
    assert command is not None
    # Parsing it checks that all it needs is there.
    assert command.make_context("stream", words[1:]).params["available_now"] is True


def test_without_a_tidegate_toml_every_command_says_where_to_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["results", "sessions", "--config", str(tmp_path / "tidegate.toml")]) == 2
    assert str(tmp_path / "tidegate.toml") in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ("results", "sessions"),
        ("snapshot", "show", "sessions"),
        ("snapshot", "diff", "sessions", "latest"),
        ("snapshot", "check", "sessions"),
        ("savepoint", "create", "sessions", "a"),
        ("restore", "sessions", "latest"),
        ("vacuum", "sessions"),
        ("forget", "sessions", "ann", "--yes"),
        ("why", "sessions"),
    ],
    ids=" ".join,
)
def test_what_needs_a_snapshot_is_refused_before_there_is_one(project: Project, command: tuple[str, ...]) -> None:
    code, told = project.tidegate(*command)
    assert code == 3
    assert "tidegate backfill sessions" in told
    assert not (project.folder / "warehouse").exists()


def test_programs_get_the_error_as_json_on_the_same_exit_code(project: Project) -> None:
    code, told = project.tidegate("results", "sessions", "--json")
    assert code == 3
    error = json.loads(told)
    assert (error["error"], error["exit_code"]) == ("Refused", 3)
    assert "has no snapshot yet" in error["message"]


@pytest.mark.parametrize(
    "command",
    [
        ("restore", "sessions", "1"),
        ("vacuum", "sessions"),
        ("optimize", "sessions"),
        ("forget", "sessions", "a", "--yes"),
    ],
    ids=" ".join,
)
def test_what_changes_tables_waits_for_no_lease_but_ends_with_4(project: Project, command: tuple[str, ...]) -> None:
    project.by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    with Lease(project.by_hand.tables, "stream", Clock()):
        code, told = project.tidegate(*command)
    assert (code, f"process {os.getpid()}" in told) == (4, True)


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
    """A file in its place stops root too."""
    (project.folder / folder).write_text("")
    code, told = project.tidegate("backfill", "sessions", *DAY)
    assert code == 2, told
    assert f"`{folder}` in tidegate.toml" in told


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


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(28, "No space left on device"), "make room for the warehouse and the work folder"),
        (PermissionError(13, "Permission denied"), "This user has no permission to write there"),
    ],
)
def test_what_the_system_lacks_is_1_with_the_way_out_and_the_place(
    project: Project, monkeypatch: pytest.MonkeyPatch, error: OSError, told: str
) -> None:
    project.by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))

    def fail(*given: object) -> None:
        raise error

    monkeypatch.setattr("tidegate.pipelines.ledger.lease._replace", fail)
    code, text = project.tidegate("vacuum", "sessions")
    assert (code, told in text, len(text.splitlines())) == (1, True, 1), text
    assert f"the lease of pipeline 'sessions' can't be taken in {project.folder}/warehouse/sessions/lease" in text


def test_a_lost_library_at_the_end_of_the_process_changes_no_exit_code(tmp_path: Path) -> None:
    """As after Spark's process was killed: what crashes while Python takes itself down."""
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


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("library", "command", "subject", "extra"),
    [
        ("great_expectations", ("quality", "sessions"), "a check", "quality"),
        ("jinja2", ("report", "sessions"), "the run report", "report"),
        ("matplotlib", ("quality", "sessions", "--report"), "the run report", "report"),
        ("httpx", ("demo",), "the demo", "airflow"),
        ("airflow", ("demo", "--days", "0"), "the demo", "airflow"),
    ],
)
def test_an_extra_that_is_not_installed_is_named_with_what_installs_it(
    library: str, command: tuple[str, ...], subject: str, extra: str, tmp_path: Path
) -> None:
    project = Project.make(tmp_path, None)  # type: ignore[arg-type]
    project.by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    script = (
        "import importlib.abc, sys\n"
        "class Missing(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name.partition('.')[0] == {library!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from tidegate.pipelines.project.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *command, "--config", str(tmp_path / "tidegate.toml")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines() == [
        (
            f"tidegate: {subject} needs the package {library}, which is not installed here: "
            f"pip install 'tidegate[{extra}]', or in a checkout pip install '.[{extra}]'"
        )
    ]


def test_a_damaged_log_is_refused_in_one_line_that_names_the_table(project: Project) -> None:
    project.by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    log = project.folder / "warehouse" / "sessions" / "state" / "_delta_log"
    (log / f"{1:020d}.json").write_text("{not json")
    code, told = project.tidegate("snapshot", "show", "sessions")
    assert code == 3
    assert f"in the log of table {log.parent} is damaged" in told
    assert len(told.splitlines()) == 1


def test_a_table_that_somebody_removed_is_refused_by_name(project: Project) -> None:
    project.by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    shutil.rmtree(project.folder / "warehouse" / "sessions" / "results")
    code, told = project.tidegate("results", "sessions")
    assert (code, "sessions/results is gone: put its folder back" in told) == (3, True)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_every_command(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run(arguments) == 0
    told = capsys.readouterr().out
    for command in ("backfill", "demo", "results", "snapshot", "stream"):
        assert f"  {command}  " in told
    assert told.partition("Commands:")[2].count("...") == 0, "no sentence is cut off"


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for command in cli.list_commands(click.Context(cli)):
        assert run([command, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"Usage: tidegate {command}")


@pytest.mark.long
def test_listing_snapshots_in_a_process_of_its_own_ends_with_0_in_about_a_second(project: Project) -> None:
    project.by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    command = [sys.executable, "-m", "tidegate", "snapshot", "list", "sessions", "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    used = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, cwd=project.folder, env=environment, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert (done.returncode, done.stderr) == (0, "")
        assert [snapshot["epoch"] for snapshot in json.loads(done.stdout)] == [1]
    # Seconds of processor time: those of the clock depend on what else the machine does.
    assert min(used) < 1.5, used
