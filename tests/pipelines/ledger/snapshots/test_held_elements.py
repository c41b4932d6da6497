"""Elements that wait for the watermark are part of snapshots: they are kept without events, and no code change loses
them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.lake import EVENTS, Clock, at
from tests.pipelines.by_hand import ByHand
from tests.pipelines.quiet import quiet_pipeline
from tidegate.pipelines import Pipeline
from tidegate.pipelines.ask.waiting import open_windows
from tidegate.pipelines.correct.request import check_reopenable
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.compatibility import check_restorable, compare, ready
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.project.cli import cli
from tidegate.windowing import KeyedProcess, KeyedProcessFunction
from tidegate.windowing.state import ListStateDescriptor
from tidegate.windowing.testing import keyed_process_harness
from tidegate.windowing.time import MIN_TIMESTAMP, to_millis


class Silent(KeyedProcessFunction):
    """Keeps the values that came, and emits them at every third."""

    result_type = pa.struct([("values", pa.list_(pa.int64()))])
    kept = ListStateDescriptor("kept", pa.int64())

    def states(self) -> list[Any]:
        return [self.kept]

    def process_element(self, value: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        ctx.get_state(self.kept).add(value["value"])
        if len(ctx.get_state(self.kept).get()) == 3:
            yield {"values": ctx.get_state(self.kept).get()}


def silent(time_sorted: bool = True) -> Pipeline:
    return replace(quiet_pipeline(), compute=KeyedProcess(Silent(), time_sorted=time_sorted))


@pytest.fixture
def run(tmp_path: Path) -> ByHand:
    return ByHand(tmp_path, silent())


def state_of(run: ByHand, user: str) -> dict[str, Any]:
    (row,) = [row for row in run.rows("state").to_pylist() if row["user"] == user]
    return row


def test_elements_that_wait_are_in_table_state(run: ByHand) -> None:
    manifest = run.epoch(("ann", at("10:00"), 2), ("ann", at("09:00"), 1), watermark=at("08:00"))
    ann = state_of(run, "ann")
    assert ann["held"] == [to_millis(at("09:00")), to_millis(at("10:00"))]
    assert (ann["held_value"], ann["user_state"]) == ([1, 2], None)
    assert manifest.counters["on_time"] == 2
    assert to_millis(at("09:00")) in [shard.next_event_time_timer for shard in manifest.shards]


def test_an_epoch_without_events_feeds_them(run: ByHand) -> None:
    """Without a timer and without a result: only the state shows that the shard has changed."""
    run.epoch(("ann", at("10:00"), 2), ("ann", at("09:00"), 1), watermark=at("08:00"))
    run.epoch(watermark=at("09:30"))
    ann = state_of(run, "ann")
    assert (ann["held_value"], ann["user_state"]) == ([2], {"kept": [1]})
    run.epoch(("ann", at("10:30"), 3), watermark=at("10:30"))
    assert [row["values"] for row in run.rows("results").to_pylist()] == [[1, 2, 3]]
    assert state_of(run, "ann")["held"] is None


def test_what_comes_when_the_watermark_has_reached_its_time_is_late(run: ByHand) -> None:
    run.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    manifest = run.epoch(("ann", at("10:00"), 2), ("ann", at("10:01"), 3), watermark=at("11:00"))
    (late,) = run.rows("late").to_pylist()
    assert (late["user"], late["value"], late["reason"], late["lateness_ms"]) == ("ann", 2, "late", 0)
    assert (manifest.counters["on_time"], manifest.counters["late"]) == (1, 1)
    assert manifest.counters["rows_out"] == 0


def test_late_rows_of_a_function_are_not_reopened_and_the_way_out_is_a_larger_bound() -> None:
    with pytest.raises(Refused, match="its results can't be retracted"):
        check_reopenable(silent())


def test_rows_out_counts_what_a_function_put_out(run: ByHand) -> None:
    rows = [(user, at("10:00"), value) for user in ("ann", "bob", "zoe") for value in (1, 2, 3)]
    manifest = run.epoch(*rows, watermark=at("11:00"))
    assert manifest.counters["rows_out"] == 3 == run.rows("epochs").to_pylist()[0]["rows_out"]
    assert run.epoch(watermark=at("12:00")).counters["rows_out"] == 0


def test_forget_erases_them(run: ByHand) -> None:
    run.epoch(("ann", at("10:00"), 2), ("zoe", at("10:00"), 1), watermark=at("08:00"))
    with Lease(run.tables, "forget", Clock()):
        forget(run.tables, run.pipeline, [("zoe",)], 2_000_000_000_000)
    assert [row["user"] for row in run.rows("state").to_pylist() if row["user"] is not None] == ["ann"]
    assert b"zoe" not in b"".join(path.read_bytes() for path in run.folder.rglob("*.parquet"))


def test_why_says_that_an_element_waits(run: ByHand) -> None:
    run.epoch(("ann", at("10:00"), 2), watermark=at("08:00"))
    ((ann,), count) = open_windows(run.warehouse, run.head(), 0, to_millis(at("12:00")))
    assert (count, ann.next_event_time_timer) == (1, to_millis(at("10:00")))
    assert str(ann.reason).startswith(
        "its function gets the next element when the watermark reaches 2024-03-01T10:00:00Z;"
    )


def test_snapshot_show_tells_how_many_wait(run: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    run.epoch(("ann", at("10:00"), 2), ("ann", at("09:00"), 1), watermark=at("08:00"))
    (run.folder / "tidegate.toml").write_text(
        'warehouse = "warehouse"\n[pipelines.quiet]\nobject = "quiet:quiet"\nstart = 2024-03-01T00:00:00Z\n'
    )
    monkeypatch.chdir(run.folder)
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(cli, ["snapshots", "show", "quiet"])
    assert "2 from 2024-03-01T09:00:00Z on" in shown.output
    told = json.loads(CliRunner().invoke(cli, ["snapshots", "show", "quiet", "--json"]).output)
    assert told["windows"][0]["held_value"] == [1, 2]


def test_a_snapshot_of_elements_as_they_came_goes_on_in_event_order(run: ByHand) -> None:
    run.pipeline = silent(time_sorted=False)
    run.epoch(("ann", at("10:00"), 1), watermark=at("08:00"))
    run.pipeline = silent()
    bound = bind(run.pipeline, EVENTS, EVENTS)
    assert compare(bound, run.head().manifest).migrations == ("elements now wait for the watermark",)
    assert ready(run.tables, bound, run.head()) is not None
    run.epoch(("ann", at("12:00"), 3), ("ann", at("11:00"), 2), watermark=at("11:30"))
    assert (state_of(run, "ann")["held_value"], state_of(run, "ann")["user_state"]) == ([3], {"kept": [1, 2]})


def test_elements_that_wait_are_not_lost_by_time_sorted_false(run: ByHand) -> None:
    run.epoch(("ann", at("10:00"), 1), watermark=at("08:00"))
    with pytest.raises(Refused, match=r"'held' .*would be lost: keep time_sorted=True. Or: give the pipeline another"):
        check_restorable(bind(silent(time_sorted=False), EVENTS, EVENTS), run.head().manifest)


def test_a_source_may_gain_a_column_while_elements_wait(run: ByHand) -> None:
    run.epoch(("ann", at("10:00"), 1), watermark=at("08:00"))
    wider = EVENTS.append(pa.field("place", pa.string()))
    found = compare(bind(run.pipeline, wider, wider), run.head().manifest)
    assert found.incompatibilities == ()
    assert found.migrations == ("'place' is null for elements that are already waiting",)


def test_an_element_that_waits_has_null_for_a_younger_column_and_lacks_one_that_is_gone() -> None:
    from tidegate.windowing.operators.process import KeyedProcessOperator, process_schema

    process = KeyedProcess(Told())
    harness = keyed_process_harness(Told(), time_sorted=True)
    harness.make = lambda: KeyedProcessOperator(process, value_type=kind)
    harness.schema = lambda key: process_schema(process, key, kind)
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
    harness.restore(harness.snapshot())
    harness.element("ann", {"a": 1, "b": "x"}, 10)
    snapshot = harness.snapshot()
    kind = pa.struct([("a", pa.int64()), ("c", pa.float64())])
    harness.restore(snapshot, parallelism=3)
    harness.element("ann", {"a": 2, "c": 0.5}, 5)
    harness.watermark(20)
    assert [record.value for record in harness.element_results()] == ["{'a': 2, 'c': 0.5}", "{'a': 1, 'c': None}"]


class Told(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> list[str]:
        return [str(value)]


def test_without_types_elements_of_one_time_stay_in_the_order_of_arrival() -> None:
    harness = keyed_process_harness(Told(), time_sorted=True)
    for value, time in (("c", 7), ("a", 7), ("b", 3)):
        harness.element("ann", value, time)
    harness.restore(harness.snapshot(), parallelism=2)
    assert harness.current_watermark == MIN_TIMESTAMP
    harness.watermark(6)
    assert [record.value for record in harness.element_results()] == ["b"]
    assert harness.state_entries == 2
    harness.watermark(7)
    assert [record.value for record in harness.element_results()] == ["c", "a"]
