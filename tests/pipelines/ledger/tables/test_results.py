"""The order of results in a file: a large epoch of a stream sorts them by the start of their windows."""

from __future__ import annotations

import sys
from datetime import timedelta
from io import StringIO
from json import loads
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.lake import LOCAL, Clock, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.expectations.pinned import pin
from tidegate.pipelines.definition import results
from tidegate.pipelines.ledger.tables.commits import commit
from tidegate.pipelines.ledger.tables.files import add_action, write_rows
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.project.cli import run as tidegate
from tidegate.pipelines.project.results import FinalQuery
from tidegate.pipelines.storage.warehouse import arrow_schema, read_table
from tidegate.windowing import AfterCount, Count, Repeatedly, TumblingProcessingTimeWindows, WatermarkStrategy, Windows
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, from_millis, to_millis

SCHEMA = results.schema(KeySchema.of(user=pa.string()), pa.struct([("events", pa.int64())]))


def table(*panes: dict[str, Any]) -> pa.Table:
    """Panes of window 1 of ann, from ten to eleven o'clock, unless they say otherwise."""
    usual = {
        "user": "ann",
        "window_id": 1,
        "window_start": at("10:00"),
        "window_end": at("11:00"),
        "pane": 0,
        "timing": "on_time",
        "op": "+",
        "final_at": at("11:00"),
        "timeline": 1,
        "epoch": 1,
        "emitted_at": at("12:00"),
        "stale": False,
        "events": 0,
    }
    return pa.Table.from_pylist([{**usual, **pane} for pane in panes], schema=SCHEMA)


ABSORBED = {"window_id": 2, "pane": 0, "events": 2}
GONE: dict[str, Any] = {"op": "-", "events": 9, "epoch": 2}
AGAIN: dict[str, Any] = {"events": 7, "epoch": 3}


def test_results_of_a_function_that_are_named_like_columns_of_panes_are_none() -> None:
    key = KeySchema.of(user=pa.string())
    of_panes = pa.struct([(name, pa.int64()) for name in sorted(results.RESERVED - results.ELEMENT_RESERVED)])
    of_elements = pa.struct([(name, pa.int64()) for name in sorted(results.ELEMENT_RESERVED - results.RESERVED)])
    elements, panes = results.schema(key, of_panes, results.ELEMENT_LEADING), results.schema(key, of_elements)
    assert [results.has_panes(rows) for rows in (panes, elements)] == [True, False]


def test_the_table_says_what_its_rows_are_whatever_its_columns_are(by_hand: ByHand) -> None:
    tables = PipelineTables(by_hand.warehouse, "told")
    misleading = results.of_kind(SCHEMA, has_panes=False)
    tables.create({results.NAME: misleading})
    handle = tables.open(results.NAME)
    assert handle.metadata().configuration[results.KIND] == results.ELEMENTS
    assert not results.has_panes(arrow_schema(handle))
    (file,) = write_rows(by_hand.warehouse, tables.path(results.NAME), "results-000001", table({"pane": 0}))
    commit(by_hand.warehouse, handle, [add_action(file)], {})
    rows = read_table(by_hand.warehouse, tables.open(results.NAME), where=pc.field("epoch") == 1)
    assert not results.has_panes(rows.schema)


@pytest.mark.parametrize(
    ("panes", "events"),
    [
        ([{"pane": 0, "events": 1}, {"pane": 2, "events": 3}, {"pane": 1, "events": 2}], [3]),
        ([{"events": 1}, {"user": "bob", "events": 2}, {"window_id": 2, "events": 3}], [1, 2, 3]),
        ([{"events": 1}, {"op": "-", "events": 1}], []),
        ([{"events": 1}, {"pane": 1, "events": 2}, {"pane": 1, "op": "-", "events": 2}], []),
        ([{"events": 1}, {"op": "-", "events": 1}, {"pane": 1, "events": 5}], [5]),
        ([{"events": 1}, ABSORBED, ABSORBED | {"op": "-"}, {"pane": 1, "events": 3}], [3]),
        ([{"pane": 3, "events": 9}, GONE | {"pane": 3}, AGAIN], [7]),
        ([{"events": 9}, GONE, AGAIN, AGAIN | {"op": "-"}], []),
        ([{"pane": 3, "events": 9, "stale": True}, {"events": 1}], [1]),
        ([{"user": None, "events": 1}, {"user": None, "pane": 1, "events": 2}], [2]),
        ([], []),
    ],
    ids=[
        *("the newest pane", "other keys and windows", "a retracted window", "with the panes before it"),
        *(
            "a pane after a retraction",
            "an absorbed session",
            "a window that reappears",
            "and is retracted",
            "stale rows hide nothing",
            "a null key",
            "no rows",
        ),
    ],
)
def test_of_the_panes_of_each_window_the_newest_holds_unless_it_was_retracted(
    panes: list[dict[str, Any]], events: list[int]
) -> None:
    assert sorted(results.latest(table(*panes), ("user",))["events"].to_pylist()) == events
    parts = results.unretracted(table(*panes), ("user",))["events"].to_pylist()
    assert set(events) <= set(parts), "where each pane holds a part, the newest one is among those that hold"
    assert bool(events) == bool(parts)


def test_a_key_of_several_columns_or_none_is_told_apart_by_all_of_it() -> None:
    rows = table({"events": 1}, {"user": "bob", "pane": 1, "events": 2})
    assert results.latest(rows, ())["events"].to_pylist() == [2]
    assert len(results.latest(rows, ("user",))) == 2
    assert len(results.latest(rows, ("user", "timing"))) == 2


@pytest.mark.parametrize(("watermark", "final"), [("10:59", 0), ("11:00", 1), ("11:01", 1)])
def test_a_window_is_final_when_the_watermark_reaches_its_cleanup_time(watermark: str, final: int) -> None:
    rows = results.latest(table({"events": 1}), ("user",))
    assert len(results.final(rows, to_millis(at(watermark)))) == final


def test_before_the_first_watermark_nothing_is_final_and_after_the_last_all() -> None:
    rows = results.latest(table({"events": 1}, {"window_id": 2, "final_at": None}), ("user",))
    assert len(results.final(rows, MIN_TIMESTAMP)) == 0
    assert results.final(rows, MAX_TIMESTAMP)["window_id"].to_pylist() == [1, 2]


def test_a_key_with_the_name_of_a_path_tells_windows_apart() -> None:
    rows = table({"events": 1}, {"events": 2, "user": "bob"}, {"events": 3, "pane": 1})
    named = rows.rename_columns([".a" if name == "user" else name for name in rows.column_names])
    named = named.replace_schema_metadata(rows.schema.metadata)
    assert sorted(results.latest(named, (".a",))["events"].to_pylist()) == [2, 3]


def test_sql_for_a_key_with_a_dash_or_a_backtick_quotes_it() -> None:
    query = FinalQuery("t", "e", ("tail-num", "a`b"), ("tail-num", "a`b", "window_id")).text()
    assert "PARTITION BY `tail-num`, `a``b`, `window_id`" in query


def test_a_session_that_grows_after_it_fired_keeps_its_id_and_counts_once(by_hand: ByHand) -> None:
    by_hand.pipeline = session_pipeline(allowed_lateness=timedelta(hours=2))
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:40"))
    by_hand.epoch(("ann", at("10:20"), 2), watermark=at("10:41"))
    by_hand.epoch(watermark=at("11:30"))
    rows = by_hand.rows("results").sort_by("pane").to_pylist()
    assert len({row["window_id"] for row in rows}) == 1
    latest = results.latest(by_hand.rows("results"), ("user",)).to_pylist()
    assert [(row["window_end"], row["total"]) for row in latest] == [(at("10:50"), 3)]


def test_two_sessions_that_a_late_element_joins_count_once(by_hand: ByHand) -> None:
    by_hand.pipeline = session_pipeline(allowed_lateness=timedelta(hours=2))
    by_hand.epoch(("ann", at("10:00"), 1), ("ann", at("10:50"), 2), watermark=at("11:30"))
    assert sum(results.latest(by_hand.rows("results"), ("user",))["total"].to_pylist()) == 3
    by_hand.epoch(("ann", at("10:25"), 4), watermark=at("11:31"))
    latest = results.latest(by_hand.rows("results"), ("user",)).to_pylist()
    assert [(row["window_start"], row["window_end"], row["total"]) for row in latest] == [(at("10:00"), at("11:20"), 7)]


def panes(count: int) -> pa.Table:
    """Panes of a few keys, with all windows of a key together."""
    numbers = np.arange(count)
    starts = pa.array(numbers % 1000 * 60_000_000, pa.timestamp("us", tz="UTC"))
    rows = pa.table({"user": numbers // 1000, "window_start": starts, "pane": np.zeros(count, np.int32)})
    return rows.cast(results.of_kind(rows.schema, has_panes=True))


def elements(count: int) -> pa.Table:
    """The same rows as results of a process function."""
    rows = panes(count)
    return rows.cast(results.of_kind(rows.schema, has_panes=False))


def test_many_panes_come_by_their_starts_and_those_of_a_start_in_their_order() -> None:
    ordered = results.by_window(rows := panes(250_000))
    starts = np.asarray(ordered["window_start"].cast(pa.int64()))
    assert (np.diff(starts) >= 0).all()
    assert (np.diff(np.asarray(ordered["user"])[starts == 0]) > 0).all()
    columns = [(name, "ascending") for name in ("user", "window_start")]
    assert ordered.sort_by(columns) == rows.sort_by(columns)


@pytest.mark.parametrize("rows", [panes(5_000), elements(250_000)], ids=["few", "no panes"])
def test_few_rows_and_rows_that_are_no_panes_stay_as_they_are(rows: pa.Table) -> None:
    assert results.by_window(rows) is rows


HOUR = 3_600_000


def test_every_view_and_check_waits_for_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path, Clock())
    begin = lake.clock.now
    # The commits have the machine's clock: the window contains the whole test.
    assigner = TumblingProcessingTimeWindows.of(HOUR, timedelta(milliseconds=(begin - HOUR // 2) % HOUR))
    windows = Windows(assigner, Repeatedly(AfterCount(1)), aggregate={"events": Count()})
    pipeline = hourly_pipeline(compute=windows, watermark=WatermarkStrategy.for_monotonous_timestamps())
    module = ModuleType("module_of_windows_by_clock")
    module.pipeline = pipeline  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    config = tmp_path / "tidegate.toml"
    config.write_text(
        f'warehouse = "warehouse"\n[pipelines.hours]\nobject = "{module.__name__}:pipeline"\nstart = "2024-03-01"\n'
    )
    tables = lake.tables(pipeline)

    def told(*arguments: str) -> Any:
        said = StringIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", said)
            assert tidegate([*arguments, "--json", "--config", str(config)]) == 0
        return loads(said.getvalue())

    def final() -> list[int]:
        """Return how many final windows each reader sees."""
        session = duckdb.connect()
        session.execute("SET TimeZone = 'UTC'")
        session.execute("CREATE MACRO delta_scan(path) AS TABLE FROM query_table(path)")
        for table in ("results", "epochs"):
            session.register(tables.path(table), lake.rows(pipeline, table))
        pinned = pin(tables, pipeline)
        return [
            len(told("results", "hours")),
            len(session.execute(told("tables", "query", "hours", "--dialect", "duckdb")["sql"]).fetchall()),
            pinned.fresh_windows,
        ]

    # The event is after the end of the window, and so is the watermark.
    lake.append(("ann", from_millis(begin + HOUR - 60_000), 1))
    lake.stream(LOCAL, pipeline)
    assert len(told("results", "hours", "--view", "latest")) == 1
    assert final() == [0, 0, 0]
    lake.append(("ann", from_millis(begin), 1))
    lake.stream(LOCAL, pipeline)
    assert [row["events"] for row in told("results", "hours", "--view", "latest")] == [2]
    lake.clock.now += HOUR
    lake.stream(LOCAL, pipeline)
    assert final() == [1, 1, 1]
