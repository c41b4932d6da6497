"""kill -9 on `savepoints create --tables --to` and `restore --from` at each of their steps: nothing is half there, and
the same command completes its work. `tests/store` does the same in a bucket.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.lake import LOCAL, Lake
from tests.recovery import arrivals
from tests.recovery.arrivals import PIPELINE, copy_of, differences, rows_of, source_of
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.ledger.snapshots.savepoint import list_savepoints
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import Warehouse

pytestmark = [pytest.mark.recovery, pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
NEW = replace(PIPELINE, name="begun")
CODE = (
    "from dataclasses import replace\nfrom tests.recovery.arrivals import PIPELINE as hours\n"
    "begun = replace(hours, name='begun')\n"
)


@dataclass
class Victims:
    """The process that forks victims, and the project on which they work."""

    process: subprocess.Popen[str]
    folder: Path

    def run(self, *arguments: str, operation: int = 0) -> tuple[int, str]:
        """Run a command in a child, and return its exit code and what it printed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        output = self.folder / "output"
        told = [*arguments, "--config", str(self.folder / "tidegate.toml")]
        line = {"arguments": told, "operation": operation, "output": str(output)}
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline()), output.read_text()


@pytest.fixture(scope="module")
def nursery() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.recovery.killed_copies"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = source_of(tmp_path_factory.mktemp("streamed") / "lake", 1)
    arrivals.run(LOCAL, lake)
    return lake


def project(nursery: subprocess.Popen[str], folder: Path, warehouse: str, options: dict[str, str]) -> Victims:
    folder.mkdir(parents=True, exist_ok=True)
    entries = "".join(
        f'[pipelines.{name}]\nobject = "copied_pipelines:{name}"\nstart = 2024-03-01\n' for name in ("hours", "begun")
    )
    stored = "".join(f"{name} = {value!r}\n" for name, value in options.items())
    storage = f"[storage_options]\n{stored}" if options else ""
    (folder / "tidegate.toml").write_text(
        f'engine = "local"\nwarehouse = {warehouse!r}\nwork = "work"\n{storage}{entries}'
    )
    (folder / "copied_pipelines.py").write_text(CODE)
    return Victims(nursery, folder)


def check(victims: Victims, lake: Lake, place: str, every: int, reset: Any) -> None:
    """Kill both commands at each `every`-th step, run them again, and compare what they leave."""
    expected = rows_of(lake)
    at = PipelineTables(Warehouse(place, lake.options), PIPELINE.name)
    save = ("savepoints", "create", "hours", "copy", "--tables", "--if-missing", "--to", place)
    from_savepoint = ("restore", "begun", "savepoint:copy", "--from", "hours", "--at", place)
    for command in (save, from_savepoint, ("restore", "begun", "--from", "hours")):
        reset()
        if command == from_savepoint:
            assert victims.run(*save)[0] == 0
        code, told = victims.run(*command)
        assert code == 0, told
        operations = int(re.findall(r"operations (\d+)", told)[0])
        assert operations > 8
        for operation in range(1, operations + 1, every):
            reset()
            if command == from_savepoint:
                assert victims.run(*save)[0] == 0
            where = f"{command} before operation {operation} of {operations}"
            assert victims.run(*command, operation=operation)[0] == -signal.SIGKILL, where
            if command == save:
                assert all(entry.with_tables for entry in list_savepoints(at)), where
            elif (head := _head(lake)) is not None:
                assert (head.manifest.kind, head.manifest.pipeline) == ("restore", "begun"), where
            code, told = victims.run(*command)
            assert code == 0, f"{where}: {told}"
            if command == save:
                code, told = victims.run(*from_savepoint)
                assert code == 0, f"{where}: {told}"
            assert differences(rows_of(lake, NEW), expected) == {}, where


def _head(lake: Lake) -> Any:
    tables = lake.tables(NEW)
    return read_snapshot(tables) if tables.exist else None


@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.long)])
def test_on_a_disk(nursery: subprocess.Popen[str], streamed: Lake, tmp_path: Path, every: int) -> None:
    lake, place = copy_of(streamed, tmp_path / "lake"), tmp_path / "elsewhere"
    victims = project(nursery, tmp_path / "project", str(lake.folder / "warehouse"), {})

    def reset() -> None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(lake.path("begun"), ignore_errors=True)

    check(victims, lake, str(place), every, reset)
