"""Count windows, tumbling and sliding, as Flink's countWindow. Deduplication keeps the first element of each key by
event time, whatever the order of arrival, epochs and restores. Values of user code against declared types: values are
converted as meant, and nothing is cast silently. Times and durations as readable text.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing import (
    CollectList,
    Count,
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    First,
    GlobalWindows,
    KeepFirst,
    Sum,
    TumblingEventTimeWindows,
    Windows,
    count_windows,
)
from tidegate.windowing.declared import checker
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.testing import keyed_process_harness, window_harness
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, show_duration, show_watermark, to_millis
from tidegate.windowing.timestamps import TIMESTAMP, epoch_millis, floored_millis, timestamps_of
from tidegate.windowing.type_names import name_of


def results(windows: Windows, elements: Sequence[tuple[str, int]], restoring: bool = False) -> list[tuple[str, Any]]:
    run = window_harness(windows)
    seen = []
    for key, value in elements:
        run.element(key, value, None)
        if restoring:
            run.restore(run.snapshot(), parallelism=3)
        seen += [(result.key, result.value) for result in run.results()]
    return seen


def plus(a: int, b: int) -> int:
    return a + b


@pytest.mark.parametrize("restoring", [False, True])
def test_tumbling_windows_hold_each_element_once(restoring: bool) -> None:
    elements = [("a", 1), ("b", 10), ("a", 2), ("a", 3), ("b", 20), ("a", 4), ("a", 5)]
    assert results(count_windows(2, reduce=plus), elements, restoring) == [("a", 3), ("b", 30), ("a", 7)]


@pytest.mark.parametrize("restoring", [False, True])
def test_sliding_windows_hold_the_last_elements_and_begin_incomplete(restoring: bool) -> None:
    elements = [("a", value) for value in range(1, 8)]
    assert results(count_windows(3, 2, reduce=plus), elements, restoring) == [("a", 3), ("a", 9), ("a", 15)]


def test_a_slide_above_the_size_leaves_elements_out() -> None:
    elements = [("a", value) for value in range(1, 9)]
    assert results(count_windows(2, 4, reduce=plus), elements) == [("a", 7), ("a", 15)]


def test_aggregates_work_in_both_forms() -> None:
    run = window_harness(count_windows(2, 1, aggregate={"n": Count(), "sum": Sum("x")}))
    for value in (1, 2, 3):
        run.element("a", {"x": value}, None)
    assert [result.value for result in run.results()] == [{"n": 1, "sum": 1}, {"n": 2, "sum": 3}, {"n": 2, "sum": 5}]


def test_an_evictor_leaves_the_aggregates_its_elements_with_their_times() -> None:
    aggregates = {"n": Count(), "first": First("x"), "all": CollectList("x")}
    windows = Windows(TumblingEventTimeWindows.of(100), CountTrigger.of(1), CountEvictor.of(2), aggregate=aggregates)
    run = window_harness(windows)
    for value, time in ((1, 30), (2, 20), (3, 25)):
        run.element("a", {"x": value}, time)
    assert run.results()[-1].value == {"n": 2, "first": 2, "all": [2, 3]}


@pytest.mark.parametrize(
    ("parts", "values"), [({"aggregate": {"sum": Sum("x")}}, [{"sum": None}]), ({"reduce": plus}, [])]
)
def test_an_aggregate_of_no_elements_has_a_result_and_a_reduction_of_none_has_not(
    parts: dict[str, Any], values: list[Any]
) -> None:
    windows = Windows(TumblingEventTimeWindows.of(100), CountTrigger.of(1), CountEvictor.of(0), **parts)
    run = window_harness(windows)
    run.element("a", {"x": 1}, 5)
    assert [result.value for result in run.results()] == values


ROW = pa.struct([("id", pa.int64())])


def first_of(elements: list[tuple[str, int]], within: int | None) -> list[tuple[str, int, int]]:
    """Return, by sorting all elements, key, time and number of each one that no earlier element of its key hides."""
    since: dict[str, int] = {}
    found = []
    for time, number, key in sorted((time, number, key) for number, (key, time) in enumerate(elements)):
        if key not in since or (within is not None and time >= since[key] + within):
            since[key] = time
            found.append((key, time, number))
    return found


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(-20, 60)), max_size=25),
    st.none() | st.integers(1, 30),
    st.data(),
)
def test_the_first_elements_are_those_of_a_sort_by_time(
    elements: list[tuple[str, int]], within: int | None, data: st.DataObject
) -> None:
    run = keyed_process_harness(KeepFirst(ROW, within), time_sorted=True)
    # The watermark stays behind everything that is still to come, and restores come anywhere.
    for number, (key, time) in enumerate(elements):
        run.element(key, {"id": number, "more": "x"}, time)
        behind = min([time for _, time in elements[number + 1 :]], default=MAX_TIMESTAMP) - 1
        run.watermark(max(run.current_watermark, data.draw(st.integers(-30, min(70, behind)))) if behind > -30 else -31)
        if data.draw(st.booleans()):
            run.restore(run.snapshot(), parallelism=data.draw(st.integers(1, 3)))
    found = [(r.key, r.timestamp, r.value["id"]) for r in run.element_results()]
    run.watermark(MAX_TIMESTAMP)
    found += [(r.key, r.timestamp, r.value["id"]) for r in run.element_results()]
    assert sorted(found) == sorted(first_of(elements, within))
    assert within is None or run.state_entries == 0


NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)

NOON_MILLIS = 1_714_564_800_000

UTC_US = pa.timestamp("us", tz="UTC")

PART = pa.struct([("at", UTC_US), ("n", pa.int8())])


def fitted(name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values of a result as the column of its table."""
    fit = checker(kind, name, None, takes_millis=True)
    return pa.array([fit(value) for value in values], kind)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize(
    "value", [NOON_MILLIS, np.int64(NOON_MILLIS), NOON, NOON.astimezone(timezone(timedelta(hours=2)))]
)
def test_an_int_in_a_timestamp_is_epoch_milliseconds_whatever_the_unit(unit: str, value: Any) -> None:
    assert fitted("at", [value, None], pa.timestamp(unit, tz="UTC")).to_pylist() == [NOON, None]


def test_a_wall_clock_takes_the_utc_time_of_an_int() -> None:
    assert fitted("at", [NOON_MILLIS], pa.timestamp("us")).to_pylist() == [NOON.replace(tzinfo=None)]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ([NOON_MILLIS, None], pa.list_(UTC_US), [NOON, None]),
        ((NOON_MILLIS,), pa.list_(UTC_US), [NOON]),
        ({"at": NOON_MILLIS}, PART, {"at": NOON, "n": None}),
        ({"a": {"at": NOON_MILLIS, "n": 1}}, pa.map_(pa.string(), PART), [("a", {"at": NOON, "n": 1})]),
        ([("a", NOON_MILLIS)], pa.map_(pa.string(), UTC_US), [("a", NOON)]),
        ([[{"at": -1}]], pa.list_(pa.list_(PART)), [[{"at": NOON.fromtimestamp(-0.001, UTC), "n": None}]]),
        (date(2024, 5, 1), pa.date32(), date(2024, 5, 1)),
        (5, pa.decimal128(10, 2), Decimal("5.00")),
        (Decimal("7"), pa.int64(), 7),
        (float("inf"), pa.float32(), float("inf")),
        (3, pa.float64(), 3.0),
        ({"a", "b"} - {"b"}, pa.list_(pa.string()), ["a"]),
    ],
)
def test_what_is_meant_goes_in(value: Any, kind: pa.DataType, expected: Any) -> None:
    assert fitted("x", [value], kind).to_pylist() == [expected]


@pytest.mark.parametrize(
    ("value", "kind", "field", "why"),
    [
        ("noon", UTC_US, "x = 'noon'", "give a datetime, or epoch milliseconds as an int"),
        (True, UTC_US, "x = True", "give a datetime, or epoch milliseconds"),
        (1.5, UTC_US, "x = 1.5", "give a datetime, or epoch milliseconds"),
        (date(2024, 5, 1), UTC_US, "x = datetime.date", "give a datetime, or epoch milliseconds"),
        (NOON_MILLIS * 1000, UTC_US, f"x = {NOON_MILLIS}000", "outside the years 1 to 9999"),
        (NOON.replace(tzinfo=None), UTC_US, "x = datetime", "give the datetime a zone"),
        (NOON, pa.timestamp("us"), "x = datetime", "give a datetime without a zone"),
        (NOON.replace(microsecond=1), pa.timestamp("ms", "UTC"), "x = datetime", "it is finer than a millisecond"),
        (pd.Timestamp("2024-05-01T00:00:00.000000001Z"), UTC_US, "x = Timestamp", "it is finer than a microsecond, "),
        (NOON, pa.date32(), "x = datetime", "give a datetime.date"),
        (19_844, pa.date32(), "x = 19844", "give a datetime.date"),
        (1e300, pa.float32(), "x = 1e+300", "it is too large"),
        (True, pa.float64(), "x = True", "give a float"),
        (300, pa.int8(), "x = 300", "declared type is int8"),
        (2**70, pa.int64(), "x = 11805916", "declared type is int64"),
        (Decimal("1.5"), pa.int64(), "x = Decimal('1.5')", "give an int"),
        (1.5, pa.int64(), "x = 1.5", "declared type is int64"),
        (Decimal("1.234"), pa.decimal128(10, 2), "x = Decimal('1.234')", "declared type is decimal128(10, 2)"),
        (0.5, pa.decimal128(10, 2), "x = 0.5", "declared type is decimal128(10, 2)"),
        (1, pa.bool_(), "x = 1", "declared type is bool"),
        (1, pa.string(), "x = 1", "declared type is string"),
        ("abc", pa.list_(pa.string()), "x = 'abc'", "give a list"),
        ([1, NOON], pa.list_(pa.date32()), "x[0] = 1", "give a datetime.date"),
        ({"at": "noon"}, PART, "x.at = 'noon'", "declared type is struct<at: timestamp[us, tz=UTC], n: int8>"),
        ({"when": 1}, PART, "x = {'when': 1}", "'when' is not one of the declared fields ['at', 'n']"),
        ((1, 2), PART, "x = (1, 2)", "give a mapping with ['at', 'n']"),
        ({"a": "noon"}, pa.map_(pa.string(), UTC_US), "x['a'] = 'noon'", "epoch milliseconds"),
    ],
)
def test_what_would_be_cast_is_refused_with_field_value_and_type(
    value: Any, kind: pa.DataType, field: str, why: str
) -> None:
    with pytest.raises(IllegalArgument) as refused:
        fitted("x", [None, value], kind)
    assert str(refused.value).startswith(field)
    assert why in str(refused.value)
    assert f"declared type is {kind}" in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.int8(), "tinyint"),
        (pa.int32(), "int"),
        (pa.bool_(), "boolean"),
        (pa.date32(), "date"),
        (pa.large_string(), "string"),
        (pa.decimal128(10, 2), "decimal(10,2)"),
        (pa.timestamp("us", tz="UTC"), "timestamp"),
        (pa.timestamp("ms", tz="Europe/Berlin"), "timestamp"),
        (pa.timestamp("us"), "timestamp_ntz"),
        (pa.list_(pa.int32()), "array<int>"),
        (pa.map_(pa.string(), pa.float32()), "map<string, float>"),
        (pa.struct([("os", pa.string()), ("app", pa.struct([("beta", pa.bool_())]))]), "struct<os: string, app: "),
        (pa.uint64(), "uint64"),
    ],
    ids=str,
)
def test_a_type_has_the_name_that_its_user_wrote(kind: pa.DataType, name: str) -> None:
    assert name_of(kind).startswith(name)


MOMENTS = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    None,
]

MILLIS = [None if moment is None else to_millis(moment) for moment in MOMENTS]


@pytest.mark.parametrize("form", [pa.array, lambda values, kind: pa.chunked_array([values[:2], values[2:]], kind)])
def test_times_come_back_from_milliseconds_as_they_were(form: object) -> None:
    times = form(MOMENTS, TIMESTAMP)  # type: ignore[operator]
    assert epoch_millis(times).to_pylist() == MILLIS
    assert timestamps_of(epoch_millis(times)) == times


def test_a_time_with_microseconds_is_refused_in_a_table_of_ours_and_rounded_down_in_a_source() -> None:
    between = pa.chunked_array([[datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=n) for n in (-1, 1, 1999)]])
    with pytest.raises(pa.ArrowInvalid):
        epoch_millis(between.cast(TIMESTAMP))
    assert floored_millis(between.cast(TIMESTAMP)).tolist() == [-1, 0, 1]


SECOND, HOUR, DAY = 1000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (7 * SECOND + 400, "7.4 s"),
        (90 * SECOND, "1.5 min"),
        (3 * HOUR, "3 h"),
        (-2 * DAY, "-2 d"),
        (989 * DAY + 23 * HOUR, "990 d"),
        (999 * DAY + 23 * HOUR, "1,000 d"),
        (5_066 * DAY, "5,066 d"),
    ],
)
def test_a_duration_is_shown_in_the_largest_unit_that_fits(duration: int, text: str) -> None:
    assert show_duration(duration) == text


@pytest.mark.parametrize(
    ("watermark", "text"),
    [
        (86_399_999, "before 1970-01-02T00:00:00Z"),
        (86_399_998, "before 1970-01-02T00:00:00Z"),
        (86_399_997, "before 1970-01-01T23:59:59.998Z"),
        (86_400_000, "before 1970-01-02T00:00:00.001Z"),
        (MIN_TIMESTAMP, "-"),
        (MAX_TIMESTAMP, "end of input"),
        (None, "-"),
    ],
)
def test_a_watermark_is_shown_as_the_time_before_which_all_has_arrived(watermark: int | None, text: str) -> None:
    assert show_watermark(watermark) == text


def test_a_delta_evictor_keeps_elements_whose_delta_is_not_a_number() -> None:
    evictor = DeltaEvictor.of(1.0, lambda element, last: abs(element["x"] - last["x"]))
    run = window_harness(Windows(GlobalWindows.create(), CountTrigger.of(4), evictor, aggregate={"n": Count()}))
    for number in (float("nan"), 1.0, 5.0, 1.5):
        run.element("a", {"x": number}, None)
    assert [result.value for result in run.results()] == [{"n": 3}]
