"""A query follows a pipeline through what users do: late rows are reopened, a source changes, intervals are rerun."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.lake import EVENTS, LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.observe.reading.query import Query, values_of
from tests.pipelines.observe.reading.targets import project
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.observe.reading import read_view

HOURS = hourly_pipeline(source=DeltaSource("events", timestamp="at", changes="correct"))


@pytest.fixture
def query(tmp_path: Path) -> Query:
    config = project(tmp_path, HOURS.name)
    return Query(tmp_path / "checkpoint", tmp_path / "target", {"path": HOURS.name, "config": str(config)})


def assert_followed(query: Query, lake: Lake, pipeline: Pipeline, totals: list[int]) -> None:
    """The target has the final windows, with these totals, and nothing else."""
    final = lake.final(pipeline)
    assert sorted(final["total"].to_pylist()) == totals
    query.run()
    expected: Counter[tuple[Any, ...]] = Counter(tuple(values) for _, *values in values_of(final))
    assert query.total() == expected


def test_late_rows_that_are_reopened_and_rows_that_change_are_corrections(lake: Lake, query: Query) -> None:
    lake.append(("ann", at("10:00"), 1), ("bob", at("10:10"), 2), ("ann", at("12:30"), 4))
    lake.stream(LOCAL, HOURS)
    assert_followed(query, lake, HOURS, [1, 2])
    lake.append(("ann", at("10:20"), 8))
    lake.stream(LOCAL, HOURS)
    assert_followed(query, lake, HOURS, [1, 2])
    lake.reopen(LOCAL, HOURS)
    assert_followed(query, lake, HOURS, [2, 9])
    DeltaTable(lake.path("events")).delete("user = 'bob'")
    lake.stream(LOCAL, HOURS)
    assert_followed(query, lake, HOURS, [9])


def test_a_stream_of_epochs_has_their_counts_of_reopened_rows(lake: Lake, query: Query) -> None:
    """Late rows have a mark with that name, which contains an epoch."""
    follower = Query(query.checkpoint, query.target, {**query.options, "view": "epochs"})
    lake.append(("ann", at("10:00"), 1), ("ann", at("12:30"), 4))
    lake.stream(LOCAL, HOURS)
    lake.append(*[("ann", at("10:20"), 8)] * 9)
    lake.stream(LOCAL, HOURS)
    lake.reopen(LOCAL, HOURS)
    follower.run()
    assert sorted(lake.rows(HOURS, "epochs")["reopened"].to_pylist()) == [0, 0, 9]
    assert follower.total() == Counter(tuple(values) for _, *values in values_of(lake.rows(HOURS, "epochs")))


def test_a_column_op_of_the_source_is_none_of_ours(lake: Lake, query: Query) -> None:
    """As change data has it. It may be null, and of any type."""
    columns = pa.schema([*EVENTS, ("op", pa.int32())])

    def arrive(*rows: tuple[Any, ...]) -> None:
        lake.write(pa.Table.from_pylist([dict(zip(columns.names, row, strict=True)) for row in rows], columns))
        lake.stream(LOCAL, HOURS)

    arrive(("ann", at("10:00"), 1, 1), ("ann", at("12:30"), 4, None))
    arrive(("ann", at("10:20"), 8, 3), ("bob", at("10:20"), 8, None))
    late = {**query.options, "view": "late"}
    config = Path(query.options["config"])
    rows = read_view(HOURS.name, "late", columns=["user", "op"], config=config).sort_by("user")
    assert rows.to_pylist() == [{"user": "ann", "op": 3}, {"user": "bob", "op": None}]
    follower = Query(query.checkpoint, query.target, {**late, "where": "op >= 3"})
    follower.run()
    assert [user for _, user, *_ in follower.total(signed=False)] == ["ann"]


def test_an_interval_that_is_run_again_and_those_after_it(lake: Lake, query: Query) -> None:
    """The run removes its own rows, and those of later intervals are stale until they are rerun."""

    def run(start: str, end: str, again: bool = False) -> None:
        lake.backfill(LOCAL, plain, at(start), at(end), again=again)

    plain = hourly_pipeline()
    lake.append(("ann", at("10:00"), 1), ("bob", at("11:10"), 2), ("ann", at("12:30"), 4))
    for start, end in (("10:00", "11:00"), ("11:00", "12:00"), ("12:00", "13:00")):
        run(start, end)
    assert_followed(query, lake, plain, [1, 2, 4])
    lake.append(("ann", at("10:20"), 8))
    run("10:00", "11:00", again=True)
    assert_followed(query, lake, plain, [9])
    run("11:00", "12:00")
    run("12:00", "13:00")
    assert_followed(query, lake, plain, [2, 4, 9])
