"""Commands that hang in the middle for longer than their lease, while another command runs to its end. No process is
stopped: before or after a mutating operation of the first command, the clock advances and the second command runs, in
the same thread. Then the first one continues with everything that it read and wrote before.
"""

from __future__ import annotations

import io
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.table import TableAlterer

from tests.lake import Lake
from tests.recovery.arrivals import PIPELINE, commit_to, source_of
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger import host, lease
from tidegate.pipelines.ledger.lease import TIME_TO_LIVE, Lease
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, require_snapshot
from tidegate.pipelines.ledger.snapshots.savepoint import broken_savepoints, list_savepoints, read_savepoint
from tidegate.pipelines.ledger.tables import commits
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.project import stream
from tidegate.pipelines.project.cli import run
from tidegate.pipelines.run.stream import Maintenance
from tidegate.pipelines.storage import shared_folder
from tidegate.pipelines.storage.shared_folder import SharedFolder
from tidegate.pipelines.storage.warehouse import Warehouse, read_table

NAME = PIPELINE.name
MODULE = "pipelines_that_hang"

TOML = f"""
engine = "local"
warehouse = "warehouse"
work = "work"

[pipelines.{NAME}]
object = "{MODULE}:{NAME}"
start = 2024-03-01
retain_snapshots = 3
retain_days = 0
"""

CODE = f"from tests.recovery.arrivals import PIPELINE as {NAME}\n"

FORGOTTEN = "user1"

PLACE = "elsewhere"
"""Folder of savepoints with tables."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "stream": ("stream", NAME, "--available-now", "--max-files-per-epoch", "1"),
    "backfill": ("backfill", NAME, "--start", "2024-03-01", "--end", "2024-03-02"),
    "vacuum": ("tables", "vacuum", NAME, "--snapshots", "1", "--days", "0"),
    "vacuum some": ("tables", "vacuum", NAME, "--snapshots", "2", "--days", "0"),
    "optimize": ("tables", "optimize", NAME),
    "restore": ("restore", NAME, "4"),
    "restore savepoint": ("restore", NAME, "savepoint:kept"),
    "forget": ("forget", NAME, FORGOTTEN, "--yes"),
    "reopen": ("late", "reopen", NAME),
    "prune": ("late", "prune", NAME, "--days", "0"),
    "quality": ("quality", "check", NAME),
    "savepoint": ("savepoints", "create", NAME, "new"),
    "savepoint delete": ("savepoints", "delete", NAME, "kept"),
    "savepoint with tables": ("savepoints", "create", NAME, "whole", "--tables", "--to", PLACE),
    "savepoint with tables delete": ("savepoints", "delete", NAME, "old", "--at", PLACE),
    "reset": ("source", "reset", NAME, "--keep-results", "--force"),
    "unlock": ("driver", "unlock", NAME),
}
"""Commands that change something. `reset` may read rows twice, so its results are not counted. `unlock` runs as on
another host, immediately, while the others run after the lease of the first one has expired; the next command of the
pipeline follows it.
"""

MUTATIONS: tuple[tuple[Any, str], ...] = (
    *(
        (Warehouse, name)
        for name in ("write_parquet", "replace_file", "copy_file", "move_file", "delete_file", "delete_folder")
    ),
    *((DeltaTable, name) for name in ("create_write_transaction", "create_checkpoint", "restore", "vacuum")),
    (TableAlterer, "add_columns"),
    (commits, "create_table_with_add_actions"),
    (SharedFolder, "write"),
)


@dataclass
class Hang:
    """The place where a command hangs: the n-th of its mutating operations, from 1 on, and what happens meanwhile.

    Args:
        operation: number of the operation; with 0 the command never hangs, and operations are only counted.
        after: True hangs after the operation, False before it.
        meanwhile: called while the command hangs.
        count: operations so far.
        where: the operation at which it hung.
    """

    operation: int
    after: bool
    meanwhile: Callable[[], None]
    count: int = 0
    where: str = ""
    _inside: bool = field(default=False, repr=False)

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Track the operations in this context."""
        with pytest.MonkeyPatch.context() as planted:
            for owner, name in MUTATIONS:
                planted.setattr(owner, name, self._watched(owner, name))
            # A short stream maintains its tables, too.
            planted.setattr(stream, "Maintenance", partial(Maintenance, epochs=2))
            yield

    def _watched(self, owner: Any, name: str) -> Callable[..., object]:
        known = getattr(owner, name)

        def watched(*arguments: Any, **named: Any) -> object:
            if self._inside:
                return known(*arguments, **named)
            self.count += 1
            # A command handles signals, so it can't run in a thread that copies files for another one.
            hangs = self.count == self.operation and threading.current_thread() is threading.main_thread()
            if hangs:
                self.where = f"{name} {[each for each in arguments if isinstance(each, str)]}"
            if hangs and not self.after:
                self._hang()
            answer = known(*arguments, **named)
            if hangs and self.after:
                self._hang()
            return answer

        return watched

    def _hang(self) -> None:
        self._inside = True
        try:
            self.meanwhile()
        finally:
            self._inside = False


class Shifted:
    """Replaces the module `time` in the driver's clock, some milliseconds ahead."""

    ahead = 0

    def time_ns(self) -> int:
        """Return the present time with the shift."""
        return time.time_ns() + self.ahead * 1_000_000

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@dataclass
class Hung:
    """A project whose commands run in this process, without a JVM, by a clock that can be advanced."""

    folder: Path
    clock: Shifted

    @classmethod
    @contextmanager
    def make(cls, templates: pytest.TempPathFactory) -> Iterator[Hung]:
        """Create, once in a test run, a project with epochs, a check, unread commits and savepoints, one of
        them with its tables in another place.
        """
        folder = templates.getbasetemp() / "templates" / "hung"
        hung = cls(folder, Shifted())
        with pytest.MonkeyPatch.context() as planted:
            planted.setattr(host, "time", hung.clock)
            # A command that hangs renews nothing.
            planted.setattr(Lease, "_renew_until_ended", lambda self: None)
            planted.setattr(lease, "_of_this_process", set[str]())
            # Nobody waits in real time for a command that hangs while it holds a lock.
            planted.setattr(shared_folder, "LOCK_SECONDS", 0.0)
            if not folder.exists():
                hung._fill()
            yield hung

    def _fill(self) -> None:
        source_of(self.folder, 2)
        (self.folder / "tidegate.toml").write_text(TOML)
        (self.folder / f"{MODULE}.py").write_text(CODE)
        for done in (COMMANDS["stream"], ("savepoints", "create", NAME, "kept"), COMMANDS["quality"]):
            self.does(*done)
        self.does("savepoints", "create", NAME, "old", "--tables", "--to", PLACE)
        for number in (4, 5):
            commit_to(Lake(self.folder), number)

    def copy(self, folder: Path) -> Hung:
        """Return the same project at another place."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder)
        return Hung(folder, self.clock)

    def tidegate(self, *arguments: str) -> tuple[int, str]:
        """Run a command; return its exit code, and everything that it printed."""
        out, path = io.StringIO(), [*sys.path]
        sys.modules.pop(MODULE, None)
        try:
            with redirect_stdout(out), redirect_stderr(out):
                code = run([*arguments, "--config", str(self.folder / "tidegate.toml")])
        finally:
            sys.path[:] = path
            sys.modules.pop(MODULE, None)
        return code, out.getvalue()

    def does(self, *arguments: str) -> None:
        """Run a command that must succeed."""
        code, told = self.tidegate(*arguments)
        assert code == 0, told

    def is_held_elsewhere(self) -> None:
        """Let a driver on another host hold the lease."""
        other = Lease(Lake(self.folder).tables(PIPELINE), "stream", lambda: self.clock.time_ns() // 1_000_000)
        other.holder = replace(other.holder, host="elsewhere")
        other.renew()

    def operations(self, command: str) -> int:
        """Return the number of mutating operations of a command."""
        if command == "unlock":
            self.is_held_elsewhere()
        hang = Hang(0, False, lambda: None)
        with hang.planted():
            self.tidegate(*COMMANDS[command])
        return hang.count

    def faults(self, first: str, second: str, operation: int, after: bool) -> list[str]:
        """Let a command hang while another one runs, and return everything that is wrong afterwards; the project can't
        be used again.

        Args:
            first: the command that hangs.
            second: the command that runs to its end meanwhile.
            operation: number of the mutating operation of the first.
            after: True hangs after the operation, False before it.
        """
        ended = list[tuple[int, str]]()

        def meanwhile() -> None:
            if second == "unlock":
                with pytest.MonkeyPatch.context() as planted:
                    planted.setattr(lease, "this_host", lambda: "elsewhere")
                    ended.append(self.tidegate(*COMMANDS[second]))
                ended.append(self.tidegate(*COMMANDS["vacuum"]))
                return
            self.clock.ahead += TIME_TO_LIVE + 1
            ended.append(self.tidegate(*COMMANDS[second]))

        if first == "unlock":
            self.is_held_elsewhere()
        hang = Hang(operation, after, meanwhile)
        with hang.planted():
            code, told = self.tidegate(*COMMANDS[first])
        found = [f"{first} hung at {hang.where}"]
        found += [] if is_told(code, told) else [f"{first} ended with {code}: {told[-400:]}"]
        found += [f"{second} ended with {code}: {told[-400:]}" for code, told in ended if not is_told(code, told)]
        code, told = self.tidegate(*COMMANDS[first])
        found += [] if is_told(code, told) else [f"{first} again ended with {code}: {told[-400:]}"]
        found += self.harm(first, second)
        return found if len(found) > 1 else []

    def harm(self, *commands: str) -> list[str]:
        """Return everything that is wrong in the tables after these commands; the project can't be used again."""
        try:
            found = self.unreadable()
            if "reset" not in commands:
                found += self.wrong("forget" in commands, "prune" in commands)
        except Refused as error:
            return [f"can't be read: {error}"]
        return found

    def unreadable(self) -> list[str]:
        """Return a text for each thing that can't be read: snapshots and savepoints, also in the other place."""
        tables = Lake(self.folder).tables(PIPELINE)
        found = [f"savepoint {broken.name}: {broken.reason}" for broken in broken_savepoints(tables)]
        snapshots = [
            *(require_snapshot(tables, entry.version) for entry in list_snapshots(tables)),
            *(read_savepoint(tables, entry.name) for entry in list_savepoints(tables)),
        ]
        for snapshot in snapshots:
            try:
                read_table(tables.warehouse, snapshot.handle)
            except Refused as error:
                found.append(f"epoch {snapshot.manifest.epoch} in {snapshot.path}: {error}")
        place = PipelineTables(Warehouse(str(self.folder / PLACE)), NAME)
        found += [f"savepoint {broken.name}: {broken.reason}" for broken in broken_savepoints(place)]
        return found

    def wrong(self, forgot: bool, pruned: bool) -> list[str]:
        """Compare windows and late rows with the rows of the source, by user and hour, and check them."""
        code, told = self.tidegate("stream", NAME, "--available-now", "--end-of-input")
        if code:
            return [f"the end of input ended with {code}: {told[-400:]}"]
        tables = Lake(self.folder).tables(PIPELINE)
        want, got = Counter[tuple[str, datetime]](), Counter[tuple[str, datetime]]()
        for row in DeltaTable(str(self.folder / "warehouse" / "events")).to_pyarrow_table().to_pylist():
            if row["user"] is not None and row["at"] is not None:
                want[row["user"], _hour(row["at"])] += 1
        for row in _standing(read_table(tables.warehouse, tables.open("results")).to_pylist()):
            got[row["user"], row["window_start"]] += row["events"]
        for row in read_table(tables.warehouse, tables.open("late")).to_pylist():
            if not row["stale"] and row["reopened"] is None:
                got[row["user"], _hour(row["at"])] += 1
        found = [
            f"{key}: {want[key]} rows in the source, {got[key]} in windows and late rows"
            for key in sorted(want.keys() | got.keys())
            if not (forgot and key[0] == FORGOTTEN) and (got[key] > want[key] or (got[key] < want[key] and not pruned))
        ]
        code, told = self.tidegate(*COMMANDS["quality"])
        return [*found[:3], *([f"quality ended with {code}: {told[-400:]}"] if code else [])]


_UNDER_WAY = "try again once it is published"
"""Messages of a check that meets a command which hangs between its snapshot and the rows that it removes."""

_NOTHING_TO_DO = ("exists", "no savepoint", "is not a snapshot")
"""Messages of commands whose work another command did, or which lack what another one removed."""


def is_told(code: int, told: str) -> bool:
    """Return True if a command did its work, or its exit code and message say why not."""
    if "Give --debug" in told or "Traceback" in told:
        return False
    if code == 1:
        return _UNDER_WAY in told
    return code in (0, 3, 4) or (code == 2 and any(text in told for text in _NOTHING_TO_DO))


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def _standing(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest pane of each window that was not retracted."""
    panes: dict[Any, dict[int, dict[str, dict[str, Any]]]] = {}
    for row in rows:
        if not row["stale"]:
            panes.setdefault((row["user"], row["window_id"]), {}).setdefault(row["pane"], {})[row["op"]] = row
    newest = (of_window[max(of_window)] for of_window in panes.values())
    return [pane["+"] for pane in newest if "-" not in pane]
