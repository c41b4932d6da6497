"""Source rows that tasks read again: the same windows and corrections as by rows that are looked at one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.lake import LOCAL
from tests.pipelines.reopen import lake_rows
from tests.pipelines.reopen.test_drawn import Drawn
from tidegate.pipelines.epoch.shard import ShardOutcome
from tidegate.pipelines.manifest import Interval
from tidegate.pipelines.reopen.passed import Passed
from tidegate.pipelines.reopen.recompute_plan import RecomputePlan
from tidegate.pipelines.reopen.recompute_rows import SourceRows
from tidegate.pipelines.reopen.spans import END, START
from tidegate.windowing.compute import Windows


class BothRows(lake_rows.LakeRows):
    """Asks the product and the rows one by one, and holds the answers against each other."""

    def product(self) -> SourceRows:
        return SourceRows(LOCAL, self.source, self.head, self.tables)

    def passed(self, windows: Windows, within: Interval) -> pa.Table:
        """The windows that both name."""
        expected = super().passed(windows, within)
        given = Passed(self.source, self.head, self.tables).windows(windows, within)
        order = [(name, "ascending") for name in ("user", START, END)]
        assert set(map(str, expected.sort_by(order).to_pylist())) <= set(map(str, given.to_pylist()))
        return given

    def correct(self, plan: RecomputePlan) -> list[ShardOutcome]:
        """The outcomes of the rows that the product reads."""
        given = self.product().correct(plan)
        expected = super().correct(plan)
        assert [counted(outcome) for outcome in given] == [counted(outcome) for outcome in expected]
        return given


def counted(outcome: ShardOutcome) -> tuple[int, bool, dict[str, int], int]:
    return outcome.shard, outcome.changed, outcome.counters, outcome.rows


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterable[None]:
    """Tasks run in this process."""
    monkeypatch.setattr(lake_rows, "LakeRows", BothRows)
    return ()


@pytest.mark.parametrize("kind", ["sliding", "gaps", "sessions"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_tasks_read_the_rows_of_the_stretches(tmp_path: Path, both: Iterator[None], kind: str, seed: int) -> None:
    drawn = Drawn.of(tmp_path, kind, seed)
    drawn.arrive(8)
    drawn.stream()
    lake_rows.reopen(drawn.lake, drawn.pipeline)
    drawn.end()
    lake_rows.reopen(drawn.lake, drawn.pipeline)
    assert drawn.late() == 0
