"""A whole backfill whose tasks share what they read, in threads that stand for Spark's tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.cloudpickle import dumps, loads  # type: ignore[attr-defined]

from tests.lake import DAY0, Lake, assert_same_windows, session_pipeline
from tidegate.pipelines.epoch import shared_reading
from tidegate.pipelines.epoch.shared_reading import SharedReading

Run = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Frame:
    """A range of numbers in parts; each part is a task, and its function is pickled as Spark does it."""

    def __init__(self, parts: list[list[int]], run: bytes = b"") -> None:
        self.parts, self.run = parts, run

    def mapInArrow(self, run: Run, schema: str) -> Frame:  # noqa: N802 - the name of Spark
        return Frame(self.parts, dumps(run))

    def collect(self) -> list[dict[str, Any]]:
        def task(numbers: list[int]) -> list[dict[str, Any]]:
            batch = pa.RecordBatch.from_pydict({"id": pa.array(numbers, pa.int64())})
            return [row for out in loads(self.run)(iter([batch])) for row in out.to_pylist()]

        with ThreadPoolExecutor(2) as pool:
            return [row for rows in pool.map(task, self.parts) for row in rows]


class Threads:
    """Stands for a session with two cores on this machine."""

    def __init__(self, master: str) -> None:
        self.sparkContext = SimpleNamespace(defaultParallelism=2, master=master)
        self.conf = SimpleNamespace(get=lambda name, default=None: default)

    def range(self, start: int, end: int, step: int, parts: int) -> Frame:
        return Frame([list(range(start + part, end, parts)) for part in range(parts)])


def test_a_backfill_of_tasks_that_share_has_the_windows_of_one_whose_tasks_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    files = [[(f"user {key}", DAY0 + timedelta(minutes=n * 20 + key), key) for key in range(9)] for n in range(12)]
    lake.append_in_files(*files)
    sharing: list[SharedReading] = []
    monkeypatch.setattr(shared_reading, "_ROWS", range(1, 10))
    read = SharedReading.read

    def noting(self: SharedReading, *given: Any) -> dict[int, pa.Table]:
        sharing.append(self)
        return read(self, *given)

    monkeypatch.setattr(SharedReading, "read", noting)
    here, cluster = session_pipeline(name="here", parallelism=2), session_pipeline(name="cluster", parallelism=2)
    for pipeline, master in ((here, "local[2]"), (cluster, "spark://cluster:7077")):
        session: Any = Threads(master)
        lake.backfill(session, pipeline, DAY0, DAY0 + timedelta(days=1))
    assert len(sharing) == 2, "the tasks of this machine, and not those of the cluster"
    assert not sharing[0].folder.exists()
    assert len(lake.rows(here, "results")) == 9
    assert_same_windows(lake.rows(here, "results"), lake.rows(cluster, "results"))
