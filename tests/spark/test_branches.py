"""A branch whose epochs run on Spark: it is compared with its pipeline and promoted, and the pipeline continues.

The examples of the page "Consuming and chaining" run: a copy that a stream keeps, DuckDB, and a second pipeline.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.observe.reading.targets import project
from tests.pipelines.project.test_branches import HOUR, WIDE, compared, more, shown, totals
from tidegate import Pipeline, Project
from tidegate.pipelines.ledger.snapshots.restore import restore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_a_branch_runs_on_spark_and_is_compared_and_promoted(spark: SparkSession, lake: Lake) -> None:
    def project_of(pipeline: Pipeline) -> Project:
        return Project(
            warehouse=lake.folder / "warehouse", work=lake.folder / "work", pipelines=[pipeline], spark=spark
        )

    lake.append(("ann", at("00:10"), 1), ("ann", at("00:20"), 2), ("bob", at("05:00"), 4))
    project = project_of(hourly_pipeline())
    project.stream("hours")
    project.branch("hours", "wide", settings=WIDE)
    more(lake)
    for name in ("hours", "hours@wide"):
        project.stream(name)
    assert compared(project) == {("ann", 5): (4, 20, 16, 1, "1 row(s) that were late")}
    expected = shown(project, "hours@wide")
    project = project_of(hourly_pipeline(allowed_lateness=2 * HOUR))
    project.promote("hours", "wide")
    assert shown(project, "hours") == expected
    lake.append(("ann", at("09:30"), 32), ("bob", at("15:00"), 1))
    project.stream("hours")
    assert totals(project, "hours")["ann", 9] == 32
    assert lake.snapshot(hourly_pipeline()).manifest.engine is None, "it ran on Spark"
    assert project.verify("hours", sample="all").faults == ()


PAGE = Path(__file__).parents[2] / "docs" / "guide" / "consuming.md"
BLOCKS = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks() -> Iterator[Any]:
    """The code of the page, block by block."""
    for code in BLOCKS.findall(PAGE.read_text(encoding="utf-8")):
        yield compile(code, PAGE.name, "exec")


def kept(scope: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The copy that the query maintains."""
    rows = DeltaTable(str(scope["target"])).to_pyarrow_table().to_pylist()
    return sorted((row["user"], row["window_start"], row["clicks"], row["total"]) for row in rows)


def of(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in names) for row in table.to_pylist())


class Killing:
    """Writes a batch as the page does, and then ends the session's readers, if asked to."""

    def __init__(self, keep: Callable[[DataFrame, int], None]) -> None:
        self._keep = keep
        self.numbers: list[int] = []
        self.ends = False
        self.killed = 0

    def __call__(self, batch: DataFrame, number: int) -> None:
        self._keep(batch, number)
        self.numbers.append(number)
        if self.ends:
            self.ends = False
            self.killed = _kill_readers()
            raise RuntimeError("the target died, too")


def _kill_readers() -> int:
    killed = 0
    for process in psutil.Process().children(recursive=True):
        # Some of them end on their own meanwhile.
        with suppress(psutil.Error, ProcessLookupError):
            if "pyspark" in " ".join(process.cmdline()) and "python" in process.name() and not process.children():
                os.kill(process.pid, signal.SIGKILL)
                killed += 1
    return killed


def test_the_examples_of_the_page_run_and_a_correction_goes_through_all_of_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEGATE_CONFIG", str(project(tmp_path, "visits", "daily")))
    lake, scope = Lake(tmp_path), dict[str, Any](spark=spark)
    define, read_all, read_less, follow, duckdb_, count, chain = blocks()
    exec(define, scope)
    visits: Any = scope["visits"]
    clicks = [("ann", at("10:00"), 1), ("ann", at("10:20"), 2), ("bob", at("10:00"), 3), ("ann", at("12:00"), 4)]
    lake.append(*clicks, ("zoë", at("15:00"), 9))
    lake.stream(LOCAL, visits)
    exec(read_all, scope)
    assert sorted(row["total"] for row in scope["of_ann"].collect()) == [3, 4]
    assert {(row["user"], row["count"]) for row in scope["by_day"].collect()} == {("ann", 2), ("bob", 1)}
    exec(read_less, scope)
    assert {row["user"] for row in scope["march"].collect()} == {"ann"}
    for _ in range(2):
        # A scheduled job runs the whole block again, over the existing copy.
        exec(follow, scope)
    keep = Killing(scope["keep"])
    checkpoint = str(tmp_path / "checkpoint")
    exec(chain, scope)
    daily: Any = scope["daily"]

    def run_on() -> None:
        query = scope["changes"].writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
        # Before Spark 4.2, a query with a single batch of everything there is may repeat a failed batch.
        for _ in range(1 if spark.version >= "4.2" else 2):
            query.trigger(availableNow=True).start().awaitTermination()

    def all_agree() -> list[tuple[Any, ...]]:
        final = of(lake.final(visits), "user", "window_start", "clicks", "total")
        assert kept(scope) == final
        lake.stream(LOCAL, daily)
        counts: dict[str, list[int]] = {}
        for user, _, clicks, _ in final:
            sessions = counts.setdefault(user, [0, 0])
            sessions[0] += 1
            sessions[1] += clicks
        latest = list(of(lake.latest(daily), "user", "sessions", "clicks"))
        ended = {user for user, *_ in latest}
        assert latest == sorted((user, *values) for user, values in counts.items() if user in ended)
        return latest

    run_on()
    before = lake.snapshot(visits)
    assert all_agree() == []
    lake.append(("eve", at("12:00", day=2), 1), ("eve", at("18:00", day=2), 1))
    lake.stream(LOCAL, visits)
    keep.ends = True
    with pytest.raises(Exception, match="the target died"):
        run_on()
    assert keep.killed
    run_on()
    assert keep.numbers == [0, 1, 1]
    assert all_agree() == [("ann", 2, 3), ("bob", 1, 1), ("zoë", 1, 1)]
    DeltaTable(lake.path("events")).delete("user = 'ann' AND value = 4")
    lake.stream(LOCAL, visits)
    run_on()
    assert all_agree() == [("ann", 1, 2), ("bob", 1, 1), ("zoë", 1, 1)]
    exec(duckdb_, scope)
    assert scope["clicks"] == [("ann", 2), ("bob", 1), ("eve", 1), ("zoë", 1)]
    exec(count, scope)
    assert {(row["user"], row["sessions"]) for row in scope["per_day"].collect()} == {
        (user, 1) for user in ("ann", "bob", "zoë", "eve")
    }
    restore(lake.tables(visits), before, lake.clock())
    run_on()
    assert kept(scope) == of(lake.final(visits), "user", "window_start", "clicks", "total")
