"""The view queries give the same rows in DuckDB and Spark as the functions in memory, also as the watermark advances.
DuckDB's extension delta is not among the packages, so `delta_scan` is a macro over what deltalake reads, unless
TIDEGATE_TEST_DUCKDB_DELTA names the file of the extension.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from deltalake import write_deltalake
from sqlglot import exp

from tests.lake import at, session_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.epochs import SCHEMA as EPOCHS
from tidegate.pipelines.ledger.snapshots.publish import publish, publish_table
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.project.results import DIALECTS, FinalQuery
from tidegate.windowing import (
    Accumulation,
    Count,
    CountTrigger,
    EventTimeSessionWindows,
    Sum,
    TumblingEventTimeWindows,
    Windows,
)
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.time import to_millis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOTALS = {"events": Count(), "total": Sum("value")}

EXTENSION = os.environ.get("TIDEGATE_TEST_DUCKDB_DELTA")


def sessions_of(folder: Path, accumulation: Accumulation) -> ByHand:
    """Sessions that fired, grew, merged and were retracted; some final, some not, and one with a null key."""
    windows = Windows(
        EventTimeSessionWindows.with_gap(timedelta(minutes=30)),
        allowed_lateness=timedelta(hours=2),
        accumulation=accumulation,
        aggregate={"events": Count(), "total": Sum("value")},
    )
    made = ByHand(folder, session_pipeline(compute=windows, null_keys="keep"))
    made.epoch(("ann", at("10:00"), 1), ("ann", at("10:50"), 2), ("bob", at("10:00"), 3), watermark=at("11:30"))
    made.epoch(("ann", at("10:25"), 4), (None, at("11:00"), 5), watermark=at("11:31"))  # type: ignore[arg-type]
    made.epoch(("bob", at("10:10"), 6), ("cem", at("12:00"), 7), watermark=at("12:45"))
    made.epoch((None, at("11:05"), 8), watermark=at("13:00"))  # type: ignore[arg-type]
    return made


@pytest.fixture(
    params=[
        pytest.param(Accumulation.ACCUMULATING, id="accumulating"),
        pytest.param(Accumulation.RETRACTING, id="retracting", marks=pytest.mark.long),
    ]
)
def by_hand(tmp_path: Path, request: pytest.FixtureRequest) -> ByHand:
    return sessions_of(tmp_path / "it's here", request.param)


accumulating = pytest.mark.parametrize("by_hand", [Accumulation.ACCUMULATING], indirect=True, ids=["accumulating"])


def query_of(by_hand: ByHand, dialect: str = "duckdb") -> FinalQuery:
    table = DIALECTS[dialect].table or (lambda path: Path(path).name)
    in_sql = {name: table(by_hand.tables.path(name)) for name in ("results", "epochs")}
    columns = tuple(by_hand.rows("results").column_names)
    return FinalQuery(in_sql["results"], in_sql["epochs"], ("user",), columns, dialect=DIALECTS[dialect])


class Duck:
    """A DuckDB session with the tables of a pipeline, as `delta_scan` finds them when a query runs."""

    def __init__(self, by_hand: ByHand) -> None:
        self._by_hand = by_hand
        self.session = duckdb.connect()
        self._tell()
        if EXTENSION:
            self.session.execute(f"LOAD '{EXTENSION}'")
        else:
            self.session.execute("CREATE MACRO delta_scan(path) AS TABLE FROM query_table(path)")

    def rows(self, query: str) -> pa.Table:
        """Return the current rows of a query."""
        self._tell()
        return self.session.execute(query).to_arrow_table()

    def _tell(self) -> None:
        for table in ("results", "epochs"):
            rows = self._by_hand.rows(table)
            self.session.register(table, rows)
            if not EXTENSION:
                self.session.register(self._by_hand.tables.path(table), rows)


@dataclass(frozen=True)
class Jvm:
    """A Spark session that reads the tables by their paths."""

    session: SparkSession

    def rows(self, query: str) -> pa.Table:
        """Return the current rows of a query."""
        return self.session.sql(query).toArrow()


SPARK = pytest.param("spark", marks=[pytest.mark.long, pytest.mark.spark])


def engine_of(by_hand: ByHand, dialect: str, request: pytest.FixtureRequest) -> Duck | Jvm:
    return Jvm(request.getfixturevalue("spark")) if dialect == "spark" else Duck(by_hand)


def same(found: pa.Table, expected: pa.Table) -> None:
    assert found.column_names == expected.column_names
    names = ["user", "window_id", "pane", "total", "epoch", "window_end", "final_at"]
    kept = expected.select(names)
    # DuckDB names the zone Etc/UTC.
    assert sorted(map(repr, found.select(names).cast(kept.schema).to_pylist())) == sorted(map(repr, kept.to_pylist()))


def final_of(by_hand: ByHand) -> pa.Table:
    """Return the final windows, computed by the functions."""
    latest = results.latest(by_hand.rows("results"), ("user",))
    return results.final(latest, by_hand.head().manifest.watermark)


@pytest.mark.parametrize("dialect", ["duckdb", "standard", SPARK])
def test_final_windows_are_the_same_in_sql_and_in_memory(
    by_hand: ByHand, dialect: str, request: pytest.FixtureRequest
) -> None:
    query, engine = query_of(by_hand, dialect), engine_of(by_hand, dialect, request)
    latest = results.latest(by_hand.rows("results"), ("user",))
    assert 3 <= len(latest) < len(by_hand.rows("results"))
    assert 1 <= len(final_of(by_hand)) < len(latest)
    same(engine.rows(query.text()), final_of(by_hand))


@accumulating
@pytest.mark.parametrize("dialect", ["duckdb", SPARK])
def test_a_view_that_was_saved_goes_on_as_the_watermark_moves_and_back_with_a_restore(
    by_hand: ByHand, dialect: str, request: pytest.FixtureRequest
) -> None:
    query, engine = query_of(by_hand, dialect), engine_of(by_hand, dialect, request)
    create = "CREATE OR REPLACE TEMPORARY VIEW saved AS " + query.text()
    engine.session.sql(create) if isinstance(engine, Jvm) else engine.session.execute(create)
    counts = [len(final_of(by_hand))]
    before = by_hand.head()
    for watermark in ("13:19", "14:10", "15:00"):
        by_hand.epoch(("dan", at("13:20"), 9), watermark=at(watermark))
        same(engine.rows("SELECT * FROM saved"), final_of(by_hand))
        counts.append(len(final_of(by_hand)))
    assert counts[0] < counts[-1]
    before_it = engine.rows(query.text())
    committed = by_hand.committed(by_hand.planned([("dan", at("13:30"), 1), ("eve", at("15:10"), 1)], at("19:00")))
    same(engine.rows("SELECT * FROM saved"), results.final(final_of(by_hand), to_millis(at("15:00"))))
    publish_table(by_hand.tables, committed, "results")
    same(engine.rows(query.text()), before_it)
    publish(by_hand.tables, committed)
    same(engine.rows("SELECT * FROM saved"), final_of(by_hand))
    restore(by_hand.tables, before, to_millis(at("20:00")), keep_stale=True)
    same(engine.rows("SELECT * FROM saved"), final_of(by_hand))
    assert len(final_of(by_hand)) == counts[0]


@accumulating
@pytest.mark.parametrize("dialect", ["duckdb", SPARK])
def test_before_the_first_watermark_nothing_is_final_and_after_the_last_all(
    by_hand: ByHand, dialect: str, request: pytest.FixtureRequest
) -> None:
    """Neither is a TIMESTAMP: table epochs has null for both. Its old rows may have been removed when event time
    ends.
    """
    began = ByHand(by_hand.folder, session_pipeline(name="began"))
    began.epoch(("ann", at("10:00"), 1), watermark=at("10:01"))
    rows = without_watermark(began.rows("epochs"))
    write_deltalake(began.tables.path("epochs"), rows, mode="overwrite")
    assert not len(engine_of(began, dialect, request).rows(query_of(began, dialect).text()))
    newest = by_hand.rows("epochs").sort_by("epoch").slice(3, 1)
    ended = without_watermark(newest.set_column(1, "epoch", pa.array([5])))
    latest = results.latest(by_hand.rows("results"), ("user",))
    for mode in ("append", "overwrite"):
        write_deltalake(by_hand.tables.path("epochs"), ended.cast(newest.schema), mode=mode)
        same(engine_of(by_hand, dialect, request).rows(query_of(by_hand, dialect).text()), latest)


def without_watermark(rows: pa.Table) -> pa.Table:
    """Return rows of table epochs as they are before the first watermark and after the end of input."""
    for name in ("watermark", "final_through"):
        field = EPOCHS.field(name)
        rows = rows.set_column(rows.column_names.index(name), field, pa.nulls(len(rows), field.type))
    return rows


def test_windows_that_only_fired_early_are_final_when_event_time_has_ended(tmp_path: Path) -> None:
    """Rows of older epochs, which had a watermark, may have been removed from table epochs."""
    hours = Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), trigger=CountTrigger.of(1), aggregate=TOTALS)
    made = ByHand(tmp_path, session_pipeline(compute=hours))
    made.epoch(("ann", at("10:00"), 1), ("ann", at("10:10"), 2), ("bob", at("10:00"), 3), watermark=at("10:20"))
    latest = results.latest(made.rows("results"), ("user",))
    assert latest["timing"].to_pylist() == ["early", "early"]
    ended = without_watermark(made.rows("epochs"))
    write_deltalake(made.tables.path("epochs"), ended, mode="overwrite")
    same(Duck(made).rows(query_of(made).text()), latest)


@accumulating
def test_every_column_is_quoted_for_engines_that_fold_the_case_of_other_names(by_hand: ByHand) -> None:
    """All column names of a table have one case: in Snowflake `pane` and `"pane"` are different columns."""
    tree = sqlglot.parse_one(query_of(by_hand, "standard").text(), read="snowflake")
    assert {column.name for column in tree.find_all(exp.Column) if not column.this.quoted} <= INVENTED


INVENTED = {"tidegate_newest", "tidegate_watermark", "tidegate_watermarks"}
"""Names that are not columns of a table."""


@pytest.mark.parametrize("name", ["tidegate_newest", "Tidegate_Watermark", "tidegate_watermarks", "panes", "times"])
def test_a_result_may_have_the_name_of_a_column_or_a_table_of_a_subquery(name: str) -> None:
    schema = results.schema(KeySchema.of(user=pa.string()), pa.struct([(name, pa.int64()), (f"{name}_", pa.int64())]))
    pane = {"user": "ann", "window_id": 1, "timing": "on_time", "op": "+", "final_at": at("11:00"), "timeline": 1}
    panes = [pane | {"pane": number, "epoch": 1, "stale": False, name: 7 + number} for number in range(2)]
    known = {"timeline": 1, "epoch": 1, "stale": False, "final_through": at("12:00")}
    rows = {
        "results": pa.Table.from_pylist(panes, schema=pa.schema([field.with_nullable(True) for field in schema])),
        "epochs": pa.table({name: [value] for name, value in known.items()}),
    }
    session = duckdb.connect()
    for table, held in rows.items():
        session.register(table, held)
    query = FinalQuery("results", "epochs", ("user",), tuple(schema.names), dialect=DIALECTS["duckdb"])
    shown = session.execute(query.text()).to_arrow_table()
    assert shown.column_names == schema.names
    assert shown[name].to_pylist() == [8]
