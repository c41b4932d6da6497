"""Column lineage: each column of a table with the source columns behind it, and how it is derived from them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import Lake, at, hourly_pipeline, session_pipeline
from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.observe.lineage.columns import columns_of_sql
from tidegate.pipelines.observe.lineage.datasets import datasets_of_driver
from tidegate.windowing import (
    Count,
    EventTimeSessionWindows,
    First,
    IntervalJoin,
    KeyedProcess,
    KeyedProcessFunction,
    ProcessWindowFunction,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    WindowJoin,
    Windows,
)

NAMES = ("user", "at", "value", "place")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    lake.append(("ann", at("10:00"), 1))
    return lake


def lineage_of(lake: Lake, pipeline: Pipeline, table: str = "results") -> dict[str, Any]:
    """The facet `columnLineage` of one of the pipeline's tables."""
    outputs = datasets_of_driver(lake.config, pipeline)["outputs"]
    facet: dict[str, Any] = next(each["facets"] for each in outputs if each["table"] == table)["columnLineage"]
    return facet


def fields(facet: dict[str, Any]) -> dict[str, set[tuple[str, str]]]:
    """Return, by column, the columns behind it, each with its transformation."""
    return {name: used(column["inputFields"]) for name, column in facet["fields"].items()}


def used(inputs: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(each["field"], by["subtype"]) for each in inputs for by in each["transformations"]}


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("value > 0", ["value"]),
        ("USER = 'value'", ["user"]),
        ("place.town = `user`", ["user", "place"]),
        ("count(*)", list(NAMES)),
        ("to_date(at) >= date '2024-01-01'", ["at"]),
        ("case when value is null then 0 else length(user) end", ["user", "value"]),
        ("1 = 1", []),
        ("(value", ["value"]),
    ],
)
def test_an_expression_reads_the_columns_that_it_names(sql: str, columns: list[str]) -> None:
    assert columns_of_sql(sql, NAMES) == tuple(columns)


@pytest.mark.parametrize("sql", ["current_date", "to_date(Session_User)", "`current_timestamp` + interval 1 day"])
def test_a_column_goes_before_a_function_that_needs_no_parentheses(sql: str) -> None:
    names = ("current_date", "session_user", "current_timestamp")
    (column,) = columns_of_sql(sql, names)
    assert column in sql.lower()
    assert columns_of_sql(sql, ("value",)) == ()


def test_keys_times_and_aggregates_come_from_their_columns_and_filters_decide_about_every_row(lake: Lake) -> None:
    hours = hourly_pipeline(where="value > 0 and user <> ''", watermark_by="user")
    facet = lineage_of(lake, hours)
    times = {("at", "TRANSFORMATION")}
    assert fields(facet) == {
        "user": {("user", "IDENTITY")},
        "window_start": times,
        "window_end": times,
        "final_at": times,
        "total": {("value", "AGGREGATION")},
    }
    assert used(facet["dataset"]) == {
        ("user", "GROUP_BY"),
        ("at", "WINDOW"),
        ("user", "CONDITIONAL"),
        ("value", "FILTER"),
        ("user", "FILTER"),
    }
    kinds = {by["subtype"]: by["type"] for each in facet["dataset"] for by in each["transformations"]}
    assert set(kinds.values()) == {"INDIRECT"}
    assert facet["fields"]["total"]["inputFields"][0]["transformations"] == [
        {"type": "DIRECT", "subtype": "AGGREGATION", "masking": False, "description": "Sum(value)"}
    ]


def test_the_first_of_a_window_also_depends_on_the_times(lake: Lake) -> None:
    windows = Windows(EventTimeSessionWindows.with_gap(timedelta(minutes=30)), aggregate={"first": First("value")})
    assert fields(lineage_of(lake, session_pipeline(compute=windows)))["first"] == {
        ("value", "AGGREGATION"),
        ("at", "SORT"),
    }


def test_a_derived_column_leads_to_the_columns_of_the_source_through_earlier_ones(lake: Lake) -> None:
    derived = {"user": "lower(user)", "size": "value * 2", "large": "size + length(user)", "who": "user"}
    windows = Windows(
        EventTimeSessionWindows.with_gap(timedelta(minutes=30)), aggregate={"n": Count(), "mean": Sum("large")}
    )
    facet = lineage_of(lake, session_pipeline(columns=derived, key=("user", "who"), compute=windows))
    lines = fields(facet)
    assert lines["user"] == {("user", "TRANSFORMATION")}
    assert lines["who"] == {("user", "TRANSFORMATION")}, "it is another name for a derived column"
    assert lines["mean"] == {("value", "AGGREGATION"), ("user", "AGGREGATION")}
    (by,) = facet["fields"]["user"]["inputFields"][0]["transformations"]
    assert by["description"] == "lower(user)"


def test_another_name_of_a_column_is_an_identity(lake: Lake) -> None:
    assert fields(lineage_of(lake, session_pipeline(columns={"who": "`user`"}, key=("who",))))["who"] == {
        ("user", "IDENTITY")
    }


def test_late_and_rejected_rows_keep_the_columns_of_the_source(lake: Lake) -> None:
    lines = fields(lineage_of(lake, session_pipeline(), "late"))
    assert {name: lines[name] for name in ("user", "at", "value")} == {
        name: {(name, "IDENTITY")} for name in ("user", "at", "value")
    }
    assert lines["reason"] == {("at", "CONDITIONAL")}
    assert fields(lineage_of(lake, session_pipeline(), "rejects"))["reason"] == {
        ("user", "CONDITIONAL"),
        ("at", "CONDITIONAL"),
    }


def test_a_column_of_the_source_that_has_the_name_of_one_of_ours_is_found_under_its_new_name(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write(pa.table({"user": ["ann"], "at": pa.array([at("10:00")], pa.timestamp("us", "UTC")), "epoch": [1]}))
    windows = Windows(EventTimeSessionWindows.with_gap(timedelta(minutes=30)), aggregate={"n": Count()})
    assert fields(lineage_of(lake, session_pipeline(compute=windows), "late"))["input_epoch"] == {("epoch", "IDENTITY")}


class Alert(KeyedProcessFunction):
    """A user's own code."""

    result_type = pa.struct([("level", pa.int64())])

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        out.collect({"level": value["value"]})


def test_results_of_a_users_own_code_come_from_every_column_that_it_may_read(lake: Lake) -> None:
    whole = session_pipeline(compute=KeyedProcess(Alert()))
    assert fields(lineage_of(lake, whole))["level"] == {(name, "TRANSFORMATION") for name in ("user", "at", "value")}
    part = session_pipeline(compute=KeyedProcess(Alert()), uses=("value",))
    context = {("user", "TRANSFORMATION"), ("at", "TRANSFORMATION")}
    assert fields(lineage_of(lake, part))["level"] == {("value", "TRANSFORMATION"), *context}, "it knows key and time"


class Spread(ProcessWindowFunction):
    """A user's own code over the aggregates of a window."""

    result_type = pa.struct([("spread", pa.int64())])

    def process(self, key: Any, ctx: Any, elements: Any) -> Any:
        return ({"spread": 1},)


def test_the_results_of_a_process_function_also_come_from_the_key_and_the_times_of_its_window(lake: Lake) -> None:
    windows = Windows(
        EventTimeSessionWindows.with_gap(timedelta(minutes=30)), aggregate={"total": Sum("value")}, process=Spread()
    )
    assert fields(lineage_of(lake, session_pipeline(compute=windows)))["spread"] == {
        ("value", "AGGREGATION"),
        ("user", "AGGREGATION"),
        ("at", "AGGREGATION"),
    }


def test_a_join_names_both_tables(lake: Lake) -> None:
    lake.append(("ann", at("10:01"), 2), table="orders")
    join = Pipeline(
        name="pairs",
        source=DeltaSource("events", timestamp="at"),
        right=Input(source=DeltaSource("orders", timestamp="at"), where="value > 0"),
        key=("user",),
        compute=IntervalJoin.between(timedelta(0), timedelta(minutes=5)),
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
    )
    facet = lineage_of(lake, join)
    places = {each["name"].rsplit("/", 1)[-1] for each in facet["fields"]["user"]["inputFields"]}
    assert places == {"events", "orders"}
    assert {each["name"].rsplit("/", 1)[-1] for each in facet["fields"]["right"]["inputFields"]} == {"orders"}
    assert used(facet["dataset"]) == {("user", "JOIN"), ("at", "JOIN"), ("value", "FILTER")}
    assert set(fields(lineage_of(lake, join, "late"))) >= {"user", "left", "right", "reason"}

    by_window = replace(join, compute=WindowJoin(TumblingEventTimeWindows.of(timedelta(hours=1)), "semi"))
    facet = lineage_of(lake, by_window)
    assert {each["name"].rsplit("/", 1)[-1] for each in facet["fields"]["left"]["inputFields"]} == {"events"}
    assert {each["field"] for each in facet["fields"]["window_start"]["inputFields"]} == {"at"}
    assert "right" not in facet["fields"]
    assert used(facet["dataset"]) == {("user", "JOIN"), ("at", "JOIN"), ("value", "FILTER")}
