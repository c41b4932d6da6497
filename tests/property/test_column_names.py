"""Columns of a source may be called anything: reading, late and rejected rows, reopening and checks don't show it."""

from __future__ import annotations

import tempfile
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tests.expectations.broken import broken_by_rules
from tests.lake import DAY0, LOCAL, Lake, at
from tidegate.expectations.pinned import pin
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.definition import late, rejects
from tidegate.pipelines.definition.column_names import input_rows
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.sources.parquet_reader import SourceParquet
from tidegate.windowing import Count, First, Sum, TumblingEventTimeWindows, WatermarkStrategy, Windows
from tidegate.windowing.errors import IllegalArgument

PLAIN = ("user", "at", "value", "other")
WORDS = ("user", "User", "at", "value", "a.b", "a", "b", "reason", "Epoch", "watermark", "input_reason", "side", "op")
"""Names that are paths of others, that ours have in another case, and that tables late and rejects rename."""
TEXT = st.text(st.sampled_from("aZé日ß.`[]'\"%$-+#@:/\\\u0301\U0001f600 1"), min_size=1, max_size=6)
NAMES = st.lists(st.one_of(TEXT, st.sampled_from(WORDS)), min_size=4, max_size=4, unique_by=str.casefold)

DOTTED = ["key", "a.b", "value", "a"]
"""The timestamp has the name of a field's path."""


def lived(folder: Path, names: tuple[str, ...] | list[str]) -> list[Any]:
    """Tables that a backfill and a stream make of the same rows, whose columns have these names."""
    user, time, value, other = names
    inner = pa.struct([("b", pa.timestamp("us", tz="UTC")), ("x.y", pa.string())])
    schema = pa.schema([(other, inner), (user, pa.string()), (time, pa.timestamp("us", tz="UTC")), (value, pa.int64())])

    def rows(*events: tuple[str | None, datetime | None, int]) -> pa.Table:
        values = [dict(zip(names, (*event, {"b": at("01:00", 400), "x.y": event[0]}), strict=True)) for event in events]
        return pa.Table.from_pylist(values, schema=schema)

    def pipeline(name: str) -> Pipeline:
        aggregate = {"n_": Count(), "total_": Sum(value), "first_": First(value), "others_": Count(other)}
        return Pipeline(
            name=name,
            source=DeltaSource("events", timestamp=time),
            key=(user,),
            watermark=WatermarkStrategy.for_monotonous_timestamps(),
            watermark_by=user,
            compute=Windows(TumblingEventTimeWindows.of(3_600_000), aggregate=aggregate),
        )

    lake, spark = Lake(folder), LOCAL
    lake.write(rows(("ann", at("01:00"), 1), ("bob", at("01:10"), 2), ("ann", at("02:10"), 3), ("bob", at("02:20"), 4)))
    lake.backfill(spark, pipeline("batch"), DAY0, at("02:00"))
    lake.stream(spark, pipeline("stream"))
    lake.write(rows(("ann", at("01:30"), 5), (None, at("02:30"), 6), ("bob", None, 7)))
    lake.stream(spark, pipeline("stream"))
    tables = lake.tables(pipeline("stream"))
    shown = [user, "window_start", "n_", "total_", "first_", "others_"]
    panes = [lake.latest(pipeline(name)).select(shown).to_pylist() for name in ("batch", "stream")]
    made: list[Any] = [sorted(tuple(row.values()) for row in part) for part in panes]
    for table, trailing in ((late.NAME, late.TRAILING), (rejects.NAME, rejects.TRAILING)):
        kept = input_rows(lake.rows(pipeline("stream"), table), trailing, schema, {})
        made.append(sorted(tuple(map(str, row.values())) for row in kept.select(names).to_pylist()))
    made.append(broken_by_rules(pin(tables, pipeline("stream"))))
    return made


@cache
def with_plain_names() -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        made = lived(Path(folder), PLAIN)
    assert [len(part) for part in made] == [2, 2, 1, 2, 0]
    return made


def agree(names: list[str]) -> None:
    """Hold what is made of rows against the same with plain names; a key may be refused for its name."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = lived(Path(folder), names)
        except IllegalArgument as refused:
            if refused.field == "key" and "rename it in columns=" in str(refused):
                return
            raise
        assert made == with_plain_names()


NAMED_AS_OURS = ["reason", "user", "epoch", "stale"]
"""The key is called as a column of tables `late` and `rejects`."""


@settings(max_examples=2, phases=[Phase.explicit, Phase.generate])
@given(NAMES)
@example(DOTTED)
@example(NAMED_AS_OURS)
def test_no_name_shows(names: list[str]) -> None:
    agree(names)


@pytest.mark.long
@settings(max_examples=80)
@given(NAMES)
def test_no_name_shows_of_many(names: list[str]) -> None:
    agree(names)


def test_columns_that_are_told_by_their_paths_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seeded bug: statistics are those of the first column with a path of that name."""

    def by_path(file: SourceParquet, group: int, name: str) -> list[tuple[int, int]] | None:
        metadata = file._file.metadata.row_group(group)
        columns = [metadata.column(number) for number in range(metadata.num_columns)]
        bounds = [column.statistics for column in columns if column.path_in_schema == name][:1]
        return [(int(bound.min_raw), int(bound.max_raw)) for bound in bounds] or None

    monkeypatch.setattr(SourceParquet, "bounds_of_times", by_path)
    # If the wrong statistics prove a count, the tasks' own count differs, and the epoch is refused.
    with pytest.raises((AssertionError, TidegateError)):
        agree(DOTTED)
