"""Whatever is done to a pipeline and to its table windows, the table has the windows that stand."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipelines.standing import check_windows
from tests.recovery.walks import FORGOTTEN, Walk
from tidegate.pipelines.definition import windows
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.ledger.snapshots.publish_windows import make_windows
from tidegate.pipelines.ledger.snapshots.recovery import recover
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.ledger.tables.table_log import TableLog

pytestmark = pytest.mark.recovery

SEED = int(os.environ.get("TIDEGATE_TEST_SEED", "1"))


class WindowsWalk(Walk):
    """A walk of a pipeline with table windows, which others set back, move and remove as well."""

    def _steps(self) -> list[Callable[[], None]]:
        return [*super()._steps(), *[self._windows_changed] * 4, *[self._compact] * 2]

    def _windows_changed(self) -> None:
        tables, path = self.by_hand.tables, self.by_hand.tables.path(windows.NAME)
        way = self.draw.choice(("set back", "optimized", "deleted", "gone", "compacted"))
        handle = tables.open(windows.NAME)
        self.told.append(f"[windows {way}]")
        if way == "set back":
            handle.restore(self.draw.choice(TableLog(tables, windows.NAME).recent[-4:]))
        elif way == "optimized":
            handle.optimize.compact()
        elif way == "deleted":
            handle.delete("total > 3")
        elif way == "gone":
            shutil.rmtree(path)
        else:
            compact(tables, windows.NAME)

    def _forget(self) -> None:
        super()._forget()
        tables = self.by_hand.tables
        for file in Path(tables.path(windows.NAME)).glob("*.parquet"):
            rows = tables.warehouse.read_files(
                tables.path(windows.NAME), [file.name], self.by_hand.rows("results").schema, ["user"]
            )
            assert FORGOTTEN not in rows["user"].to_pylist(), "a file has a key that was forgotten"

    def check(self) -> None:
        tables = self.by_hand.tables
        if not tables.warehouse.exists(tables.path(windows.NAME)):
            make_windows(tables, self.by_hand.pipeline.key, WindowsTable(partition_by="day"))
        recover(tables)
        check_windows(tables)
        super().check()


@pytest.mark.parametrize("seed", [SEED, pytest.param(SEED + 1, marks=pytest.mark.long)])
def test_after_each_step_of_a_walk_table_windows_has_the_windows_that_stand(tmp_path: Path, seed: int) -> None:
    WindowsWalk(tmp_path / "walk", seed).run(steps=10)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEED + 2, SEED + 22))
def test_after_each_step_of_a_longer_walk_it_has_them_too(tmp_path: Path, seed: int) -> None:
    WindowsWalk(tmp_path / "walk", seed).run(steps=20)
