"""`tidegate driver alive`: a stream is alive as long as its loop runs, with or without data; nothing else counts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lake import Lake, at
from tests.pipelines.project.cli.project import Project
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.ledger.host import Heartbeat, system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.run.stream import Stream

ALIVE = ("driver", "alive", "sessions", "--within", "60")


@pytest.fixture
def streaming(project_without_jvm: Project, tmp_path: Path) -> Project:
    """The project, whose streams run without a JVM, with a row of its source."""
    Lake(tmp_path).append(("ann", at("08:00"), 1))
    return project_without_jvm


def sign(project: Project) -> Heartbeat:
    return Heartbeat(project.folder / "work", "sessions")


def test_no_stream_has_begun(project: Project) -> None:
    project.says(1, "no stream of sessions has started on this host", *ALIVE)


def test_a_stream_that_waits_for_data_lives_and_gives_a_sign_at_each_turn(
    streaming: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeats are made old before each iteration, so each iteration must have written a new one."""
    answers: list[tuple[int, int]] = []

    def wait(self: Stream, seconds: float) -> None:
        fresh = streaming.tidegate(*ALIVE)[0]
        os.utime(sign(streaming).file, (0, 0))
        answers.append((fresh, streaming.tidegate(*ALIVE)[0]))
        if len(answers) == 3:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("tidegate.pipelines.run.stopping.StopRequest.wait", wait)
    assert streaming.tidegate("stream", "sessions", "--interval", "5s")[0] == 0
    assert answers == [(0, 1)] * 3


def test_each_step_of_an_epoch_is_a_sign(streaming: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Heartbeat] = []
    monkeypatch.setattr(Heartbeat, "give", lambda self: given.append(self))
    assert streaming.tidegate("stream", "sessions", "--available-now")[0] == 0
    assert len(given) >= 3 + len(("planned", "operated", "committed", "published"))


def test_a_sign_is_given_again_after_its_folder_was_removed(project: Project) -> None:
    sign(project).begin()
    shutil.rmtree(project.folder / "work")
    sign(project).give()
    project.says(0, "the stream of sessions is alive", *ALIVE)


def test_a_loop_that_hangs_is_told_from_one_that_turns(project: Project) -> None:
    hanging = sign(project)
    hanging.begin()
    now = hanging.file.stat().st_mtime
    assert hanging.check(60, now + 59) == pytest.approx(59)
    assert hanging.check(60, now - 5) == 0.0, "a clock that was set back"
    with pytest.raises(TidegateError, match=r"gave its last heartbeat 61 s ago: it hangs, or a step"):
        hanging.check(60, now + 61)


def test_the_sign_of_a_process_that_ended_counts_for_nothing_though_it_is_young(project: Project) -> None:
    """As after the restart of a container, whose folders remain, and whose processes get the same ids."""
    project_sign = sign(project)
    project_sign.begin()
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    me = json.loads(project_sign.file.read_text())
    for process, after_boot in ((child.pid, me["after_boot"]), (me["process"], me["after_boot"] - 100)):
        project_sign.file.write_text(json.dumps({"process": process, "after_boot": after_boot}))
        project.says(1, "has ended; its last heartbeat is 0 s old", *ALIVE)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"process": null, "after_boot": 1}', "\xff"])
def test_a_sign_that_can_not_be_read_is_none(content: str, project: Project) -> None:
    sign(project).begin()
    sign(project).file.write_bytes(content.encode("latin-1"))
    code, told = project.tidegate(*ALIVE)
    assert code == 1
    assert told.startswith(f"tidegate: the heartbeat of sessions can't be read: {sign(project).file}: it is damaged")
    assert "Traceback" not in told
    sign(project).begin()
    assert project.tidegate(*ALIVE)[0] == 0, "the way out works"


def test_a_stream_that_can_not_write_its_sign_goes_on(streaming: Project) -> None:
    (streaming.folder / "work").mkdir(exist_ok=True)
    (streaming.folder / "work" / "alive").write_text("in the way")
    assert streaming.tidegate("stream", "sessions", "--available-now")[0] == 0


def test_a_second_stream_that_the_lease_refuses_leaves_the_sign_of_the_first(streaming: Project) -> None:
    config = load_config(streaming.folder / "tidegate.toml")
    config.make_folders()
    with Lease(PipelineTables(warehouse_of(config), "sessions"), "stream", system_clock):
        sign(streaming).file.parent.mkdir(parents=True)
        sign(streaming).file.write_text("of the first")
        assert streaming.tidegate("stream", "sessions", "--available-now")[0] == 4
    assert sign(streaming).file.read_text() == "of the first"


def test_it_imports_no_table_and_no_spark(project: Project) -> None:
    """A probe runs it every few seconds."""
    code = (
        "import sys; from tidegate.pipelines.project.cli import run; run(['alive', 'sessions'])\n"
        "print({name.split('.')[0] for name in sys.modules} & {'pyarrow', 'deltalake', 'pyspark', 'numpy', 'pandas'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=project.folder)
    assert done.stdout.strip() == "set()"
