"""Tasks of one machine read each file once, and none waits for another."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import DAY0, Lake, assert_same_windows, session_pipeline
from tidegate.pipelines.definition.event_columns import TIME
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.epoch import exchange
from tidegate.pipelines.epoch import exchange as module
from tidegate.pipelines.epoch.exchange import Placing, SharedReading, shared_reading
from tidegate.pipelines.epoch.plan import cut_shards
from tidegate.windowing.keys import KeySchema

PLACING = Placing(KeySchema.of(name=pa.string()), cut_shards(3, 16), 16)
SHARDS = range(3)


@dataclass
class Part:
    """A file of the slice."""

    rows: int | None


@dataclass
class Files:
    """A slice of files with three events each, which records what is read of it."""

    number: int = 12
    read: list[int] = field(default_factory=list)
    before: Callable[[int], Any] = lambda number: None

    @property
    def parts(self) -> list[Part]:
        return [Part(3) for _ in range(self.number)]

    def events(self, numbers: Sequence[int] | None = None) -> Iterator[pa.Table]:
        for number in range(self.number) if numbers is None else numbers:
            self.before(number)
            self.read.append(number)
            keys = pa.array([f"key {number % 5}", f"key {number}", None]).dictionary_encode()
            yield pa.table({TIME: pa.array([number, number + 1, number + 2]), "key_name": keys})


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.setattr(module, "_ROWS_OF_A_BUNDLE", range(1, 6))
    return Files()


def rows(tables: dict[int, pa.Table]) -> dict[int, list[dict[str, Any]]]:
    return {shard: table.to_pylist() for shard, table in tables.items()}


def expected(shards: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    return rows(PLACING.select(Files().events(), shards))


def read(shared: SharedReading | None, files: Any, *shards: int) -> dict[int, list[dict[str, Any]]]:
    return rows(shared.read(files.events, PLACING, shards))


def test_tasks_one_after_the_other_read_each_file_once_and_get_the_events_in_the_order_of_the_files(
    files: Files,
) -> None:
    with shared_reading(files, 2) as shared:  # type: ignore[arg-type]
        assert read(shared, files, 0) == expected([0])
        assert read(shared, files, 1, 2) == expected([1, 2])
        assert sorted(files.read) == list(range(files.number))


def test_tasks_begin_at_different_files(files: Files) -> None:
    with shared_reading(files, 2) as shared:  # type: ignore[arg-type]
        read(shared, files, 1)
        assert files.read == [*range(4, 12), *range(4)]


def test_a_task_that_runs_again_after_it_died_reads_what_it_had_begun(files: Files) -> None:
    def die(number: int) -> None:
        if number == 6:
            raise MemoryError

    with shared_reading(files, 2) as shared:  # type: ignore[arg-type]
        files.before = die
        with pytest.raises(MemoryError):
            read(shared, files, 0)
        files.before = lambda number: None
        assert read(shared, files, 0) == expected([0])
        assert read(shared, files, 1, 2) == expected([1, 2])


def test_a_task_does_not_wait_for_files_that_another_is_reading(files: Files) -> None:
    of_others: list[dict[int, list[dict[str, Any]]]] = []
    with shared_reading(files, 2) as shared:  # type: ignore[arg-type]

        def run_another(number: int) -> None:
            files.before = lambda number: None
            of_others.append(read(shared, files, 1, 2))

        files.before = run_another
        assert read(shared, files, 0) == expected([0])
    assert of_others == [expected([1, 2])]
    assert {number: files.read.count(number) for number in set(files.read)} == {
        number: 2 if number == 0 else 1 for number in range(files.number)
    }


def test_a_full_disk_makes_each_task_read_all_files(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDisk(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, content: object) -> int:
            raise OSError(28, "No space left on device")

    def full(path: str, mode: str) -> Any:
        Path(path).touch()
        return pa.PythonFile(FullDisk(), mode)

    with shared_reading(files, 2) as shared:  # type: ignore[arg-type]
        assert shared is not None
        monkeypatch.setattr(pa, "OSFile", full)
        assert read(shared, files, 0) == expected([0])
        assert read(shared, files, 1, 2) == expected([1, 2])
        assert sorted(files.read) == sorted([*range(files.number)] * 2)
        assert not list(shared.folder.glob("*.partial"))


def test_events_outlive_the_folder(files: Files) -> None:
    with shared_reading(files, 2) as shared:  # type: ignore[arg-type]
        assert shared is not None
        read(shared, files, 0)
        files.read.clear()
        tables = shared.read(files.events, PLACING, [1, 2])  # type: ignore[arg-type]
    assert not shared.folder.exists()
    assert rows(tables) == expected([1, 2])
    assert not files.read


def test_folders_of_killed_drivers_are_removed_and_those_of_others_at_work_stay(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = tmp_path / "tidegate-exchange-killed"
    killed.mkdir()
    (killed / "driver.lock").touch()
    with shared_reading(files, 2) as first:  # type: ignore[arg-type]
        assert [*tmp_path.iterdir()] == [first.folder]
        with shared_reading(files, 2) as second:  # type: ignore[arg-type]
            assert {*tmp_path.iterdir()} == {first.folder, second.folder}
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("number", "tasks"), [(12, 1), (3, 2), (0, 2)])
def test_few_files_and_single_tasks_share_nothing(files: Files, number: int, tasks: int) -> None:
    files.number = number
    with shared_reading(files, tasks) as shared:  # type: ignore[arg-type]
        assert shared is None
    with shared_reading(None, 2) as shared:
        assert shared is None


def test_bundles_hold_all_files_in_order_with_about_equal_numbers_of_rows() -> None:
    bundles = module.bundles_of([400_000, 100_000, 100_000, 0, 3_000_000, 50_000, 60_000, *[250_000] * 20], 2)
    assert [number for bundle in bundles for number in bundle] == list(range(27))
    assert bundles[:3] == ((0, 1, 2, 3), (4,), (5, 6, 7, 8, 9))


# --- a whole backfill, in threads --------------------------------------------------------------------


class Threads(LocalEngine):
    """Two tasks at the same time, in threads.

    Args:
        is_here: False if the tasks could be on another machine.
    """

    def __init__(self, is_here: bool) -> None:
        super().__init__(cores=2)
        self.is_on_one_machine = is_here

    def tasks(self, pieces: int, rows: int) -> int:
        return min(pieces, 2)

    def in_place(
        self,
        tasks: Sequence[Sequence[int]],
        run: Callable[[Sequence[int]], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
    ) -> list[pa.RecordBatch]:
        with ThreadPoolExecutor(2) as pool:
            return [batch for batches in pool.map(lambda numbers: list(run(numbers)), tasks) for batch in batches]


def test_a_backfill_of_tasks_that_share_has_the_windows_of_one_whose_tasks_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    files = [[(f"user {key}", DAY0 + timedelta(minutes=n * 20 + key), key) for key in range(9)] for n in range(12)]
    lake.append_in_files(*files)
    sharing: list[SharedReading] = []
    monkeypatch.setattr(exchange, "_ROWS_OF_A_BUNDLE", range(1, 10))
    read = SharedReading.read

    def noting(self: SharedReading, *given: Any) -> dict[int, pa.Table]:
        sharing.append(self)
        return read(self, *given)

    monkeypatch.setattr(SharedReading, "read", noting)
    here, cluster = session_pipeline(name="here", parallelism=2), session_pipeline(name="cluster", parallelism=2)
    for pipeline, is_here in ((here, True), (cluster, False)):
        lake.backfill(Threads(is_here), pipeline, DAY0, DAY0 + timedelta(days=1))
    assert len(sharing) == 2, "the tasks of this machine, and not those of the cluster"
    assert not sharing[0].folder.exists()
    assert len(lake.rows(here, "results")) == 9
    assert_same_windows(lake.rows(here, "results"), lake.rows(cluster, "results"))
