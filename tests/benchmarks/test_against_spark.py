"""Both sides of the comparison with Spark compute the same windows, and ours stays within three times its usual
time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from benchmarks.against_spark import Peer
from benchmarks.against_state_processor import sessions_by_hand
from benchmarks.bench import ASSIGNERS, SPARK_SETTINGS, STATE_PROVIDER, Bench
from benchmarks.changed_rows import measure as measure_changes
from benchmarks.events import EventSet
from benchmarks.figures import Figure, figure_of
from benchmarks.user_tables import TABLES
from benchmarks.user_tables import measure as measure_tables
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WIDTH = 3
"""Times are compared only with bounds this many times as wide, because other work may run at the same time."""


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(tmp_path, spark, per_commit=1_000)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("kind", ASSIGNERS)
def test_spark_computes_the_windows_that_we_do(bench: Bench, kind: str) -> None:
    bench.write(EventSet(2_000, 50))
    assert_same_windows(bench, kind)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("table", [table for table in TABLES if table != "plain"])
def test_it_does_so_over_every_kind_of_table(bench: Bench, table: str) -> None:
    bench = replace(bench, **TABLES[table])
    bench.write(EventSet(2_000, 50))
    assert_same_windows(bench, "session")


def assert_same_windows(bench: Bench, kind: str) -> None:
    """Compare final windows of a stream with Spark's windows over the whole table."""
    with bench.project() as config:
        bench.epochs(kind, config)
        ours = final_windows(config, kind)
    theirs = Peer(bench).grouped(bench.spark.read.format("delta").load(bench.events), kind)
    columns = ["key", "window_start", "events", "total"]
    rows = theirs.selectExpr("key", f"{theirs.columns[1]}.start AS window_start", "events", "total").toPandas()
    rows["window_start"] = rows["window_start"].dt.tz_localize("UTC")
    expected = rows[rows.set_index(columns[:2]).index.isin(ours.set_index(columns[:2]).index)]
    assert len(ours) > 1_000
    pd.testing.assert_frame_equal(in_order(ours[columns]), in_order(expected[columns]), check_dtype=False)


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """Keep state where `transformWithState` accepts it, until the test ends."""
    spark.conf.set(STATE_PROVIDER, SPARK_SETTINGS[STATE_PROVIDER])
    yield
    spark.conf.unset(STATE_PROVIDER)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.usefixtures("rocksdb")
def test_sessions_by_hand_are_those_that_we_fire(bench: Bench) -> None:
    bench.write(EventSet(2_000, 20))
    query = (
        sessions_by_hand(bench)
        .writeStream.format("memory")
        .queryName("by_hand")
        .option("checkpointLocation", str(bench.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    theirs = bench.spark.table("by_hand").toPandas()
    with bench.project() as config:
        bench.epochs("session", config)
        ours = final_windows(config, "session")
    # Its last timers fire in the batch after the one that moved the watermark.
    fired = ours.assign(window_start=ours["window_start"].astype("datetime64[ms, UTC]").astype("int64"))
    both = fired.merge(theirs, on=["key", "window_start"], suffixes=("", "_by_hand"))
    assert len(both) == len(theirs) > 100
    assert (both["events"] == both["events_by_hand"]).all()
    assert (both["total"] == both["total_by_hand"]).all()


def final_windows(config: Config, kind: str) -> pd.DataFrame:
    tables = PipelineTables(warehouse_of(config), kind)
    snapshot = read_snapshot(tables)
    assert snapshot is not None
    latest = results.latest(read_table(tables.warehouse, tables.open(results.NAME)), ("key",))
    return results.final(latest, snapshot.manifest.watermark).to_pandas()


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values(["key", "window_start"], ignore_index=True)


@pytest.mark.spark
@pytest.mark.long
def test_a_table_is_held_against_spark_and_against_the_plain_one(bench: Bench) -> None:
    benches = {table: replace(bench, name=table, **TABLES[table]) for table in ("plain", "partitioned")}
    for each in benches.values():
        each.write(EventSet(2_000, 50, is_steep=True))
    figures = list(measure_tables(benches, ["batch"], ["session"], rounds=1, title="few windows", wanted=True))
    assert [figure.what.rpartition(": ")[2] for figure in figures] == [
        "plain",
        "partitioned",
        "partitioned vs. plain",
    ]
    assert all(figure.value > 0 and figure.wanted for figure in figures)


@pytest.mark.spark
@pytest.mark.long
def test_changed_rows_are_held_against_appended_rows_and_a_backfill(bench: Bench) -> None:
    figures = list(measure_changes(bench, "tumbling", rows=20_000, rounds=1))
    assert [figure.peer for figure in figures] == [
        "an append of the rewritten rows",
        "an append of 1,000 rows",
        "a full backfill",
    ]
    assert all(figure.value > 0 for figure in figures)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "program",
    [
        ("against_spark", "--rounds=1"),
        ("against_flink", "--rounds=1"),
        ("against_state_processor", "--events=15000", "--per-commit=5000"),
        ("scaling", "epochs", "open", "hot", "large"),
    ],
    ids=lambda program: program[0],
)
def test_every_figure_is_within_three_times_of_what_is_wanted(program: tuple[str, ...], tmp_path: Path) -> None:
    figures = measured_by(*program, file=tmp_path / "figures")
    assert figures
    missed = [figure for figure in figures if figure.wanted and not figure.wanted.is_met_by(figure.value, WIDTH)]
    assert not missed


def measured_by(module: str, *arguments: str, file: Path) -> list[Figure]:
    subprocess.run([sys.executable, "-m", f"benchmarks.{module}", *arguments, "--json", str(file)], check=True)
    return [figure_of(line) for line in file.read_text().splitlines()]
