"""A pipeline whose tables were lost is recreated from a backup, and continues as if nothing had happened."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.lake import LOCAL, Lake
from tests.recovery.arrivals import PIPELINE, STEPS, Crash, Runs, copy_of, differences, outcome, run
from tidegate.pipelines.definition import state
from tidegate.pipelines.errors import LeaseHeld, Refused, TidegateError, UsageError
from tidegate.pipelines.ledger.backups import backup as backups
from tidegate.pipelines.ledger.backups.backup import (
    Backup,
    content_of,
    create_backup,
    delete_backups,
    find_backup,
    list_backups,
    restore_backup,
)
from tidegate.pipelines.ledger.backups.cut import Cut
from tidegate.pipelines.ledger.lease import TIME_TO_LIVE, Lease
from tidegate.pipelines.ledger.snapshots.head import list_snapshots
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Clearing, Retention, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, find_snapshot, list_savepoints
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import Warehouse

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A stream at its start, in the middle and at its end."""
    return Runs.make(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def lake(runs: Runs, tmp_path: Path) -> Lake:
    """A stream in the middle, which a test may change."""
    return copy_of(runs.begun, tmp_path / "lake")


@pytest.fixture
def place(tmp_path: Path) -> PipelineTables:
    """The pipeline at the location of its backups."""
    return PipelineTables(Warehouse(str(tmp_path / "backups")), PIPELINE.name)


def back_up(lake: Lake, place: PipelineTables, name: str = "first") -> Backup:
    return create_backup(lake.tables(PIPELINE), place, name, lake.clock())[0]


def lose_tables(lake: Lake) -> None:
    shutil.rmtree(lake.path(PIPELINE.name))


def content(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, without the lease, which nobody holds after a loss."""
    files = (file for file in folder.rglob("*") if file.is_file() and "lease" not in file.parts)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_lost_tables_come_back_and_the_stream_goes_on_exactly(runs: Runs, lake: Lake, place: PipelineTables) -> None:
    tables = lake.tables(PIPELINE)
    create_savepoint(tables, find_snapshot(tables, "1"), "kept", lake.clock())
    before = content(Path(lake.path(PIPELINE.name)))
    made = back_up(lake, place)
    run(LOCAL, lake)
    lose_tables(lake)
    restore_backup(tables, place, made)
    assert content(Path(lake.path(PIPELINE.name))) == before, "file by file"
    assert [entry.name for entry in list_savepoints(tables)] == ["kept"]
    run(LOCAL, lake)
    assert differences(outcome(lake), outcome(runs.ended)) == {}
    restore(tables, find_snapshot(tables, "savepoint:kept"), lake.clock())


def backed_up_within(lake: Lake, place: PipelineTables) -> Iterator[Backup]:
    """Back up after each step of the second epoch of a running stream."""
    made: list[Backup] = []
    planned: list[str] = []

    def tell(step: str) -> None:
        if step == "planned":
            planned.append(step)
        if len(planned) == 2:
            made.append(back_up(lake, place, f"after-{STEPS.index(step)}"))

    run(LOCAL, lake, tell)
    yield from made


def test_a_backup_beside_a_driver_holds_what_is_published_after_each_step(
    runs: Runs, lake: Lake, place: PipelineTables, tmp_path: Path
) -> None:
    made = list(backed_up_within(lake, place))
    assert len(made) == len(STEPS)
    assert [backup.epoch for backup in made] == [4, 4, 4, 4, 4, 4, 5], "epoch 5 is published with its last step"
    for backup in (made[2], made[4]):
        other = copy_of(runs.source, tmp_path / backup.name)
        restore_backup(other.tables(PIPELINE), place, backup)
        run(LOCAL, other)
        assert differences(outcome(other), outcome(runs.ended)) == {}, backup.name


def test_a_file_is_copied_once_and_removed_with_the_last_backup_that_has_it(
    runs: Runs, lake: Lake, place: PipelineTables
) -> None:
    first = back_up(lake, place)
    run(LOCAL, lake)
    second, copied = create_backup(lake.tables(PIPELINE), place, "second", lake.clock() + 1)
    assert copied == second.size - first.size
    assert [backup.name for backup in list_backups(place)] == ["second", "first"]
    assert delete_backups(place, ["first"]) == 0, "the later one has all of its files"
    vacuum(lake.tables(PIPELINE), Retention(1, timedelta(0)), lake.clock())
    back_up(lake, place, "third")
    assert delete_backups(place, ["second"]) > 0
    lose_tables(lake)
    restore_backup(lake.tables(PIPELINE), place, find_backup(place, "latest"))
    assert differences(outcome(lake), outcome(runs.ended)) == {}


@pytest.mark.parametrize("hangs", ["before", "after", "before, and is killed"])
def test_who_hangs_while_it_deletes_a_backup_takes_no_file_of_a_new_one(
    runs: Runs, lake: Lake, place: PipelineTables, monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    """Before or after it sets a file of the pool aside, while the clock of the host that creates a new backup is
    ahead.
    """
    back_up(lake, place)
    known, hung = Warehouse.move_file, list[bool]()

    def move_file(self: Warehouse, *names: str) -> bool:
        if hung:
            return known(self, *names)
        hung.append(True)
        moved = known(self, *names) if hangs == "after" else None
        with Lease(place, "backup", lambda: lake.clock() + TIME_TO_LIVE + 1):
            back_up(lake, place, "new")
        if moved is None:
            moved = known(self, *names)
        if hangs.endswith("killed"):
            raise KeyboardInterrupt
        return moved

    monkeypatch.setattr(Warehouse, "move_file", move_file)
    with (
        pytest.raises(KeyboardInterrupt if hangs.endswith("killed") else LeaseHeld),
        Lease(place, "backup delete", lake.clock) as lease,
    ):
        delete_backups(place, ["first"], lease.check_in_table)
    lose_tables(lake)
    restore_backup(lake.tables(PIPELINE), place, find_backup(place, "new"))
    run(LOCAL, lake)
    assert differences(outcome(lake), outcome(runs.ended)) == {}


def test_a_clean_up_that_removes_files_meanwhile_leads_to_a_new_cut(
    lake: Lake, place: PipelineTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = lake.tables(PIPELINE)
    copy = Warehouse.copy_files
    cleaned: list[Clearing] = []

    def copy_while_others_clean_up(
        warehouse: Warehouse, files: Iterable[tuple[str, str, str, str]], share: bool = False
    ) -> None:
        if not cleaned:
            cleaned.append(vacuum(tables, Retention(1, timedelta(0)), lake.clock()))
        copy(warehouse, files, share)

    monkeypatch.setattr(Warehouse, "copy_files", copy_while_others_clean_up)
    made = back_up(lake, place)
    assert cleaned[0].snapshots, "snapshots went"
    lose_tables(lake)
    restore_backup(tables, place, made)
    assert [entry.epoch for entry in list_snapshots(tables)] == [made.epoch]
    restore(tables, find_snapshot(tables, str(made.epoch)), lake.clock())


def test_a_backup_that_clean_ups_always_disturb_is_given_up(
    lake: Lake, place: PipelineTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cut, "is_whole", lambda cut, tables: False)
    with pytest.raises(TidegateError, match="no backup was created") as caught:
        back_up(lake, place)
    assert caught.value.exit_code == 1, "Airflow tries again"
    assert list_backups(place) == []


def restored_until(tables: PipelineTables, place: PipelineTables, made: Backup, number: int) -> None:
    """Restore a backup in a process that ends in the middle of the n-th log entry of the tables."""
    put, written = Warehouse.replace_file, list[str]()

    def put_until(warehouse: Warehouse, path: str, name: str, content: bytes) -> None:
        if len(written) == number:
            Path(path).mkdir(parents=True, exist_ok=True)
            Path(path, f"{name}.tmp").write_bytes(content[:10])
            raise Crash
        written.append(name)
        put(warehouse, path, name, content)

    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(Warehouse, "replace_file", put_until)
        with pytest.raises(Crash):
            restore_backup(tables, place, made)


def test_an_interrupted_restore_is_continued_and_no_command_takes_it_for_complete(
    runs: Runs, lake: Lake, place: PipelineTables
) -> None:
    tables, made = lake.tables(PIPELINE), back_up(lake, place)
    entries = len(content_of(place, made.name, ["content"]).drop_null())
    for number in (0, entries // 2, entries - 2, entries - 1):
        lose_tables(lake)
        restored_until(tables, place, made, number)
        assert not tables.exist or _opens_not(tables)
        restore_backup(tables, place, made)
    run(LOCAL, lake)
    assert differences(outcome(lake), outcome(runs.ended)) == {}


def test_no_command_takes_half_a_log_with_checkpoints_for_all_of_it(lake: Lake, place: PipelineTables) -> None:
    """A clean-up left a checkpoint in place of the oldest entries, and older snapshots before a gap."""
    tables = lake.tables(PIPELINE)
    run(LOCAL, lake)
    create_savepoint(tables, find_snapshot(tables, "latest"), "kept", lake.clock())
    restore(tables, find_snapshot(tables, "3"), lake.clock())
    vacuum(tables, Retention(2, timedelta(0)), lake.clock())
    made, before = back_up(lake, place), [entry.epoch for entry in list_snapshots(tables)]
    entries = len(content_of(place, made.name, ["content"]).drop_null())
    of_state = content_of(place, made.name).filter(pc.field("table") == state.NAME)["content"].drop_null()
    for number in range(entries - len(of_state), entries):
        lose_tables(lake)
        restored_until(tables, place, made, number)
        assert not tables.exist or _opens_not(tables) or [entry.epoch for entry in list_snapshots(tables)] == before
        restore_backup(tables, place, made)
    assert [entry.epoch for entry in list_snapshots(tables)] == before


def _opens_not(tables: PipelineTables) -> bool:
    try:
        tables.open(state.NAME)
    except Refused:
        return True
    return False


@pytest.mark.parametrize(("versions", "told"), [(3, "read up to version 3"), (2, "read into version 2")])
def test_a_source_that_is_older_than_the_backup_is_refused(
    runs: Runs, lake: Lake, place: PipelineTables, tmp_path: Path, versions: int, told: str
) -> None:
    """Even if the newest commit, which the backup lacks, was read in part."""
    if versions == 3:
        run(LOCAL, lake)
    made = back_up(lake, place)
    older = copy_of(runs.source, tmp_path / "older")
    for gone in sorted(Path(older.path("events"), "_delta_log").glob("*.json"))[versions:]:
        gone.unlink()
    restore_backup(older.tables(PIPELINE), place, made)
    with pytest.raises(Refused, match=told):
        run(LOCAL, older)
    assert older.snapshot(PIPELINE).manifest.epoch == made.epoch


def test_tables_that_exist_are_not_written_over(lake: Lake, place: PipelineTables) -> None:
    made = back_up(lake, place)
    with pytest.raises(Refused, match="only where the pipeline has no tables"):
        restore_backup(lake.tables(PIPELINE), place, made)
    run(LOCAL, lake)
    shutil.rmtree(lake.path(f"{PIPELINE.name}/state"))
    with pytest.raises(Refused, match=r"there is a table .*results"):
        restore_backup(lake.tables(PIPELINE), place, made)


def test_a_damaged_table_is_not_backed_up_and_a_damaged_backup_is_not_restored(
    lake: Lake, place: PipelineTables
) -> None:
    made = back_up(lake, place)
    pool = Path(place.path("files"), "results")
    lost = sorted(pool.iterdir())[0]
    lost.unlink()
    run(LOCAL, lake)
    Path(lake.path(f"{PIPELINE.name}/results"), lost.name).unlink()
    with pytest.raises(Refused, match=f"{lost.name} of table .* is missing: a copy of it would be incomplete"):
        back_up(lake, place, "second")
    lose_tables(lake)
    with pytest.raises(Refused, match="1 files of the backup are missing or truncated"):
        restore_backup(lake.tables(PIPELINE), place, made)


def test_names_are_checked_and_the_format_of_a_newer_version_is_refused(lake: Lake, place: PipelineTables) -> None:
    for name in ("../first", "latest"):
        with pytest.raises(UsageError, match="backup name"):
            back_up(lake, place, name)
    back_up(lake, place)
    with pytest.raises(UsageError, match="exists"):
        back_up(lake, place)
    with pytest.raises(UsageError, match=r"no backup 'second' of hours .* its backups: first"):
        find_backup(place, "second")
    file = Path(place.path("backups"), "first.json")
    file.write_text(file.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(Refused, match="a newer version wrote it"):
        list_backups(place)


def test_a_pipeline_that_has_published_nothing_can_t_be_backed_up(runs: Runs, place: PipelineTables) -> None:
    with pytest.raises(Refused, match="has no snapshot yet"):
        back_up(runs.source, place)


def test_a_backup_that_hung_while_another_command_removed_its_files_is_not_made(
    lake: Lake, place: PipelineTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the other command holds the lease of the location, or it ran before this one checked the lease."""
    copy = backups._copy

    def hang(tables: PipelineTables, place: PipelineTables, cut: Cut) -> int:
        copied = copy(tables, place, cut)
        delete_backups(place, [])
        return copied

    def taken() -> None:
        raise LeaseHeld("lost to another command")

    with monkeypatch.context() as planted:
        planted.setattr(backups, "_copy", hang)
        with pytest.raises(LeaseHeld):
            create_backup(lake.tables(PIPELINE), place, "first", lake.clock(), taken)
        with pytest.raises(TidegateError, match=r"removed files of backup 'first'.*Run the command again"):
            back_up(lake, place)
    assert list_backups(place) == []
    made = back_up(lake, place)
    lose_tables(lake)
    restore_backup(lake.tables(PIPELINE), place, made)
