"""Empty virtual environments with the wheel and some of its extras, and a project outside of the checkout to test
with.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deltalake import write_deltalake

from tests.lake import EVENTS, at
from tests.pipelines.by_hand import ByHand, Row
from tidegate.pipelines.storage.warehouse import Warehouse

ROOT = Path(__file__).parent.parent.parent
UV = str(Path(sys.executable).with_name("uv"))

CODE = """
from datetime import timedelta

from tidegate import Count, DeltaSource, EventTimeSessionWindows, Pipeline, Sum, WatermarkStrategy, Windows

sessions = Pipeline(
    name="sessions",
    source=DeltaSource("events", timestamp="at"),
    key=("user",),
    watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=1)),
    compute=Windows(
        EventTimeSessionWindows.with_gap(timedelta(minutes=30)),
        aggregate={"events": Count(), "total": Sum("value")},
    ),
)
"""

TOML = """
warehouse = "{warehouse}"
work = "work"

[pipelines.sessions]
object = "visits:sessions"
start = 2024-03-01
"""

EARLY: tuple[Row, ...] = (("ann", at("10:00"), 1), ("ann", at("10:10"), 2), ("bob", at("11:00"), 5))
LATER: tuple[Row, ...] = (("bob", at("23:00"), 7),)


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout into a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Installed:
    """An environment.

    Args:
        folder: the environment.
        elsewhere: folder in which commands run, outside of the checkout.
    """

    folder: Path
    elsewhere: Path

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, without the variables that lead this process to the checkout."""
        others = ("PYTHON", "TIDEGATE_CONFIG", "AIRFLOW")
        mine = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        program = str(self.folder / "bin" / command[0])
        return subprocess.run(
            [program, *command[1:]],
            cwd=self.elsewhere,
            env={**mine, "AIRFLOW_HOME": str(self.elsewhere / "airflow"), **variables},
            capture_output=True,
            text=True,
            timeout=300,
        )

    def tidegate(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the project."""
        return self.run("tidegate", *arguments, **variables)

    def python(self, script: str) -> str:
        """Run a script that must succeed, and return its output."""
        done = self.run("python", "-c", script)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def uninstall(self, package: str) -> None:
        """Remove one package, as a broken installation would lack it."""
        _uv("pip", "uninstall", "--quiet", "--python", str(self.folder / "bin" / "python"), package)

    def install(self, *requirements: str) -> None:
        """Install packages in addition to those that are there."""
        _uv("pip", "install", "--quiet", "--python", str(self.folder / "bin" / "python"), *requirements)

    def megabytes(self) -> float:
        """Return the size of its packages, without compiled code."""
        files = (path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink())
        return sum(path.stat().st_size for path in files if path.suffix != ".pyc") / 1e6


@contextmanager
def installed(wheel: Path, extras: str, elsewhere: Path) -> Iterator[Installed]:
    """Install the wheel with extras (comma-separated, or none) into an empty environment, which is removed afterwards.
    The versions are those of requirements.lock, so they are in the package cache that `make env` filled. The
    environment is on the disk of that cache, so its files are links instead of gigabytes in memory.
    """
    with TemporaryDirectory(prefix="tidegate-installed-") as temporary:
        folder = Path(temporary) / "environment"
        python = ("--python", str(folder / "bin" / "python"))
        pinned = Path(temporary) / "pinned.txt"
        pinned.write_text(pinned_versions((ROOT / "requirements.lock").read_text()))
        requirement = f"tidegate[{extras}] @ {wheel.as_uri()}" if extras else str(wheel)
        _uv("venv", "--quiet", "--python", sys.executable, str(folder))
        _uv("pip", "install", "--quiet", *python, "--constraint", str(pinned), requirement)
        yield Installed(folder, elsewhere)


def pinned_versions(lock: str) -> str:
    """Return the lines of a lock file without hashes, as constraints."""
    return "\n".join(re.findall(r"^([\w.\[\]-]+==[^\\\n]+?)\s*\\?$", lock, re.MULTILINE)) + "\n"


def _uv(*arguments: str) -> None:
    done = subprocess.run([UV, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def write_project(folder: Path, warehouse: str = "warehouse", options: Mapping[str, str] | None = None) -> ByHand:
    """Write a project with a source table, and with the tables of two epochs of its pipeline."""
    folder.mkdir(exist_ok=True)
    options = dict(options or {})
    text = TOML.format(warehouse=warehouse)
    if options:
        text += "[storage_options]\n" + "".join(f'{name} = "{value}"\n' for name, value in options.items())
    (folder / "tidegate.toml").write_text(text)
    (folder / "visits.py").write_text(CODE)
    elsewhere = None if "://" not in warehouse else Warehouse(warehouse, options)
    hand = ByHand(folder, _pipeline_of(folder / "visits.py"), elsewhere=elsewhere)
    # Epochs made by hand claim that they read versions 1 and 2 of the source.
    for rows in (EARLY[:1], EARLY[1:], LATER):
        columns: Any = [[row[number] for row in rows] for number in range(3)]
        write_deltalake(
            hand.warehouse.path("events"),
            EVENTS.empty_table().from_arrays(columns, schema=EVENTS),
            mode="append",
            storage_options=options or None,
        )
    hand.epoch(*EARLY, watermark=at("12:00"))
    hand.epoch(*LATER, watermark=at("22:00"))
    return hand


def _pipeline_of(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location("visits_of_a_wheel", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.sessions
