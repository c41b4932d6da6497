"""A column that the source gets stops no pipeline: kept elements have null in it, like the source's older rows."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from tests.hand_made import HandMade, column, struct
from tests.lake import LOCAL, Lake, at
from tidegate import (
    Count,
    DeltaSource,
    Input,
    IntervalJoin,
    Pipeline,
    Sum,
    TimeEvictor,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    WindowJoin,
    Windows,
    count_windows,
)

HOUR = timedelta(hours=1)
INSTANT = pa.timestamp("us", tz="UTC")
PRICES = Input(source=DeltaSource("prices", timestamp="at"))
HOURS = TumblingEventTimeWindows.of(HOUR)


def later(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    return max(left, right, key=lambda row: row["at"])


KEEPING: dict[str, dict[str, Any]] = {
    "sliding count windows": {
        "compute": count_windows(3, 2, aggregate={"n": Count(), "total": Sum("value")}),
    },
    "an evictor": {
        "compute": Windows(HOURS, evictor=TimeEvictor(HOUR / 2), aggregate={"n": Count()}, allowed_lateness=HOUR)
    },
    "a reduce": {"compute": Windows(HOURS, reduce=later, allowed_lateness=HOUR)},
    "an interval join": {"compute": IntervalJoin.between(-HOUR, HOUR), "right": PRICES},
    "a window join": {"compute": WindowJoin(HOURS), "right": PRICES},
}
"""Computations whose state keeps whole rows of the source."""

OLD = [
    column("user", "string"),
    column("at", "timestamp"),
    column("value", "long"),
    column("more", struct(column("a", "long"))),
]
ADDED: dict[str, list[dict[str, Any]]] = {
    "at the end": [*OLD, column("new", "string")],
    "in the middle": [OLD[0], column("new", "string"), *OLD[1:]],
    "within a struct": [*OLD[:3], column("more", struct(column("new", "string"), column("a", "long")))],
}


def rows(first: int, is_wide: bool, columns: list[dict[str, Any]]) -> pa.Table:
    """Return rows of an hour; wide rows have a value in the added column."""
    moments = [at(f"{10 + first}:{minute:02}") for minute in (0, 20, 40)]
    more = [{"a": 1, "new": "n"}] * 3 if is_wide and columns[-1]["name"] == "more" else [{"a": 1}] * 3
    fields = {"user": ["ann", "bob", "ann"], "at": pa.array(moments, INSTANT), "value": [1, 2, 3], "more": more}
    return pa.table({**fields, "new": ["n"] * 3} if is_wide and columns is not ADDED["within a struct"] else fields)


def pipeline_of(name: str, keeping: str) -> Pipeline:
    watermark = WatermarkStrategy.for_bounded_out_of_orderness(HOUR)
    source = DeltaSource("events", timestamp="at")
    return Pipeline(name=name, source=source, key=("user",), watermark=watermark, **KEEPING[keeping])


SHORT = (
    ("sliding count windows", "at the end"),
    ("a reduce", "within a struct"),
    ("a window join", "in the middle"),
)
"""Each place once, with three ways to keep rows. `make test-long` has all combinations."""


@pytest.mark.first(len(SHORT))
@pytest.mark.parametrize(
    ("keeping", "place"), sorted(product(KEEPING, ADDED), key=lambda case: case not in SHORT), ids=str
)
def test_the_results_are_those_of_a_pipeline_that_began_after_the_column_was_added(
    lake: Lake, keeping: str, place: str
) -> None:
    columns = ADDED[place]
    tables = [HandMade(lake.folder / "warehouse" / name, OLD) for name in ("events", "prices")]
    pipeline = pipeline_of("then", keeping)

    def append(first: int, is_wide: bool) -> None:
        for table in tables:
            table.commit(table.file(rows(first, is_wide, columns)))

    append(0, is_wide=False)
    append(1, is_wide=False)
    lake.stream(LOCAL, pipeline)
    for table in tables:
        table.columns = columns
        table.commit(table.metadata())
    lake.stream(LOCAL, pipeline)
    append(1, is_wide=True)
    append(9, is_wide=True)
    lake.stream(LOCAL, pipeline)
    now = pipeline_of("now", keeping)
    lake.replay(LOCAL, now, 1)
    assert rows_of(lake, pipeline) == rows_of(lake, now) != []
    assert lake.project(pipeline).verify("then", sample="all").to_dict()["faults"] == []


def rows_of(lake: Lake, pipeline: Pipeline) -> list[str]:
    """Return the results without what the division into epochs decides."""
    found = lake.rows(pipeline, "results").to_pylist()
    away = ("epoch", "timeline", "emitted_at", "watermark", "timing", "stale", "final_at")
    return sorted(repr(sorted(plain(row, away).items())) for row in found)


def plain(row: dict[str, Any], away: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a row with the fields of its structs in order."""
    return {
        name: sorted(plain(value).items()) if isinstance(value, dict) else value
        for name, value in row.items()
        if name not in away
    }
