"""User columns named like a column of ours that epochs change: `reopened`, the mark of late rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.expectations.broken import broken_by_rules
from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tidegate.expectations.changed import Changed, changed_partitions
from tidegate.expectations.pinned import pin
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.windowing import Count, KeyedProcess, KeyedProcessFunction, Max, TumblingEventTimeWindows, Windows

VALUES = {"int": (pa.int32(), 5), "list": (pa.list_(pa.int64()), [5])}
"""Types and values of the user's column. A restore undoes epoch 5."""

CORRECTED = DeltaSource("events", timestamp="at", changes="correct")


def pipeline_of(kind: str, key: tuple[str, ...] = ("user",)) -> Pipeline:
    aggregate: dict[str, Any] = {"events": Count()}
    if kind == "int" and "reopened" not in key:
        aggregate["reopened"] = Max("reopened")
    return hourly_pipeline(
        key=key, source=CORRECTED, compute=Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate=aggregate)
    )


def append(lake: Lake, kind: str, *times: str, user: str | None = "ann") -> None:
    arrow, value = VALUES[kind]
    lake.write(
        pa.table(
            {
                "user": pa.array([user] * len(times), pa.string()),
                "at": pa.array([at(time) for time in times], pa.timestamp("us", tz="UTC")),
                "reopened": pa.array([value] * len(times), arrow),
            }
        )
    )


def a_life(lake: Lake, pipeline: Pipeline, kind: str) -> dict[str, list[dict[str, Any]]]:
    """Five late rows are reopened in epoch 3, then more rows come; return all tables after epoch 4, and restore it."""
    append(lake, kind, "08:00", "10:00")
    append(lake, kind, "08:01", user=None)
    lake.stream(LOCAL, pipeline)
    append(lake, kind, *["08:30"] * 5)
    lake.stream(LOCAL, pipeline)
    lake.reopen(LOCAL, pipeline)
    append(lake, kind, "11:30")
    lake.stream(LOCAL, pipeline)
    before = tables(lake, pipeline)
    append(lake, kind, "12:30")
    assert [manifest.epoch for manifest in lake.stream(LOCAL, pipeline)] == [5]
    restore(lake.tables(pipeline), find_snapshot(lake.tables(pipeline), "4"), lake.clock())
    return before


def tables(lake: Lake, pipeline: Pipeline) -> dict[str, list[dict[str, Any]]]:
    return {
        name: sorted(lake.rows(pipeline, name).to_pylist(), key=str)
        for name in ("results", "late", "rejects", "epochs")
    }


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", VALUES)
def test_a_restore_leaves_a_users_column_of_that_name_alone(tmp_path: Path, kind: str) -> None:
    lake, pipeline = Lake(tmp_path), pipeline_of(kind)
    before = a_life(lake, pipeline, kind)
    after = tables(lake, pipeline)
    assert [row for row in after.pop("epochs") if row["epoch"] < 5] == before.pop("epochs")
    assert after == before
    assert [row["reopened"] for row in after["rejects"]] == [VALUES[kind][1]]
    assert broken_by_rules(pin(lake.tables(pipeline), pipeline)) == set()


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", VALUES)
def test_of_two_rejected_rows_that_differ_in_it_the_deleted_one_leaves(tmp_path: Path, kind: str) -> None:
    lake, pipeline = Lake(tmp_path), pipeline_of(kind)
    a_life(lake, pipeline, kind)
    arrow, value = VALUES[kind]
    rows = DeltaTable(lake.path("events")).to_pyarrow_table()
    lake.write(rows.filter(pc.is_null(rows["user"])).set_column(2, "reopened", pa.nulls(1, arrow)))
    lake.stream(LOCAL, pipeline)
    assert len(lake.rows(pipeline, "rejects")) == 2
    write_deltalake(lake.path("events"), rows, mode="overwrite")
    lake.stream(LOCAL, pipeline)
    assert [row["reopened"] for row in lake.rows(pipeline, "rejects").to_pylist()] == [value]
    newest = max(lake.rows(pipeline, "epochs").to_pylist(), key=lambda row: row["epoch"])
    assert [(each["reopened"], each["rejected"]) for each in newest["deleted"]] == [(0, 1)]
    assert broken_by_rules(pin(lake.tables(pipeline), pipeline)) == set()


@pytest.mark.first(1)
@pytest.mark.parametrize("correct", [False, True], ids=["reopened", "with a change"])
@pytest.mark.parametrize("name", ["reopened", "input_reopened", "__start"])
def test_late_rows_with_a_key_of_such_a_name_go_into_their_windows(tmp_path: Path, name: str, correct: bool) -> None:
    lake = Lake(tmp_path)
    pipeline = hourly_pipeline(key=(name,), source=CORRECTED)

    def write(*rows: tuple[str, int], **options: Any) -> None:
        columns = {
            name: pa.array([7] * len(rows), pa.int32()),
            "at": pa.array([at(time) for time, _ in rows], pa.timestamp("us", tz="UTC")),
            "value": pa.array([value for _, value in rows], pa.int64()),
        }
        write_deltalake(lake.path("events"), pa.table(columns), **options)
        lake.stream(LOCAL, pipeline)

    write(("08:00", 1), ("08:10", 2), ("10:00", 4))
    write(("08:30", 8), mode="append")
    assert [row["total"] for row in lake.final(pipeline).to_pylist()] == [3]
    if correct:
        write(("08:10", 2), ("10:00", 4), ("08:30", 8), mode="overwrite")
    else:
        lake.reopen(LOCAL, pipeline)
    assert [(row[name], row["total"]) for row in lake.final(pipeline).to_pylist()] == [(7, 10 if correct else 11)]
    assert broken_by_rules(pin(lake.tables(pipeline), pipeline)) == set()


def test_a_name_that_is_kept_for_ours_is_refused_and_a_table_without_it_is_read(tmp_path: Path) -> None:
    lake, pipeline = Lake(tmp_path), hourly_pipeline()
    rows = {"user": ["ann"], "at": pa.array([at("10:00")], pa.timestamp("us", tz="UTC")), "value": [1]}
    lake.write(pa.table({**rows, "Tidegate:Time": [1]}))
    with pytest.raises(Refused, match=r"has a column 'Tidegate:Time', .* rename the column in the table, or read a"):
        lake.stream(LOCAL, pipeline)
    assert not lake.tables(pipeline).exist
    lake.write(pa.table(rows), "others")
    others = hourly_pipeline(source=DeltaSource("others", timestamp="at"))
    lake.stream(LOCAL, others)
    assert len(lake.rows(others, "epochs")) == 1


class EndsOfUsers(KeyedProcessFunction):
    """Yields numbers in columns in which windows have times and numbers."""

    result_type = pa.struct([("window_end", pa.int64()), ("window_start", pa.string()), ("final_at", pa.int64())])

    def process_element(self, value: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        yield {"window_end": value["value"], "window_start": "soon", "final_at": 1}


def test_readers_are_told_of_the_rows_of_a_function_whose_results_have_the_names_of_a_windows(tmp_path: Path) -> None:
    lake, pipeline = Lake(tmp_path), hourly_pipeline(compute=KeyedProcess(EndsOfUsers(), time_sorted=False))
    told: Changed | None = None
    for hour in ("10:00", "11:00"):
        lake.append(("ann", at(hour), 7))
        lake.stream(LOCAL, pipeline)
        told = changed_partitions(pin(lake.tables(pipeline), pipeline), "hour", None if told is None else told.mark)
        assert told.to_dict()["keys"] == [f"2024-03-01T{hour}:00"]
