"""A harness rejects, drops, counts and sorts the same rows as a run of the local engine over a Delta table."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.commit_times import date_commit, newest_entry
from tests.lake import LOCAL, Clock, Lake
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import (
    Count,
    EventTimeSessionWindows,
    GapColumn,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.time import to_millis

NOON = datetime(2024, 3, 31, 0, tzinfo=UTC)
"""An hour before the clocks of Berlin change."""
HOUR = timedelta(hours=1)
ODD_TIMES: list[datetime | None] = [
    None,
    datetime(1969, 12, 31, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    NOON + timedelta(days=30),
]
"""The last two are ahead of their commits."""
KEYS: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "long": (pa.int64(), [0, 1, -5, None]),
    "bool": (pa.bool_(), [False, True, None]),
    "decimal": (pa.decimal128(6, 2), [Decimal("0.00"), Decimal("1.50"), Decimal("-2.00"), None]),
    "string": (pa.string(), ["", "a", "null", None]),
    "date": (pa.date32(), [datetime(1960, 1, 1).date(), datetime(2024, 1, 1).date(), None]),
    "binary": (pa.binary(), [b"", b"a", None]),
}
TIMES = {
    "instant": (pa.timestamp("us", tz="UTC"), {}),
    "wall clock": (pa.timestamp("us"), {"zone": "Europe/Berlin"}),
    "seconds": (pa.int64(), {"unit": "s"}),
}
COMPUTE = {
    "hours": lambda: Windows(
        TumblingEventTimeWindows.of(HOUR), allowed_lateness=HOUR, aggregate={"n": Count(), "sum": Sum("x")}
    ),
    "gaps": lambda: Windows(
        EventTimeSessionWindows.with_dynamic_gap(GapColumn("gap")), aggregate={"n": Count(), "sum": Sum("x")}
    ),
}
FIELDS = ("key", "window_start", "window_end", "n", "sum")


@st.composite
def rows_of(draw: st.DrawFn, key: str, time: str, odd: Sequence[datetime | None]) -> list[list[dict[str, Any]]]:
    """Return the rows of some commits, an hour apart."""
    keys = KEYS[key][1]
    commits = []
    for number in range(draw(st.integers(1, 3))):
        rows = []
        for _ in range(draw(st.integers(1, 5))):
            near = st.integers(-150, 60).map(lambda by, number=number: NOON + number * HOUR + timedelta(minutes=by))
            at = draw(st.one_of(near, near, st.sampled_from(odd)))
            x = draw(st.sampled_from([0.0, -1.5, 2.0, float("nan"), None]))
            rows.append(
                {
                    "key": draw(st.sampled_from(keys)),
                    "at": in_column(at, time),
                    "x": x,
                    "gap": draw(st.sampled_from([60_000, 3_600_000, 0, None, 2**61])),
                }
            )
        commits.append(rows)
    return commits


def in_column(at: datetime | None, time: str) -> Any:
    if at is None or time == "instant":
        return at
    return to_millis(at) // 1000 if time == "seconds" else at.replace(tzinfo=None)


def sorted_texts(rows: list[dict[str, Any]], names: Sequence[str]) -> list[str]:
    return sorted(repr([as_text(row[name]) for name in names]) for row in rows)


def as_text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


@pytest.mark.parametrize("is_backfill", [True, False], ids=["backfill", "stream"])
@settings(max_examples=settings.default.max_examples // 3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=st.data(),
    key=st.sampled_from(sorted(KEYS)),
    time=st.sampled_from(sorted(TIMES)),
    compute=st.sampled_from(sorted(COMPUTE)),
    null_keys=st.sampled_from(["reject", "keep"]),
    sql=st.sampled_from(
        [
            {},
            {"where": "x > 0"},
            {"where": "x > 0", "watermark_from": "all"},
            {"columns": {"x": "x * 2", "empty": "x is null"}, "watermark_by": "empty"},
        ]
    ),
)
def test_a_harness_does_with_each_row_what_a_run_does(
    is_backfill: bool, data: st.DataObject, key: str, time: str, compute: str, null_keys: Any, sql: dict[str, Any]
) -> None:
    commits = data.draw(rows_of(key, time, ODD_TIMES[:3] if is_backfill else ODD_TIMES))
    kind, described = TIMES[time]
    schema = pa.schema([("key", KEYS[key][0]), ("at", kind), ("x", pa.float64()), ("gap", pa.int64())])
    pipe = Pipeline(
        name="drawn",
        source=DeltaSource("events", timestamp="at", **described),
        key=("key",),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(HOUR),
        compute=COMPUTE[compute](),
        null_keys=null_keys,
        **sql,
    )
    harness = PipelineHarness(pipe, schema)
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder), Clock(to_millis(NOON + timedelta(days=60))))
        for number, rows in enumerate(commits):
            committed = NOON + number * HOUR
            lake.write(pa.Table.from_pylist(rows, schema))
            date_commit(newest_entry(lake.path("events")), to_millis(committed), with_files=True)
        if is_backfill:
            # The rows of a harness's backfill have no commit times, so none of them is ahead.
            begin, middle, end = NOON - 4 * HOUR, NOON - HOUR, NOON + 4 * HOUR
            lake.backfill(LOCAL, pipe, begin, middle)
            lake.backfill(LOCAL, pipe, middle, end)
            table = [row for rows in commits for row in rows]
            harness.backfill(table, begin, middle)
            harness.backfill(table, middle, end)
        else:
            for number, rows in enumerate(commits):
                harness.commit(rows, NOON + number * HOUR)
            harness.run()
            lake.stream(LOCAL, pipe)
        names = ["key", "at", "x", "gap", "reason"]
        assert sorted_texts(harness.rejected(), names) == sorted_texts(lake.rows(pipe, "rejects").to_pylist(), names)
        assert sorted_texts(harness.late(), names) == sorted_texts(lake.rows(pipe, "late").to_pylist(), names)
        assert sorted_texts(harness.results(), FIELDS) == sorted_texts(lake.rows(pipe, "results").to_pylist(), FIELDS)
        assert sorted_texts(harness.final(), FIELDS) == sorted_texts(lake.final(pipe).to_pylist(), FIELDS)
        epochs = lake.rows(pipe, "epochs").to_pylist()
        of_run = {name: sum(row[name] for row in epochs) for name in ("rejected", "on_time", "late", "no_window")}
        assert {name: harness.counters[name] for name in of_run} == of_run
        assert harness.counters["filtered"] == sum(row["dropped"] for row in epochs)
