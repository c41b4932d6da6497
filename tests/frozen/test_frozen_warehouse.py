"""Warehouses that released versions wrote are read, continued, corrected and restored by this version.

For each format there is one warehouse, which never changes: `WAREHOUSES` gets another module with each new format.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.frozen import warehouse_0_3
from tests.lake import Lake, at
from tidegate import Project
from tidegate.pipelines.ledger.migrations import FORMAT, FORMAT_PROPERTY
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, require_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, QUALITY, PipelineTables

pytestmark = pytest.mark.recovery

WAREHOUSES: tuple[ModuleType, ...] = (warehouse_0_3,)
"""The frozen warehouses: the module at position n has format n + 1."""


class Frozen:
    """A copy of a frozen warehouse."""

    def __init__(self, module: ModuleType, folder: Path) -> None:
        with tarfile.open(module.ARCHIVE) as packed:
            packed.extractall(folder, filter="data")
        self.module, self.folder, self.lake = module, folder, Lake(folder)
        self.expected: dict[str, Any] = json.loads((folder / "expected.json").read_text(encoding="utf-8"))

    @property
    def project(self) -> Project:
        return self.module.project_in(self.folder)  # type: ignore[no-any-return]

    def contents(self) -> dict[str, Any]:
        """Return what readers see of each pipeline."""
        return {pipeline.name: self.module.contents(self.lake, pipeline) for pipeline in self.module.PIPELINES}

    def tables(self, name: str) -> PipelineTables:
        return PipelineTables(self.lake.tables(self.module.HOURS).warehouse, name)

    def verifies(self) -> None:
        """Assert that each pipeline equals what its source gives by plain rules."""
        for pipeline in self.module.PIPELINES:
            found = self.project.verify(pipeline.name, sample="all")
            assert found.faults == (), pipeline.name


@pytest.fixture(params=WAREHOUSES, ids=lambda module: module.__name__.rpartition(".")[2])
def frozen(request: pytest.FixtureRequest, tmp_path: Path) -> Frozen:
    return Frozen(request.param, tmp_path)


def test_there_is_a_frozen_warehouse_of_each_format(tmp_path: Path) -> None:
    assert len(WAREHOUSES) == FORMAT
    for number, module in enumerate(WAREHOUSES, start=1):
        frozen = Frozen(module, tmp_path / str(number))
        for pipeline in module.PIPELINES:
            stored = frozen.tables(pipeline.name).open("state")
            assert stored.metadata().configuration[FORMAT_PROPERTY] == str(number)


def test_it_has_every_kind_of_table_epoch_and_file(frozen: Frozen) -> None:
    kinds, snapshots = set[str](), 0
    for pipeline in frozen.module.PIPELINES:
        kinds |= set(frozen.lake.rows(pipeline, "epochs")["kind"].to_pylist())
        snapshots += len(list_snapshots(frozen.tables(pipeline.name)))
    assert kinds == {"backfill", "stream", "change", "reopen", "restore", "forget", "prune", "reset"}
    assert snapshots > 20
    hours = frozen.tables("hours")
    assert all(hours.warehouse.exists(hours.path(table)) for table in (*ALL, QUALITY, "windows"))
    files = require_snapshot(frozen.tables("sessions")).files
    assert {file.get("min.delta_mark") for file in files} == {None, 1}, "a base and a delta"
    ops = frozen.lake.rows(frozen.module.EARLY, "results")["op"].to_pylist()
    assert set(ops) == {"+", "-"}
    stale = frozen.lake.rows(frozen.module.HALVES, "results")["stale"]
    assert pc.any(stale).as_py()
    assert require_snapshot(frozen.tables("sliding")).manifest.slices
    assert any(shard.next_event_time_timer for shard in require_snapshot(frozen.tables("alarms")).manifest.shards)
    for table in ("late", "rejects"):
        assert len(frozen.lake.rows(frozen.module.HOURS, table))


def test_it_is_read_as_the_version_that_wrote_it_read_it(frozen: Frozen) -> None:
    assert frozen.contents() == frozen.expected["read"]


def readers(project: Project, name: str) -> Iterator[Callable[[], Any]]:
    """Yield the commands that change nothing."""
    for view in ("all", "final", "latest"):
        yield lambda view=view: project.results(name, view=view)  # type: ignore[misc]
    yield lambda: project.tables.query(name).sql
    yield lambda: project.runs(name)
    yield lambda: project.why(name, key=("ann",))
    yield lambda: project.explain(name)
    yield lambda: project.tables.lineage(name)
    yield lambda: project.late.summary(name)
    yield lambda: project.snapshots.list(name)
    yield lambda: project.snapshots.show(name)
    yield lambda: project.snapshots.check(name)
    yield lambda: project.savepoints.list(name)
    yield lambda: project.report(name)
    yield lambda: project.quality.check(name).require()


# The first of its pipelines; the others, for `make test-long`.
@pytest.mark.parametrize("pipelines", [slice(1), pytest.param(slice(1, None), marks=pytest.mark.long)], ids=str)
def test_every_command_reads_it(frozen: Frozen, pipelines: slice) -> None:
    project = frozen.project
    assert len(project.list().to_dict()) == len(frozen.module.PIPELINES)
    for pipeline in frozen.module.PIPELINES[pipelines]:
        for read in readers(project, pipeline.name):
            read()
    project.trace("hours", ("bob",))
    project.advise("hours")


def test_streams_and_a_backfill_continue_it_with_the_same_results(frozen: Frozen) -> None:
    frozen.module.continue_(frozen.folder)
    assert frozen.contents() == frozen.expected["continued"]
    frozen.verifies()


@pytest.mark.first(1)
@pytest.mark.parametrize("target", ["savepoint", "first snapshot"])
def test_its_savepoints_and_snapshots_are_restored(frozen: Frozen, target: str) -> None:
    project, name = frozen.project, frozen.module.SESSIONS.name
    snapshots = list_snapshots(frozen.tables(name))
    project.restore(name, f"savepoint:{frozen.module.SAVEPOINT}" if target == "savepoint" else snapshots[-1].epoch)
    project.stream(name)
    assert frozen.module.contents(frozen.lake, frozen.module.SESSIONS) == frozen.expected["read"][name]
    assert project.verify(name, sample="all").faults == ()


def test_its_results_are_corrected_reopened_forgotten_and_cleaned_up(frozen: Frozen) -> None:
    project, name = frozen.project, frozen.module.HOURS.name
    DeltaTable(frozen.lake.path("changing")).update({"value": "40"}, predicate="user = 'bob' AND value = 32")
    frozen.lake.append(("bob", at("10:30"), 3), table="changing")
    project.stream(name)
    project.late.reopen(name)
    project.forget(name, ("cid",))
    project.tables.optimize(name)
    project.tables.vacuum(name, snapshots=1, days=0)
    project.tables.rebuild_windows(name)
    assert "cid" not in frozen.lake.rows(frozen.module.HOURS, "results")["user"].to_pylist()
    assert project.verify(name, sample="all").faults == ()
    project.quality.check(name).require()
