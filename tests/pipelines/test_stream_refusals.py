"""A source that a stream can't continue from: the run ends with a clear error, and nothing after the snapshot is read.
Most of this used to be refused by Spark's Structured Streaming; now the source's log and the check of the snapshot do
it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from tests.lake import EVENTS, LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.looping import Waits, continuous
from tests.recovery.arrivals import rows_of
from tidegate.pipelines.errors import Refused
from tidegate.windowing.time import to_millis


def deleted_from(lake: Lake) -> None:
    DeltaTable(lake.path("events")).delete("value = 1")


def entry(lake: Lake, version: int) -> Path:
    return Path(lake.path("events")) / "_delta_log" / f"{version:020d}.json"


def with_checkpoint(lake: Lake) -> None:
    """Two more commits and a checkpoint, so that the table can be opened without the entries before it."""
    lake.append(("ann", at("14:00"), 2))
    lake.append(("ann", at("15:00"), 3))
    DeltaTable(lake.path("events")).create_checkpoint()


def cleaned_up(lake: Lake) -> None:
    with_checkpoint(lake)
    for version in (0, 1):
        entry(lake, version).unlink()


def damaged(lake: Lake) -> None:
    with_checkpoint(lake)
    entry(lake, 1).write_text('{"add": {"pa')


def damaged_at_the_head(lake: Lake) -> None:
    lake.append(("ann", at("14:00"), 2))
    entry(lake, 1).write_text('{"add": {"pa')


def replaced(lake: Lake) -> None:
    shutil.rmtree(lake.path("events"))
    for hour in (10, 11, 12):
        lake.append(("ann", at(f"{hour}:00"), 1))


def of_another_type(lake: Lake) -> None:
    columns = pa.schema([("user", pa.int64()), ("at", EVENTS.field("at").type), ("value", pa.int64())])
    rows = pa.Table.from_pylist([{"user": 1, "at": at("14:00"), "value": 1}], schema=columns)
    write_deltalake(lake.path("events"), rows, mode="overwrite", schema_mode="overwrite")


def without_a_column(lake: Lake) -> None:
    rows = pa.Table.from_pylist([{"user": "ann", "at": at("14:00")}], schema=EVENTS.remove(2))
    write_deltalake(lake.path("events"), rows, mode="overwrite", schema_mode="overwrite")


def with_an_unknown_feature(lake: Lake) -> None:
    features = {"readerFeatures": ["geospatial"], "writerFeatures": ["geospatial"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    entry(lake, 1).write_text(json.dumps(protocol))


HARMS = {
    "a feature is unknown": (with_an_unknown_feature, r"opened: .*'geospatial' is not supported.*DROP FEATURE"),
    "rows are deleted": (
        deleted_from,
        r"not append-only: version 1 \(DELETE\) removed or changed rows .*changes='correct'.* table as it is now",
    ),
    "the log is cleaned up": (
        cleaned_up,
        r"the log entry of version 1 no longer exists .*Start a new pipeline with a backfill",
    ),
    "an entry is damaged": (damaged, r"entry of version 1 is damaged .*Restore the entry"),
    "the newest entry is damaged": (damaged_at_the_head, r"can't be opened: .*Restore its log from a copy"),
    "it is another table": (replaced, r"was replaced: its id .*Restore the old table"),
    "a key has another type": (of_another_type, r"key column 'user' of pipeline 'hours' is now int64 in its source"),
    "a column is gone": (without_a_column, r"'value'"),
}


@pytest.mark.first(10)
@pytest.mark.parametrize(("harm", "told"), HARMS.values(), ids=HARMS)
@pytest.mark.parametrize("at_work", [False, True], ids=["before it starts", "while it waits"])
def test_a_source_that_can_not_be_read_on_ends_the_stream_and_changes_nothing(
    lake: Lake, harm: Callable[[Lake], None], told: str, at_work: bool
) -> None:
    pipeline = hourly_pipeline()
    lake.append(("ann", at("10:00"), 1))

    def happens(number: int) -> None:
        if number == 2:
            harm(lake)

    if not at_work:
        lake.stream(LOCAL, pipeline)
        harm(lake)
    before = rows_of(lake, pipeline) if not at_work else None
    waits = Waits(happens if at_work else lambda number: None)
    with pytest.raises(Refused, match=told):
        continuous(lake, pipeline, waits, lambda: waits.now > 20)
    assert lake.snapshot(pipeline).manifest.position_in("events").version == 0
    assert before is None or rows_of(lake, pipeline) == before


def test_what_can_not_be_read_is_refused_before_what_comes_before_it_is_read(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1))
    lake.stream(LOCAL, hourly_pipeline())
    lake.append(("ann", at("11:00"), 2))
    deleted_from(lake)
    with pytest.raises(Refused, match="version 2"):
        lake.stream(LOCAL, hourly_pipeline())
    assert lake.snapshot(hourly_pipeline()).manifest.position_in("events").version == 0


def test_commits_without_data_are_read_over(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1))
    lake.append(("ann", at("10:30"), 1))
    lake.stream(LOCAL, hourly_pipeline())
    handle = DeltaTable(lake.path("events"))
    handle.optimize.compact()
    handle.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    write_deltalake(
        lake.path("events"),
        pa.Table.from_pylist([{"user": "ann", "at": at("14:00"), "value": 4}], schema=EVENTS),
        mode="append",
        commit_properties=CommitProperties(custom_metadata={"by": "a test"}),
    )
    (made,) = [manifest for manifest in lake.stream(LOCAL, hourly_pipeline()) if manifest.kind == "stream"]
    assert made.counters["events_in"] == 1
    assert made.position_in("events").version == 4
    assert to_millis(at("14:00")) > made.watermark
