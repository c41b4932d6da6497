"""The event time and the key of a row stay what they were when it was counted, because windows are computed again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.lake import EVENTS, LOCAL, Lake, at, hourly_pipeline
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.compatibility import compare
from tidegate.windowing import Count, EventTimeSessionWindows, TumblingProcessingTimeWindows, Windows, count_windows

WALLS = EVENTS.set(1, pa.field("at", pa.timestamp("us")))
NUMBERS = EVENTS.set(1, pa.field("at", pa.int64()))


def hours(columns: dict[str, str] | None = None, timestamp: str = "at", **options: Any) -> Pipeline:
    key = options.pop("key", ("user",))
    source = DeltaSource("events", timestamp=timestamp, **options)
    return replace(hourly_pipeline(source=source), columns=columns or {}, key=key)


def write(lake: Lake, schema: pa.Schema = EVENTS) -> None:
    """Write three rows: two in a window, and one that ends it."""
    kind, columns = schema.field("at").type, [["ann", "ann", "bob"], ["10:10", "10:40", "20:00"], [1, 4, 2]]
    times = [at(str(time)).replace(tzinfo=UTC) for time in columns[1]]
    columns[1] = [
        int(time.timestamp()) if pa.types.is_integer(kind) else time if kind.tz else time.replace(tzinfo=None)
        for time in times
    ]
    lake.write(pa.table(columns, schema=schema))


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("schema", "before", "after", "told", "changes"),
    [
        (WALLS, {"zone": "UTC"}, {"zone": "Europe/Berlin"}, "source.zone is UTC .* Europe/Berlin", "refuse"),
        (
            EVENTS,
            {"timestamp": "time", "columns": {"shift": "at", "time": "shift - INTERVAL 1 HOURS"}},
            {"timestamp": "time", "columns": {"shift": "at - INTERVAL 1 HOURS", "time": "SHIFT - INTERVAL 1 HOURS"}},
            "source.timestamp is shift - INTERVAL 1 HOURS; shift = at in",
            "correct",
        ),
        (NUMBERS, {"unit": "s"}, {"unit": "ms"}, "source.unit is s .* ms", "refuse"),
        (
            EVENTS,
            {},
            {"timestamp": "time", "columns": {"time": "at - INTERVAL 1 HOURS"}},
            "source.timestamp is at in the snapshot and at - INTERVAL 1 HOURS in the code",
            "correct",
        ),
    ],
)
def test_another_event_time_is_refused_with_both_values_and_ways_that_work(
    schema: pa.Schema, before: dict[str, Any], after: dict[str, Any], told: str, changes: str, tmp_path: Path
) -> None:
    lake = Lake(tmp_path)
    write(lake, schema)
    older, newer = (hours(changes=changes, **options) for options in (before, after))
    lake.stream(LOCAL, older)
    write(lake, schema)
    if changes == "correct":
        DeltaTable(lake.path("events")).delete("value = 4")
    with pytest.raises(Refused, match=rf"{told}.*undo the change.*Compute everything again from the source"):
        lake.stream(LOCAL, newer)
    project = lake.project(newer)
    found = project.verify("hours", sample="all")
    assert (found.faults, found.windows) == ((), 0)
    assert "source." in str(found.why_unverifiable)
    with pytest.raises(Refused, match=told):
        project.late.reopen("hours")
    # Each way: the definition as before, another name, and a restart.
    lake.stream(LOCAL, older)
    renamed = replace(newer, name="hours_again")
    lake.stream(LOCAL, renamed)
    project.restore("hours", restart=True)
    lake.stream(LOCAL, newer)
    for pipeline in (newer, renamed):
        assert lake.project(pipeline).verify(pipeline.name, sample="all").faults == ()
    assert lake.latest(newer).equals(lake.latest(renamed))


def test_another_expression_of_a_key_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write(lake)
    lake.stream(LOCAL, hours({"name": "upper(user)"}, key=("name",)))
    write(lake)
    lowered = hours({"name": "lower(user)"}, key=("name",))
    with pytest.raises(Refused, match=r"key column 'name' is upper\(user\) in the snapshot and lower\(user\) in the"):
        lake.stream(LOCAL, lowered)
    # One column is enough to name a key that the code no longer has.
    manifest = lake.snapshot(lowered).manifest
    assert [each.field for each in compare(bind(hours(), EVENTS, EVENTS), manifest).incompatibilities] == [
        "key column 'name'",
        "key column 'user'",
        "order of the key columns",
    ]


@pytest.mark.parametrize(
    "after",
    [
        {"timestamp": "time", "columns": {"time": "at"}},
        {"timestamp": "time", "columns": {"same": "`at`", "time": "  same "}},
        {"columns": {"twice": "value * 2"}},
        {"columns": {"value": "value * 2"}},
    ],
)
def test_another_name_of_the_same_column_and_other_columns_may_change(after: dict[str, Any], tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write(lake)
    lake.stream(LOCAL, hours(changes="correct"))
    DeltaTable(lake.path("events")).delete("value = 4")
    lake.stream(LOCAL, hours(changes="correct", **after))
    assert [row["events"] for row in lake.latest(hours()).to_pylist()] == [1]


def test_spaces_of_an_expression_may_change_but_not_those_of_its_texts(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write(lake)
    shifted = "at - INTERVAL '1' HOURS"
    lake.stream(LOCAL, hours({"time": shifted}, "time"))
    lake.stream(LOCAL, hours({"time": "\n" + shifted.replace(" - ", "  -\n ")}, "time"))
    with pytest.raises(Refused, match=r"source\.timestamp"):
        lake.stream(LOCAL, hours({"time": shifted.replace("'1'", "' 1'")}, "time"))


@pytest.mark.parametrize(
    "compute",
    [
        Windows(TumblingProcessingTimeWindows.of(timedelta(hours=1)), aggregate={"events": Count()}),
        count_windows(2, aggregate={"events": Count()}),
    ],
)
def test_windows_that_event_time_does_not_determine_may_change_it(compute: Windows, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write(lake)
    by_other_time = {"time": "at - INTERVAL 1 HOURS"}
    lake.stream(LOCAL, replace(hours(), compute=compute))
    write(lake)
    lake.stream(LOCAL, replace(hours(by_other_time, "time"), compute=compute))


def test_sessions_keep_their_event_time_too(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write(lake)
    compute = Windows(EventTimeSessionWindows.with_gap(timedelta(minutes=30)), aggregate={"events": Count()})
    lake.stream(LOCAL, replace(hours(), compute=compute))
    with pytest.raises(Refused, match=r"source\.timestamp is at"):
        lake.stream(LOCAL, replace(hours({"time": "at - INTERVAL 1 HOURS"}, "time"), compute=compute))
