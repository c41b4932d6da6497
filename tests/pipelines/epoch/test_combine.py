"""Events are combined where they are read: an exchange moves a row for each window and commit, however hot its key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.lake import Lake, at, hourly_pipeline
from tests.recovery.arrivals import copy_of, differences, rows_of
from tidegate.pipelines.definition.event_columns import PACK
from tidegate.pipelines.engine.base import Pack, Run
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.epoch import exchange
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.windowing import Count, First, Sum, Variance


class Counting(LocalEngine):
    """Counts the rows that an exchange moves."""

    def __init__(self) -> None:
        super().__init__(cores=2, rows_in_driver=1 << 60)
        self.moved = 0

    def exchanged(
        self,
        files: FileSlice | None,
        pack: Run,
        markers: Mapping[int, str],
        run: Callable[[str, Sequence[Pack]], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
    ) -> list[pa.RecordBatch]:
        def counted(judged: Iterator[object]) -> Iterator[pa.RecordBatch]:
            for batch in pack(judged):  # type: ignore[arg-type]
                self.moved += sum(len(pa.ipc.open_stream(each.as_buffer()).read_all()) for each in batch.column(PACK))
                yield batch

        return super().exchanged(files, counted, markers, run, schema)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake in which one user has nearly all events, in two hours of two commits, the second with late events."""
    lake = Lake(tmp_path / "lake")
    for late in ([], [("hot", at("01:10"), 7), ("hot", at("01:20"), 8)]):
        hot = [("hot", at(f"{hour:02d}:{n % 60:02d}"), n) for hour in (4, 5) for n in range(500)]
        lake.append(*hot, ("cold", at("04:30"), 1), ("none", at("05:30"), None), *late)
    return lake


def test_an_exchange_moves_a_row_for_each_window_and_commit_of_a_hot_key_and_each_row_that_may_be_late(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregate = {"events": Count(), "total": Sum("value"), "first": First("value")}
    pipeline = hourly_pipeline(parallelism=2, aggregate=aggregate)
    in_place = copy_of(lake, tmp_path / "in place")
    in_place.stream(LocalEngine(cores=1), pipeline)
    monkeypatch.setattr(exchange, "_ROWS_READ_AGAIN", -1)
    monkeypatch.setattr(exchange, "_TASKS_THAT_READ", 0)
    engine = Counting()
    (made,) = lake.stream(engine, pipeline)
    assert differences(rows_of(lake, pipeline), rows_of(in_place, pipeline)) == {}
    assert made.counters["late"] == 2
    # In each commit there are two hours of the hot key and one of each other key; two rows may be late.
    assert engine.moved == 2 * 4 + 2


def test_aggregates_that_do_not_merge_exactly_move_every_event(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_ROWS_READ_AGAIN", -1)
    monkeypatch.setattr(exchange, "_TASKS_THAT_READ", 0)
    engine = Counting()
    lake.stream(engine, hourly_pipeline(parallelism=2, aggregate={"spread": Variance("value")}))
    assert engine.moved == 2006


def test_threads_give_what_one_thread_gives(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.append_in_files(*([("hot", at(f"06:{n:02d}"), n), ("cold", at("06:30"), n)] for n in range(9)))
    pipeline = hourly_pipeline(parallelism=2, allowed_lateness=timedelta(hours=9))
    expected = copy_of(lake, tmp_path / "expected")
    expected.stream(LocalEngine(cores=1), pipeline)
    monkeypatch.setattr(exchange, "_ROWS_OF_A_BUNDLE", range(1, 10))
    lake.stream(LocalEngine(cores=4), pipeline)
    assert differences(rows_of(lake, pipeline), rows_of(expected, pipeline)) == {}


def test_a_file_that_a_thread_cannot_read_fails_the_epoch(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_ROWS_OF_A_BUNDLE", range(1, 10))
    next(Path(lake.path("events")).glob("*.parquet")).unlink()
    with pytest.raises(TidegateError, match=r"parquet"):
        lake.stream(LocalEngine(cores=4), hourly_pipeline())
