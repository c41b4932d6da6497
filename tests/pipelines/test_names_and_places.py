"""Names and places of tables and columns: what is taken, what gets another name, what is refused and why."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.lake import EVENTS, LOCAL, Lake, at
from tests.pipelines.counting import HOURS, counting
from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.definition import late
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.definition.names import check_name
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.sources.open_source import check_places
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing import Count, IntervalJoin, Windows
from tidegate.windowing.errors import IllegalArgument

# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["user", "Reason"], ["user", "input_Reason"]),
        (["reason", "input_reason"], ["input_reason", "input_input_reason"]),
        (["input_reason", "reason"], ["input_reason", "input_input_reason"]),
        (["EPOCH", "Watermark", "stale"], ["input_EPOCH", "input_Watermark", "input_stale"]),
        (["a.b", "x`y", "[z]"], ["a.b", "x`y", "[z]"]),
    ],
)
def test_a_column_named_like_ours_gets_a_prefix_until_it_is_free(columns: list[str], expected: list[str]) -> None:
    source = pa.schema([(name, pa.string()) for name in columns])
    names = late.schema(source).names
    assert names[: len(columns)] == expected
    assert len({name.casefold() for name in names}) == len(names)


@pytest.mark.parametrize(
    ("key", "aggregates", "field"),
    [
        ("acc_n", ("n",), "key"),
        ("user", ("User",), "compute.aggregate"),
        ("user", ("n", "N"), "compute.aggregate"),
        ("user", ("Epoch",), "compute.aggregate"),
        ("Key_Group", ("n",), "key"),
        ("STALE", ("n",), "key"),
    ],
)
def test_names_that_delta_takes_for_one_are_refused_before_anything_is_written(
    key: str, aggregates: tuple[str, ...], field: str
) -> None:
    source = pa.schema([(key, pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    compute = Windows(HOURS, aggregate={name: Count() for name in aggregates})
    with pytest.raises(IllegalArgument, match=f"^{field} = "):
        bind(counting(key=(key,), compute=compute), source, source)


@pytest.mark.parametrize(("other", "key"), [("reason", "input_reason"), ("Epoch", "INPUT_epoch")])
def test_a_key_is_refused_whose_name_another_column_has_in_late_rows(other: str, key: str) -> None:
    columns = [(other, pa.string()), (key, pa.string()), ("at", pa.timestamp("us", tz="UTC"))]
    with pytest.raises(IllegalArgument, match=rf"key = '{key}'.*another column of that name.*rename it in columns="):
        bind(counting(key=(key,)), pa.schema(columns), pa.schema(columns))
    later = pa.schema([columns[1], columns[0], columns[2]])
    assert bind(counting(key=(key,)), later, later).key.names == (key,)


def test_a_column_named_like_those_of_rows_on_their_way_is_refused() -> None:
    source = EVENTS.append(pa.field("Tidegate:Commit", pa.int64()))
    with pytest.raises(Refused, match="column 'Tidegate:Commit', but names that begin with 'tidegate:' are tidegate's"):
        bind(counting(), source, source)
    others = EVENTS.append(pa.field("__commit", pa.int64()))
    bind(counting(), others, others)


# --- places -------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["hours", "hours/raw", "./hours", "x/../hours", ".", "hours/"])
def test_a_pipeline_does_not_share_a_folder_with_its_source(table: str) -> None:
    with pytest.raises(IllegalArgument, match=r"name = 'hours'.*another name"):
        counting(source=DeltaSource(table, timestamp="at"))


@pytest.mark.parametrize(
    ("warehouse", "table", "how"),
    [
        ("/lake", "/lake/hours", "is"),
        ("/lake", "/lake//x/../hours/", "is"),
        ("/lake", "/lake/hours/raw", "contains"),
        ("/lake/events", "/lake/events", "lies in"),
        ("/lake/events/derived", "file:///lake/events", "lies in"),
        ("s3://bucket/lake", "s3a://bucket/lake/hours", "is"),
    ],
)
def test_paths_are_compared_where_the_warehouse_is_known(warehouse: str, table: str, how: str) -> None:
    with pytest.raises(Refused, match=f" {how} source.table"):
        check_places(Warehouse(warehouse), counting(source=DeltaSource(table, timestamp="at")))


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "lake" / "hours").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "lake")
    source = DeltaSource(f"{tmp_path}/linked/hours", timestamp="at")
    with pytest.raises(Refused, match=r"is source\.table"):
        check_places(Warehouse(f"{tmp_path}/lake"), counting(source=source))


def test_places_beside_each_other_are_fine() -> None:
    for warehouse, table in (("/lake", "events"), ("/lake", "/lake/hours2"), ("s3://a/lake", "s3://b/lake/hours")):
        check_places(Warehouse(warehouse), counting(source=DeltaSource(table, timestamp="at")))


def joined(right: str) -> Pipeline:
    kind = pa.struct([("x", pa.int64())])
    join = IntervalJoin(timedelta(0), timedelta(hours=1), join=lambda left, right: {"x": 1}, result_type=kind)
    return counting(compute=join, right=Input(source=DeltaSource(right, timestamp="at")))


def test_two_inputs_that_are_one_table_are_refused_however_they_are_spelled() -> None:
    for right in ("events", "./events", "events/", "x/../events"):
        with pytest.raises(IllegalArgument, match="both inputs are the same table"):
            joined(right)
    with pytest.raises(Refused, match="is the first input's table"):
        check_places(Warehouse("/lake"), joined("/lake/events"))


def test_a_stream_checks_places_before_it_reads(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    pipeline = counting(source=DeltaSource(f"{tmp_path}/warehouse/hours", timestamp="at"))
    with pytest.raises(Refused, match=r"is source\.table"):
        OpenInput.open(LOCAL, lake.tables(pipeline), pipeline)


def test_a_shallow_clone_is_refused_with_the_way_out(lake: Lake) -> None:
    lake.append(("ann", at("01:00"), 1))
    entry = Path(lake.path("events"), "_delta_log", f"{0:020d}.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["path"] = f"file://{lake.path('original')}/{action['add']['path']}"
    entry.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(Refused, match=r"shallow clone.*CREATE TABLE"):
        list(SourceLog(Warehouse(str(lake.folder)), lake.path("events")).unread(-1))


def test_a_collated_key_is_refused_with_the_way_out(lake: Lake) -> None:
    lake.append(("ann", at("01:00"), 1))
    entry = Path(lake.path("events"), "_delta_log", f"{0:020d}.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    (metadata,) = [action["metaData"] for action in actions if "metaData" in action]
    schema = json.loads(metadata["schemaString"])
    schema["fields"][0]["metadata"] = {"__COLLATIONS": {"user": "spark.UTF8_LCASE"}}
    metadata["schemaString"] = json.dumps(schema)
    entry.write_text("\n".join(map(json.dumps, actions)))
    log = SourceLog(Warehouse(str(lake.folder)), lake.path("events"))
    pipeline = counting()
    with pytest.raises(Refused, match=r"'user'.*UTF8_LCASE.*lower"):
        log.check_input(pipeline.inputs[0])
    log.check_input(replace(pipeline, columns={"user": "lower(`user`) collate UTF8_BINARY"}).inputs[0])
    log.check_input(replace(pipeline, key=()).inputs[0])


@pytest.mark.parametrize("name", ["a", "aircraft_duty", "Q-1", "x" * 100])
def test_letters_digits_underscore_and_hyphen_make_a_name(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "1st", "_a", "-a", "a b", "a/b", "..", "a.b", "ä", "a\n", "x" * 101, "a:b", "a%2e"]
)
def test_anything_that_could_leave_its_folder_or_hide_in_it_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="use a letter"):
        check_name(name)
