"""Flink SQL's own answers: windows, top-N, deduplication and window joins over random rows are equal to ours, row by
row.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.flink.environment import run_in_flink
from tidegate.windowing import (
    Count,
    CumulateEventTimeWindows,
    KeepFirst,
    SlidingEventTimeWindows,
    Sum,
    TopN,
    TumblingEventTimeWindows,
    WindowJoin,
    Windows,
)
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.compute import JOIN_KINDS, JoinKind
from tidegate.windowing.operators.records import ElementResult
from tidegate.windowing.testing import keyed_process_harness, window_harness, window_join_harness
from tidegate.windowing.time import MAX_TIMESTAMP

pytestmark = [pytest.mark.long, pytest.mark.spark]

SECOND = 1000
ASSIGNERS: dict[str, tuple[str, WindowAssigner]] = {
    "tumble": ("TUMBLE(TABLE {}, DESCRIPTOR(moment), INTERVAL '10' SECOND)", TumblingEventTimeWindows.of(10 * SECOND)),
    "hop": (
        "HOP(TABLE {}, DESCRIPTOR(moment), INTERVAL '4' SECOND, INTERVAL '12' SECOND)",
        SlidingEventTimeWindows.of(12 * SECOND, 4 * SECOND),
    ),
    "cumulate": (
        "CUMULATE(TABLE {}, DESCRIPTOR(moment), INTERVAL '5' SECOND, INTERVAL '20' SECOND)",
        CumulateEventTimeWindows.of(20 * SECOND, 5 * SECOND),
    ),
    "cumulate, shifted": (
        "CUMULATE(TABLE {}, DESCRIPTOR(moment), INTERVAL '5' SECOND, INTERVAL '20' SECOND, INTERVAL '3' SECOND)",
        CumulateEventTimeWindows.of(20 * SECOND, 5 * SECOND, 3 * SECOND),
    ),
}
JOINS: list[tuple[str, JoinKind]] = [
    *(("tumble", kind) for kind in JOIN_KINDS),
    *(("cumulate", kind) for kind in JOIN_KINDS),
    ("hop", "full"),
]
Row = tuple[str, int, int, int]
"""Key, number, value, and time in epoch milliseconds."""


def drawn(seed: int) -> list[Row]:
    """Rows that are out of order by up to 20 seconds, each with a time of its own."""
    draw = random.Random(seed)
    times = draw.sample(range(-7 * SECOND, 120 * SECOND), 120)
    rows = [(draw.choice("abc"), number, draw.randrange(5), time) for number, time in enumerate(times)]
    return sorted(rows, key=lambda row: row[3] + draw.randrange(20 * SECOND))


LEFT, RIGHT = drawn(1), drawn(2)


def millis(bound: str) -> str:
    seconds = f"TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', CAST({bound} AS TIMESTAMP(3)))"
    return f"{seconds} * CAST(1000 AS BIGINT)"


def of_windows(windows: str, table: str) -> str:
    return f"TABLE({ASSIGNERS[windows][0].format(table)})"


BOUNDS = "window_start, window_end"


def queries() -> Iterator[tuple[str, str]]:
    """The name and the SQL of each query."""
    for windows in ASSIGNERS:
        yield (
            f"sums {windows}",
            (
                f"SELECT k, {millis('window_start')}, {millis('window_end')}, COUNT(*), SUM(v) "
                f"FROM {of_windows(windows, 'l')} GROUP BY k, {BOUNDS}"
            ),
        )
    for name, order, most in (("top", "v DESC, id ASC", 3), ("first", "moment ASC", 1), ("last", "moment DESC", 1)):
        number = f"ROW_NUMBER() OVER (PARTITION BY {BOUNDS}, k ORDER BY {order}) AS place"
        yield (
            name,
            (
                f"SELECT k, {millis('window_start')}, v, id FROM (SELECT *, {number} FROM {of_windows('tumble', 'l')}) "
                f"WHERE place <= {most}"
            ),
        )
    number = "ROW_NUMBER() OVER (PARTITION BY k ORDER BY moment ASC) AS place"
    yield "first of key", f"SELECT k, id FROM (SELECT *, {number} FROM l) WHERE place = 1"
    for windows, kind in JOINS:
        left, right = (f"(SELECT * FROM {of_windows(windows, table)})" for table in "lr")
        same = "L.k = R.k AND L.window_start = R.window_start AND L.window_end = R.window_end"
        if kind in ("semi", "anti"):
            exists = f"{'NOT ' if kind == 'anti' else ''}EXISTS (SELECT * FROM {right} R WHERE {same})"
            start, stop = millis("L.window_start"), millis("L.window_end")
            sql = f"SELECT L.k, {start}, {stop}, L.id, CAST(NULL AS BIGINT) FROM {left} L WHERE {exists}"
        else:
            start, stop = (millis(f"COALESCE(L.{bound}, R.{bound})") for bound in BOUNDS.split(", "))
            join = "INNER" if kind == "inner" else f"{kind.upper()} OUTER"
            sql = (
                f"SELECT COALESCE(L.k, R.k), {start}, {stop}, L.id, R.id FROM {left} L {join} JOIN {right} R ON {same}"
            )
        yield f"{kind} join {windows}", sql


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[Any]]:
    """Flink's rows by query, all from one job."""
    folder: Path = tmp_path_factory.mktemp("flink")
    tables = []
    for name, rows in (("l", LEFT), ("r", RIGHT)):
        (folder / name).mkdir()
        (folder / name / "rows.csv").write_text("".join(f"{','.join(map(str, row))}\n" for row in rows))
        tables.append(
            f"CREATE TABLE {name} (k STRING, id BIGINT, v BIGINT, ts BIGINT, moment AS TO_TIMESTAMP_LTZ(ts, 3), "
            "WATERMARK FOR moment AS moment - INTERVAL '1' MINUTE) "
            f"WITH ('connector' = 'filesystem', 'path' = '{folder / name}', 'format' = 'csv')"
        )
    file = folder / "queries.json"
    file.write_text(json.dumps({"tables": tables, "queries": dict(queries())}))
    return {line["query"]: Counter(map(tuple, line["rows"])) for line in run_in_flink("sql_content", [str(file)], 900)}


def windowed(assigner: WindowAssigner, **aggregate: Any) -> list[Any]:
    harness = window_harness(Windows(assigner, aggregate=aggregate))
    for key, number, value, time in LEFT:
        harness.element(key, {"v": value, "id": number, "at": time}, time)
    harness.watermark(MAX_TIMESTAMP)
    return harness.results()


@pytest.mark.parametrize("windows", ASSIGNERS)
def test_counts_and_sums_of_windows(flink: dict[str, Counter[Any]], windows: str) -> None:
    found = windowed(ASSIGNERS[windows][1], n=Count(), total=Sum("v"))
    ours = Counter((r.key, *r.window, r.value["n"], r.value["total"]) for r in found)
    assert ours == flink[f"sums {windows}"]


@pytest.mark.parametrize(
    ("name", "top"),
    [
        ("top", TopN(3, by="v", ties=["id"])),
        ("first", TopN(1, by="at", also=["v", "id"], largest=False)),
        ("last", TopN(1, by="at", also=["v", "id"])),
    ],
)
def test_the_top_and_the_first_and_the_last_rows_of_windows(
    flink: dict[str, Counter[Any]], name: str, top: TopN
) -> None:
    found = windowed(ASSIGNERS["tumble"][1], top=top)
    ours = Counter((r.key, r.window.start, row["v"], row["id"]) for r in found for row in r.value["top"])
    assert ours == flink[name]


def test_the_first_row_of_each_key(flink: dict[str, Counter[Any]]) -> None:
    harness = keyed_process_harness(KeepFirst(pa.struct([("id", pa.int64())])), time_sorted=True)
    for key, number, _, time in LEFT:
        harness.element(key, {"id": number}, time)
    harness.watermark(MAX_TIMESTAMP)
    assert Counter((r.key, r.value["id"]) for r in harness.element_results()) == flink["first of key"]


@pytest.mark.parametrize(("windows", "kind"), JOINS)
def test_window_joins(flink: dict[str, Counter[Any]], windows: str, kind: JoinKind) -> None:
    harness = window_join_harness(WindowJoin(ASSIGNERS[windows][1], kind))
    for side, rows in (("left", LEFT), ("right", RIGHT)):
        for key, number, _, time in rows:
            harness.element(key, number, time, side)
    harness.watermark(MAX_TIMESTAMP)
    joined = [record for record in harness.records() if isinstance(record, ElementResult)]
    ours = Counter((r.key, *r.value.window, r.value.left, r.value.right) for r in joined)
    assert ours == flink[f"{kind} join {windows}"]
    assert ours
