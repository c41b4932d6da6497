"""Columns of a source that are widened, renamed or replaced: what is refused, and what late and rejected rows keep."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.hand_made import HandMade, mapped, struct
from tests.lake import DAY0, LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.counting import HOURS, counting
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition import late
from tidegate.pipelines.definition.binding import BoundPipeline, bind
from tidegate.pipelines.definition.column_names import input_rows
from tidegate.pipelines.epoch.open_input import OpenInput, with_renamed
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.compatibility import compare, ready
from tidegate.pipelines.sources.sql.compile import compile_expression
from tidegate.windowing import Aggregate, Count, First, Last, Mean, Min, Sum, Windows
from tidegate.windowing.time import to_millis


def typed(kind: pa.DataType) -> pa.Schema:
    return pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("amount", kind)])


def widen_source(lake: Lake, kind: str) -> None:
    """Delta's type widening of column `amount`, as the log has it."""
    log = Path(lake.path("events"), "_delta_log")
    newest = DeltaTable(lake.path("events")).version()
    actions = [json.loads(line) for line in (log / f"{0:020d}.json").read_text().splitlines()]
    (metadata,) = [action["metaData"] for action in actions if "metaData" in action]
    schema = json.loads(metadata["schemaString"])
    next(field for field in schema["fields"] if field["name"] == "amount")["type"] = kind
    metadata["schemaString"] = json.dumps(schema)
    (log / f"{newest + 1:020d}.json").write_text(json.dumps({"metaData": metadata}))


def test_an_unused_column_may_be_widened_and_late_rows_keep_both(lake: Lake) -> None:
    pipeline = counting(compute=Windows(HOURS, aggregate={"n": Count()}))

    def write(kind: pa.DataType, *rows: tuple[str, int]) -> None:
        values = [{"user": "u", "at": at(hour), "amount": amount} for hour, amount in rows]
        lake.write(pa.Table.from_pylist(values, schema=typed(kind)))

    write(pa.int32(), ("01:00", 1), ("05:00", 2))
    lake.stream(LOCAL, pipeline)
    write(pa.int32(), ("01:30", 3))
    lake.stream(LOCAL, pipeline)
    widen_source(lake, "long")
    write(pa.int64(), ("01:40", 2**40))
    lake.stream(LOCAL, pipeline)
    widen_source(lake, "long")
    write(pa.int64(), ("01:50", 2**41))
    lake.stream(LOCAL, pipeline)
    rows = lake.rows(pipeline, late.NAME).sort_by("at")
    assert rows["amount"].to_pylist() == [3, None, None]
    assert rows["amount_long"].to_pylist() == [None, 2**40, 2**41]
    bound = with_renamed(bind(pipeline, typed(pa.int64()), typed(pa.int64())), lake.tables(pipeline))
    assert bound.renamed[late.NAME] == {"amount": "amount_long"}
    as_read = input_rows(rows, late.TRAILING, bound.source, bound.renamed[late.NAME])
    assert as_read["amount"].to_pylist() == [3, 2**40, 2**41]
    assert as_read.schema.names == ["user", "at", "amount"]


@pytest.mark.parametrize("taken", [pa.string(), pa.int64()], ids=str)
def test_a_second_change_and_a_taken_name_get_a_column_each(lake: Lake, taken: pa.DataType) -> None:
    schema = typed(pa.int32()).append(pa.field("Amount_Long", taken))
    lake.write(pa.Table.from_pylist([{"user": "u", "at": at("01:00")}], schema=schema))
    lake.stream(LOCAL, counting())

    def bound(kind: pa.DataType) -> BoundPipeline:
        wide = typed(kind).append(pa.field("Amount_Long", taken))
        made = with_renamed(bind(counting(), wide, wide), lake.tables(counting()))
        ready(lake.tables(counting()), made, lake.snapshot(counting()))
        return made

    assert bound(pa.int64()).renamed[late.NAME] == {"amount": "amount_long_2"}
    assert bound(pa.decimal128(20, 2)).renamed[late.NAME] == {"amount": "amount_decimal_20_2"}
    assert bound(pa.int64()).renamed[late.NAME] == {"amount": "amount_long_2"}
    assert bound(pa.int32()).renamed == {}


def test_a_used_column_that_changes_the_state_is_refused_and_the_way_out_works(lake: Lake) -> None:
    pipeline = counting(compute=Windows(HOURS, aggregate={"first": First("amount"), "total": Sum("amount")}))
    lake.write(pa.Table.from_pylist([{"user": "u", "at": at("01:00"), "amount": 1}], schema=typed(pa.int32())))
    lake.stream(LOCAL, pipeline)
    head, wide = lake.snapshot(pipeline), typed(pa.int64())
    (found,) = compare(bind(pipeline, wide, wide), head.manifest).incompatibilities
    assert "columns={'amount': 'try_cast(`amount` as int)'}" in found.remedy
    # The tasks evaluate it, so that this also works for a source whose changes are corrected.
    assert compile_expression("try_cast(`amount` as int)", wide).type == pa.int32()
    cast_back = replace(pipeline, columns={"amount": "try_cast(`amount` as int)"})
    bound = with_renamed(bind(cast_back, wide, typed(pa.int32())), lake.tables(pipeline))
    assert ready(lake.tables(pipeline), bound, head) is not None


@pytest.mark.parametrize(
    ("aggregate", "then", "now", "cast"),
    [
        (Min("amount"), pa.int16(), pa.int64(), "try_cast(`amount` as smallint)"),
        (Mean("amount"), pa.decimal128(9, 2), pa.decimal128(12, 3), "try_cast(`amount` as decimal(9,2))"),
        (Sum("amount"), pa.decimal128(9, 2), pa.decimal128(12, 3), "try_cast(`amount` as decimal(9,2))"),
        (Sum("amount"), pa.int32(), pa.float64(), "try_cast(`amount` as bigint)"),
        (Last("amount"), pa.decimal128(9, 2), pa.decimal128(12, 2), "try_cast(`amount` as decimal(9,2))"),
    ],
)
def test_the_remedy_names_the_type_with_which_the_state_continues(
    lake: Lake, aggregate: Aggregate, then: pa.DataType, now: pa.DataType, cast: str
) -> None:
    pipeline = counting(compute=Windows(HOURS, aggregate={"result": aggregate}))
    lake.write(pa.Table.from_pylist([{"user": "u", "at": at("01:00"), "amount": 1}], schema=typed(then)))
    lake.stream(LOCAL, pipeline)
    manifest, wide = lake.snapshot(pipeline).manifest, typed(now)
    told = compare(bind(pipeline, wide, wide), manifest).incompatibilities
    assert any(f"columns={ {'amount': cast} }" in difference.remedy for difference in told)
    back = typed(pa.int64() if cast.endswith("bigint)") else then)
    assert compare(bind(replace(pipeline, columns={"amount": cast}), wide, back), manifest).incompatibilities == ()


def test_a_sum_of_a_widened_column_goes_on(lake: Lake) -> None:
    pipeline = counting(compute=Windows(HOURS, aggregate={"total": Sum("amount")}))
    lake.write(pa.Table.from_pylist([{"user": "u", "at": at("01:00"), "amount": 1}], schema=typed(pa.int32())))
    lake.stream(LOCAL, pipeline)
    wide = typed(pa.int64())
    assert compare(bind(pipeline, wide, wide), lake.snapshot(pipeline).manifest).incompatibilities == ()


def test_a_way_out_is_told_once(lake: Lake) -> None:
    pipeline = counting(compute=Windows(HOURS, aggregate={"last": Last("amount")}))
    lake.write(pa.Table.from_pylist([{"user": "u", "at": at("01:00"), "amount": 1}], schema=typed(pa.int32())))
    lake.stream(LOCAL, pipeline)
    double = typed(pa.float64())
    for changed in (pipeline, counting(compute=Windows(HOURS, aggregate={"n": Count()}))):
        told = compare(bind(changed, double, double), lake.snapshot(pipeline).manifest).incompatibilities
        assert told
        for difference in told:
            assert difference.remedy.count("undo the change") <= 1
            assert "without a snapshot" not in difference.remedy
            assert "another name and backfill it" in difference.remedy


def test_a_key_column_that_changes_is_refused(lake: Lake) -> None:
    pipeline = counting(key=("amount",))
    lake.write(pa.Table.from_pylist([{"user": "u", "at": at("01:00"), "amount": 1}], schema=typed(pa.int32())))
    lake.stream(LOCAL, pipeline)
    wide = typed(pa.int64())
    told = compare(bind(pipeline, wide, wide), lake.snapshot(pipeline).manifest).incompatibilities
    assert [difference.field for difference in told] == ["key column 'amount'"]
    with pytest.raises(Refused, match=r"key column 'amount' .* would not find the rows"):
        with_renamed(bind(pipeline, wide, wide), lake.tables(pipeline))


DAY = timedelta(days=1)


INSTANT = pa.timestamp("us", tz="UTC")


USED = [mapped("user", "string", 1), mapped("at", "timestamp", 2), mapped("value", "long", 3)]


NOTE = mapped("note", "string", 4)


CHANGES = {
    "renamed, and the name taken": [*USED, mapped("remark", "string", 4, "col-4"), mapped("note", "date", 5)],
    "replaced by structs": [*USED, mapped("note", struct(mapped("x", "long", 6)), 5)],
    "renamed": [*USED, mapped("remark", "string", 4, "col-4")],
    "dropped": USED,
    "replaced by numbers": [*USED, mapped("note", "long", 5)],
    "replaced by texts": [*USED, mapped("note", "string", 5)],
}


class Source:
    """A table mapped by name, whose files have the columns user, at, value and note."""

    def __init__(self, lake: Lake) -> None:
        self.made = HandMade(
            Path(lake.path("events")), [*USED, NOTE], (), ["columnMapping"], {"delta.columnMapping.mode": "name"}
        )

    def commit(self, *rows: tuple[str, Any, int, str], written: Any, replaces: dict[str, Any] | None = None) -> Any:
        """Commit a file with rows; with `replaces`, it replaces another file, as in OPTIMIZE."""
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


@pytest.mark.first(2)
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


@pytest.mark.first(2)
@pytest.mark.parametrize("change", CHANGES)
def test_late_rows_from_before_a_change_of_columns_are_read_with_the_columns_of_today(
    tmp_path: Path, change: str
) -> None:
    lake, pipeline = Lake(tmp_path), hourly_pipeline()
    source = Source(lake)
    source.commit(("ann", at("09:00"), 1, "x"), written=at("09:00"))
    source.commit(("ann", at("01:00"), 2, "y"), written=at("09:10"))
    lake.stream(LOCAL, pipeline)
    source.change(CHANGES[change], at("10:00"))
    source.commit(("ann", at("02:00"), 3, "z"), written=at("10:10"))
    lake.stream(LOCAL, pipeline)
    with lake.driver(LOCAL, pipeline) as driver:
        bound = OpenInput.open(LOCAL, driver.tables, pipeline).bound
        rows = lake.rows(pipeline, "late").sort_by("value")
        as_read = input_rows(rows, late.TRAILING, bound.source, bound.renamed.get(late.NAME, {}))
    assert as_read["value"].to_pylist() == [2, 3]
    assert as_read.schema.names == [column["name"] for column in CHANGES[change]]
