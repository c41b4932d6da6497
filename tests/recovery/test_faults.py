"""Full disks, paths that are not folders, files that decayed: the job stops with a clear error and an exit code. The
last snapshot stays valid, and once the fault is removed the next start ends as if nothing had happened. Every fault
here also affects root.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lake import LOCAL, Lake
from tests.pipelines.by_hand import shorten_log
from tests.recovery.arrivals import FILE_BY_FILE, PIPELINE, STEPS, Runs, copy_of, differences, outcome, rows_of, run
from tidegate.pipelines.definition import state
from tidegate.pipelines.errors import OTHER, REFUSED, Refused, TidegateError
from tidegate.pipelines.ledger.lease import Holder
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, find_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL
from tidegate.pipelines.project import cli
from tidegate.pipelines.run.stream import Stream
from tidegate.pipelines.storage.warehouse import active_files, read_table

pytestmark = pytest.mark.recovery


@dataclass
class Fault:
    """Something that breaks after a step and can be repaired.

    Args:
        happen: breaks it, and returns a function that repairs it.
    """

    happen: Callable[[], Callable[[], None]]
    mend: Callable[[], None] = lambda: None

    def run_into(
        self, lake: Lake, step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> tuple[int, str]:
        """Stream while the fault happens after a step; return exit code and message of the command, with the fault
        removed.
        """
        broken: list[Callable[[], None]] = []

        def tell(done: str) -> None:
            if done == step and not broken:
                broken.append(self.happen())

        failure: Exception | None = None
        try:
            run(LOCAL, lake, tell)
        except Exception as error:
            failure = error
        finally:
            for mend in broken:
                mend()
        assert failure is not None, "it went on as if nothing were"
        return as_told(failure, monkeypatch, capsys)


def as_told(error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return exit code and message with which the command line reports an error."""

    def fail(*arguments: object, **options: object) -> None:
        raise error

    with monkeypatch.context() as planted:
        planted.setattr(cli.cli, "main", fail)
        code = cli.run([])
    return code, capsys.readouterr().err.strip()


def assert_told(step: str, message: str) -> None:
    """The message says what can't be done to which epoch, and what to do."""
    next_steps = {"planned": "computed", "operated": "committed", "committed": "published"}
    if step in next_steps:
        assert f"epoch 4 of hours can't be {next_steps[step]}" in message
        assert "run again" in message


def assert_sound(lake: Lake) -> None:
    """The newest snapshot can be read with all its rows."""
    tables = lake.tables(PIPELINE)
    snapshot = read_snapshot(tables)
    assert snapshot is not None
    assert len(read_table(tables.warehouse, snapshot.handle)) == 1 + sum(file["num_records"] for file in snapshot.files)


def start_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process streams to the end: the one that failed may not even have released the lease."""
    with monkeypatch.context() as other_process:
        other_process.setattr(Holder, "is_alive", lambda self, now: False)
        run(LOCAL, lake)


def no_file_can_grow() -> Callable[[], None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def file_for_folder(lake: Lake, table: str) -> Callable[[], Callable[[], None]]:
    folder = Path(lake.path(f"{PIPELINE.name}/{table}"))
    away = folder.with_name(f"{table}-away")

    def happen() -> Callable[[], None]:
        folder.rename(away)
        folder.write_text("no folder")

        def mend() -> None:
            folder.unlink()
            away.rename(folder)

        return mend

    return happen


@pytest.mark.first(1)
@pytest.mark.parametrize("step", STEPS)
def test_files_that_can_not_grow_stop_the_job_and_harm_nothing(
    runs: Runs, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = copy_of(runs.begun, tmp_path / "lake")
    code, message = Fault(no_file_can_grow).run_into(lake, step, monkeypatch, capsys)
    assert code == OTHER
    assert "File too large" in message
    assert_told(step, message)
    assert_sound(lake)
    start_again(lake, monkeypatch)
    assert differences(outcome(lake), outcome(runs.ended)) == {}


def test_a_stop_tells_of_the_epoch_that_failed_while_it_was_waited_for(runs: Runs, tmp_path: Path) -> None:
    lake = copy_of(runs.begun, tmp_path / "lake")
    broken: list[Callable[[], None]] = []

    def tell(step: str) -> None:
        if step == "committed" and not broken:
            broken.append(file_for_folder(lake, "results")())

    with lake.driver(LOCAL, PIPELINE, tell) as driver:  # type: ignore[arg-type]
        stopped = Stream(driver, lambda manifest: None, FILE_BY_FILE)
        with pytest.raises(TidegateError, match="results can't be opened"):
            stopped.run_available(lambda: bool(broken))
    for mend in broken:
        mend()
    run(LOCAL, lake)
    assert differences(outcome(lake), outcome(runs.ended)) == {}


@pytest.mark.first(1)
@pytest.mark.parametrize("table", ALL)
def test_a_file_in_place_of_a_tables_folder_stops_the_job_and_harms_nothing(
    runs: Runs, tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in STEPS[:3]:
        lake = copy_of(runs.begun, tmp_path / step)
        code, message = Fault(file_for_folder(lake, table)).run_into(lake, step, monkeypatch, capsys)
        assert code in (OTHER, REFUSED)
        assert table in message
        assert_sound(lake)
        start_again(lake, monkeypatch)
        assert differences(outcome(lake), outcome(runs.ended)) == {}


def test_a_state_file_that_rotted_stops_the_job_and_an_older_snapshot_goes_on(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = copy_of(runs.begun, tmp_path / "lake")
    tables = lake.tables(PIPELINE)
    head = read_snapshot(tables)
    assert head is not None
    for found in head.files:
        rot(Path(tables.path(state.NAME), found["path"]))
    with pytest.raises(Exception) as stopped:  # noqa: PT011
        run(LOCAL, lake)
    code, message = as_told(stopped.value, monkeypatch, capsys)
    assert code == REFUSED
    assert "can't be read" in message
    assert "restore" in message
    older = read_snapshot(tables, head.version - 1)
    assert older is not None
    restore(tables, older, lake.clock())
    run(LOCAL, lake)
    assert differences(rows_of(lake), rows_of(runs.ended)) == {}


@pytest.mark.first(1)
@pytest.mark.parametrize("target", ["3", "savepoint:good"])
def test_a_manifest_that_rotted_stops_the_job_and_what_is_whole_goes_on(
    runs: Runs, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = copy_of(runs.begun, tmp_path / "lake")
    tables = lake.tables(PIPELINE)
    create_savepoint(tables, lake.snapshot(PIPELINE), "good", lake.clock())
    run(LOCAL, lake)
    head = lake.snapshot(PIPELINE)
    for found in head.manifest_files:
        rot(Path(tables.path(state.NAME), found["path"]))
    with pytest.raises(Refused) as stopped:
        run(LOCAL, lake)
    code, message = as_told(stopped.value, monkeypatch, capsys)
    assert (code, "tidegate savepoints list" in message) == (REFUSED, True)
    restored = restore(tables, find_snapshot(tables, target), lake.clock())
    assert (restored.epoch, restored.timeline) == (head.manifest.epoch + 1, head.manifest.timeline + 1)
    run(LOCAL, lake)
    assert differences(rows_of(lake), rows_of(runs.ended)) == {}


def test_where_the_log_does_not_tell_how_a_snapshot_is_related_to_one_that_rotted_nothing_is_removed(
    runs: Runs, tmp_path: Path
) -> None:
    lake = copy_of(runs.begun, tmp_path / "lake")
    tables = lake.tables(PIPELINE)
    create_savepoint(tables, lake.snapshot(PIPELINE), "good", lake.clock())
    run(LOCAL, lake)
    before, head = outcome(lake), lake.snapshot(PIPELINE)
    shorten_log(tables, state.NAME, head.version)
    (told,) = head.manifest_files
    manifest = Path(tables.path(state.NAME), told["path"])
    whole = manifest.read_bytes()
    rot(manifest)
    (rows,) = [Path(tables.path("epochs"), file["path"]) for file in active_files(tables.open("epochs"))][-1:]
    row = rows.read_bytes()
    rot(rows)
    with pytest.raises(
        Refused,
        match=r"hours, 5, can't be read, so tidegate can't tell where the timeline of epoch 3 branched.*restart=True",
    ):
        restore(tables, find_snapshot(tables, "savepoint:good"), lake.clock())
    manifest.write_bytes(whole)
    rows.write_bytes(row)
    assert outcome(lake) == before


@pytest.mark.first(1)
@pytest.mark.parametrize("table", ["results", "rejects", "epochs"])
def test_a_published_table_that_rotted_is_named_to_readers_and_the_stream_goes_on(
    runs: Runs, tmp_path: Path, table: str
) -> None:
    lake = copy_of(runs.begun, tmp_path / "lake")
    tables = lake.tables(PIPELINE)
    for found in active_files(tables.open(table)):
        rot(Path(tables.path(table), found["path"]))
    with pytest.raises(Refused, match=f"a file of table .*{table} can't be read"):
        lake.rows(PIPELINE, table)
    run(LOCAL, lake)
    assert differences(state_of(lake), state_of(runs.ended)) == {}


def state_of(lake: Lake) -> dict[str, list[str]]:
    """Return the rows of the newest snapshot, and its position."""
    rows = lake.rows(PIPELINE, state.NAME).drop_columns(["manifest"]).to_pylist()
    manifest = lake.snapshot(PIPELINE).manifest
    return {"state": sorted(map(str, rows)), "position": [str((manifest.positions, manifest.partitions))]}


def rot(file: Path) -> None:
    """One bit of the data flips."""
    whole = bytearray(file.read_bytes())
    whole[40] ^= 1
    file.write_bytes(whole)
