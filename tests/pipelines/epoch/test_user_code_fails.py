"""An error of user code names the row of the source, or the timer or window, and a retry is not worth it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tidegate.pipelines import Pipeline
from tidegate.pipelines.errors import OTHER, REFUSED, TidegateError, UserCodeFailed
from tidegate.windowing import (
    AggregateFunction,
    CountTrigger,
    KeyedProcess,
    KeyedProcessFunction,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
    Windows,
)

HOUR = timedelta(hours=1)
BAD = 13


class Total(AggregateFunction):
    """The sum of the values, which may not be 13."""

    accumulator_type = pa.int64()
    result_type = pa.struct([("total", pa.int64())])

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        if value["value"] == BAD:
            raise ValueError("13 brings\nbad luck")
        return accumulator + value["value"]

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def get_result(self, accumulator: int) -> Any:
        return {"total": accumulator}


class Disk(Total):
    """An aggregate that reads a file."""

    def add(self, value: Any, accumulator: int) -> int:
        raise OSError("the disk was away")


class OfWindow(ProcessWindowFunction):
    """A function that fails for a window."""

    result_type = pa.struct([("n", pa.int64())])

    def process(self, key: Any, ctx: Any, elements: Iterable[Any]) -> list[Any]:
        return [{"n": 1 // 0}]


class OnTimer(KeyedProcessFunction):
    """A function that fails in a timer."""

    result_type = pa.struct([("n", pa.int64())])

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp + 1000)

    def on_timer(self, timestamp: int, ctx: Any) -> list[Any]:
        raise KeyError("lost")


def hours(**parts: Any) -> Pipeline:
    return hourly_pipeline(compute=Windows(TumblingEventTimeWindows.of(HOUR), **parts))


@pytest.mark.parametrize("is_backfill", [True, False])
@pytest.mark.parametrize("with_late_rows", [True, False])
def test_the_error_names_code_key_version_file_and_row(lake: Lake, is_backfill: bool, with_late_rows: bool) -> None:
    pipeline = hours(aggregate=Total())
    lake.append(("ann", at("10:00"), 1), ("bob", at("10:01"), 2))
    if with_late_rows:
        lake.append(("zoe", at("11:30"), 1))
    version = lake.append(("ann", at("10:02"), 5), ("ann", at("10:03"), BAD), ("bob", at("10:04"), 3))
    run = partial(lake.backfill, start=at("00:00"), end=at("23:00")) if is_backfill else lake.stream
    with pytest.raises(UserCodeFailed) as failed:
        run(LOCAL, pipeline)
    message = str(failed.value)
    assert message.startswith("pipeline hours: its code raised ValueError: 13 brings bad luck (")
    assert "test_user_code_fails.py:" in message
    assert " in add) for a row of the key user = 'ann'" in message
    assert "with event time 2024-03-01T10:03:00Z: row 1 (the first is 0) of file part-" in message
    assert f" in version {version} of source " in message
    assert failed.value.exit_code == REFUSED


def test_the_error_of_a_window_or_a_timer_names_it(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1), ("ann", at("12:00"), 1), ("ann", at("14:00"), 1))
    for process in (hours(process=OfWindow()), hourly_pipeline(compute=KeyedProcess(OnTimer()))):
        with pytest.raises(UserCodeFailed, match="user = 'ann'") as failed:
            lake.stream(LOCAL, process)
        wanted = (
            "the timer of 2024-03-01T10:59:59.999Z of window [2024-03-01T10:00:00Z, 2024-03-01T11:00:00Z) of the key"
            if isinstance(process.compute, Windows)
            else "the timer of 2024-03-01T10:00:01Z of the key"
        )
        assert wanted in str(failed.value)
    counted = hourly_pipeline(compute=Windows(TumblingEventTimeWindows.of(HOUR), CountTrigger(1), process=OfWindow()))
    with pytest.raises(UserCodeFailed, match=r"for window \[2024-03-01T10:00:00Z, .* of the key user = 'ann'"):
        lake.stream(LOCAL, counted)


def test_an_error_that_a_retry_may_cure_keeps_its_exit_code(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1))
    with pytest.raises(TidegateError, match=r"OSError: the disk was away .*row 0") as failed:
        lake.stream(LOCAL, hours(aggregate=Disk()))
    assert failed.value.exit_code == OTHER
    assert "A retry" not in str(failed.value)
