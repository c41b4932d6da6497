from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transcripts.timestamps_operator import TimestampsAndWatermarksOperator
from tidegate.windowing.errors import IllegalArgument, IncompatibleSnapshot, MissingTimestamp
from tidegate.windowing.operators.records import ElementResult, IdleRecord, Record, WatermarkRecord
from tidegate.windowing.time import MAX_TIMESTAMP
from tidegate.windowing.watermarks import PunctuatedWatermarks, WatermarkStrategy

BOUNDED = WatermarkStrategy.for_bounded_out_of_orderness(2).with_interval(10)
STEPS = st.lists(st.tuples(st.sampled_from(["element", "clock"]), st.integers(0, 60)), max_size=30)


def run(operator: TimestampsAndWatermarksOperator, steps: list[tuple[str, int]]) -> list[Record]:
    for kind, number in steps:
        if kind == "element":
            operator.process_element(number, number)
        else:
            operator.process_processing_time(number)
    return operator.take_output()


def test_the_watermark_comes_at_the_interval() -> None:
    out = run(TimestampsAndWatermarksOperator(BOUNDED), [("element", 20), ("clock", 9), ("clock", 10)])
    assert out == [ElementResult(20, 20), WatermarkRecord(17)]


def test_a_clock_that_jumps_asks_once_and_goes_on_from_there() -> None:
    operator = TimestampsAndWatermarksOperator(BOUNDED.with_idleness(1000))
    run(operator, [("element", 20), ("clock", 35)])
    assert run(operator, [("element", 30), ("clock", 44)]) == [ElementResult(30, 30)]
    assert run(operator, [("clock", 45)]) == [WatermarkRecord(27)]


def test_an_interval_of_zero_leaves_only_what_events_emit() -> None:
    strategy = WatermarkStrategy.for_generator(lambda: PunctuatedWatermarks(lambda event, ts: ts)).with_interval(0)
    operator = TimestampsAndWatermarksOperator(strategy)
    assert run(operator, [("element", 5), ("clock", 1000)]) == [ElementResult(5, 5), WatermarkRecord(5)]


def test_the_first_interval_begins_where_the_clock_stands() -> None:
    operator = TimestampsAndWatermarksOperator(BOUNDED, processing_time=1000)
    assert run(operator, [("element", 20), ("clock", 1009)]) == [ElementResult(20, 20)]
    assert run(operator, [("clock", 1010)]) == [WatermarkRecord(17)]


def test_watermarks_and_status_from_before_are_ignored_but_for_the_end_of_time() -> None:
    operator = TimestampsAndWatermarksOperator(BOUNDED)
    operator.process_watermark(42)
    operator.process_idle(True)
    assert operator.take_output() == []
    operator.process_watermark(MAX_TIMESTAMP)
    assert operator.take_output() == [WatermarkRecord(MAX_TIMESTAMP)]
    assert run(operator, [("element", 1), ("clock", 10)]) == [ElementResult(1, 1)]


def test_bounded_input_emits_no_watermark_on_the_way() -> None:
    operator = TimestampsAndWatermarksOperator(BOUNDED, emit_progressive_watermarks=False)
    assert run(operator, [("element", 20), ("clock", 100)]) == [ElementResult(20, 20)]
    operator.process_watermark(MAX_TIMESTAMP)
    assert operator.take_output() == [WatermarkRecord(MAX_TIMESTAMP)]


def test_the_end_of_input_emits_what_is_known() -> None:
    operator = TimestampsAndWatermarksOperator(BOUNDED)
    operator.process_element("last", 20)
    operator.finish()
    assert operator.take_output() == [ElementResult("last", 20), WatermarkRecord(17)]
    assert operator.current_watermark == 17


def test_a_quiet_stream_goes_idle_and_an_old_event_makes_it_active() -> None:
    operator = TimestampsAndWatermarksOperator(BOUNDED.with_idleness(15))
    out = run(operator, [("element", 50), ("clock", 10), ("clock", 20), ("clock", 30), ("clock", 40)])
    assert out == [ElementResult(50, 50), WatermarkRecord(47), IdleRecord(True)]
    assert run(operator, [("element", 1), ("clock", 50)]) == [ElementResult(1, 1), IdleRecord(False)]


def test_an_element_needs_a_timestamp() -> None:
    with pytest.raises(MissingTimestamp):
        TimestampsAndWatermarksOperator(BOUNDED).process_element("element", None)


@pytest.mark.parametrize("timestamp", [None, "2024-01-01", 1.5, True])
def test_an_assigner_must_give_milliseconds(timestamp: Any) -> None:
    strategy = BOUNDED.with_timestamp_assigner(lambda element, before: timestamp)
    with pytest.raises(IllegalArgument, match=r"timestamp = .*int of milliseconds"):
        TimestampsAndWatermarksOperator(strategy).process_element("element")


@given(STEPS, st.integers(0, 30))
def test_a_snapshot_at_any_point_changes_nothing(steps: list[tuple[str, int]], cut: int) -> None:
    strategy = BOUNDED.with_idleness(25)
    straight = run(TimestampsAndWatermarksOperator(strategy), steps)
    before, after = (TimestampsAndWatermarksOperator(strategy) for _ in range(2))
    first = run(before, steps[:cut])
    after.restore(json.loads(json.dumps(before.snapshot())))
    assert first + run(after, steps[cut:]) == straight


@given(STEPS)
def test_watermarks_never_go_back_and_elements_are_all_there(steps: list[tuple[str, int]]) -> None:
    out = run(TimestampsAndWatermarksOperator(BOUNDED.with_idleness(25)), steps)
    watermarks = [record.timestamp for record in out if isinstance(record, WatermarkRecord)]
    assert watermarks == sorted(set(watermarks))
    elements = [record.value for record in out if isinstance(record, ElementResult)]
    assert elements == [number for kind, number in steps if kind == "element"]


def test_a_snapshot_of_another_strategy_is_refused() -> None:
    snapshot = TimestampsAndWatermarksOperator(WatermarkStrategy.no_watermarks()).snapshot()
    with pytest.raises(IncompatibleSnapshot, match="largest_timestamp"):
        TimestampsAndWatermarksOperator(BOUNDED).restore(snapshot)
