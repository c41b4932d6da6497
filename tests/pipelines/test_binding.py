from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import EVENTS, LOCAL, Lake, at, session_pipeline
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
from tidegate.windowing import (
    Count,
    EventTimeSessionWindows,
    First,
    IntervalJoin,
    Max,
    ProcessWindowFunction,
    Sum,
    Windows,
)
from tidegate.windowing.errors import IllegalArgument

GAP = timedelta(minutes=30)


def windows(**aggregate: Any) -> Windows:
    return Windows(EventTimeSessionWindows.with_gap(GAP), aggregate=aggregate)


def with_column(name: str, kind: pa.DataType) -> pa.Schema:
    index = EVENTS.get_field_index(name)
    return EVENTS.append(pa.field(name, kind)) if index < 0 else EVENTS.set(index, pa.field(name, kind))


def test_the_tables_of_a_pipeline_follow_from_its_source() -> None:
    tables = bind(session_pipeline(), EVENTS, EVENTS).table_schemas
    assert set(tables) == {"state", "results", "late", "rejects", "epochs"}
    assert tables["results"].names[0] == "user"
    assert tables["results"].names[-2:] == ["events", "total"]
    assert tables["late"].names[: len(EVENTS)] == EVENTS.names


def test_only_the_columns_that_aggregates_read_are_used_in_the_sources_order() -> None:
    pipeline = session_pipeline(compute=windows(last=First("user"), events=Count(), total=Sum("value")))
    assert bind(pipeline, EVENTS, EVENTS).used == ("user", "value")


class Longest(ProcessWindowFunction):
    result_type = pa.struct([("longest", pa.int64())])

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield {"longest": max(element["value"] for element in elements)}


def test_a_process_function_reads_all_columns_unless_uses_names_them() -> None:
    compute = Windows(EventTimeSessionWindows.with_gap(GAP), process=Longest())
    assert bind(session_pipeline(compute=compute), EVENTS, EVENTS).used == ("user", "at", "value")
    assert bind(session_pipeline(compute=compute, uses=("value",)), EVENTS, EVENTS).used == ("value",)


@pytest.mark.parametrize(
    ("change", "field", "column"),
    [
        ({"key": ("usr",)}, "key", "usr"),
        ({"watermark_by": "part"}, "watermark_by", "part"),
        ({"source": DeltaSource("events", timestamp="when")}, "source.timestamp", "when"),
        ({"compute": windows(total=Sum("valu"))}, "compute.aggregate", "valu"),
        ({"compute": Windows(EventTimeSessionWindows.with_gap(GAP), process=Longest()), "uses": ("v",)}, "uses", "v"),
    ],
)
def test_a_column_that_the_source_does_not_have_is_named_with_the_field(
    change: dict[str, Any], field: str, column: str
) -> None:
    with pytest.raises(Refused) as refused:
        bind(replace(session_pipeline(), **change), EVENTS, EVENTS)
    assert field in str(refused.value)
    assert repr(column) in str(refused.value)
    assert "['user', 'at', 'value']" in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (pa.string(), r"try_to_timestamp\(`at`\)"),
        (pa.date32(), r"try_to_timestamp\(`at`\)"),
        (pa.float64(), r"timestamp_seconds\(`at`\)"),
        (pa.timestamp("us"), "zone="),
        (pa.int64(), "unit="),
        (pa.struct([("x", pa.int64())]), "derive one in columns= from a value in it, such as a field of the struct"),
    ],
)
def test_a_timestamp_that_would_have_to_be_guessed_is_refused_with_the_way_out(kind: pa.DataType, remedy: str) -> None:
    schema = with_column("at", kind)
    with pytest.raises(Refused, match=remedy):
        bind(session_pipeline(), schema, schema)


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (pa.timestamp("us", tz="UTC"), {}),
        (pa.timestamp("us"), {"zone": "America/New_York"}),
        (pa.int64(), {"unit": "ms"}),
        (pa.int32(), {"unit": "s"}),
    ],
)
def test_a_timestamp_that_says_what_it_is_binds(kind: pa.DataType, declared: dict[str, Any]) -> None:
    schema = with_column("at", kind)
    assert bind(session_pipeline(source=DeltaSource("events", timestamp="at", **declared)), schema, schema)


@pytest.mark.parametrize(
    ("kind", "declared", "told"),
    [
        (pa.timestamp("us", tz="UTC"), {"zone": "Asia/Kolkata"}, r"zone = 'Asia/Kolkata' has .* is TIMESTAMP, an inst"),
        (pa.timestamp("us", tz="UTC"), {"unit": "ms"}, "unit = 'ms' has no effect.* is TIMESTAMP, so it needs no unit"),
        (pa.timestamp("us"), {"zone": "Asia/Kolkata", "unit": "s"}, "unit = 's' has no effect.* is TIMESTAMP_NTZ"),
        (pa.int64(), {"zone": "Asia/Kolkata", "unit": "s"}, "zone = 'Asia/Kolkata' has .* counts s since 1970 in UTC"),
    ],
)
def test_a_zone_or_unit_that_the_timestamp_has_no_use_for_is_refused(
    kind: pa.DataType, declared: dict[str, Any], told: str
) -> None:
    schema = EVENTS.set(1, pa.field("at", kind))
    with pytest.raises(Refused, match=rf"source\.{told}.*Leave (zone|unit)= out"):
        bind(session_pipeline(source=DeltaSource("events", timestamp="at", **declared)), schema, schema)


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.int64()), pa.struct([("a", pa.int64())])])
def test_a_key_whose_equality_or_hash_is_not_stable_is_refused(kind: pa.DataType) -> None:
    schema = with_column("user", kind)
    with pytest.raises(Refused, match="key of pipeline 'sessions': key column 'user'"):
        bind(session_pipeline(), schema, schema)


@pytest.mark.parametrize("name", ["pane", "window_start", "epoch", "stale", "timeline", "user"])
def test_a_result_can_not_have_the_name_of_another_column(name: str) -> None:
    with pytest.raises(IllegalArgument, match=f"{name}.*rename the result"):
        bind(session_pipeline(compute=windows(**{name: Count()})), EVENTS, EVENTS)


@pytest.mark.parametrize("name", ["epoch", "key_group", "manifest", "namespace"])
def test_a_key_can_not_have_the_name_of_a_column_of_ours(name: str) -> None:
    schema = with_column(name, pa.string())
    with pytest.raises(IllegalArgument, match=rf"key = '{name}'.*rename it in columns="):
        bind(session_pipeline(key=(name,)), schema, schema)


def test_a_process_function_must_declare_its_result_before_it_can_go_to_a_table() -> None:
    class Undeclared(ProcessWindowFunction):
        def process(self, key: Any, context: Any, elements: Any) -> Any:
            yield from elements

    with pytest.raises(IllegalArgument, match="result_type"):
        bind(
            session_pipeline(compute=Windows(EventTimeSessionWindows.with_gap(GAP), process=Undeclared())),
            EVENTS,
            EVENTS,
        )


def test_what_a_restore_is_checked_against_are_the_types_of_key_and_contents() -> None:
    schemas = bind(session_pipeline(compute=windows(most=Max("value"))), EVENTS, EVENTS).schemas
    assert schemas.key == {"user": "string"}
    assert schemas.contents == {"acc_most": "int64"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"table": "", "timestamp": "at"}, "source.table"),
        ({"table": "events", "timestamp": ""}, "source.timestamp"),
        ({"table": "events", "timestamp": "at", "zone": "Europe/Berln"}, "source.zone"),
        ({"table": "s3://AKIA:hush@bucket/t", "timestamp": "at"}, "source.table"),
        ({"table": "s3://bucket/a%20b", "timestamp": "at"}, "source.table"),
        ({"table": "events", "timestamp": "at", "unit": "us"}, "source.unit"),
    ],
)
def test_a_source_that_can_not_be_is_refused_when_it_is_made(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(IllegalArgument) as refused:
        DeltaSource(**arguments)
    assert refused.value.field == named


def test_a_pipeline_without_a_key_has_one_key_group_for_all() -> None:
    bound = bind(session_pipeline(key=()), EVENTS, EVENTS)
    assert bound.key.names == ()
    assert isinstance(bound.pipeline, Pipeline)


# --- names and places --------------------------------------------------------------------------------

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
