"""A renamed pipeline has the same tables, wherever the command was killed, and continues as if nothing had happened."""

from __future__ import annotations

import builtins
import json
import random
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.lake import Lake
from tests.recovery.arrivals import PIPELINE, Crash, differences, outcome, rows_of
from tests.recovery.hung import CODE, COMMANDS, NAME, TOML, Hang, Hung
from tidegate.pipelines import Pipeline
from tidegate.pipelines.ledger.lease import TIME_TO_LIVE
from tidegate.pipelines.ledger.snapshots.head import list_snapshots
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot, list_savepoints
from tidegate.pipelines.storage import warehouse
from tidegate.pipelines.storage.delta_log import actions_in, commit_info

pytestmark = pytest.mark.recovery

NEW = "hours_by_user"
RENAMED = replace(PIPELINE, name=NEW)
RENAME = ("rename", NAME, NEW)
STREAM = ("stream", NEW, "--available-now", "--max-files-per-epoch", "1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hung]:
    with Hung.make(tmp_path_factory) as made:
        project = made.copy(tmp_path_factory.mktemp("renamed") / "made")
        project.does("vacuum", NAME, "--snapshots", "2", "--days", "0")
        yield project


@pytest.fixture(scope="module")
def kept(made: Hung, tmp_path_factory: pytest.TempPathFactory) -> Hung:
    """The same project at its end, with a pipeline that keeps its name."""
    project = made.copy(tmp_path_factory.mktemp("kept") / "kept")
    project.does(*COMMANDS["stream"])
    return project


def edit(project: Hung) -> None:
    """Give the pipeline its new name in the code and in tidegate.toml."""
    name_it(project, NEW, f"from dataclasses import replace\n{CODE}{NEW} = replace({NAME}, name={NEW!r})\n")


def name_it(project: Hung, name: str, code: str) -> None:
    (project.folder / "tidegate.toml").write_text(
        TOML.replace(f"[pipelines.{NAME}]", f"[pipelines.{name}]").replace(f":{NAME}", f":{name}")
    )
    for file in project.folder.glob("pipelines_that_hang.py"):
        file.write_text(code)
    for cache in (project.folder / "__pycache__").glob("pipelines_that_hang*"):
        cache.unlink()


def content(project: Hung, pipeline: Pipeline) -> dict[str, list[str]]:
    """Return everything in the tables, with snapshots, savepoints and checks."""
    lake = Lake(project.folder)
    tables, found = lake.tables(pipeline), outcome(lake, pipeline)
    found["quality"] = sorted(map(str, lake.rows(pipeline, "quality").to_pylist()))
    found["snapshots"] = [f"{entry.version} {entry.epoch}" for entry in list_snapshots(tables)]
    found["savepoints"] = [f"{entry.name} {entry.created_at} {entry.size > 0}" for entry in list_savepoints(tables)]
    found["ids"] = [str((each, DeltaTable(tables.path(each)).metadata().id)) for each in ("state", "results", "epochs")]
    return found


def names_in(folder: Path, name: str) -> list[str]:
    """Return the log files and the manifests that contain a name."""
    found = [
        str(file)
        for file in folder.rglob("_delta_log/*")
        if file.is_file() and "lease" not in file.parts and re.search(rf"\b{name}\b", _text(file))
    ]
    for table in (folder / "state", *(folder / "savepoints").iterdir()):
        manifests = DeltaTable(str(table)).to_pyarrow_table(columns=["manifest"])["manifest"].drop_null().to_pylist()
        found += [str(table) for text in manifests if re.search(rf"\b{name}\b", text)]
    return found


def _text(file: Path) -> str:
    if file.suffix == ".parquet":
        return str(pq.read_table(file).to_pylist())
    actions = actions_in(file.read_bytes())
    # Delta's own record of how a table was created may keep the old name.
    commit_info(actions).pop("operationParameters", None)
    return str(actions)


@pytest.mark.long
def test_a_renamed_pipeline_has_its_tables_and_goes_on_exactly(made: Hung, kept: Hung, tmp_path: Path) -> None:
    project = made.copy(tmp_path / "copy")
    before = content(project, PIPELINE)
    assert names_in(project.folder / "warehouse" / NAME, NAME)
    log = [*(project.folder / "warehouse" / NAME / "results" / "_delta_log").iterdir()]
    assert any(file.suffix == ".parquet" for file in log), "a checkpoint has to be renamed, too"
    edit(project)
    code, told = project.tidegate(*RENAME, "--json")
    assert code == 0, told
    assert json.loads(told)["backups"] == ["old"]
    warehouse = project.folder / "warehouse"
    assert differences(content(project, RENAMED), before) == {}
    assert not (warehouse / NAME).exists()
    assert names_in(warehouse / NEW, NAME) == []
    assert not [*(project.folder / "work").rglob(f"*/{NAME}/*")], "reports and pages of checks"
    for snapshot in (entry.epoch for entry in list_snapshots(Lake(project.folder).tables(RENAMED))):
        assert find_snapshot(Lake(project.folder).tables(RENAMED), str(snapshot)).manifest.pipeline == NEW
    project.does("quality", NEW, "--all")
    project.does(*STREAM)
    assert differences(outcome(Lake(project.folder), RENAMED), outcome(Lake(kept.folder))) == {}
    project.does("quality", NEW)
    for target in ("6", "savepoint:kept"):
        project.does("restore", NEW, target)
        project.does(*STREAM)
        project.does("quality", NEW)


@pytest.fixture(scope="module")
def operations(made: Hung, tmp_path_factory: pytest.TempPathFactory) -> int:
    """Return the number of mutating operations of the command."""
    project, hang = made.copy(tmp_path_factory.mktemp("counted") / "counted"), Hang(0, False, lambda: None)
    edit(project)
    with hang.planted():
        project.does(*RENAME)
    return hang.count


def killed(made: Hung, folder: Path, operation: int, after: bool) -> list[str]:
    """Kill the command before or after an operation, run it again, and return what is wrong afterwards."""
    project = made.copy(folder)
    before = content(project, PIPELINE)
    edit(project)

    def kill() -> None:
        raise Crash

    hang = Hang(operation, after, kill)
    with hang.planted(), pytest.MonkeyPatch.context() as planted:
        # Operations of other threads are only counted.
        planted.setattr(warehouse, "ThreadPoolExecutor", lambda threads: nullcontext(builtins))
        code, told = project.tidegate(*RENAME)
    found = [] if code == 1 else [f"killed with {code}: {told[-400:]}"]
    code, told = project.tidegate(*RENAME)
    is_done = code == 2 and "was it already renamed?" in told
    found += [] if code == 0 or is_done else [f"again ended with {code}: {told[-400:]}"]
    found += [] if found else map(str, differences(content(project, RENAMED), before).items())
    left = [file.name for file in (project.folder / "warehouse" / NEW).iterdir() if file.is_file()]
    found += [f"left: {left}"] if left or (project.folder / "warehouse" / NAME).exists() else []
    return [f"{hang.where}: {fault}" for fault in found]


def test_a_rename_that_was_killed_is_continued_by_the_same_command(made: Hung, operations: int, tmp_path: Path) -> None:
    draw = random.Random(0)
    assert killed(made, tmp_path / "copy", draw.randint(1, operations), draw.random() < 0.5) == []


@pytest.mark.long
def test_wherever_a_rename_is_killed_it_is_continued_by_the_same_command(
    made: Hung, operations: int, tmp_path: Path
) -> None:
    found = {
        (operation, after): faults
        for operation in range(1, operations + 1)
        for after in (False, True)
        if (faults := killed(made, tmp_path / "copy", operation, after))
    }
    assert found == {}


def hung(made: Hung, kept: Hung, folder: Path, operation: int, after: bool) -> list[str]:
    """Let the command hang for longer than its leases while it is run again and the pipeline runs to its end."""
    project, ended = made.copy(folder), list[tuple[int, str]]()
    edit(project)

    def meanwhile() -> None:
        project.clock.ahead += TIME_TO_LIVE + 1
        ended.extend(project.tidegate(*command) for command in (RENAME, STREAM))

    hang = Hang(operation, after, meanwhile)
    with hang.planted(), pytest.MonkeyPatch.context() as planted:
        # A stream must run in the main thread.
        planted.setattr(warehouse, "ThreadPoolExecutor", lambda threads: nullcontext(builtins))
        code, told = project.tidegate(*RENAME)
    found = [] if code in (0, 2, 3, 4) else [f"hung with {code}: {told[-400:]}"]
    found += [f"meanwhile {code}: {told[-400:]}" for code, told in ended if code not in (0, 2)]
    project.tidegate(*RENAME)
    for command in (STREAM, ("quality", NEW)):
        code, told = project.tidegate(*command)
        found += [f"{command} ended with {code}: {told[-400:]}"] if code else []
    # The clock has advanced, which causes an epoch of its own.
    there, expected = rows_of(Lake(project.folder), RENAMED), rows_of(Lake(kept.folder))
    found += map(str, differences(there, expected).items())
    return [f"{hang.where}: {fault}" for fault in found]


@pytest.mark.long
def test_wherever_a_rename_hangs_nothing_is_lost(made: Hung, kept: Hung, operations: int, tmp_path: Path) -> None:
    found = {
        (operation, after): faults
        for operation in range(1, operations + 1)
        for after in (False, True)
        if (faults := hung(made, kept, tmp_path / "copy", operation, after))
    }
    assert found == {}
