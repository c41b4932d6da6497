"""A command that fails says so in one line and ends with its own exit code, whatever happens to Spark's process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.lake import Lake, at
from tests.pipelines.project.cli.project import SPARK_TOML
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.spark]

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 240.0
SECRET = "hush=with space"

FAILING = """
from tidegate.windowing import ProcessWindowFunction
import pyarrow as pa


class Failing(ProcessWindowFunction):
    result_type = pa.struct([("n", pa.int64())])

    def process(self, key, ctx, elements):
        raise ValueError("no such page")
"""
USING_IT = """
import sys
from datetime import timedelta
from pathlib import Path
from tests.lake import session_pipeline
from tidegate.windowing import EventTimeSessionWindows, Windows

sys.path.insert(0, str(Path(__file__).parent / "shared"))
from failing import Failing

windows = Windows(EventTimeSessionWindows.with_gap(timedelta(minutes=30)), process=Failing())
sessions = session_pipeline(compute=windows)
"""
WORKING = "from tests.lake import session_pipeline\nsessions = session_pipeline()\n"


@dataclass
class Command:
    """`tidegate` in a separate process, whose Spark is watched while it runs."""

    folder: Path
    arguments: tuple[str, ...]
    process: subprocess.Popen[str] = field(init=False)
    lines: list[str] = field(default_factory=list, init=False)
    seen: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        words = [
            sys.executable,
            "-m",
            "tidegate",
            *self.arguments,
            "--config",
            str(self.folder / "tidegate.toml"),
        ]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            words,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._looking = threading.Thread(target=self._published_state)
        self._looking.start()

    def java(self) -> list[psutil.Process]:
        """Return its processes that belong to Spark."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
            return [child for child in children if "java" in child.name()]
        except psutil.NoSuchProcess:
            return []

    def end(self) -> tuple[int, list[str]]:
        """Return its exit code, and the lines on its stderr."""
        _, told = self.process.communicate(timeout=DEADLINE_SECONDS)
        self._looking.join()
        return self.process.returncode, told.splitlines()

    def _published_state(self) -> None:
        while self.process.poll() is None:
            for child in self.java():
                try:
                    self.seen.add(" ".join(child.cmdline()))
                except psutil.NoSuchProcess:
                    continue
            threading.Event().wait(0.1)


def project(folder: Path, code: str) -> Lake:
    lake = Lake(folder)
    lake.append(("ann", at("10:00"), 1), ("bob", at("14:00"), 1))
    spark = f'\n[spark]\n"spark.hadoop.fs.s3a.secret.key" = "{SECRET}"\n"spark.driver.memory" = "777m"\n'
    spark += '"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"\n'
    (folder / "tidegate.toml").write_text(SPARK_TOML + spark)
    (folder / "of_the_project.py").write_text(code)
    return lake


def test_a_function_that_raises_in_an_epoch_is_told_in_one_line_and_no_setting_is_on_a_command_line(
    tmp_path: Path,
) -> None:
    project(tmp_path, USING_IT)
    # The tasks import it from the same place as the command.
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "failing.py").write_text(FAILING)
    command = Command(tmp_path, ("stream", "sessions", "--available-now"))
    code, told = command.end()
    assert (code, len(told)) == (1, 1), told
    assert told[0].startswith("tidegate: epoch 1 of sessions can't be computed: ")
    assert "no such page" in told[0]
    assert "(shared/failing.py:10 in process)" in told[0]
    assert any("-Xmx777m" in line for line in command.seen), "the file's settings hold"
    assert not any("hush" in line for line in command.seen)
    logs = "".join(file.read_text(errors="replace") for file in (tmp_path / "work" / "logs").glob("spark-*.log"))
    assert "Traceback" in logs, "the whole of it is in the log"


def has_unread_commands(java: psutil.Process) -> bool:
    """Return True if a socket of the process holds unread bytes."""
    ports = {connection.laddr.port for connection in java.net_connections("tcp")}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, _, queues, *_ = line.split()
            if int(local.rpartition(":")[2], 16) in ports and int(queues.partition(":")[2], 16):
                return True
    return False


@pytest.mark.parametrize("when", ["between two calls", "in a call"])
def test_sparks_process_killed_at_work_ends_the_stream_with_1_and_one_line(tmp_path: Path, when: str) -> None:
    lake = project(tmp_path, WORKING)
    command = Command(tmp_path, ("stream", "sessions", "--interval", "200ms"))
    assert command.process.stdout is not None
    while "epoch 1" not in (line := command.process.stdout.readline()):
        assert line, command.end()
    (java,) = command.java()
    if when == "in a call":
        # Bytes that a killed process has not read reset the connection, which py4j reports differently from its end.
        java.suspend()
        lake.append(("cat", at("16:00"), 1))
        wait_until(lambda: has_unread_commands(java), "a command for Spark", DEADLINE_SECONDS)
    java.kill()
    code, told = command.end()
    assert (code, len(told)) == (1, 1), told
    assert told[0].startswith("tidegate: Spark's process was ended by SIGKILL")
