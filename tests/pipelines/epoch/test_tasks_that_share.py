"""A whole backfill whose tasks share what they read, in threads that run at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import DAY0, Lake, assert_same_windows, session_pipeline
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.epoch import exchange
from tidegate.pipelines.epoch.exchange import SharedReading


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
