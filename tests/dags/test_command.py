"""A command ends with the process that started it, whatever ends that process, and so does all that it started."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until
from tidegate.pipelines.airflow.command import ENDED, Command

ROOT = Path(__file__).parents[2]

WORKER = """
import sys
from tidegate.pipelines.airflow.command import Command

grace, *words = sys.argv[1:]
print("worker", flush=True)
Command(words, {"GRACE": grace}, lambda line: print(line, flush=True), float(grace)).run()
"""
"""A process that runs a command, as a task of Airflow does."""

DRIVER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from tidegate.pipelines.run.parent import end_with_parent

child = '''
import signal, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *ignored: Path("child-was-asked").touch())
Path("child").write_text("")
while True:
    time.sleep(600)
'''

def asked(*ignored):
    print("finishing the epoch", flush=True)
    Path("epoch").write_text("finished")
    sys.exit(0)

signal.signal(signal.SIGTERM, asked if "kind" in sys.argv else signal.SIG_IGN)
end_with_parent(float(os.environ["GRACE"]))
subprocess.Popen([sys.executable, "-c", child])
Path("driver").write_text("")
print("working", flush=True)
while True:
    time.sleep(600)
"""
"""A driver with a process of its own, as Spark has one; neither ends by itself, and `deaf` ignores SIGTERM."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


@contextmanager
def worker(folder: Path, how: str, grace: float) -> Iterator[tuple[subprocess.Popen[bytes], list[psutil.Process]]]:
    """A worker whose command is running, with the two processes of the command."""
    words = [sys.executable, "-c", WORKER, f"{grace}", sys.executable, "-c", DRIVER, how]
    with subprocess.Popen(words, cwd=folder) as process:
        try:
            wait_until(lambda: (folder / "child").exists() and (folder / "driver").exists(), "the command at work")
            yield process, psutil.Process(process.pid).children(recursive=True)
        finally:
            process.kill()


def are_gone(processes: list[psutil.Process]) -> bool:
    return not [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()


def terminate(process: subprocess.Popen[bytes]) -> None:
    process.terminate()


@pytest.mark.parametrize("end", [kill, terminate])
@pytest.mark.parametrize("how", ["kind", "deaf"])
def test_a_command_ends_with_the_killed_process_that_started_it_and_with_all_that_it_started(
    how: str, end: Callable[[subprocess.Popen[bytes]], None], folder: Path
) -> None:
    with worker(folder, how, grace=1.0) as (process, command):
        assert len(command) == 2
        end(process)
        process.wait(10)
        wait_until(lambda: are_gone(command) or None, "the end of the command", 10)
    assert (folder / "epoch").exists() == (how == "kind"), "it could finish its epoch, if it wanted to"
    assert not (folder / "child-was-asked").exists(), "it needs its own processes to finish"


def test_a_command_that_the_task_ends_failed_even_if_it_ended_in_order(folder: Path) -> None:
    lines: list[str] = []
    command = Command([sys.executable, "-c", DRIVER, "kind"], {"GRACE": "1"}, lines.append)
    command.tell = lambda line: (lines.append(line), command.end() if line == "working" else None)
    outcome = command.run()
    assert (outcome.exit_code, outcome.reason) == (ENDED, "finishing the epoch")
    assert lines == ["working", "finishing the epoch"]


def test_a_command_ends_with_a_task_that_airflow_has_lost(folder: Path) -> None:
    """Airflow's supervisor was killed: the task's process has another parent, and Airflow will start the task again."""
    parents = iter([7, 7])
    lines: list[str] = []
    words = [sys.executable, "-c", DRIVER, "kind"]
    outcome = Command(words, {"GRACE": "1"}, lines.append, parent=lambda: next(parents, 1)).run()
    assert outcome.exit_code == ENDED
    assert "the process that started this task has ended: ending the command" in lines


def test_a_command_ends_before_the_error_that_interrupts_its_task_goes_on(folder: Path) -> None:
    before = set(psutil.Process().children(recursive=True))

    def interrupt(line: str) -> None:
        raise TimeoutError("the task took too long")

    command = Command([sys.executable, "-c", DRIVER, "deaf"], {"GRACE": "1"}, interrupt, grace=0.5)
    with pytest.raises(TimeoutError):
        command.run()
    assert set(psutil.Process().children(recursive=True)) <= before
    assert command.outcome is not None
    assert command.outcome.exit_code == ENDED


def test_a_command_that_a_signal_ended_and_what_it_left_behind(folder: Path) -> None:
    left = "import time; time.sleep(600)"
    code = f"""
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {left!r}])
open("child", "w").write(str(child.pid))
print("no end of line", end="", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    lines: list[str] = []
    outcome = Command([sys.executable, "-c", code], {}, lines.append).run()
    assert (outcome.exit_code, outcome.reason) == (128 + signal.SIGKILL, "no end of line")
    number = int((folder / "child").read_text())
    wait_until(lambda: not psutil.pid_exists(number) or are_gone([psutil.Process(number)]), "the end of its child", 10)


def test_output_of_any_size_is_read_and_a_closed_one_is_no_end(folder: Path) -> None:
    code = """
import os, sys, time
sys.stdout.write("x" * 1_000_000)
sys.stdout.flush()
os.close(1); os.close(2)
time.sleep(1.5)
os._exit(3)
"""
    lines: list[str] = []
    assert Command([sys.executable, "-c", code], {}, lines.append).run().exit_code == 3
    assert "".join(lines) == "x" * 1_000_000


def test_a_process_of_a_command_has_no_part_in_its_pipe(folder: Path) -> None:
    """Otherwise a library that reads standard input would take the end of the pipe for its own."""
    code = """
import subprocess, sys
from tidegate.pipelines.run.parent import end_with_parent
end_with_parent()
child = "import os; print(os.read(0, 1), os.environ.get('TIDEGATE_ENDS_WITH_STDIN'))"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, timeout=60).stdout)
"""
    lines: list[str] = []
    assert Command([sys.executable, "-c", code], {}, lines.append).run().exit_code == 0
    assert lines == ["b'' None"]


def test_a_command_of_a_user_keeps_its_standard_input() -> None:
    code = "from tidegate.pipelines.run.parent import end_with_parent; end_with_parent(); print(input())"
    done = subprocess.run([sys.executable, "-c", code], input="mine\n", capture_output=True, text=True, check=True)
    assert done.stdout == "mine\n"
