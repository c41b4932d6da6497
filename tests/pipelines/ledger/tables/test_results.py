"""The order of results in a file: a large epoch of a stream writes them by their windows' starts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.lake import at, session_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.columns import TIMESTAMP
from tidegate.pipelines.ledger.tables.commits import commit
from tidegate.pipelines.ledger.tables.files import add_action, write_file
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.reading.queries import ResultQueries
from tidegate.pipelines.storage.warehouse import arrow_schema, read_table
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, to_millis

SCHEMA = results.schema(KeySchema.of(user=pa.string()), pa.struct([("events", pa.int64())]))


def table(*panes: dict[str, Any]) -> pa.Table:
    """Panes of window 1 of ann, ten o'clock to eleven, unless they say otherwise."""
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


def newest(*panes: dict[str, Any]) -> list[int]:
    """`events` of the panes that hold now."""
    return sorted(results.latest(table(*panes), ("user",))["events"].to_pylist())


def test_results_of_a_function_that_are_named_like_columns_of_panes_are_none() -> None:
    key = KeySchema.of(user=pa.string())
    of_panes = pa.struct([(name, pa.int64()) for name in sorted(results.RESERVED - results.ELEMENT_RESERVED)])
    of_elements = pa.struct([(name, pa.int64()) for name in sorted(results.ELEMENT_RESERVED - results.RESERVED)])
    elements, panes = results.schema(key, of_panes, results.ELEMENT_LEADING), results.schema(key, of_elements)
    for said in (True, False):
        # Tables of older versions don't say what their rows are.
        found = [results.has_panes(rows if said else rows.remove_metadata()) for rows in (panes, elements)]
        assert found == [True, False]


def test_the_table_says_what_its_rows_are_whatever_its_columns_are(by_hand: ByHand) -> None:
    tables = PipelineTables(by_hand.warehouse, "told")
    misleading = results.of_kind(SCHEMA, has_panes=False)
    tables.create({results.NAME: misleading})
    handle = tables.open(results.NAME)
    assert handle.metadata().configuration[results.KIND] == results.ELEMENTS
    assert not results.has_panes(arrow_schema(handle))
    file = write_file(by_hand.warehouse, tables.path(results.NAME), "results-000001", table({"pane": 0}))
    assert file is not None
    commit(by_hand.warehouse, handle, [add_action(file)], {})
    rows = read_table(by_hand.warehouse, tables.open(results.NAME), where=pc.field("epoch") == 1)
    assert not results.has_panes(rows.schema)


def test_of_the_panes_of_a_window_the_newest_holds() -> None:
    assert newest({"pane": 0, "events": 1}, {"pane": 2, "events": 3}, {"pane": 1, "events": 2}) == [3]


def test_windows_of_other_keys_and_ids_hold_beside_it() -> None:
    assert newest({"events": 1}, {"user": "bob", "events": 2}, {"window_id": 2, "events": 3}) == [1, 2, 3]


def test_a_retracted_window_holds_nothing() -> None:
    assert newest({"pane": 0, "events": 1}, {"pane": 0, "op": "-", "events": 1}) == []


def test_a_retraction_takes_back_the_panes_before_it_too() -> None:
    assert newest({"pane": 0, "events": 1}, {"pane": 1, "events": 2}, {"pane": 1, "op": "-", "events": 2}) == []


def test_a_pane_after_a_retraction_holds() -> None:
    """Retracting: each pane takes the one before back."""
    assert newest({"pane": 0, "events": 1}, {"pane": 0, "op": "-", "events": 1}, {"pane": 1, "events": 5}) == [5]


def test_a_retraction_of_an_absorbed_session_leaves_the_one_that_absorbed_it() -> None:
    absorbed = {"window_id": 2, "pane": 0, "events": 2}
    assert newest({"window_id": 1, "events": 1}, absorbed, {**absorbed, "op": "-"}, {"pane": 1, "events": 3}) == [3]


def test_stale_rows_do_not_hold_and_hide_nothing() -> None:
    assert newest({"pane": 3, "events": 9, "stale": True}, {"pane": 0, "events": 1}) == [1]


def test_no_rows_are_no_windows() -> None:
    assert newest() == []


def test_a_key_of_several_columns_or_none_is_told_apart_by_all_of_it() -> None:
    rows = table({"events": 1}, {"user": "bob", "pane": 1, "events": 2})
    assert results.latest(rows, ())["events"].to_pylist() == [2]
    assert len(results.latest(rows, ("user",))) == 2
    assert len(results.latest(rows, ("user", "timing"))) == 2


def test_a_null_key_is_a_key() -> None:
    assert newest({"user": None, "pane": 0, "events": 1}, {"user": None, "pane": 1, "events": 2}) == [2]


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
    assert sorted(results.latest(named, (".a",))["events"].to_pylist()) == [2, 3]


def test_sql_for_a_key_with_a_dash_or_a_backtick_quotes_it() -> None:
    query = ResultQueries("t", "e", ("tail-num", "a`b"), ("tail-num", "a`b", "window_id")).latest()
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


def test_every_time_is_a_utc_timestamp() -> None:
    times = [field for field in SCHEMA if pa.types.is_timestamp(field.type)]
    assert len(times) == 5
    assert {field.type for field in times} == {TIMESTAMP}


def panes(count: int) -> pa.Table:
    """Panes of a few keys, all windows of a key together."""
    numbers = np.arange(count)
    starts = pa.array(numbers % 1000 * 60_000_000, pa.timestamp("us", tz="UTC"))
    return pa.table({"user": numbers // 1000, "window_start": starts, "pane": np.zeros(count, np.int32)})


def test_many_panes_come_by_their_starts_and_those_of_a_start_in_their_order() -> None:
    ordered = results.by_window(rows := panes(250_000))
    starts = np.asarray(ordered["window_start"].cast(pa.int64()))
    assert (np.diff(starts) >= 0).all()
    assert (np.diff(np.asarray(ordered["user"])[starts == 0]) > 0).all()
    columns = [(name, "ascending") for name in ("user", "window_start")]
    assert ordered.sort_by(columns) == rows.sort_by(columns)


@pytest.mark.parametrize("rows", [panes(5_000), panes(250_000).drop_columns(["pane"])], ids=["few", "no panes"])
def test_few_rows_and_rows_that_are_no_panes_stay_as_they_are(rows: pa.Table) -> None:
    assert results.by_window(rows) is rows
