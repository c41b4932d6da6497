"""Top-N and deduplication in tables: equal to a sort of all rows, also after late rows and rows that were deleted."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tidegate.pipelines import DeltaSource
from tidegate.windowing import (
    ContinuousEventTimeTrigger,
    KeepFirst,
    KeyedProcess,
    TopN,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)

HOUR = timedelta(hours=1)
BEST = {"best": TopN(2, by="value", ties=["at"])}
Row = tuple[str, datetime, int]


def drawn(seed: int, count: int, day: int = 0) -> list[Row]:
    draw = random.Random(seed)
    return [
        (draw.choice(["ann", "bob"]), at(f"{draw.randrange(9, 14)}:{draw.randrange(60):02}", day), draw.randrange(4))
        for _ in range(count)
    ]


def best_of(rows: list[Row]) -> dict[Any, list[dict[str, Any]]]:
    windows: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        windows[row[0], row[1].replace(minute=0)].append(row)
    return {
        window: [{"value": value, "at": time} for _, time, value in sorted(of, key=lambda r: (-r[2], r[1]))[:2]]
        for window, of in windows.items()
    }


def found(lake: Lake, pipeline: Any) -> dict[Any, list[dict[str, Any]]]:
    return {(row["user"], row["window_start"]): row["best"] for row in lake.final(pipeline).to_pylist()}


def test_the_best_rows_of_windows_are_right_after_late_rows_and_deleted_ones(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    pipeline = hourly_pipeline(
        source=DeltaSource("events", timestamp="at", changes="correct"),
        compute=Windows(TumblingEventTimeWindows.of(HOUR), aggregate=BEST),
    )
    rows = drawn(1, 60)
    lake.append(*rows[:30])
    lake.append(("end", at("20:00"), 0))
    lake.stream(LOCAL, pipeline)
    lake.append(*rows[30:])
    lake.stream(LOCAL, pipeline)
    assert lake.reopen(LOCAL, pipeline) is not None
    assert found(lake, pipeline) == best_of(rows)

    DeltaTable(lake.path("events")).delete("value = 3")
    lake.append(("end", at("21:00"), 0))
    lake.stream(LOCAL, pipeline)
    left = [row for row in rows if row[2] != 3]
    assert {window: best for window, best in found(lake, pipeline).items() if window[0] != "end"} == best_of(left)


def test_the_first_row_of_each_key_and_the_last_so_far(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    kept = pa.struct([("at", pa.timestamp("us", tz="UTC")), ("value", pa.int64())])
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(6 * HOUR)
    first = hourly_pipeline("first", compute=KeyedProcess(KeepFirst(kept)), watermark=strategy)
    last = hourly_pipeline(
        "last",
        compute=Windows(
            TumblingEventTimeWindows.of(timedelta(days=100_000)),
            ContinuousEventTimeTrigger.of(timedelta(minutes=1)),
            aggregate={"row": TopN(1, by="at", also=["value"])},
        ),
        watermark=strategy,
    )
    rows = drawn(2, 40)
    for begin in (0, 20):
        lake.append(*rows[begin : begin + 20])
        for pipeline in (first, last):
            lake.stream(LOCAL, pipeline)
    lake.append(("end", at("23:59"), 0))
    for pipeline in (first, last):
        lake.stream(LOCAL, pipeline)
    by_user: dict[str, list[tuple[datetime, int]]] = defaultdict(list)
    for user, time, value in rows:
        by_user[user].append((time, value))
    firsts = lake.rows(first, "results").to_pylist()
    assert {row["user"]: (row["at"], row["value"]) for row in firsts} == {u: min(r) for u, r in by_user.items()}
    assert len(firsts) == len(by_user)
    lasts = {row["user"]: row for row in sorted(lake.rows(last, "results").to_pylist(), key=lambda row: row["pane"])}
    newest = {user: (row["row"][0]["at"], row["row"][0]["value"]) for user, row in lasts.items() if user != "end"}
    assert newest == {user: max(rows) for user, rows in by_user.items()}
