"""A command as a child process: its output, its end, and an environment without Airflow's secrets.

The command ends with the process that started it, because its standard input is a pipe from that process (see
`pipelines/run/parent.py`). Only the standard library is used.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.pipelines.definition.environment import ENDS_WITH_STDIN, LEASE_NOTE

ENDED = 128 + signal.SIGTERM
"""Exit code of a command that was asked to end. A stream itself returns 0 then, although its task is not complete."""

_GRACE_SECONDS = 20.0
"""Time between asking a command to end and killing it."""
_POLL_SECONDS = 0.5
_DRAIN_SECONDS = 2.0
"""How long to read output after a command has ended: a process that it left behind may keep the pipe open."""

_ERROR = "tidegate: "
"""Prefix of the line in which a command gives the reason for its end."""
_LAST_LINES = 200
_LONGEST_LINE = 64 << 10
_LONGEST_REASON = 2000

_OF_AIRFLOW = "AIRFLOW"
_NAMES_OF_THE_RUN = "AIRFLOW_CTX_"
"""Prefix of the variables that name the DAG, the task and the run. Logs of pipeline code may mention these."""


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """How a command ended.

    Args:
        exit_code: its exit code; for a signal, 128 plus the signal's number.
        reason: its error message or its last line; None if it printed nothing.
        result: the JSON that it wrote, even if it failed; None if it wrote none.
        lease: the pipeline and the period for which it held the lease; None if it never did.
    """

    exit_code: int
    reason: str | None = None
    result: Any = None
    lease: Mapping[str, Any] | None = None


@dataclass
class Command:
    """One run of a command, in a session of its own.

    Args:
        words: the executable and its arguments, which no shell parses. An option `--output FILE` is added.
        environment: variables added to those of this process, without Airflow's own; None removes a variable.
        tell: called with each line of output.
        grace: seconds between asking the command to end and killing it.
        parent: returns the id of the process that started this one.

    `outcome` is known once the command has ended, even if an exception interrupted `run`.
    """

    words: Sequence[str]
    environment: Mapping[str, str | None]
    tell: Callable[[str], object]
    grace: float = _GRACE_SECONDS
    parent: Callable[[], int] = os.getppid
    outcome: CommandOutcome | None = field(default=None, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _deadline: float | None = field(default=None, init=False)
    _pending: bytes = field(default=b"", init=False)
    _last: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES), init=False)

    def run(self) -> CommandOutcome:
        """Run the command to its end.

        If an exception interrupts this, such as a timeout of the task, the command is ended first. It is also ended if
        the parent of this process ends: then Airflow has lost the task, and may start it again.
        """
        with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
            result, lease = Path(folder) / "result.json", Path(folder) / "lease.json"
            variables = {**without_airflow(os.environ), **self.environment, "PYTHONUNBUFFERED": "1"}
            variables |= {LEASE_NOTE: str(lease), ENDS_WITH_STDIN: "1"}
            process = subprocess.Popen(
                [*self.words, "--output", str(result)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={name: value for name, value in variables.items() if value is not None},
                start_new_session=True,
            )
            self._process = process
            if self._deadline is not None:
                process.terminate()
            try:
                self._follow(process, self.parent())
            except BaseException:
                self.end()
                # Without a reader, the command would wait forever for its output to be read.
                self.tell = lambda line: None
                self._follow(process, self.parent())
                raise
            finally:
                _kill_session(process)
                for pipe in (process.stdin, process.stdout):
                    assert pipe is not None
                    pipe.close()
                code = process.returncode if process.returncode >= 0 else 128 - process.returncode
                ended = code if self._deadline is None else ENDED
                self.outcome = CommandOutcome(ended, self._reason(), _read(result), _read(lease))
            return self.outcome

    def end(self) -> None:
        """Ask the command to end, and let `run` kill it if it takes too long. A signal handler may call this."""
        if self._deadline is not None:
            return
        self._deadline = time.monotonic() + self.grace
        if self._process is not None:
            # Only the command itself is asked, because it needs its children to finish.
            self._process.terminate()

    def _follow(self, process: subprocess.Popen[bytes], parent: int) -> None:
        while process.poll() is None:
            self._read_output(process, _POLL_SECONDS)
            if self.parent() != parent and self._deadline is None:
                self._line(b"the process that started this task has ended: ending the command")
                self.end()
            if self._deadline is not None and time.monotonic() >= self._deadline:
                _kill_session(process)
        until = time.monotonic() + _DRAIN_SECONDS
        while self._read_output(process, 0) and time.monotonic() < until:
            pass
        self._line(self._pending)
        self._pending = b""

    def _read_output(self, process: subprocess.Popen[bytes], seconds: float) -> bool:
        """Wait for output, and pass its complete lines on. Return False if there was none."""
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], seconds)[0]:
            return False
        content = os.read(process.stdout.fileno(), _LONGEST_LINE)
        if not content:
            # The command closed its output, so that `select` would no longer wait.
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            return False
        *lines, self._pending = (self._pending + content).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._pending) > _LONGEST_LINE:
            self._line(self._pending)
            self._pending = b""
        return True

    def _line(self, line: bytes) -> None:
        if text := line.decode(errors="replace").rstrip():
            self._last.append(text)
            self.tell(text)

    def _reason(self) -> str | None:
        lines = [line.strip() for line in self._last]
        errors = [number for number, line in enumerate(lines) if line.startswith(_ERROR)]
        text = " ".join(lines[errors[-1] :]).removeprefix(_ERROR) if errors else "".join(lines[-1:])
        return text[:_LONGEST_REASON] or None


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the command, and the processes that it started and left behind."""
    # macOS reports an ended process that was not collected as one that may not be signalled.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        # A command that was killed may have left a part of it.
        return None


def without_airflow(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables without Airflow's own, except for the names of the DAG, the task and the run.

    Airflow's processes have the Fernet key, the address of its database with the password, the keys that sign its
    tokens, and connections in variables that begin with AIRFLOW. A command needs none of them.
    docs/operations/security.md says what this does and does not protect against.
    """
    return {name: value for name, value in variables.items() if not _is_airflows(name)}


def _is_airflows(name: str) -> bool:
    # Airflow's own scripts begin some names with underscores.
    return name.lstrip("_").upper().startswith(_OF_AIRFLOW) and not name.startswith(_NAMES_OF_THE_RUN)
