"""Table `windows` follows results: after kills, restores and manual repairs, and while another driver runs."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.lake import DAY0, LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.standing import check_windows, counted, rows_of
from tests.recovery.arrivals import FILE_BY_FILE, WITH_WINDOWS, Crash, copy_of
from tests.remedies import remedy_of
from tidegate import Project
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition import results, windows
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.snapshots import publish_windows as step
from tidegate.pipelines.ledger.snapshots.head import require_snapshot
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.commits import Outrun, commit
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.ledger.tables.table_log import LogEntry, TableLog
from tidegate.pipelines.remedy import Act
from tidegate.pipelines.run.stream import Stream
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema
from tidegate.windowing import Accumulation, Count, Sum, TumblingEventTimeWindows, Windows

PIPELINE = hourly_pipeline(allowed_lateness=timedelta(hours=50), parallelism=2)
BY_DAY = WindowsTable(partition_by="day")


def stream(
    lake: Lake,
    wanted: WindowsTable | None = BY_DAY,
    pipeline: Pipeline = PIPELINE,
    tell: Callable[[str], None] = lambda step: None,
) -> None:
    """Read everything there is, one file per epoch."""
    with lake.driver(LOCAL, pipeline, tell) as driver:
        driver.windows = wanted
        Stream(driver, lambda manifest: None, FILE_BY_FILE).run_available()


def commit_to(lake: Lake, number: int) -> None:
    """Nine hours later: it ends the hours of the previous commit, and later ones have a row for an hour that fired."""
    begin = DAY0 + timedelta(hours=9 * number)
    late = [("ann", begin - timedelta(hours=27) + timedelta(minutes=5), 100)] if number > 3 else []
    lake.append(("ann", begin, number), ("bob", begin + timedelta(minutes=30), number), *late)


def killed(lake: Lake, after: str, epoch: int) -> None:
    planned: list[str] = []

    def tell(done: str) -> None:
        planned.extend([done] if done == "planned" else [])
        if done == after and len(planned) == epoch:
            raise Crash

    with pytest.raises(Crash):
        stream(lake, tell=tell)


@pytest.fixture(scope="module")
def unread(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Five commits."""
    lake = Lake(tmp_path_factory.mktemp("unread") / "lake")
    for number in range(1, 6):
        commit_to(lake, number)
    return lake


@pytest.fixture(scope="module")
def read(unread: Lake, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The same, and a pipeline with table windows that has read them."""
    lake = copy_of(unread, tmp_path_factory.mktemp("read") / "lake")
    stream(lake)
    return lake


@pytest.fixture
def lake(tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    """A copy of the lake, which the pipeline has read for tests of its tables."""
    name = "read" if "tables" in request.fixturenames else "unread"
    return copy_of(request.getfixturevalue(name), tmp_path / "lake")


@pytest.fixture
def tables(lake: Lake) -> PipelineTables:
    """The tables of the pipeline."""
    return lake.tables(PIPELINE)


@pytest.mark.first(2)
@pytest.mark.parametrize("after", WITH_WINDOWS)
def test_a_kill_after_any_step_leaves_each_window_once(lake: Lake, after: str) -> None:
    killed(lake, after, epoch=4)
    stream(lake)
    check_windows(lake.tables(PIPELINE))


def test_a_rerun_without_a_look_at_what_the_table_shows_would_have_windows_twice(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: the newest epoch always counts as missing."""

    def before_newest(tables: PipelineTables, handle: DeltaTable) -> step.Shown:
        version = tables.newest(results.NAME).version() - 1
        entry = TableLog(tables, results.NAME).entry(version)
        return step.Shown(version, step.id_in(entry.info))

    killed(lake, "published windows", epoch=4)
    monkeypatch.setattr(step, "shown", before_newest)
    stream(lake)
    with pytest.raises(AssertionError, match="too many Counter"):
        check_windows(lake.tables(PIPELINE))


def test_a_late_pane_replaces_the_row_of_its_window(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    stream(lake)
    tables = lake.tables(PIPELINE)
    panes = tables.warehouse.read_files(
        tables.path(results.NAME),
        [file["path"] for file in active_files(tables.open(results.NAME))],
        arrow_schema(tables.open(results.NAME)),
    )
    assert max(panes["pane"].to_pylist()) > 0, "the source makes late panes"
    check_windows(tables)
    # The planted bug: nothing is replaced.
    shutil.rmtree(lake.path("hours"))
    monkeypatch.setattr(windows, "replacing", lambda rows, key: windows.identities(rows[:0], key))
    stream(lake)
    with pytest.raises(AssertionError, match="too many Counter"):
        check_windows(tables)


def test_an_epoch_with_a_late_pane_rewrites_only_the_files_that_may_have_its_window(tmp_path: Path) -> None:
    lake, pipeline = Lake(tmp_path), hourly_pipeline(allowed_lateness=timedelta(hours=50), parallelism=1)
    for hours in (0, 30, 60):
        lake.append(("ann", DAY0 + timedelta(hours=hours), 1), ("bob", DAY0 + timedelta(hours=hours + 3), 1))
        stream(lake, pipeline=pipeline)
    tables = lake.tables(pipeline)
    before = {file["path"] for file in active_files(tables.open(windows.NAME))}
    lake.append(("ann", DAY0 + timedelta(hours=30, minutes=5), 7))
    stream(lake, pipeline=pipeline)
    after = {file["path"] for file in active_files(tables.open(windows.NAME))}
    assert 0 < len(before - after) < len(before)
    check_windows(tables)


def bytes_of(path: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(path).glob("*.parquet")}


@pytest.mark.first(1)
@pytest.mark.parametrize("unit", ["none", "day"])
def test_an_epoch_with_only_first_panes_copies_files_that_lie_in_one_partition(tmp_path: Path, unit: str) -> None:
    lake, pipeline = Lake(tmp_path), hourly_pipeline(parallelism=1)
    for hours in (0, 5, 30, 60):
        lake.append(("ann", DAY0 + timedelta(hours=hours), 1), ("bob", DAY0 + timedelta(hours=hours + 3), 1))
    stream(lake, WindowsTable(partition_by=unit), pipeline)  # type: ignore[arg-type]
    tables = lake.tables(pipeline)
    check_windows(tables)
    of_results = bytes_of(tables.path(results.NAME))
    copied = [content in of_results.values() for content in bytes_of(tables.path(windows.NAME)).values()]
    # A file that spans several days is divided.
    assert sum(copied) == (4 if unit == "none" else 2), copied
    rows = DeltaTable(tables.path(windows.NAME)).to_pyarrow_dataset()
    assert "pane" not in rows.schema.names


def test_files_with_other_panes_are_not_copied(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: every file counts as one with first panes."""
    monkeypatch.setattr(windows, "are_first_panes", lambda file, early: True)
    stream(lake)
    with pytest.raises(AssertionError, match="too many Counter"):
        check_windows(lake.tables(PIPELINE))


def test_a_restore_takes_windows_back(lake: Lake, tables: PipelineTables, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = require_snapshot(tables).manifest.epoch
    restore(tables, find_snapshot(tables, str(newest - 2)), lake.clock())
    check_windows(tables)

    def all_added(changes: Sequence[LogEntry]) -> list[str]:
        return [path for entry in changes for path in entry.added]

    # The planted bug: a restore counts as an ordinary epoch.
    monkeypatch.setattr(step, "_added", all_added)
    restore(tables, find_snapshot(tables, str(newest - 3)), lake.clock())
    with pytest.raises(AssertionError, match="too many Counter"):
        check_windows(tables)


@pytest.mark.first(1)
@pytest.mark.parametrize("protected", [True, False])
def test_tables_put_back_from_a_copy_are_noticed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, protected: bool
) -> None:
    """All tables except windows are restored, and the next epoch gets the number and the version of a lost one."""
    if not protected:
        # The planted bug: versions count as the same whoever committed them.
        monkeypatch.setattr(step, "id_in", lambda info: None)
    stream(lake)
    folder = Path(lake.path(PIPELINE.name))
    shutil.copytree(folder, tmp_path / "copy")
    source = shutil.copytree(lake.path("events"), tmp_path / "source")
    commit_to(lake, 6)
    stream(lake)
    shutil.rmtree(lake.path("events"))
    shutil.copytree(source, lake.path("events"))
    for table in (table for table in folder.iterdir() if table.name != windows.NAME):
        shutil.rmtree(table)
        shutil.copytree(tmp_path / "copy" / table.name, table)
    commit_to(lake, 7)
    with monkeypatch.context() as older:
        # An older tidegate, which does not know the table, runs first.
        older.setattr(step, "publish_windows", lambda *ignored, **also: False)
        stream(lake)
    stream(lake)
    if protected:
        check_windows(lake.tables(PIPELINE))
    else:
        with pytest.raises(AssertionError, match="missing Counter"):
            check_windows(lake.tables(PIPELINE))


@pytest.mark.first(1)
@pytest.mark.parametrize("protected", [True, False])
def test_a_driver_that_hung_adds_nothing_twice(lake: Lake, monkeypatch: pytest.MonkeyPatch, protected: bool) -> None:
    killed(lake, "published rejects", epoch=4)
    tables, known = lake.tables(PIPELINE), step.commit
    manifest = require_snapshot(tables).manifest

    def hung(warehouse: Any, handle: DeltaTable, *rest: Any, **options: Any) -> None:
        # Another driver publishes the epoch while this one hangs before its commit.
        monkeypatch.setattr(step, "commit", known)
        assert step.publish_windows(tables, manifest)
        # The planted bug: the commit is made on top of whatever is there.
        known(warehouse, handle if protected else tables.open(windows.NAME), *rest, **options)

    monkeypatch.setattr(step, "commit", hung)
    assert step.publish_windows(tables, manifest) is not protected
    if protected:
        check_windows(tables)
    else:
        with pytest.raises(AssertionError, match="too many Counter"):
            check_windows(tables)


def test_a_plain_select_is_right(tables: PipelineTables) -> None:
    table = DeltaTable(tables.path(windows.NAME))
    session = duckdb.connect()
    session.register("windows", table.to_pyarrow_dataset())
    found = session.execute("SELECT user, events, total FROM windows").fetchall()
    assert Counter(found) == Counter((row["user"], row["events"], row["total"]) for row in rows_of(tables).to_pylist())
    names = [name for name, *_ in session.execute("DESCRIBE SELECT * FROM windows").fetchall()]
    assert names == [*("user", "window_start", "window_end", "events", "total", "final_at", "epoch", "window_day")]
    days = "SELECT count(*) FROM windows WHERE window_day <> CAST(window_start AT TIME ZONE 'UTC' AS DATE)"
    assert session.execute(days).fetchall() == [(0,)]
    assert len(table.to_pandas()) == len(found)


@pytest.mark.first(1)
@pytest.mark.parametrize("unit", ["none", "day"])
def test_every_reader_reads_it_in_one_line(lake: Lake, unit: str) -> None:
    stream(lake, WindowsTable(partition_by=unit))  # type: ignore[arg-type]
    tables = lake.tables(PIPELINE)
    path, expected = tables.path(windows.NAME), len(rows_of(tables))
    assert len(DeltaTable(path).to_pandas()) == expected
    assert DeltaTable(path).to_pyarrow_dataset().count_rows() == expected
    assert len(duckdb.from_arrow(DeltaTable(path).to_pyarrow_dataset()).fetchall()) == expected
    assert pa.table(QueryBuilder().register("windows", DeltaTable(path)).execute("SELECT * FROM windows")).num_rows == (
        expected
    )
    polars = pytest.importorskip("polars")
    assert len(polars.read_delta(path)) == expected
    assert polars.scan_delta(path).select("events").sum().collect().item() > 0


def test_a_pipeline_that_has_run_gets_the_table_in_its_next_run(lake: Lake) -> None:
    stream(lake, None)
    tables = lake.tables(PIPELINE)
    assert not tables.warehouse.exists(tables.path(windows.NAME))
    stream(lake, WindowsTable(partition_by="month", early=True))
    check_windows(tables)


def project(lake: Lake, wanted: WindowsTable, pipeline: Pipeline = PIPELINE) -> Project:
    settings = {pipeline.name: {"windows": wanted.model_dump()}}
    warehouse = lake.folder / "warehouse"
    return Project(warehouse=warehouse, work=lake.folder, pipelines=[pipeline], settings=settings, engine="local")


@pytest.mark.long
def test_other_settings_are_refused_until_the_table_is_built_again(lake: Lake, tables: PipelineTables) -> None:
    for wanted in (WindowsTable(partition_by="month"), WindowsTable(partition_by="day", early=True)):
        commit_to(lake, 6)
        with pytest.raises(Refused, match=r"pipelines\.hours\.windows\.") as refused:
            stream(lake, wanted)
        assert remedy_of(refused, Act.BUILD_WINDOWS)
        handle = tables.open(windows.NAME)
        built = project(lake, wanted).tables.rebuild_windows("hours")
        assert built.windows == len(rows_of(tables))
        stream(lake, wanted)
        check_windows(tables)
        with pytest.raises(Outrun):
            # A driver that has hung since before the table was rebuilt.
            commit(tables.warehouse, handle, [], {})
        shutil.rmtree(tables.path(windows.NAME))
        stream(lake)
    with pytest.raises(Refused, match=r"windows\.enabled = False, but table") as refused:
        stream(lake, WindowsTable(enabled=False))
    assert remedy_of(refused, Act.MOVE_AWAY)
    shutil.rmtree(tables.path(windows.NAME))
    stream(lake, WindowsTable(enabled=False))
    assert not tables.warehouse.exists(tables.path(windows.NAME))
    with pytest.raises(UsageError, match=r"pipelines\.hours\.windows\.enabled = False: set it to true"):
        project(lake, WindowsTable(enabled=False)).tables.rebuild_windows("hours")
    project(lake, WindowsTable(partition_by="month")).tables.rebuild_windows("hours")
    check_windows(tables)


def test_a_log_that_is_damaged_says_what_to_do(lake: Lake, tables: PipelineTables) -> None:
    newest = max(Path(tables.path(windows.NAME), "_delta_log").glob("*.json"))
    newest.write_text("{")
    with pytest.raises(Refused, match="can't be used") as refused:
        stream(lake)
    assert remedy_of(refused, Act.BUILD_WINDOWS)
    project(lake, BY_DAY).tables.rebuild_windows("hours")
    stream(lake)
    check_windows(tables)


def test_a_table_that_is_built_again_half_is_filled_by_the_next_run(
    lake: Lake, tables: PipelineTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = WindowsTable(partition_by="month")

    def dies(*given: object) -> None:
        raise Crash

    with monkeypatch.context() as killed:
        killed.setattr(step._Step, "commit", dies)
        with pytest.raises(Crash):
            project(lake, wanted).tables.rebuild_windows("hours")
    assert not len(rows_of(tables))
    stream(lake, wanted)
    check_windows(tables)


@pytest.mark.first(1)
@pytest.mark.parametrize("unit", ["none", "month"])
def test_view_windows_is_the_table(lake: Lake, unit: str) -> None:
    of_code = project(lake, WindowsTable(partition_by=unit))  # type: ignore[arg-type]
    of_code.stream("hours")
    tables = lake.tables(PIPELINE)
    expected = counted(rows_of(tables))
    shown = of_code.results("hours", view="windows")
    assert counted(shown.to_arrow()) == expected
    assert ">windows of hours" in shown._repr_html_()
    assert {row["user"] for row in of_code.results("hours", view="windows", where="user = 'ann'").to_dict()} == {"ann"}
    shutil.rmtree(tables.path(windows.NAME))
    with pytest.raises(Refused, match="has no table windows") as refused:
        of_code.results("hours", view="windows")
    assert remedy_of(refused, Act.BUILD_WINDOWS)
    of_code.tables.rebuild_windows("hours")
    assert counted(of_code.results("hours", view="windows").to_arrow()) == expected


def test_a_result_with_the_name_of_the_partitions_is_refused_before_anything_runs(lake: Lake) -> None:
    compute = replace(PIPELINE.compute, aggregate={"Window_Day": Count()})  # type: ignore[arg-type]
    pipeline = replace(PIPELINE, compute=compute)
    named = project(lake, BY_DAY, pipeline)
    for call in (named.explain, named.stream, named.tables.rebuild_windows):
        with pytest.raises(Refused, match='set partition_by = "none"'):
            call("hours")
    assert not lake.tables(pipeline).exist
    free = project(lake, WindowsTable(), pipeline)
    free.explain("hours")
    free.stream("hours")
    check_windows(lake.tables(pipeline))


def test_a_pipeline_without_windows_to_build_says_why(lake: Lake) -> None:
    compute = replace(PIPELINE.compute, accumulation=Accumulation.DISCARDING)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no table windows, because it emits panes that hold only parts"):
        project(lake, BY_DAY, replace(PIPELINE, compute=compute)).tables.rebuild_windows("hours")
    with pytest.raises(Refused, match="has no snapshot yet"):
        project(lake, BY_DAY).tables.rebuild_windows("hours")


def test_the_table_has_no_feature_that_a_plain_reader_lacks(tables: PipelineTables) -> None:
    handle = DeltaTable(tables.path(windows.NAME))
    assert not {*(handle.protocol().reader_features or ())} - {"timestampNtz"}
    assert handle.protocol().min_reader_version <= 3
    assert "delta.columnMapping.mode" not in handle.metadata().configuration
    assert "delta.enableDeletionVectors" not in handle.metadata().configuration


def test_new_aggregates_are_added_to_the_table(lake: Lake, tables: PipelineTables) -> None:
    compute = Windows(
        TumblingEventTimeWindows.of(timedelta(hours=1)),
        aggregate={"events": Count(), "total": Sum("value"), "again": Count()},
        allowed_lateness=timedelta(hours=50),
    )
    commit_to(lake, 6)
    stream(lake, pipeline=replace(PIPELINE, compute=compute))
    assert "again" in rows_of(tables).column_names
    check_windows(tables)


def test_discarding_panes_have_no_such_table(lake: Lake) -> None:
    compute = replace(PIPELINE.compute, accumulation=Accumulation.DISCARDING)  # type: ignore[arg-type]
    pipeline = replace(PIPELINE, compute=compute)
    stream(lake, pipeline=pipeline)
    assert not lake.tables(pipeline).warehouse.exists(lake.tables(pipeline).path(windows.NAME))


def test_compaction_and_clean_up_keep_its_rows_and_drop_its_old_files(lake: Lake, tables: PipelineTables) -> None:
    rows, handle = counted(rows_of(tables)), tables.open(windows.NAME)
    days = {file["partition.window_day"] for file in active_files(handle)}
    before, after = compact(tables, windows.NAME)
    assert before > after == len(days)
    vacuum(tables, Retention(1, timedelta(0)), lake.clock() + 99_000_000)
    assert counted(rows_of(tables)) == rows
    files = {file["path"] for file in active_files(tables.open(windows.NAME))}
    present = {name for name in tables.warehouse.names(tables.path(windows.NAME)) if name.endswith(".parquet")}
    assert present == files
    commit_to(lake, 6)
    stream(lake)
    check_windows(tables)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (Path.unlink, "nothing was committed: .*: it is missing"),
        (lambda file: file.write_bytes(b""), "nothing was committed: .*: it has 0 bytes, not"),
        (lambda file: file.write_bytes(bytes(file.stat().st_size)), "its windows can't be published"),
    ],
    ids=["missing", "empty", "zeros"],
)
def test_a_restore_names_the_remedy_if_it_selects_all_windows_again_and_a_file_of_results_can_not_be_read(
    lake: Lake, damage: Callable[[Path], None], told: str
) -> None:
    hours = lake.project(PIPELINE)
    for hour in range(3):
        lake.append(("ann", at(f"{10 + hour}:00"), 1), ("ann", at(f"{10 + hour}:40"), 1))
        hours.stream("hours")
    (lost,) = Path(lake.path("hours/results")).glob("results-000002-*.parquet")
    damage(lost)
    with pytest.raises(Refused, match=told) as refused:
        hours.restore("hours", 2)
    assert remedy_of(refused, Act.RESTART)
    committed = 3 if told.startswith("nothing was committed") else 4
    assert hours.snapshots.list("hours").snapshots[0]["epoch"] == committed
    hours.restore("hours", restart=True)
    hours.stream("hours")
    assert hours.verify("hours", sample="all").to_dict()["faults"] == []


def test_windows_far_from_late_rows_leave_the_files_that_late_rows_rewrite(tmp_path: Path) -> None:
    """The change feed shows the rows of whole files: a backfilled history is in it once, not with every late row."""
    lake = Lake(tmp_path / "lake")
    days, users = 30, 20
    hours = [DAY0 + timedelta(hours=number) for number in range(24 * days)]
    lake.append(*((f"user-{user}", hour, 1) for hour in hours for user in range(users)))
    lake.append(("ann", hours[-1] + timedelta(hours=9), 1))
    pipeline = hourly_pipeline(allowed_lateness=timedelta(hours=50), parallelism=1)
    stream(lake, WindowsTable(), pipeline)
    tables, shown = lake.tables(pipeline), []
    for number in range(1, 4):
        lake.append((f"user-{number}", hours[-20 + number], 100))
        first = tables.newest(windows.NAME).version() + 1
        stream(lake, WindowsTable(), pipeline)
        feed = tables.newest(windows.NAME).load_cdf(starting_version=first)
        shown.append(pa.RecordBatchReader.from_stream(feed).read_all().num_rows)
    check_windows(tables)
    assert shown[0] > 1.9 * users * len(hours), "the history is one file"
    assert max(shown[1:]) <= 2 * 6_000


@pytest.mark.parametrize("seed", range(20))
def test_the_rows_that_stay_are_divided_between_the_replaced_ones(seed: int) -> None:
    draws = np.random.default_rng(seed)
    count = int(draws.integers(1, 60_000))
    starts = pa.array(
        draws.integers(-50, 50, count) * 3_600_000, pa.timestamp("ms", "UTC"), mask=draws.random(count) < 0.1
    )
    rows = pa.table({"user": pa.array(np.arange(count)), "window_start": starts, "window_end": starts})
    touched = (
        rows.filter(pa.array(draws.random(count) < 1 / count)) if seed % 4 else rows.take(draws.integers(0, count, 3))
    )
    parts = windows.without(rows, touched, ["user"])
    gone = set(touched["user"].to_pylist())
    if not gone:
        assert parts is None
        return
    assert parts is not None
    assert sorted(user for part in parts for user in part["user"].to_pylist()) == sorted(set(range(count)) - gone)
    assert all(len(part) for part in parts)
    bounds = [pc.min_max(part["window_start"]) for part in parts]
    for earlier, later in itertools.pairwise(bound for bound in bounds if bound["min"].is_valid):
        assert earlier["max"].as_py() < later["min"].as_py()
