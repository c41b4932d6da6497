"""Views and streams of keys of every type, of several keys, of nested results, and of rows that are not panes."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tests.pipelines.observe.reading.query import Query
from tests.pipelines.observe.reading.targets import changes, project, rows_of, target_of
from tests.pipelines.quiet import Quiet, quiet_pipeline
from tidegate.pipelines.definition import results
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.observe.reading import read_view, views
from tidegate.pipelines.observe.reading import views as stream
from tidegate.pipelines.observe.reading.data_source import TidegateFormat
from tidegate.pipelines.observe.reading.places import Files
from tidegate.pipelines.observe.reading.reached import Reached
from tidegate.pipelines.observe.reading.views import read_file
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.time import to_millis

KEYS: dict[str, tuple[pa.DataType, Any, Any]] = {
    "string": (pa.string(), "zoë", ""),
    "long": (pa.int64(), 2**62, -1),
    "boolean": (pa.bool_(), True, False),
    "decimal": (pa.decimal128(20, 2), Decimal("1.50"), Decimal("-0.01")),
    "date": (pa.date32(), date(2024, 3, 1), date(1900, 1, 1)),
    "timestamp": (pa.timestamp("us", tz="UTC"), at("10:00"), datetime(1900, 1, 1, tzinfo=UTC)),
    "binary": (pa.binary(), b"\x00\xff", b""),
}
RESULT = pa.struct(
    [
        ("top", pa.struct([("name", pa.string()), ("share", pa.float64())])),
        ("places", pa.list_(pa.string())),
        ("total", pa.decimal128(38, 4)),
    ]
)


def pane(key: tuple[Any, Any], epoch: int, number: int, op: str = "+") -> dict[str, Any]:
    """A pane of the window from ten to eleven, which is final from noon on."""
    return {
        "a": key[0],
        "the b": key[1],
        "window_id": 7,
        "window_start": at("10:00"),
        "window_end": at("11:00"),
        "pane": number,
        "timing": "on_time",
        "op": op,
        "final_at": at("12:00"),
        "watermark": None,
        "timeline": 1,
        "epoch": epoch,
        "emitted_at": at("12:00"),
        "stale": False,
        "top": {"name": str(epoch), "share": float("nan")},
        "places": [None, "x"],
        "total": Decimal(epoch),
    }


def moment(epoch: int, hour: str) -> Reached:
    return Reached(epoch, to_millis(at(hour)), 1, epoch, "", "")


@pytest.mark.parametrize("type_", KEYS)
def test_windows_of_two_keys_that_may_be_null_are_told_apart(tmp_path: Path, type_: str) -> None:
    kind, value, other = KEYS[type_]
    schema = results.schema(KeySchema.of(**{"a": kind, "the b": pa.string()}), RESULT)
    keys = [(value, "x"), (value, None), (None, "x"), (None, None), (other, "x")]
    path, warehouse = str(tmp_path / "results"), Warehouse(str(tmp_path))
    for rows in (
        [pane(key, 1, 0) for key in keys],
        [pane(keys[1], 2, 0, "-"), pane(keys[1], 2, 1), pane(keys[3], 2, 1)],
    ):
        write_deltalake(path, pa.Table.from_pylist(rows, schema), mode="append")
    files, by = Files.of(warehouse, DeltaTable(path)), ("a", "the b")

    def read(view: views.View) -> Counter[tuple[Any, ...]]:
        batches = [batch for file in view.files for batch in read_file(warehouse, path, file, schema, view.where)]
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert all(row["places"] == [None, "x"] and row["top"]["name"] == str(row["epoch"]) for row in rows)
        return Counter((row["op"], row["a"], row["the b"], row["pane"]) for row in rows)

    first, second = moment(1, "12:00"), moment(2, "12:01")
    assert read(views.final(files, by, moment(1, "11:00"))) == Counter()
    assert read(views.final(files, by, second)) == Counter(
        ("+", *key, 1 if key in (keys[1], keys[3]) else 0) for key in keys
    )
    told = Counter([(op, *key, number) for key in (keys[1], keys[3]) for op, number in (("-", 0), ("+", 1))])
    assert read(stream.changes_in_timeline(files, by, first, second, True)) == told
    older = Files.of(warehouse, DeltaTable(path, version=0))
    assert read(stream.changes_of_versions(older, files, by, first, second, True)) == told


def test_rows_of_a_process_function_come_and_leave_with_a_restore(tmp_path: Path) -> None:
    """Equal rows count as often as they occur."""
    by_hand = ByHand(tmp_path, quiet_pipeline())
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:05"))
    by_hand.epoch(("bob", at("10:30"), 1), watermark=at("11:00"))
    target, moments, before = target_of(by_hand, "final"), [], by_hand.head()

    def counted(rows: pa.Table) -> Counter[tuple[Any, ...]]:
        return Counter((row["user"], row["total"], row["event_time"]) for row in rows.to_pylist())

    tables = [by_hand.rows("results")]
    moments.append(target.now())
    by_hand.epoch(("ann", at("11:30"), 2), ("ann", at("11:45"), 3), watermark=at("12:30"))
    newest = by_hand.head()
    for snapshot, keep_stale in ((None, False), (before, True), (newest, True), (before, False)):
        if snapshot is not None:
            restore(by_hand.tables, snapshot, to_millis(at("20:00")) + len(moments), keep_stale=keep_stale)
        tables.append(results.latest(by_hand.rows("results"), ("user",)))
        moments.append(target.now())
    assert [len(table) for table in tables] == [2, 4, 2, 4, 2]
    assert counted(rows_of(target, target.rows())) == counted(tables[-1])
    for number, (start, end) in enumerate(pairwise(moments)):
        came, left = changes(target, start, end, counted)
        assert counted(tables[number]) - left + came == counted(tables[number + 1])
        assert bool(came) != bool(left)
    came, left = changes(target, Reached.nothing(), moments[2], counted)
    assert (came, left) == (counted(tables[2]), Counter())


def rows_by_format(folder: Path, **options: str) -> list[dict[str, Any]]:
    """Return the result rows of pipeline `quiet` that the tasks of the format yield."""
    format_ = TidegateFormat({"path": "quiet", "config": str(folder / "tidegate.toml"), **options})
    reader = format_.reader(format_.schema())
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_rows_of_a_process_function_are_found_by_the_sign_that_their_table_has_not(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, quiet_pipeline())
    config = project(tmp_path, "quiet")
    by_hand.epoch(("ann", at("10:00"), 1), ("bob", at("10:00"), 2), watermark=at("11:00"))
    assert [row["op"] for row in rows_by_format(tmp_path)] == ["+", "+"]
    assert [row["user"] for row in rows_by_format(tmp_path, where="op = '+' AND total > 1")] == ["bob"]
    assert rows_by_format(tmp_path, where="op = '-'") == []
    sign = pc.field("op") == "+"
    assert len(read_view("quiet", columns=["user"], where=sign & (pc.field("user") == "ann"), config=config)) == 1


class OwnOp(Quiet):
    """A process function with a result named like the sign column."""

    result_type = pa.struct([("op", pa.int64())])

    def on_timer(self, timestamp: int, ctx: Any) -> list[dict[str, Any]]:
        return [{self.result_type.field(0).name: ctx.get_state(self.total).value()}]


class OwnOpInUpperCase(OwnOp):
    """The same for Spark, which can't distinguish `op` and `OP` in a query."""

    result_type = pa.struct([("OP", pa.int64())])


@pytest.mark.parametrize("function", [OwnOp, OwnOpInUpperCase])
def test_a_result_with_the_name_of_the_sign_is_read_as_it_is_and_not_followed(
    tmp_path: Path, function: type[OwnOp]
) -> None:
    name = function.result_type.field(0).name
    by_hand = ByHand(tmp_path, quiet_pipeline(function()))
    config = project(tmp_path, "quiet")
    by_hand.epoch(("ann", at("10:00"), 1), ("bob", at("10:00"), 2), watermark=at("11:00"))
    assert sorted(row[name] for row in rows_by_format(tmp_path)) == [1, 2]
    assert {"op", "OP"} & rows_by_format(tmp_path)[0].keys() == {name}
    assert [row["user"] for row in rows_by_format(tmp_path, where=f"{name} = 2")] == ["bob"]
    options = {"path": "quiet", "config": str(config)}
    with pytest.raises(UsageError, match=r"a column 'op', .* rename the column in the pipeline, or stream view 'all'"):
        Query(tmp_path, tmp_path, options).reader()
    follower = Query(tmp_path / "checkpoint", tmp_path / "target", {**options, "view": "all"})
    follower.run()
    assert len(follower.total(signed=False)) == 2
