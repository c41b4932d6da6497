"""`make` says in one line what a machine lacks, before it installs anything."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOOLS = ("sh", "sed", "make", "env")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A checkout, and a PATH with nothing but a shell; the tests add programs."""
    (tmp_path / "tests" / "store").mkdir(parents=True)
    for file in ("Makefile", "requirements.lock", "tests/store/requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / "bin" / tool).symlink_to(found)
    return tmp_path


def program(machine: Path, name: str, text: str) -> None:
    file = machine / "bin" / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def make(machine: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments],
        cwd=machine,
        env={"PATH": str(machine / "bin")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the output of make, without its last line."""
    assert done.returncode != 0
    return [line for line in done.stderr.splitlines() if not line.startswith("make")]


def test_no_python(machine: Path) -> None:
    assert said(make(machine, "run")) == [
        "tidegate: no python3 found: install Python 3.11 or newer or name one: make PYTHON=/path/to/python3"
    ]


def test_an_old_python(machine: Path) -> None:
    program(machine, "python3", 'case "$1" in -V) echo Python 3.9.2;; *) exit 1;; esac')
    (line,) = said(make(machine, "test"))
    assert line.startswith("tidegate: python3 is Python 3.9.2: install Python 3.11 or newer")


def test_no_java(machine: Path) -> None:
    program(machine, "python3", "exit 0")
    assert said(make(machine, "run")) == ["tidegate: no Java found: install Java 17 or newer or set JAVA_HOME"]


def test_an_old_java(machine: Path) -> None:
    program(machine, "python3", "exit 0")
    program(machine, "java", "echo 'openjdk version \"11.0.22\" 2024-01-16' >&2")
    (line,) = said(make(machine, "run"))
    assert line == "tidegate: java is Java 11: Spark needs 17 or newer; install one or set JAVA_HOME"


def test_no_network(machine: Path) -> None:
    program(machine, "java", "echo 'openjdk version \"17.0.9\" 2023-10-17' >&2")
    program(machine, "python3", 'case "$1 $2" in "-m venv") exit 0;; "-m pip") exit 1;; esac')
    program(machine, "mkdir", "exit 0")
    (machine / ".venv" / "bin").mkdir(parents=True)
    (machine / ".venv" / "bin" / "python").symlink_to(machine / "bin" / "python3")
    (line,) = said(make(machine, "run"))
    assert line.startswith("tidegate: uv ")
    assert "access to PyPI once" in line
    assert not (machine / ".venv" / "made").exists()
