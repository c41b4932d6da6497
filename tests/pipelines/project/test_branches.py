"""Branches: a pipeline with other settings next to the published one, compared with it, and promoted."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.expectations.broken import broken_in
from tests.lake import LOCAL, Clock, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.pipelines.ledger.snapshots.test_nothing_of_a_key_stays import ends_before
from tests.pipelines.observe.reading.targets import changes, target_of
from tests.pipelines.project.cli.project import Project as CommandLine
from tests.recovery.arrivals import copy_of
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.definition.branches import branches_of
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.errors import LeaseHeld, Refused, TidegateError, UsageError
from tidegate.pipelines.ledger.backups.renamed import make_branch
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots import promote as promotion
from tidegate.pipelines.ledger.snapshots import restore as restoring
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.publish import publish_table
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PipelineTables
from tidegate.pipelines.project.branches import found_branch
from tidegate.pipelines.project.project import Project
from tidegate.pipelines.run.next_commits import EpochLimits
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import KeyedProcess, KeyedProcessFunction, SlidingEventTimeWindows, Sum, Windows

HOUR = timedelta(hours=1)
WIDE = {"allowed_lateness": "2h"}
NOW = 1_720_000_000_000


def project_of(lake: Lake, pipeline: Pipeline | None = None, **settings: Any) -> Project:
    return lake.project(pipeline or hourly_pipeline(**settings))


def totals(project: Project, name: str) -> dict[tuple[str, int], int]:
    """Return sums by user and hour, of the valid windows."""
    rows = project.results(name, view="latest").to_dict()
    return {(row["user"], row["window_start"].hour): row["total"] for row in rows}


def published(project: Project, name: str) -> dict[str, Any]:
    """Return all rows and versions of a pipeline's tables."""
    tables = PipelineTables.of(project.config, name)
    return {
        table: (tables.newest(table).version(), tables.newest(table).to_pyarrow_table().to_pylist())
        for table in tables.with_windows(ALL)
    }


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Hours over a first commit."""
    lake = Lake(tmp_path_factory.mktemp("streamed") / "lake")
    lake.append(("ann", at("00:10"), 1), ("ann", at("00:20"), 2), ("bob", at("05:00"), 4))
    project_of(lake).stream("hours")
    return lake


@pytest.fixture
def project(lake: Lake, streamed: Lake) -> Project:
    """A copy of it that a test may change."""
    shutil.copytree(streamed.folder, lake.folder, dirs_exist_ok=True)
    return project_of(lake)


def more(lake: Lake) -> None:
    """A commit that moves the watermark to 07:00, and one with a row of an hour before it."""
    lake.append(("ann", at("04:30"), 8), ("bob", at("08:00"), 4), ("ann", at("05:10"), 4))
    lake.append(("ann", at("05:11"), 16), ("bob", at("12:00"), 4))


def test_a_branch_runs_with_its_settings_and_changes_nothing_that_is_published(project: Project, lake: Lake) -> None:
    before = published(project, "hours")
    made = project.branch("hours", "wide", settings=WIDE)
    assert (made.name, made.settings, made.of_epoch) == ("hours@wide", {"allowed_lateness": 7_200_000}, 1)
    more(lake)
    project.stream("hours@wide")
    assert published(project, "hours") == before
    assert totals(project, "hours@wide")["ann", 5] == 20
    project.stream("hours")
    assert totals(project, "hours")["ann", 5] == 4
    assert [(each.name, each.epoch) for each in project.branch("hours").branches] == [("hours@wide", 2)]
    assert project.verify("hours@wide", sample="all").faults == ()


def test_data_files_are_listed_and_a_clean_up_of_the_pipeline_takes_none_from_a_branch(
    project: Project, lake: Lake
) -> None:
    project.branch("hours", "wide", settings=WIDE)
    folders = [Path(lake.path(name)) for name in ("hours", "hours@wide")]
    ours, theirs = ({file.stat().st_ino for file in folder.glob("results/*.parquet")} for folder in folders)
    assert ours
    assert ours == theirs
    more(lake)
    project.stream("hours")
    project.optimize("hours")
    removed = project.vacuum("hours", snapshots=1, days=0)
    assert removed.to_dict()
    project.stream("hours@wide")
    assert totals(project, "hours@wide")["ann", 0] == 3
    project.vacuum("hours@wide", snapshots=1, days=0)
    assert totals(project, "hours")["ann", 0] == 3
    project.branch("hours", "wide", delete=True)
    assert totals(project, "hours")["ann", 5] == 4
    assert branches_of(PipelineTables.of(project.config, "hours").warehouse, "hours") == []


def test_where_a_file_can_have_only_one_name_it_is_copied(
    project: Project, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(original: str, copy: str) -> None:
        raise PermissionError(original)

    monkeypatch.setattr(os, "link", refused)
    project.branch("hours", "wide", settings=WIDE)
    monkeypatch.undo()
    shutil.rmtree(lake.path("hours/results"))
    assert totals(project, "hours@wide") == {("ann", 0): 3}


@pytest.mark.parametrize("note", ["", "{", "[]", "{}", "\xff"])
def test_a_damaged_note_is_refused_with_the_command_that_deletes_the_branch(project: Project, note: str) -> None:
    project.branch("hours", "wide", settings=WIDE)
    file = Path(PipelineTables.of(project.config, "hours@wide").warehouse.path("hours@wide"), "branch.json")
    file.write_bytes(note.encode("latin-1"))
    with pytest.raises(Refused, match=r"branch.json of branch hours@wide .* `tidegate branch hours wide --delete`"):
        project.stream("hours@wide")
    with pytest.raises(Refused, match="is damaged"):
        project.branch("hours")
    assert "hours" in {each.pipeline for each in project.list().pipelines}
    project.branch("hours", "wide", delete=True)
    assert project.branch("hours", "wide", settings=WIDE).of_epoch == 1


@pytest.mark.first(1)
@pytest.mark.parametrize("target", ["1", "savepoint:early"])
def test_a_branch_begins_at_an_older_snapshot(project: Project, lake: Lake, target: str) -> None:
    project.savepoint_create("hours", "early")
    more(lake)
    project.stream("hours")
    assert project.branch("hours", "wide", settings=WIDE, of=target).of_epoch == 1
    assert totals(project, "hours@wide") == {("ann", 0): 3}
    project.stream("hours@wide")
    assert totals(project, "hours@wide")["ann", 5] == 20


def test_every_setting_changes_the_pipeline_of_the_branch(lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1), ("ann", at("00:20"), 2), ("bob", at("05:00"), 4))
    project = project_of(lake, session_pipeline())
    project.stream("sessions")
    settings = {
        "allowed_lateness": "1h",
        "out_of_orderness": "3h",
        "idleness": "10min",
        "gap": "5min",
        "max_ahead": "2h",
    }
    project.branch("sessions", "other", settings=settings)
    lake.append(("ann", at("06:00"), 1), ("ann", at("06:10"), 2), ("bob", at("10:00"), 4))
    streamed = project.stream("sessions@other")
    # With a watermark three hours behind 10:00, and a gap of ten minutes, which no longer joins two clicks of ann.
    assert streamed.epochs[-1]["watermark"].startswith("2024-03-01T06:59:59.999")
    assert {(row["user"], row["total"]) for row in project.results("sessions@other", view="latest").to_dict()} >= {
        ("ann", 1),
        ("ann", 2),
    }


UNFIT = {
    "an unknown setting": (
        {"name": "b", "settings": {"bound": "1h"}},
        "--set bound: .* allowed_lateness, out_of_orderness, idleness, gap, max_ahead",
    ),
    "a setting of other windows": ({"name": "b", "settings": {"gap": "1h"}}, "--set gap: .* EventTimeSessionWindows"),
    "no length": ({"name": "b", "settings": {"allowed_lateness": "soon"}}, "--set allowed_lateness"),
    "no setting": ({"name": "b"}, "give at least one setting"),
    "a name": ({"name": "a@b", "settings": WIDE}, "branch name 'a@b'"),
    "no snapshot": ({"name": "b", "settings": WIDE, "of": 7}, "'7' is not a snapshot of hours"),
    "a list with settings": ({"settings": WIDE}, "--set and --of create a branch"),
    "no name to delete": ({"delete": True}, "--delete: give the NAME"),
    "nothing to delete": ({"name": "b", "delete": True}, "has no complete branch 'b'; its branches: none"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_is_refused_by_name_and_leaves_nothing(project: Project, lake: Lake, case: str) -> None:
    arguments, told = UNFIT[case]
    with pytest.raises(UsageError, match=told):
        project.branch("hours", **arguments)
    assert branches_of(PipelineTables.of(project.config, "hours").warehouse, "hours") == []


def test_of_tables_that_are_not_whole_there_is_no_branch(project: Project, lake: Lake) -> None:
    lost = next(Path(lake.path("hours/results")).glob("*.parquet"))
    lost.unlink()
    with pytest.raises(Refused, match=f"file {lost.name} of table .* is missing"):
        project.branch("hours", "wide", settings=WIDE)
    assert branches_of(PipelineTables.of(project.config, "hours").warehouse, "hours") == []


def test_a_branch_of_a_branch_and_a_branch_that_is_not_there_are_refused(project: Project) -> None:
    for command in (project.stream, project.results, project.runs, lambda name: project.compare("hours", "wide")):
        with pytest.raises(UsageError, match="no complete branch 'wide'; its branches: none"):
            command("hours@wide")
    project.branch("hours", "wide", settings=WIDE)
    with pytest.raises(UsageError, match="a branch can't have branches"):
        project.branch("hours@wide", "wider", settings=WIDE)
    with pytest.raises(UsageError, match="branch hours@wide exists"):
        project.branch("hours", "wide", settings=WIDE)


@pytest.mark.first(1)
@pytest.mark.parametrize("deed", ["forget", "rename"])
def test_forget_and_rename_are_refused_while_there_are_branches(project: Project, lake: Lake, deed: str) -> None:
    project.branch("hours", "wide", settings=WIDE)

    def act() -> None:
        if deed == "forget":
            project.forget("hours", ("ann",))
        else:
            project_of(lake, name="others").rename("hours", "others")

    before = published(project, "hours")
    with pytest.raises(Refused, match="tidegate branch hours wide --delete"):
        act()
    assert published(project, "hours") == before
    project.branch("hours", "wide", delete=True)
    act()


def test_a_branch_that_is_made_while_a_key_is_erased_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand = ByHand(tmp_path)
    by_hand.epoch(("ann", at("00:10"), 1), ("bob", at("00:20"), 2), watermark=at("02:00"))
    branch = PipelineTables(by_hand.warehouse, "sessions@wide")
    made: list[Any] = []
    delete_folder = type(by_hand.warehouse).delete_folder

    def meanwhile(warehouse: Any, path: str) -> None:
        if not made and path.endswith("requests"):
            made.append(make_branch(by_hand.tables, branch, "latest", {"allowed_lateness": 1}, NOW))
        delete_folder(warehouse, path)

    monkeypatch.setattr(type(by_hand.warehouse), "delete_folder", meanwhile)
    erased = r"may hold a key. From sessions it is erased.*branch sessions wide --delete"
    with Lease(by_hand.tables, "forget", Clock()), pytest.raises(Refused, match=erased):
        forget(by_hand.tables, by_hand.pipeline, [("ann",)], NOW)
    assert by_hand.rows("results")["user"].to_pylist() == ["bob"]


def test_the_list_shows_a_branch_as_of_its_published_epoch(lake: Lake, project: Project) -> None:
    made = project.branch("hours", "wide", settings=WIDE)

    def kill(done: str) -> None:
        if done == "committed":
            raise InterruptedError

    more(lake)
    with (
        pytest.raises(InterruptedError),
        lake.driver(LOCAL, load_pipeline(project.config, "hours@wide"), kill) as driver,
    ):
        Stream(driver, lambda epoch: None, EpochLimits()).run_available()
    assert project.branch("hours").branches == (made,)
    assert [each["epoch"] for each in project.snapshot_list("hours@wide").snapshots][:2] == [made.epoch + 1, made.epoch]


def test_a_pipeline_is_not_compared_while_a_killed_restore_is_half_published(lake: Lake, project: Project) -> None:
    more(lake)
    project.stream("hours")
    project.branch("hours", "wide", settings=WIDE)

    def publish_in_part(tables: PipelineTables, manifest: Manifest) -> None:
        publish_table(tables, manifest, "results")
        if manifest.kind == "restore":
            raise InterruptedError

    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(restoring, "publish", publish_in_part)
        with pytest.raises(InterruptedError):
            project.restore("hours", 1)
    with pytest.raises(TidegateError, match="is removing rows right now"):
        project.compare("hours", "wide")


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.long)])
def test_a_branch_whose_making_or_deletion_was_killed_is_no_branch_and_can_be_made_again(
    project: Project, every: int
) -> None:
    before = published(project, "hours")

    def steps_of(act: Callable[[], object]) -> int:
        with pytest.MonkeyPatch.context() as planted:
            done = ends_before(planted, -1)
            act()
        return done[0]

    def make() -> object:
        return project.branch("hours", "wide", settings=WIDE)

    def delete() -> object:
        return project.branch("hours", "wide", delete=True)

    for act, other in ((make, delete), (delete, make)):
        if act is delete:
            make()
        steps = steps_of(act)
        assert steps > 5
        other()
        for step in range(2, steps, every):
            with pytest.MonkeyPatch.context() as planted:
                ends_before(planted, step)
                with pytest.raises(KeyboardInterrupt):
                    act()
            if project.branch("hours").branches:
                assert totals(project, "hours@wide") == {("ann", 0): 3}
            else:
                with pytest.raises(UsageError, match="no complete branch"):
                    project.stream("hours@wide")
                make()
            assert totals(project, "hours@wide") == {("ann", 0): 3}
            if act is make:
                delete()
    assert published(project, "hours") == before


def test_a_second_command_on_a_branch_is_told_who_is_at_work(project: Project) -> None:
    branch = PipelineTables(PipelineTables.of(project.config, "hours").warehouse, "hours@wide")
    with Lease(branch, "branch", lambda: NOW + 10**12), pytest.raises(LeaseHeld, match="hours@wide"):
        project.branch("hours", "wide", settings=WIDE)


def compared(project: Project) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Totals before and after, their difference, late rows and reason, by user and hour."""
    return {
        (each.key["user"], each.window_start.hour): (
            each.before and each.before["total"],
            each.after and each.after["total"],
            each.by.get("total"),
            each.late,
            each.why.partition(",")[0],
        )
        for each in project.compare("hours", "wide").windows
    }


def test_a_comparison_says_which_windows_differ_by_how_much_and_why(project: Project, lake: Lake) -> None:
    project.branch("hours", "wide", settings=WIDE)
    more(lake)
    project.stream("hours@wide")
    unread = project.compare("hours", "wide")
    assert unread.read == {"events": (0, 2)}
    assert {each.why.partition(",")[0] for each in unread.windows} == {"not fired yet in the pipeline"}
    project.stream("hours")
    comparison = project.compare("hours", "wide")
    assert (comparison.changed, comparison.added, comparison.missing, comparison.equal) == (1, 0, 0, 3)
    assert compared(project) == {("ann", 5): (4, 20, 16, 1, "1 row(s) that were late")}
    assert comparison.read == {"events": (2, 2)}
    assert "4 -&gt; 20" in comparison._repr_html_()
    assert len(comparison.to_arrow()) == 1


def test_a_late_row_counts_only_in_the_sliding_windows_that_it_is_in(lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1))
    assigner = SlidingEventTimeWindows.of(HOUR, HOUR / 4)
    project = project_of(lake, compute=Windows(assigner, aggregate={"total": Sum("value")}))
    project.stream("hours")
    project.branch("hours", "wide", settings={"allowed_lateness": "4h"})
    lake.append(("bob", at("09:00"), 1))
    lake.append(("ann", at("05:50"), 2), ("ann", at("06:05"), 4))
    for name in ("hours", "hours@wide"):
        project.stream(name)
    windows = project.compare("hours", "wide").windows
    assert [(f"{each.window_start:%H:%M}", each.late) for each in windows if each.key["user"] == "ann"] == [
        ("05:00", 1),
        *((start, 2) for start in ("05:15", "05:30", "05:45")),
        ("06:00", 1),
    ]


def test_the_difference_of_decimals_is_a_decimal(lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1), ("bob", at("05:00"), 4))
    project = project_of(lake, columns={"value": "cast(cast(value as string) as decimal(10, 2))"})
    project.stream("hours")
    project.branch("hours", "wide", settings=WIDE)
    more(lake)
    for name in ("hours", "hours@wide"):
        project.stream(name)
    differences = [each for each in project.compare("hours", "wide").windows if each.before and each.after]
    assert [each.by for each in differences] == [{"events": 1, "total": Decimal(16)}]


def test_windows_that_stand_on_one_side_only_are_compared_too(lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1), ("bob", at("05:00"), 4))
    project = project_of(lake, allowed_lateness=timedelta(hours=6))
    project.stream("hours")
    project.branch("hours", "wide", settings={"allowed_lateness": "0s", "out_of_orderness": "4h"})
    lake.append(("ann", at("04:30"), 8), ("bob", at("08:00"), 4), ("ann", at("05:10"), 4))
    lake.append(("ann", at("03:00"), 16), ("bob", at("08:30"), 4))
    project.stream("hours")
    project.stream("hours@wide")
    assert compared(project) == {
        # The watermark stood at 04:00 when the branch began.
        ("ann", 3): (16, None, None, -1, "1 row(s) that are late in the branch"),
        ("ann", 4): (8, None, None, 0, "not fired yet in the branch"),
        ("ann", 5): (4, None, None, 0, "not fired yet in the branch"),
        ("bob", 5): (4, None, None, 0, "not fired yet in the branch"),
    }
    assert len(project.compare("hours", "wide", rows=1).windows) == 1


def test_late_rows_of_a_derived_key_are_not_matched_by_the_column_of_the_source(lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1), ("bob", at("05:00"), 4))
    project = project_of(lake, columns={"user": "case when user = 'ann' then 'bob' else 'ann' end"})
    project.stream("hours")
    project.branch("hours", "wide", settings=WIDE)
    lake.append(("ann", at("05:10"), 8), ("bob", at("05:20"), 8), ("bob", at("08:00"), 4))
    lake.append(("bob", at("05:30"), 16), ("bob", at("05:40"), 16), ("ann", at("05:50"), 1), ("bob", at("12:00"), 4))
    project.stream("hours")
    project.stream("hours@wide")
    why = "the changed settings put its rows into other windows"
    assert compared(project) == {("ann", 5): (12, 44, 32, 0, why), ("bob", 5): (8, 9, 1, 0, why)}


def test_sessions_of_another_gap_are_other_windows(lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1), ("bob", at("05:00"), 4))
    project = project_of(lake, session_pipeline())
    project.stream("sessions")
    project.branch("sessions", "short", settings={"gap": "5min"})
    lake.append(("ann", at("06:00"), 1), ("ann", at("06:10"), 2), ("bob", at("10:00"), 4))
    for name in ("sessions", "sessions@short"):
        project.stream(name)
    comparison = project.compare("sessions", "short")
    assert [(each.before or each.after)["total"] for each in comparison.windows] == [1, 3, 2]  # type: ignore[index]
    assert {each.why for each in comparison.windows} == {
        "the changed settings put its rows into other windows, or make other rows late or rejected"
    }


class Echo(KeyedProcessFunction):
    """Emits each row."""

    result_type = pa.struct([("value", pa.int64())])

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield {"value": value["value"]}


def test_rows_of_a_function_are_compared_as_multisets(lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1), ("bob", at("05:00"), 4))
    project = project_of(lake, compute=KeyedProcess(Echo()))
    project.stream("hours")
    project.branch("hours", "wide", settings={"out_of_orderness": "3h"})
    lake.append(("ann", at("06:00"), 8), ("ann", at("06:00"), 8), ("bob", at("08:30"), 4))
    lake.append(("ann", at("06:30"), 16), ("bob", at("12:00"), 2))
    for name in ("hours", "hours@wide"):
        project.stream(name)
    comparison = project.compare("hours", "wide")
    assert (comparison.equal, comparison.changed, comparison.added, comparison.missing) == (4, 0, 1, 0)
    (row,) = comparison.windows
    assert (row.key, row.window_start, row.before, row.after) == (
        {"user": "ann"},
        at("06:30"),
        None,
        {"output": None, "value": 16},
    )
    text = str(comparison)
    assert "differs from hours in 1 of 5 rows since" in text
    assert "ann   2024-03-01 06:30:00  - -> null  - -> 16" in text
    # A second row equal to another counts separately.
    lake.append(("ann", at("12:30"), 1), ("ann", at("12:30"), 1), ("bob", at("14:00"), 2))
    lake.append(("bob", at("20:00"), 1))
    project.stream("hours@wide")
    ahead = project.compare("hours", "wide")
    assert any("tidegate stream hours --available-now" in str(line) for line in ahead.shown())
    twice = [each.why for each in ahead.windows if each.window_start == at("12:30")]
    assert twice == ["not fired yet in the pipeline, whose watermark is before its end"] * 2


def test_the_command_line(project: Project, lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    (lake.folder / "of_branches.py").write_text("from tests.lake import hourly_pipeline\nhours = hourly_pipeline()\n")
    (lake.folder / "tidegate.toml").write_text(
        'engine = "local"\nwork = "work"\n\n[pipelines.hours]\nobject = "of_branches:hours"\nstart = 2024-03-01\n'
    )
    shell = CommandLine(lake.folder, capsys)
    made = shell.data("branch", "hours", "wide", "--set", "allowed_lateness=2h", "--set", "max_ahead=1d")
    assert made["settings"] == {"allowed_lateness": 7_200_000, "max_ahead": 86_400_000}
    assert json.loads(json.dumps(project.branch("hours").to_dict())) == shell.data("branch", "hours")
    compared = json.loads(json.dumps(project.compare("hours", "wide").to_dict()))
    assert compared == shell.data("compare", "hours", "wide")
    code, told = shell.tidegate("promote", "hours", "wide")
    assert (code, "has not run an epoch yet" in told or "the code of pipeline" in told) == (3, True)
    assert "hours@wide" in project.branch("hours")._repr_html_()
    assert shell.data("branch", "hours", "wide", "--delete") == {"pipeline": "hours", "deleted": "hours@wide"}


def ready_to_promote(lake: Lake, project: Project) -> Project:
    """A branch that has read what the pipeline has read, and the project with its settings in the code."""
    project.branch("hours", "wide", settings=WIDE)
    more(lake)
    project.stream("hours")
    project.stream("hours@wide")
    return project_of(lake, allowed_lateness=2 * HOUR)


@pytest.fixture(scope="module")
def with_branch(streamed: Lake, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = copy_of(streamed, tmp_path_factory.mktemp("branch") / "lake")
    ready_to_promote(lake, project_of(lake))
    return lake


@pytest.fixture
def ready(lake: Lake, with_branch: Lake) -> Project:
    """A copy of a pipeline and its branch, for a test to promote."""
    shutil.copytree(with_branch.folder, lake.folder, dirs_exist_ok=True)
    return project_of(lake, allowed_lateness=2 * HOUR)


def is_not_promoted(project: Project, words: str) -> None:
    with pytest.raises(Refused, match=words):
        project.promote("hours", "wide")


def shown(project: Project, name: str) -> list[dict[str, Any]]:
    """Return the valid windows, without what identifies their epoch."""
    rows = project.results(name, view="latest", sort="window_start").to_dict()
    return [{key: row[key] for key in row if key not in ("epoch", "timeline")} for row in rows]


def test_a_promotion_makes_the_results_and_the_state_of_a_branch_the_pipelines(ready: Project, lake: Lake) -> None:
    project = ready
    expected = shown(project, "hours@wide")
    promoted = project.promote("hours", "wide")
    assert (promoted.epoch, promoted.parent, promoted.timeline) == (3, 1, 2)
    assert shown(project, "hours") == expected
    assert totals(project, "hours")["ann", 5] == 20
    summaries = [project.late_summary(name).to_dict() for name in ("hours", "hours@wide")]
    assert {**summaries[0], "pipeline": ""} == {**summaries[1], "pipeline": ""}
    assert (project.compare("hours", "wide").windows, project.branch("hours", "wide", delete=True).deleted) == (
        (),
        "hours@wide",
    )
    # The next epochs continue from the state of the branch, with two hours of lateness.
    lake.append(("ann", at("09:30"), 32), ("bob", at("12:30"), 1), ("bob", at("15:00"), 1))
    project.stream("hours")
    assert (totals(project, "hours")["ann", 9], totals(project, "hours")["bob", 12]) == (32, 5)
    windows = project.results("hours", view="windows").to_dict()
    assert {(row["user"], row["window_start"].hour): row["total"] for row in windows} == totals(project, "hours")
    assert project.verify("hours", sample="all").faults == ()
    assert broken_in(PipelineTables.of(project.config, "hours"), hourly_pipeline(allowed_lateness=2 * HOUR)) == set()


def test_a_pipeline_that_has_not_run_since_the_branch_began_is_promoted(project: Project, lake: Lake) -> None:
    project.branch("hours", "wide", settings=WIDE)
    more(lake)
    project.stream("hours@wide")
    project = project_of(lake, allowed_lateness=2 * HOUR)
    assert project.promote("hours", "wide").epoch == 2
    assert project.verify("hours", sample="all").faults == ()


def test_a_promotion_is_refused_until_the_code_has_the_settings(ready: Project, lake: Lake) -> None:
    before = published(ready, "hours")
    is_not_promoted(project_of(lake), r"has allowed_lateness 0 ms, but hours@wide was run with allowed_lateness=2 h")
    assert published(ready, "hours") == before
    ready.promote("hours", "wide")


def test_a_branch_that_has_read_less_is_refused_until_it_has_read_it(project: Project, lake: Lake) -> None:
    project.branch("hours", "wide", settings=WIDE)
    more(lake)
    project.stream("hours")
    project = project_of(lake, allowed_lateness=2 * HOUR)
    is_not_promoted(project, "hours@wide has not run an epoch yet")
    project.stream("hours@wide")
    lake.append(("bob", at("13:30"), 1))
    project.stream("hours")
    is_not_promoted(project, r"version 2 of source events, but hours has read version 3: .*stream hours@wide")
    project.stream("hours@wide")
    lake.append(("bob", at("13:40"), 1))
    # It may have read more.
    project.stream("hours@wide")
    expected = shown(project, "hours@wide")
    project.promote("hours", "wide")
    assert shown(project, "hours") == expected
    assert project.stream("hours").epochs == ()


@pytest.mark.long
def test_only_epochs_that_read_the_source_are_taken_over(ready: Project, lake: Lake) -> None:
    project = ready
    lake.append(("ann", at("01:00"), 64))
    project.stream("hours@wide")
    project.late_reopen("hours@wide")
    lake.append(("bob", at("13:00"), 1))
    for name in ("hours", "hours@wide"):
        project.stream(name)
    reopened = totals(project, "hours@wide")
    is_not_promoted(project, r"epoch 4 of hours@wide is of kind 'reopen'.*tidegate restore hours@wide 3")
    # The remedy of the message.
    project.restore("hours@wide", 3)
    project.stream("hours@wide")
    project.promote("hours", "wide")
    project.late_reopen("hours")
    assert totals(project, "hours") == reopened
    assert project.verify("hours", sample="all").faults == ()


@pytest.mark.long
def test_a_branch_from_before_a_correction_of_changed_rows_is_refused_and_another_one_is_promoted(lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1), ("ann", at("00:20"), 2), ("bob", at("05:00"), 4))
    source = DeltaSource("events", timestamp="at", changes="correct")
    project = project_of(lake, source=source)
    project.stream("hours")
    project.branch("hours", "wide", settings=WIDE)
    DeltaTable(lake.path("events")).update(predicate="value = 2", updates={"value": "20"})
    more(lake)
    for name in ("hours", "hours@wide"):
        project.stream(name)
    project = project_of(lake, source=source, allowed_lateness=2 * HOUR)
    is_not_promoted(project, r"of kind 'change'.*promoted. Create another branch, from a newer epoch")
    project.branch("hours", "wider", settings=WIDE)
    lake.append(("ann", at("07:10"), 16), ("bob", at("13:00"), 4))
    project.stream("hours@wider")
    expected = shown(project, "hours@wider")
    project.promote("hours", "wider")
    assert shown(project, "hours") == expected
    assert totals(project, "hours")["ann", 0] == 21


@pytest.mark.long
def test_state_with_deltas_is_promoted_once_the_pipeline_has_such_a_state(project: Project, lake: Lake) -> None:
    project.branch("hours", "wide", settings=WIDE)
    project.state_upgrade("hours@wide")
    more(lake)
    project.stream("hours")
    project.stream("hours@wide", max_commits_per_epoch=1)
    project, expected = project_of(lake, allowed_lateness=2 * HOUR), shown(project, "hours@wide")
    is_not_promoted(project, "run `tidegate state upgrade hours`, then promote again")
    project.state_upgrade("hours")
    project.promote("hours", "wide")
    assert shown(project, "hours") == expected
    lake.append(("ann", at("09:30"), 32), ("bob", at("15:00"), 1))
    project.stream("hours")
    assert totals(project, "hours")["ann", 9] == 32
    assert project.verify("hours", sample="all").faults == ()


@pytest.mark.first(1)
@pytest.mark.parametrize("deed", ["restored", "made again"])
def test_a_pipeline_that_no_longer_goes_back_to_the_beginning_of_a_branch_is_refused(
    project: Project, lake: Lake, deed: str
) -> None:
    lake.append(("bob", at("06:00"), 1))
    project.stream("hours")
    project = ready_to_promote(lake, project)
    if deed == "restored":
        project.restore("hours", 1)
    else:
        shutil.rmtree(lake.path("hours"))
        project.stream("hours", max_commits_per_epoch=1)
    is_not_promoted(project, "hours no longer goes back to epoch 2, at which hours@wide began")


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.long)])
def test_a_promotion_that_was_killed_at_any_step_is_finished_by_repeating_it(
    ready: Project, lake: Lake, tmp_path_factory: pytest.TempPathFactory, every: int
) -> None:
    expected, before = shown(ready, "hours@wide"), published(ready, "hours")
    with pytest.MonkeyPatch.context() as planted:
        copied = copy_of(lake, tmp_path_factory.mktemp("whole") / "lake")
        done = ends_before(planted, -1)
        project_of(copied, allowed_lateness=2 * HOUR).promote("hours", "wide")
    assert done[0] > 15
    for step in range(2, done[0], every):
        copied = copy_of(lake, tmp_path_factory.mktemp(str(step)) / "lake")
        project = project_of(copied, allowed_lateness=2 * HOUR)
        with pytest.MonkeyPatch.context() as planted:
            ends_before(planted, step)
            with pytest.raises(KeyboardInterrupt):
                project.promote("hours", "wide")
        tables = PipelineTables.of(project.config, "hours")
        if tables.newest("state").version() == before["state"][0]:
            assert published(project, "hours") == before, "nothing is published before the commit"
        assert project.promote("hours", "wide").epoch == 3
        assert shown(project, "hours") == expected
        assert published(project, "hours@wide") == published(ready, "hours@wide")


def test_of_a_promotion_and_another_driver_one_commits(ready: Project, lake: Lake) -> None:
    lake.append(("bob", at("12:30"), 1))
    tables, branch, note = found_branch(ready.config, "hours", "wide")

    def meanwhile() -> None:
        # The promotion hung, and its lease expired.
        ready.stream("hours")

    with pytest.raises(Refused, match="another driver committed to table state"):
        promotion.promote(tables, branch, note, NOW, meanwhile)
    assert next(row["kind"] for row in ready.runs("hours").to_dict()) == "stream"
    assert totals(ready, "hours")["ann", 5] == 4


def test_a_promotion_needs_both_leases_and_changes_nothing_without_one(ready: Project) -> None:
    before = published(ready, "hours")
    for name in ("hours", "hours@wide"):
        driven = PipelineTables.of(ready.config, name)
        with Lease(driven, "stream", lambda: NOW + 10**12), pytest.raises(LeaseHeld, match=f"'{name}'"):
            ready.promote("hours", "wide")
    assert published(ready, "hours") == before


def test_readers_of_changes_get_what_a_promotion_corrects(ready: Project) -> None:
    project = ready
    tables = PipelineTables.of(project.config, "hours")
    target = target_of(SimpleNamespace(tables=tables, pipeline=hourly_pipeline()), "latest")  # type: ignore[arg-type]
    start, before = target.now(), totals(project, "hours")
    project.promote("hours", "wide")

    def counted(rows: pa.Table) -> Counter[tuple[object, ...]]:
        return Counter((row["user"], row["window_start"].hour, row["total"]) for row in rows.to_pylist())

    came, left = changes(target, start, target.now(), counted)
    assert came - left == {("ann", 5, 20): 1}
    assert left - came == {("ann", 5, 4): 1}
    assert Counter((*window, total) for window, total in before.items()) - left + came == Counter(
        (*window, total) for window, total in totals(project, "hours").items()
    )
