"""Files in the calendar of Spark 2: modern values are read as they are, old ones as Spark rebases them, or refused."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.hand_made import HandMade, column, struct
from tests.lake import at, hourly_pipeline
from tests.pipelines.sources.slices import events_of, slice_at, whole_rows
from tidegate.pipelines.epoch.file_measure import measure_files
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.old_calendar import OldCalendar
from tidegate.windowing.time import to_millis

INSTANT, WALL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
EPOCH = date(1970, 1, 1)

SPARK = b"org.apache.spark."
SPARK_2 = {SPARK + b"version": b"2.4.8"}
MARKED = {SPARK + b"version": b"3.5.1", SPARK + b"legacyDateTime": b""}
IN_UTC = {SPARK + b"timeZone": b"UTC"}

OLD_DATE, NEW_DATE = pa.array([date(1001, 1, 7)]), pa.array([date(1582, 10, 15)])
OLD_TIME = datetime(1001, 1, 7, 12, tzinfo=UTC)
UNCLEAR_TIME = datetime(1899, 12, 31, 23, tzinfo=UTC)
"""A time of the Gregorian calendar at which zones had local mean times."""
NEW_TIME = datetime(1900, 1, 1, tzinfo=UTC)


def days_of(value: date) -> int:
    return (value - EPOCH).days


def modern(values: pa.Array, footer: dict[bytes, bytes], physical: str = "INT64") -> list[Any]:
    """Return values of a file with a footer in the Gregorian calendar."""
    calendar = OldCalendar.of(footer)
    column = pa.chunked_array([values])
    return (column if calendar is None else calendar.modern(column, [physical], "c")).to_pylist()


@pytest.mark.parametrize(
    ("footer", "dates", "int96"),
    [
        ({}, False, False),
        ({SPARK + b"version": b"2.4.8"}, True, True),
        ({SPARK + b"version": b"3.0.3"}, False, True),
        ({SPARK + b"version": b"3.1.0"}, False, False),
        ({SPARK + b"version": b"3.10.0"}, False, False),
        ({SPARK + b"version": b"10.0.0"}, False, False),
        ({SPARK + b"version": b"4.0.0-preview1"}, False, False),
        (MARKED, True, False),
        ({SPARK + b"version": b"3.5.1", SPARK + b"legacyINT96": b""}, False, True),
        # Spark looks at a mark only in a file with a version.
        ({SPARK + b"legacyDateTime": b""}, False, False),
    ],
)
def test_version_and_marks_decide_as_in_spark(footer: dict[bytes, bytes], dates: bool, int96: bool) -> None:
    calendar = OldCalendar.of(footer) or OldCalendar()
    assert (calendar.dates, calendar.int96) == (dates, int96)


DIFFERENCES = {
    -719_164: 2,
    -682_945: 1,
    -646_420: 0,
    -609_895: -1,
    -536_845: -2,
    -500_320: -3,
    -463_795: -4,
    -390_745: -5,
    -354_220: -6,
    -317_695: -7,
    -244_645: -8,
    -208_120: -9,
    -171_595: -10,
    -141_427: 0,
}
"""Days from which Spark's `RebaseDateTime` adds another number of days to a date of the old calendar."""


@given(st.integers(-719_164, 20_000))
@example(-141_428)
@example(-141_427)
def test_a_date_moves_by_as_many_days_as_in_spark(day: int) -> None:
    added = [days for begin, days in DIFFERENCES.items() if begin <= day][-1]
    (read,) = modern(pa.array([day], pa.int32()).cast(pa.date32()), SPARK_2)
    assert days_of(read) == day + added


@given(st.integers(1, 1582), st.integers(1, 12), st.integers(1, 28))
def test_a_date_keeps_year_month_and_day(year: int, month: int, day: int) -> None:
    if (year, month) > (1582, 9):
        return
    # The Julian day number of a date of the Julian calendar.
    number = 367 * year - 7 * (year + 5001 - (month < 3)) // 4 + 275 * month // 9 + day + 1_729_777
    stored = pa.array([number - 2_440_588, None], pa.int32()).cast(pa.date32())
    assert modern(stored, SPARK_2) == [date(year, month, day), None]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_times_of_a_writer_in_utc_are_rebased_like_dates(unit: str) -> None:
    moments = pa.array([datetime(1700, 1, 7, 23, 59, 59, tzinfo=UTC), None, UNCLEAR_TIME, NEW_TIME], INSTANT)
    kind = pa.timestamp(unit, tz="UTC")
    read = modern(moments.cast(kind), {**SPARK_2, **IN_UTC})
    assert pa.array(read, kind).cast(INSTANT).equals(moments)
    if unit != "ns":
        (read,) = modern(pa.array([OLD_TIME], kind), {**SPARK_2, **IN_UTC})
        assert read == datetime(1001, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("footer", [SPARK_2, {**MARKED, SPARK + b"timeZone": b"Europe/Berlin"}])
def test_times_before_1900_of_another_zone_are_refused_and_later_ones_are_read(footer: dict[bytes, bytes]) -> None:
    assert modern(pa.array([NEW_TIME, None], INSTANT), footer) == [NEW_TIME, None]
    for old in (OLD_TIME, UNCLEAR_TIME):
        with pytest.raises(pa.ArrowInvalid, match=r"column 'c' has times before 1900 in the calendar of Spark 2"):
            modern(pa.array([NEW_TIME, old], INSTANT), footer)


def test_only_int96_follows_the_rule_of_int96() -> None:
    footer = {SPARK + b"version": b"3.0.3", **IN_UTC}
    assert modern(pa.array([OLD_TIME], INSTANT), footer) == [OLD_TIME]
    stored = pa.array([OLD_TIME.replace(tzinfo=None)], WALL)
    assert modern(stored, footer, "INT96") == [datetime(1001, 1, 1, 12)]
    # A wall-clock time has never been rebased.
    assert modern(stored, {**SPARK_2, **IN_UTC}) == stored.to_pylist()


COLUMNS = [
    column("user", "string"),
    column("at", "timestamp"),
    column("value", "long"),
    column("born", "date"),
    column("nested", struct(column("days", {"type": "array", "elementType": "date", "containsNull": True}))),
]


TEN = at("10:00")


def table_of(folder: Path, born: pa.Array, days: pa.Array, moment: datetime = TEN, **options: Any) -> HandMade:
    table = HandMade(folder / "events", COLUMNS)
    nested = pa.StructArray.from_arrays([pa.array([days.to_pylist()], pa.list_(days.type))], ["days"])
    rows = {"user": ["u"], "at": pa.array([moment], INSTANT), "value": [1], "born": born, "nested": nested}
    table.commit(table.file(pa.table(rows).replace_schema_metadata({**SPARK_2}), **options))
    return table


@pytest.mark.parametrize("options", [{}, {"use_deprecated_int96_timestamps": True}])
def test_a_file_of_modern_values_is_read_whatever_its_version(tmp_path: Path, options: dict[str, Any]) -> None:
    files = slice_at(table_of(tmp_path, NEW_DATE, NEW_DATE, **options))
    (row,) = whole_rows(files, events_of(files))
    assert (row["at"], row["born"], row["nested"]) == (at("10:00"), date(1582, 10, 15), {"days": [date(1582, 10, 15)]})
    assert measure_files(files).largest == {0: {"": to_millis(at("10:00"))}}


def test_an_old_date_is_rebased_and_one_within_a_column_is_refused_by_name(tmp_path: Path) -> None:
    files = slice_at(table_of(tmp_path / "plain", OLD_DATE, NEW_DATE))
    (row,) = whole_rows(files, events_of(files))
    assert row["born"] == date(1001, 1, 1)
    files = slice_at(table_of(tmp_path / "nested", NEW_DATE, OLD_DATE))
    # The column is read only for late rows.
    events = events_of(files)
    with pytest.raises(Refused, match=r"column 'nested' has dates or times in the calendar of Spark 2.*reader='spark'"):
        whole_rows(files, events)


@pytest.mark.parametrize("options", [{}, {"use_deprecated_int96_timestamps": True}])
def test_an_old_event_time_is_refused_even_if_statistics_could_answer(tmp_path: Path, options: dict[str, Any]) -> None:
    files = slice_at(table_of(tmp_path, NEW_DATE, NEW_DATE, UNCLEAR_TIME, **options), hourly_pipeline())
    with pytest.raises(Refused, match=r"column 'at' has times before 1900.*reader='spark'"):
        measure_files(files)


NESTED = st.recursive(
    st.just(pa.date32()),
    lambda kinds: (
        kinds.map(pa.list_)
        | st.lists(kinds, min_size=1, max_size=2).map(
            lambda each: pa.struct([(f"f{place}", kind) for place, kind in enumerate(each)])
        )
    ),
    max_leaves=3,
)


def leaves(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return sum(leaves(field.type) for field in kind)
    return leaves(kind.value_type) if pa.types.is_list(kind) else 1


@given(NESTED, st.data())
def test_an_old_date_is_found_at_any_depth(kind: pa.DataType, data: st.DataObject) -> None:
    found = [0]

    def value(of: pa.DataType) -> Any:
        if not data.draw(st.integers(0, 3)):
            return None
        if pa.types.is_struct(of):
            return {field.name: value(field.type) for field in of}
        if pa.types.is_list(of):
            return [value(of.value_type) for _ in range(data.draw(st.integers(0, 2)))]
        old = data.draw(st.booleans())
        found[0] += old
        return date(1582, 10, 4) if old else date(1582, 10, 15)

    stored = pa.chunked_array([pa.array([value(kind) for _ in range(2)], kind)])
    calendar = OldCalendar(dates=True)
    if found[0] and pa.types.is_nested(kind):
        with pytest.raises(pa.ArrowInvalid, match="calendar of Spark 2"):
            calendar.modern(stored, ["INT32"] * leaves(kind), "c")
    else:
        assert len(calendar.modern(stored, ["INT32"] * leaves(kind), "c")) == 2


def test_days_far_before_christ_keep_their_order() -> None:
    days = pa.array(np.arange(-2_000_000, -719_164, 1_009, dtype=np.int32)).cast(pa.date32())
    read = OldCalendar(dates=True).modern(pa.chunked_array([days]), ["INT32"], "c").cast(pa.int32()).to_numpy()
    assert (np.diff(read) > 0).all()
