"""`restore NEW --from OLD`: a pipeline begins from another one's snapshot and continues exactly, and savepoints with
tables, which bring lost tables back.
"""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.expectations.broken import broken_in
from tests.lake import Lake, at, hourly_pipeline
from tests.pipelines.ledger.snapshots.test_nothing_of_a_key_stays import ends_before
from tests.recovery.arrivals import copy_of
from tidegate import EpochLimits
from tidegate.pipelines import DeltaSource
from tidegate.pipelines.errors import LeaseHeld, Refused, UsageError
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PipelineTables
from tidegate.pipelines.project.project import Project
from tidegate.windowing import Count, EventTimeSessionWindows, Windows

HOUR = timedelta(hours=1)
NOW = 1_720_000_000_000


def both(lake: Lake, **changed: Any) -> Project:
    """A project with pipeline `hours`, and with `new`, the same one with other settings."""
    return lake.project(hourly_pipeline(), hourly_pipeline(name="new", **changed))


def commits(lake: Lake) -> None:
    """A commit that moves the watermark to 07:00, and one with a row of an hour before it."""
    lake.append(("ann", at("04:30"), 8), ("bob", at("08:00"), 4), ("ann", at("05:10"), 4))
    lake.append(("ann", at("05:11"), 16), ("bob", at("12:00"), 4))


def last(lake: Lake) -> None:
    lake.append(("ann", at("13:00"), 32), ("bob", at("13:30"), 4), ("ann", at("20:00"), 1))


def rows_of(project: Project, name: str, view: str = "all") -> list[dict[str, Any]]:
    """Return results without what identifies an epoch or a run."""
    rows = project.results(name, view=view).to_dict()
    kept = [{key: row[key] for key in row if key not in ("epoch", "timeline", "emitted_at")} for row in rows]
    return sorted(kept, key=repr)


def published(project: Project, name: str) -> dict[str, Any]:
    """Return all rows and versions of a pipeline's tables."""
    tables = PipelineTables.of(project.config, name)
    return {
        table: (tables.newest(table).version(), tables.newest(table).to_pyarrow_table().to_pylist())
        for table in tables.with_windows(ALL)
    }


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Three epochs of `hours`, savepoints of the second one, and one of them with its tables in another place."""
    lake = Lake(tmp_path_factory.mktemp("streamed") / "lake")
    project = both(lake)
    lake.append(("ann", at("00:10"), 1), ("ann", at("00:20"), 2), ("bob", at("05:00"), 4))
    project.stream("hours")
    commits(lake)
    project.stream("hours", limits=EpochLimits(commits=1))
    project.savepoints.create("hours", "state", of=2)
    project.savepoints.create("hours", "whole", of=2, tables=True)
    project.savepoints.create("hours", "away", of=2, tables=True, to=str(lake.folder / "elsewhere"))
    return lake


@pytest.fixture
def here(streamed: Lake, lake: Lake) -> Lake:
    """A copy of it that a test may change."""
    shutil.copytree(streamed.folder, lake.folder, dirs_exist_ok=True)
    return lake


def at_(lake: Lake, target: str) -> str | None:
    return str(lake.folder / "elsewhere") if target == "savepoint:away" else None


TARGETS = ["2", "3", "latest", "1", "savepoint:state", "savepoint:whole", "savepoint:away"]


@pytest.mark.first(1)
@pytest.mark.parametrize("target", TARGETS)
def test_a_pipeline_that_begins_from_another_ones_snapshot_continues_as_that_one_would(here: Lake, target: str) -> None:
    project = both(here)
    before = published(project, "hours")
    restored = project.restore("new", target, from_="hours", at=at_(here, target))
    assert restored.manifest.pipeline == "new"
    assert published(project, "hours") == before
    last(here)
    project.stream("new")
    project.stream("hours")
    assert rows_of(project, "new") == rows_of(project, "hours")
    assert rows_of(project, "new", "windows") == rows_of(project, "hours", "windows")
    assert project.verify("new", sample="all").faults == ()
    for name in ("late", "rejects"):
        tables = [PipelineTables.of(project.config, each).newest(name) for each in ("new", "hours")]
        assert len({each.to_pyarrow_table().num_rows for each in tables}) == 1
    project.forget("new", ("ann",))
    assert {row["user"] for row in rows_of(project, "new")} == {"bob"}


def test_checks_hold_in_a_pipeline_that_began_from_another_one(here: Lake) -> None:
    project = both(here)
    project.restore("new", from_="hours")
    assert broken_in(PipelineTables.of(project.config, "new"), hourly_pipeline(name="new")) == set()


def test_it_continues_with_other_settings_and_is_compared_since_the_shared_epoch(here: Lake) -> None:
    project = both(here, allowed_lateness=2 * HOUR)
    project.restore("new", 1, from_="hours")
    project.stream("new")
    comparison = project.compare("hours", "new")
    assert (comparison.since, comparison.settings) == (1, {"allowed_lateness": (0, 7_200_000)})
    assert [
        (each.before and each.before["total"], each.after and each.after["total"]) for each in comparison.windows
    ] == [(4, 20)]


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "another key": ({"key": ("value",), "aggregate": {"events": Count()}}, "key"),
    "other windows": (
        {"compute": Windows(EventTimeSessionWindows.with_gap(HOUR), aggregate={"events": Count()})},
        "new",
    ),
    "another source": ({"source": DeltaSource("others", timestamp="at")}, "reads source 'others'"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_incompatible_code_is_refused_with_the_field_and_leaves_nothing(here: Lake, case: str) -> None:
    changed, told = UNFIT[case]
    here.append(("ann", at("00:10"), 1), table="others")
    with pytest.raises(Refused, match=told):
        both(here, **changed).restore("new", from_="hours")
    assert not Path(here.path("new")).exists()


def test_names_and_places_that_do_not_fit_are_refused(here: Lake) -> None:
    project = both(here)
    for arguments, told in (
        ({"from_": "new"}, "--from names 'new' itself"),
        ({"from_": "no/name"}, "--from: name 'no/name'"),
        ({"from_": "none"}, "none"),
        ({"from_": "hours", "target": "7"}, "'7' is not a snapshot of hours"),
        ({"from_": "hours", "at": "elsewhere"}, "give savepoint:NAME"),
        ({"from_": "hours", "keep_stale": True}, "leave out the other options"),
    ):
        with pytest.raises((UsageError, Refused), match=told):
            project.restore("new", **arguments)
    with Lease(PipelineTables.of(project.config, "new"), "stream", lambda: NOW + 10**12), pytest.raises(LeaseHeld):
        project.restore("new", from_="hours")
    project.stream("new")
    with pytest.raises(Refused, match=r"pipeline 'new' already has epoch 1.*remove it and run the command again"):
        project.restore("new", from_="hours")
    shutil.rmtree(here.path("new"))
    assert project.restore("new", from_="hours").manifest.parent == 3


def test_a_pipeline_whose_old_name_the_project_no_longer_has_continues_under_the_new_one(here: Lake) -> None:
    project = here.project(hourly_pipeline(name="new"))
    expected = rows_of(both(here), "hours")
    project.restore("new", from_="hours")
    shutil.rmtree(here.path("hours"))
    assert rows_of(project, "new") == expected
    project.stream("new")


def test_a_savepoint_elsewhere_is_all_that_another_warehouse_needs(here: Lake, tmp_path: Path) -> None:
    expected = rows_of(both(here), "hours")
    other = Lake(tmp_path / "other")
    shutil.copytree(here.path("events"), other.path("events"))
    place = str(here.folder / "elsewhere")
    shutil.rmtree(here.path("hours"))
    for name, source in (("new", "hours"), ("hours", None)):
        project = both(other)
        project.restore(name, "savepoint:away", from_=source, tables=source is None, at=place)
        project.stream(name)
        assert rows_of(project, name) == expected
        assert project.verify(name, sample="all").faults == ()


def test_damaged_tables_are_replaced_by_those_of_a_savepoint(here: Lake) -> None:
    project = both(here)
    expected = rows_of(project, "hours")
    for file in Path(here.path("hours/results")).glob("*.parquet"):
        file.unlink()
    Path(here.path("hours/state/_delta_log/00000000000000000000.json")).write_text("{")
    project.restore("hours", "savepoint:whole", tables=True)
    project.stream("hours")
    assert rows_of(project, "hours") == expected
    assert {entry.name for entry in project.savepoints.list("hours").savepoints} == {"state", "whole"}


@pytest.mark.parametrize("lost", ["state", "_tables/late"])
def test_tables_stay_if_a_file_of_the_savepoint_that_would_replace_them_is_lost(here: Lake, lost: str) -> None:
    """A file of its state, or the copy of a whole table."""
    project, folder = both(here), Path(here.path("hours/savepoints/whole"))
    expected = rows_of(project, "hours")
    if lost == "state":
        saved = find_snapshot(PipelineTables.of(project.config, "hours"), "savepoint:whole")
        (folder / saved.files[0]["path"]).unlink()
    else:
        shutil.rmtree(folder / lost)
    with pytest.raises(Refused, match=r"is incomplete: .* Restore another savepoint"):
        project.restore("hours", "savepoint:whole", tables=True)
    assert rows_of(project, "hours") == expected


def test_a_savepoint_with_a_missing_file_is_listed_as_broken_and_not_restored(here: Lake) -> None:
    project, place = both(here), here.folder / "elsewhere"
    lost = next(place.glob("hours/savepoints/away/_tables/results/*.parquet"))
    lost.unlink()
    (broken,) = project.savepoints.list("hours", at=str(place)).broken
    assert lost.name in broken.reason
    with pytest.raises(Refused, match="Restore another savepoint"):
        project.restore("new", "savepoint:away", from_="hours", at=str(place))
    assert rows_of(project, "hours")


def test_files_that_an_older_savepoint_has_take_no_further_space(here: Lake) -> None:
    project, place = both(here), here.folder / "elsewhere"
    project.savepoints.create("hours", "later", tables=True, to=str(place))
    folders = [place / "hours" / "savepoints" / name / "_tables" / "results" for name in ("away", "later")]
    inodes = [{file.stat().st_ino for file in folder.glob("*.parquet")} for folder in folders]
    assert inodes[0] & inodes[1]
    project.savepoints.delete("hours", "away", at=str(place))
    project.restore("new", "savepoint:later", from_="hours", at=str(place))
    assert rows_of(project, "new") == rows_of(project, "hours")


@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.long)])
def test_wherever_a_command_is_killed_nothing_is_half_there_and_it_can_be_repeated(
    here: Lake, tmp_path: Path, every: int
) -> None:
    place = str(tmp_path / "place")
    expected = rows_of(both(here), "hours")

    def save(lake: Lake) -> None:
        both(lake).savepoints.create("hours", "copy", tables=True, if_missing=True, to=place)

    def begin(lake: Lake) -> None:
        both(lake).restore("new", from_="hours")

    for act in (save, begin):
        lake = copy_of(here, tmp_path / f"counted {act.__name__}")
        with pytest.MonkeyPatch.context() as planted:
            done = ends_before(planted, -1)
            act(lake)
        assert done[0] > 10
        for step in range(1, done[0] + 1, every):
            shutil.rmtree(place, ignore_errors=True)
            lake = copy_of(here, tmp_path / f"{act.__name__} {step}")
            with pytest.MonkeyPatch.context() as planted:
                ends_before(planted, step)
                with pytest.raises(KeyboardInterrupt):
                    act(lake)
            shutil.rmtree(lake.folder / "warehouse" / "new" / "lease", ignore_errors=True)
            project = both(lake)
            if act is save:
                assert [each.name for each in project.savepoints.list("hours", at=place).savepoints] in ([], ["copy"])
            else:
                assert not PipelineTables.of(project.config, "new").exist or is_whole_or_new(project, expected)
            act(lake)
            if act is save:
                project.restore("new", "savepoint:copy", from_="hours", at=place)
            assert rows_of(project, "new") == expected


def is_whole_or_new(project: Project, expected: list[dict[str, Any]]) -> bool:
    """Return True if a pipeline has no snapshot, or the next run, which publishes the rest, leaves what is expected."""
    return not project.snapshots.list("new").snapshots or (
        project.stream("new") is not None and rows_of(project, "new") == expected
    )
