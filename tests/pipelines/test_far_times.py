"""Times that Python can't hold, and the last one that it can, within structs, lists and maps: no command fails."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.expectations.broken import failed_in_check
from tests.lake import LOCAL, Lake, at, hourly_pipeline, record_footer
from tidegate.expectations.pinned import pin
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition.far_times import MICROS
from tidegate.pipelines.observe.report.values import rows_of
from tidegate.pipelines.project.cli import run
from tidegate.pipelines.storage.warehouse import path_of
from tidegate.windowing import (
    Count,
    CountTrigger,
    First,
    KeyedProcess,
    KeyedProcessFunction,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.compute import Compute

MOMENT = pa.timestamp("us", tz="UTC")
DETAILS = pa.struct([("until", MOMENT), ("days", pa.list_(pa.date32())), ("of", pa.map_(pa.string(), MOMENT))])
SCHEMA = pa.schema(
    [("user", pa.string()), ("at", MOMENT), ("details", DETAILS), ("unread", DETAILS), ("until", MOMENT)]
)
HOUR = TumblingEventTimeWindows.of(timedelta(hours=1))


class Untils(KeyedProcessFunction):
    """Emits the end of validity of each element."""

    result_type = pa.struct([("until", MOMENT)])

    def process_element(self, value: Any, context: Any) -> Iterator[dict[str, Any]]:
        yield {"until": value["details"]["until"]}


COMPUTES: dict[str, Compute] = {
    "arrays": Windows(HOUR, aggregate={"events": Count("details"), "until": First("until")}),
    "rows": Windows(HOUR, CountTrigger(1), aggregate={"events": Count("details"), "until": First("until")}),
    "a process function": KeyedProcess(Untils()),
}


def details(until: int | None = 0, day: int = 0, of: int = 0) -> dict[str, Any]:
    return {"until": until, "days": [day, None], "of": [("first", 0), ("second", of)]}


def table(*rows: tuple[str, str, dict[str, Any] | None, dict[str, Any] | None]) -> pa.Table:
    raw = pa.struct([("until", pa.int64()), ("days", pa.list_(pa.int32())), ("of", pa.map_(pa.string(), pa.int64()))])
    values = [pa.array(column, raw).cast(DETAILS) for column in zip(*(row[2:] for row in rows), strict=True)]
    users, times = pa.array([row[0] for row in rows]), pa.array([at(row[1]) for row in rows], MOMENT)
    return pa.table([users, times, *values, times], schema=SCHEMA)


def pipeline_of(compute: Compute) -> Pipeline:
    used, strategy = (
        None if isinstance(compute, Windows) else ("details",),
        WatermarkStrategy.for_monotonous_timestamps(),
    )
    return hourly_pipeline("p", compute=compute, watermark=strategy, uses=used)


def backfilled(folder: Path, compute: Compute, rows: pa.Table) -> tuple[Lake, Pipeline]:
    lake, pipeline = Lake(folder), pipeline_of(compute)
    lake.write(rows)
    lake.backfill(LOCAL, pipeline, at("00:00"), at("05:45"))
    return lake, pipeline


@pytest.mark.parametrize("name", COMPUTES)
def test_the_first_and_the_last_that_python_holds_are_computed_and_checked(tmp_path: Path, name: str) -> None:
    first, last = details(MICROS[0], -719_162, MICROS[0]), details(MICROS[1] - 1, 2_932_896, MICROS[1] - 1)
    rows = table(("ann", "01:00", first, details()), ("ann", "02:00", last, None), ("ann", "05:30", details(), None))
    lake, pipeline = backfilled(tmp_path, COMPUTES[name], rows)
    assert lake.rows(pipeline, "results").num_rows >= 2
    assert failed_in_check(pin(lake.tables(pipeline), pipeline)) == set()


def test_commands_show_them_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In rows of the source, as in tables late and rejects, and in results of an older tidegate."""
    rows = table(("ann", "01:00", details(), details()), ("ann", "05:30", details(until=MICROS[1]), None))
    assert rows_of(rows)[1]["details"]["until"] == "10000-01-01 00:00:00.000000Z"
    lake, pipeline = backfilled(tmp_path, COMPUTES["arrays"], rows.slice(0, 1))
    make_far(lake, pipeline, "results", ["until"])
    (tmp_path / "tidegate.toml").write_text(
        'warehouse = "warehouse"\n[pipelines.p]\nobject = "a:b"\nstart = 2024-01-01\n'
    )
    assert run(["results", "p", "--config", str(tmp_path / "tidegate.toml")]) == 0
    assert "10000-01-01" in capsys.readouterr().out


def test_what_an_older_tidegate_computed_of_them_is_checked(tmp_path: Path) -> None:
    rows = table(("ann", "01:00", details(), details()), ("ann", "05:30", details(), None))
    lake, pipeline = backfilled(tmp_path, COMPUTES["arrays"], rows)
    make_far(lake, pipeline, "results", ["until"])
    make_far(lake, pipeline, "state", ["acc_until"])
    seen = {("files", "expect_files_to_keep_their_rows")}
    assert failed_in_check(pin(lake.tables(pipeline), pipeline)) == seen, (
        "that they were written again, and nothing else"
    )


def make_far(lake: Lake, pipeline: Pipeline, table: str, columns: list[str]) -> None:
    """Rewrite the files of a table, with the year 10000 wherever a value has a time."""
    handle = lake.tables(pipeline).open(table)
    for file in DeltaTable(path_of(handle)).file_uris():
        rows, written = pq.ParquetFile(file).read(), Path(file).read_bytes()
        for name in set(columns) & set(rows.schema.names):
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, rows.schema.field(name), _far(rows[name].combine_chunks()))
        pq.write_table(rows, file)
        record_footer(Path(file).parent, Path(file).name, written)


def _far(array: pa.Array) -> pa.Array:
    if pa.types.is_struct(array.type):
        parts = [_far(part) for part in array.flatten()]
        return pa.StructArray.from_arrays(parts, fields=list(array.type), mask=array.is_null())
    if array.type == MOMENT:
        return pa.array([None if value is None else MICROS[1] for value in array.to_pylist()], pa.int64()).cast(MOMENT)
    return array
