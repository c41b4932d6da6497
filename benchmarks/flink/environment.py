"""A Python environment for Flink, whose package needs other versions of the libraries that we use."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tidegate.pipelines.errors import UsageError

FLINK = "2.3.0"
_PYTHON = sys.executable if sys.version_info < (3, 13) else "3.12"
"""The interpreter for Flink and Beam: this one, unless their packages do not support its version."""
ENVIRONMENT = "TIDEGATE_FLINK"
"""Name of the variable with the folder of an existing environment that has Flink."""


def cache_folder(name: str) -> Path:
    """Return a folder in the user's cache, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate" / name


def flink_python() -> Path:
    """Return the interpreter of an environment with Flink; see `python_with`."""
    if named := os.environ.get(ENVIRONMENT):
        return Path(named).absolute() / "bin" / "python"
    return python_with("apache-flink", FLINK, f"; or name the folder of an environment that has it in {ENVIRONMENT}")


def python_with(package: str, version: str, otherwise: str = "") -> Path:
    """Return the interpreter of an environment with a package, made in the user's cache if it does not exist yet.

    Args:
        package: name of the package.
        version: its version.
        otherwise: what else the user can do if it can't be installed.

    Raises:
        UsageError: it can't be made; the message has the installer's last line.
    """
    name = f"{package} {version}"
    folder = cache_folder(name.replace(" ", "-"))
    python = folder / "bin" / "python"
    if (folder / "made").exists():
        return python
    print(f"installing {name} into an environment of its own, once", file=sys.stderr, flush=True)
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    if not Path(uv).exists():
        raise UsageError(f"{name} is not installed, and there is no uv to install it: `make env` brings it")
    shutil.rmtree(folder, ignore_errors=True)
    for command in (
        [uv, "venv", "--quiet", "--python", _PYTHON, str(folder)],
        [uv, "pip", "install", "--quiet", "--python", str(python), f"{package}=={version}"],
    ):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            words = done.stderr.strip().splitlines() or ["no message"]
            raise UsageError(
                f"{name} can't be installed: {words[-1]}. It needs Python 3.12 or older, and PyPI once{otherwise}"
            )
    (folder / "made").touch()
    return python


def run_in_flink(job: str, arguments: Sequence[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Run one of the jobs beside this file with Flink, and yield the JSON lines that it prints.

    Args:
        job: name of the job, such as `sql_windows`.
        arguments: arguments of its command line.
        seconds: time limit.

    Raises:
        UsageError: there is no Flink.
        subprocess.TimeoutExpired: the job took longer than the limit.
        subprocess.SubprocessError: the job failed.
    """
    yield from run_elsewhere(flink_python(), Path(__file__).with_name(f"{job}.py"), arguments, seconds)


def run_elsewhere(python: Path, script: Path, arguments: Sequence[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Run a script in another environment, and yield the JSON lines that it prints.

    Args:
        python: the environment's interpreter.
        script: the script.
        arguments: arguments of its command line.
        seconds: time limit.

    Raises:
        subprocess.TimeoutExpired: the script took longer than the limit.
        subprocess.SubprocessError: the script failed.
    """
    command = [str(python), str(script), *arguments]
    # Our own Python path would shadow the packages of the environment.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            # The job's JVM and workers would outlive it, with our pipes open: the whole group is killed.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise subprocess.SubprocessError(f"{script.name} failed: {errors.strip()[-2000:]}")
    for line in output.splitlines():
        if line.startswith("{"):
            yield json.loads(line)
