from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import EVENTS, session_pipeline
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.delta.description import DeltaSource
from tidegate.windowing import Count, EventTimeSessionWindows, First, Max, ProcessWindowFunction, Sum, Windows
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
    ("kind", "way_out"),
    [
        (pa.string(), r"try_to_timestamp\(`at`\)"),
        (pa.date32(), r"try_to_timestamp\(`at`\)"),
        (pa.float64(), r"timestamp_seconds\(`at`\)"),
        (pa.timestamp("us"), "zone="),
        (pa.int64(), "unit="),
        (pa.struct([("x", pa.int64())]), "derive one in columns= from a value in it, such as a field of the struct"),
    ],
)
def test_a_timestamp_that_would_have_to_be_guessed_is_refused_with_the_way_out(kind: pa.DataType, way_out: str) -> None:
    schema = with_column("at", kind)
    with pytest.raises(Refused, match=way_out):
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


def test_late_and_rejected_rows_keep_a_column_that_has_the_name_of_one_of_ours() -> None:
    schema = with_column("reason", pa.string())
    tables = bind(session_pipeline(), schema, schema).table_schemas
    for table in ("late", "rejects"):
        assert "input_reason" in tables[table].names
        assert tables[table].field("input_reason").type == pa.string()


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
