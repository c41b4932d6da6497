"""Each kind of damage to a table is found, and each command that the refusal names rebuilds the tables without a loss.

The commands also work if nothing named them: a restart and a savepoint with all tables after any damage, and a
savepoint of the state after damage to table state.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.commit_times import vacuum_with_no_hours
from tests.lake import Lake, at, hourly_pipeline
from tidegate import Project
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import python

pytestmark = pytest.mark.recovery

PIPELINE = hourly_pipeline(allowed_lateness=timedelta(hours=1))
TABLES = ("state", "results", "late", "epochs", "windows")


def project_of(lake: Lake) -> Project:
    return lake.project(PIPELINE)


def log(path: Path) -> list[Path]:
    return sorted((path / "_delta_log").glob("*.json"))


def files(path: Path) -> list[Path]:
    return sorted(Path(uri) for uri in DeltaTable(str(path)).file_uris())


def file_missing(path: Path) -> None:
    files(path)[0].unlink()


def file_truncated(path: Path) -> None:
    files(path)[0].write_bytes(files(path)[0].read_bytes()[:-200])


def entry_missing(path: Path) -> None:
    log(path)[1].unlink()


def entry_truncated(path: Path) -> None:
    log(path)[-1].write_bytes(log(path)[-1].read_bytes()[:-200])


def entry_without_its_end(path: Path) -> None:
    lines = log(path)[-1].read_bytes().splitlines(keepends=True)
    log(path)[-1].write_bytes(b"".join(lines[:2]))


def entry_emptied(path: Path) -> None:
    log(path)[-1].write_bytes(b"")


def folder_missing(path: Path) -> None:
    shutil.rmtree(path)


def rows_deleted(path: Path) -> None:
    DeltaTable(str(path)).delete()


def rows_deleted_and_vacuumed(path: Path) -> None:
    rows_deleted(path)
    vacuum_with_no_hours(str(path))


def set_back(path: Path) -> None:
    table = DeltaTable(str(path))
    table.restore(table.version() - 1)


KINDS = (
    file_missing,
    file_truncated,
    entry_missing,
    entry_truncated,
    entry_without_its_end,
    entry_emptied,
    folder_missing,
    rows_deleted,
    rows_deleted_and_vacuumed,
    set_back,
)


def add_hour(lake: Lake, hour: str) -> None:
    lake.append(*((user, at(hour), 1) for user in ("ann", "bob", "cem")))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A pipeline with open windows, published windows, late rows, and savepoints of both kinds."""
    lake = Lake(tmp_path_factory.mktemp("whole"))
    for hour in ("10:00", "14:20", "10:30", "15:10"):
        add_hour(lake, hour)
        project_of(lake).stream("hours")
        if hour == "14:20":
            project_of(lake).savepoints.create("hours", "good")
    project_of(lake).savepoints.create("hours", "all", tables=True)
    return lake


@pytest.fixture(scope="module")
def expected(whole: Lake, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the rows that the pipeline has after a further hour if nothing is damaged."""
    lake = copy_of(whole, tmp_path_factory.mktemp("expected") / "lake")
    add_hour(lake, "17:00")
    project_of(lake).stream("hours")
    return contents(lake)


def copy_of(lake: Lake, folder: Path) -> Lake:
    shutil.copytree(lake.folder, folder)
    return replace(lake, folder=folder)


def contents(lake: Lake) -> list[str]:
    """Return the windows and late rows, without what depends on the division into epochs."""
    windows = lake.rows(PIPELINE, "windows").select(["user", "window_start", "events", "total"]).to_pylist()
    late = lake.rows(PIPELINE, "late").select(["user", "at", "value"]).to_pylist()
    return sorted(map(str, [*windows, *late]))


def refusal(project: Project) -> tuple[Remedy, ...]:
    """Return the remedies of the first command that does not continue on the damaged tables; none if all do."""
    for command in (project.tables.optimize, project.stream, lambda name: project.verify(name, sample="all")):
        try:
            command("hours")
        except Refused as error:
            return error.remedies or pytest.fail(f"no way is named: {error}")
    return ()


def run(project: Project, remedy: Remedy) -> None:
    """Do what a refusal named."""
    found = eval(python(remedy), {"project": project}).to_dict()
    if remedy.act is Act.LIST_SNAPSHOTS:
        project.restore("hours", next(each for each in found[1:] if each["restorable"])["epoch"])
    elif remedy.act is Act.LIST_SAVEPOINTS:
        project.restore(
            "hours", f"savepoint:{next(each['name'] for each in found if each['with_tables'])}", tables=True
        )


def named(part: str | Callable[[Path], None]) -> str:
    return part if isinstance(part, str) else part.__name__


ALWAYS = (Remedy(Act.RESTART, "hours"), Remedy(Act.RESTORE_TABLES, "hours", "savepoint:all"))
OF_STATE = Remedy(Act.RESTORE, "hours", "savepoint:good")


SHORT = (
    ("state", file_missing),
    ("state", folder_missing),
    ("results", entry_missing),
    ("late", rows_deleted_and_vacuumed),
    ("windows", set_back),
)
"""Damage of each sort, once. `make test-long` does everything to every table."""


@pytest.mark.first(len(SHORT))
@pytest.mark.parametrize(
    ("table", "kind"), sorted(product(TABLES, KINDS), key=lambda case: case not in SHORT), ids=named
)
def test_every_named_way_loses_nothing(
    whole: Lake, expected: list[str], tmp_path: Path, table: str, kind: Callable[[Path], None]
) -> None:
    damaged = copy_of(whole, tmp_path / "damaged")
    kind(Path(damaged.tables(PIPELINE).path(table)))
    told = refusal(project_of(copy_of(damaged, tmp_path / "asked")))
    ways = dict.fromkeys([*told, *ALWAYS, *([OF_STATE] if table == "state" else [])])
    for number, way in enumerate(ways):
        lake = copy_of(damaged, tmp_path / str(number))
        project = project_of(lake)
        run(project, way)
        add_hour(lake, "17:00")
        project.stream("hours")
        assert contents(lake) == expected, way
        if table == "state" and kind is rows_deleted_and_vacuumed and way == OF_STATE:
            # The manifests of epochs before the savepoint no longer exist, and `verify` reads them.
            continue
        assert project.verify("hours", sample="all").to_dict()["faults"] == [], way


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", ["state", "results"])
def test_damage_is_refused_with_both_ways(
    whole: Lake, expected: list[str], tmp_path: Path, table: str, kind: Callable[[Path], None]
) -> None:
    lake = copy_of(whole, tmp_path / "damaged")
    kind(Path(lake.tables(PIPELINE).path(table)))
    told = refusal(project_of(lake))
    if not told:
        # Nothing was lost: the log doesn't need the entry, or the newest manifest lists what it held.
        add_hour(lake, "17:00")
        project_of(lake).stream("hours")
        assert contents(lake) == expected
    elif kind in (file_missing, file_truncated):
        # Who reads a file knows the folder of its table, but not the savepoints.
        assert ALWAYS[0] in told
    else:
        assert {*ALWAYS} <= {*told}
    if table == "state" and told and kind not in (file_missing, file_truncated):
        assert OF_STATE in told
