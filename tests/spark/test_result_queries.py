"""The queries that come with table results give in Spark what the functions give in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.lake import at, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.pipelines.ledger.tables.sessions import sessions_of
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.epochs import SCHEMA as EPOCHS
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.observe.reading.queries import DIALECTS, ResultQueries
from tidegate.windowing import Accumulation
from tidegate.windowing.time import to_millis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark]

ACCUMULATING, RETRACTING, DISCARDING = (
    pytest.param(accumulation, marks=marks, id=accumulation.name.lower())
    for accumulation, marks in (
        (Accumulation.ACCUMULATING, ()),
        (Accumulation.RETRACTING, ()),
        (Accumulation.DISCARDING, pytest.mark.long),
    )
)
RETRACTING_IF_LONG = pytest.param(Accumulation.RETRACTING, marks=pytest.mark.long, id="retracting")
"""The first test shows the panes of both in every run; the others only move the watermark."""

every_accumulation = pytest.mark.parametrize("by_hand", [ACCUMULATING, RETRACTING, DISCARDING], indirect=True)
every_watermark = pytest.mark.parametrize("by_hand", [ACCUMULATING, RETRACTING_IF_LONG, DISCARDING], indirect=True)


@pytest.fixture
def by_hand(tmp_path: Path, request: pytest.FixtureRequest) -> ByHand:
    return sessions_of(tmp_path, request.param)


def queries_of(by_hand: ByHand) -> ResultQueries:
    table = DIALECTS["spark"].table
    assert table is not None
    results_table, epochs_table = (table(by_hand.tables.path(name)) for name in ("results", "epochs"))
    columns = tuple(field.name for field in by_hand.tables.look("results").schema().fields)
    return ResultQueries(results_table, epochs_table, ("user",), columns)


def same(spark: SparkSession, query: str, rows: pa.Table) -> None:
    found = [row.asDict() for row in spark.sql(query).select("user", "window_id", "pane", "total", "epoch").collect()]
    expected = rows.select(["user", "window_id", "pane", "total", "epoch"]).to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def final_of(by_hand: ByHand) -> pa.Table:
    """The final windows, by the functions."""
    latest = results.latest(by_hand.rows("results"), ("user",))
    return results.final(latest, by_hand.head().manifest.watermark)


@every_accumulation
def test_latest_and_final_are_the_same_in_sql_and_in_memory(spark: SparkSession, by_hand: ByHand) -> None:
    queries = queries_of(by_hand)
    latest = results.latest(by_hand.rows("results"), ("user",))
    assert 3 <= len(latest) < len(by_hand.rows("results"))
    same(spark, queries.of("latest"), latest)
    same(spark, queries.of("final"), final_of(by_hand))
    same(spark, queries.of("all"), by_hand.rows("results"))


@every_watermark
def test_a_view_that_was_saved_goes_on_as_the_watermark_moves_and_back_with_a_restore(
    spark: SparkSession, by_hand: ByHand
) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW saved AS {queries_of(by_hand).of('final')}")
    counts = [len(final_of(by_hand))]
    before = by_hand.head()
    for watermark in ("13:19", "14:10", "15:00"):
        by_hand.epoch(("dan", at("13:20"), 9), watermark=at(watermark))
        same(spark, "SELECT * FROM saved", final_of(by_hand))
        counts.append(len(final_of(by_hand)))
    assert counts[0] < counts[-1]
    committed = by_hand.committed(by_hand.planned([("eve", at("15:10"), 1)], at("19:00")))
    unpublished = final_of(by_hand)
    assert len(unpublished) > counts[-1], "what goes by the head is ahead of the results"
    same(spark, "SELECT * FROM saved", results.final(unpublished, to_millis(at("15:00"))))
    publish(by_hand.tables, committed)
    same(spark, "SELECT * FROM saved", final_of(by_hand))
    restore(by_hand.tables, before, to_millis(at("20:00")))
    same(spark, "SELECT * FROM saved", final_of(by_hand))
    assert len(final_of(by_hand)) == counts[0]


@every_watermark
def test_before_the_first_watermark_nothing_is_final_and_after_the_last_all(
    spark: SparkSession, by_hand: ByHand
) -> None:
    """Neither is a TIMESTAMP: table epochs has null for both."""
    began = ByHand(by_hand.folder, session_pipeline(name="began"))
    began.epoch(("ann", at("10:00"), 1), watermark=at("10:01"))
    rows = began.rows("epochs").set_column(7, EPOCHS.field("watermark"), pa.nulls(1, EPOCHS.field("watermark").type))
    write_deltalake(began.tables.path("epochs"), rows, mode="overwrite")
    assert spark.sql(queries_of(began).of("final")).count() == 0
    newest = by_hand.rows("epochs").sort_by("epoch").slice(3, 1)
    ended = newest.set_column(1, "epoch", pa.array([5])).set_column(7, EPOCHS.field("watermark"), rows["watermark"])
    write_deltalake(by_hand.tables.path("epochs"), ended.cast(newest.schema), mode="append")
    same(spark, queries_of(by_hand).of("final"), results.latest(by_hand.rows("results"), ("user",)))
