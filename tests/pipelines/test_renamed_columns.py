"""A source with column mapping renames a column, or another one gets its name, in the life of a pipeline."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.hand_made import HandMade, mapped, struct
from tests.lake import DAY0, LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.looping import available
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition import late
from tidegate.pipelines.definition.column_names import input_rows
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.windowing.time import to_millis

DAY = timedelta(days=1)
INSTANT = pa.timestamp("us", tz="UTC")
USED = [mapped("user", "string", 1), mapped("at", "timestamp", 2), mapped("value", "long", 3)]
NOTE = mapped("note", "string", 4)

CHANGES = {
    "renamed": [*USED, mapped("remark", "string", 4, "col-4")],
    "dropped": USED,
    "replaced by numbers": [*USED, mapped("note", "long", 5)],
    "replaced by structs": [*USED, mapped("note", struct(mapped("x", "long", 6)), 5)],
    "replaced by texts": [*USED, mapped("note", "string", 5)],
    "renamed, and the name taken": [*USED, mapped("remark", "string", 4, "col-4"), mapped("note", "date", 5)],
}


class Source:
    """A table mapped by name, whose files have the columns user, at, value and note."""

    def __init__(self, lake: Lake) -> None:
        self.made = HandMade(
            Path(lake.path("events")), [*USED, NOTE], (), ["columnMapping"], {"delta.columnMapping.mode": "name"}
        )

    def commit(self, *rows: tuple[str, Any, int, str], written: Any, replaces: dict[str, Any] | None = None) -> Any:
        """Commit a file with rows; with `replaces`, as OPTIMIZE does, in the place of another one."""
        kinds = [pa.string(), INSTANT, pa.int64(), pa.string()]
        schema = pa.schema([(f"col-{number}", kind) for number, kind in enumerate(kinds, 1)])
        columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
        file = self.made.file(pa.table(columns, schema=schema))
        file["add"] |= {"modificationTime": to_millis(written), "dataChange": replaces is None}
        removed = [] if replaces is None else [{"remove": {"path": replaces["add"]["path"], "dataChange": False}}]
        self.made.commit(*removed, file, time=to_millis(written))
        return file

    def change(self, columns: list[dict[str, Any]], time: Any) -> None:
        first = Path(self.made.folder, "_delta_log", f"{0:020d}.json").read_text().splitlines()
        metadata = next(action for action in map(json.loads, first) if "metaData" in action)
        metadata["metaData"]["schemaString"] = json.dumps({"type": "struct", "fields": columns})
        self.made.commit(metadata, time=to_millis(time))


def backfill(lake: Lake, pipeline: Pipeline, first: int, last: int) -> None:
    lake.backfill(LOCAL, pipeline, DAY0 + first * DAY, DAY0 + last * DAY)


@pytest.mark.parametrize("change", CHANGES)
def test_a_row_that_was_ahead_of_its_commit_stays_rejected_though_an_unused_column_changed(
    tmp_path: Path, change: str
) -> None:
    lake, pipeline = Lake(tmp_path), hourly_pipeline()
    source, rows = Source(lake), [("ann", at("01:00"), 1, "x"), ("ann", at("02:00", 3), 2, "y")]
    file = source.commit(*rows, written=DAY0 + DAY)
    backfill(lake, pipeline, 0, 1)
    source.change(CHANGES[change], DAY0 + 2 * DAY)
    source.commit(*rows, written=DAY0 + 9 * DAY, replaces=file)
    backfill(lake, pipeline, 1, 5)
    assert lake.latest(pipeline)["total"].to_pylist() == [1]
    assert lake.rows(pipeline, "rejects")["value"].to_pylist() == [2]


@pytest.mark.parametrize("change", CHANGES)
def test_late_rows_from_before_a_change_of_columns_are_read_with_the_columns_of_today(
    tmp_path: Path, change: str
) -> None:
    lake, pipeline = Lake(tmp_path), hourly_pipeline()
    source = Source(lake)
    source.commit(("ann", at("09:00"), 1, "x"), written=at("09:00"))
    source.commit(("ann", at("01:00"), 2, "y"), written=at("09:10"))
    available(lake, pipeline)
    source.change(CHANGES[change], at("10:00"))
    source.commit(("ann", at("02:00"), 3, "z"), written=at("10:10"))
    available(lake, pipeline)
    with lake.driver(LOCAL, pipeline) as driver:
        bound = OpenInput.open(LOCAL, driver.tables, pipeline).bound
        rows = lake.rows(pipeline, "late").sort_by("value")
        as_read = input_rows(rows, late.TRAILING, bound.source, bound.renamed.get(late.NAME, {}))
    assert as_read["value"].to_pylist() == [2, 3]
    assert as_read.schema.names == [column["name"] for column in CHANGES[change]]
