"""Tables with random features of Delta: Arrow reads the rows that plain Python keeps of what was written."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.hand_made import HandMade, column, mapped
from tests.lake import at, hourly_pipeline
from tests.pipelines.sources.slices import slice_at, whole_rows
from tidegate.pipelines.definition import rejects
from tidegate.pipelines.definition.event_columns import OK
from tidegate.pipelines.epoch.file_measure import measure_files
from tidegate.pipelines.sources.parquet_reader import SourceParquet
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.time import to_millis

INSTANT = pa.timestamp("us", tz="UTC")
START = at("00:00")

NARROW = {"value": [pa.int8(), pa.int16(), pa.int32(), pa.int64()], "half": [pa.float32(), pa.float64()]}
"""Types that a file may have for a column of the table."""
TYPES = {"user": "string", "at": "timestamp", "value": "long", "half": "double"}

ROWS = st.fixed_dictionaries(
    {
        "user": st.none() | st.sampled_from(["a", "b c", "ü", ""]),
        "at": st.none() | st.integers(0, 86_399).map(lambda second: START + timedelta(seconds=second)),
        "value": st.none() | st.integers(-100, 100),
        "half": st.none() | st.sampled_from([0.0, 0.5, -2.0]),
    }
)


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a table: partition columns, mode of mapping, and files with rows, deleted rows, and other columns."""
    partition_by = draw(st.lists(st.sampled_from(["user", "value", "at"]), unique=True, max_size=2))
    drawn = []
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.lists(ROWS, min_size=1, max_size=12))
        constants = {name: draw(ROWS)[name] for name in partition_by}
        lacks = draw(st.sets(st.sampled_from(["value", "half"])))
        # In Delta, the empty string is the null of a partition.
        rows = [
            {
                **row,
                **dict.fromkeys(lacks),
                **{name: value if value != "" else None for name, value in constants.items()},
            }
            for row in rows
        ]
        deleted = draw(st.sets(st.integers(0, len(rows) - 1)))
        drawn.append(
            {
                "rows": rows,
                "constants": constants,
                "lacks": lacks - set(partition_by),
                "deleted": sorted(deleted),
                "storage": draw(st.sampled_from(["i", "u", "p"])),
                "kinds": {name: draw(st.sampled_from(kinds)) for name, kinds in NARROW.items()},
                "group": draw(st.integers(1, 12)),
                "statistics": draw(st.booleans()),
            }
        )
    return {"partition_by": partition_by, "mapping": draw(st.sampled_from(["none", "name", "id"])), "files": drawn}


def written(folder: Path, drawn: dict[str, Any]) -> HandMade:
    """Write a random table, with its files in the order of their names."""
    mode = drawn["mapping"]
    columns = [
        column(name, kind) if mode == "none" else mapped(name, kind, number)
        for number, (name, kind) in enumerate(TYPES.items(), 1)
    ]
    numbers = {name: number for number, name in enumerate(TYPES, 1)}
    stored = {name: name if mode == "none" else f"col-{numbers[name]}" for name in TYPES}
    features = ["deletionVectors", "typeWidening", *([] if mode == "none" else ["columnMapping"])]
    table = HandMade(folder / "events", columns, drawn["partition_by"], features, {"delta.columnMapping.mode": mode})
    for place, file in enumerate(drawn["files"]):
        names = [name for name in TYPES if name not in file["lacks"] and name not in drawn["partition_by"]]
        kinds = {"user": pa.string(), "at": INSTANT, **file["kinds"]}
        fields = [
            pa.field(stored[name], kinds[name], metadata={"PARQUET:field_id": str(numbers[name])}) for name in names
        ]
        # A column of another table's file is included, because a file without columns has no rows.
        fields.append(pa.field("rest", pa.int8(), metadata={"PARQUET:field_id": "99"}))
        values = [[row[name] for row in file["rows"]] for name in names]
        rows = pa.table([*values, [0] * len(file["rows"])], schema=pa.schema(fields))
        texts = {stored[name]: None if value is None else str(value) for name, value in file["constants"].items()}
        add = table.file(
            rows,
            texts,
            f"{place}.parquet",
            file["deleted"],
            file["storage"],
            row_group_size=file["group"],
            write_statistics=file["statistics"],
        )
        table.commit(add)
    return table


def holds(drawn: dict[str, Any], brought: Callable[[Path], Warehouse] = lambda folder: Warehouse(str(folder))) -> None:
    """Compare what Arrow reads from a random table with the drawn rows.

    Args:
        drawn: the table.
        brought: copies the folder of the table to where it is read.
    """
    alive = [row for file in drawn["files"] for place, row in enumerate(file["rows"]) if place not in file["deleted"]]
    usable = [row for row in alive if row["user"] is not None and row["at"] is not None]
    with tempfile.TemporaryDirectory() as folder:
        table = written(Path(folder), drawn)
        slice_ = slice_at(table, hourly_pipeline(), brought(Path(folder)))
        parts = list(slice_.events())
        rows = [row for events in parts for row in whole_rows(slice_, events)]
        assert rows == usable
        used = [value for events in parts for value in events["value_value"].to_pylist()]
        assert used == [row["value"] for row in usable]
        measured = measure_files(slice_)
    times = [to_millis(row["at"]) for row in usable]
    counts = {
        rejects.NULL_KEY: sum(row["user"] is None for row in alive),
        rejects.NULL_TIMESTAMP: sum(row["user"] is not None and row["at"] is None for row in alive),
        OK: len(usable),
    }
    assert measured.counts == {status: count for status, count in counts.items() if count}
    assert measured.largest == ({0: {"": max(times)}} if times else {})
    assert measured.smallest == ({0: min(times)} if times else {})


@given(files())
def test_arrow_reads_the_rows_of_a_table_with_drawn_features(drawn: dict[str, Any]) -> None:
    holds(drawn)


def test_the_draws_find_a_reader_that_forgets_deleted_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SourceParquet, "kept", lambda *given: None)

    @settings(database=None, phases=[Phase.generate], max_examples=60)
    @given(files())
    def seeded(drawn: dict[str, Any]) -> None:
        holds(drawn)

    with pytest.raises(AssertionError):
        seeded()
