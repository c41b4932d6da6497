"""A whole pipeline over rows, without Spark: the results don't depend on how the rows are divided."""

from __future__ import annotations

import doctest
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import tidegate.pipelines.project.harness
from tidegate.pipelines.definition import rejects
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.delta.description import DeltaSource
from tidegate.pipelines.testing import PipelineHarness, SourceColumns
from tidegate.windowing import (
    AfterCount,
    AfterWatermark,
    Count,
    EventTimeSessionWindows,
    First,
    ProcessWindowFunction,
    Sum,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
    Windows,
    count_windows,
)
from tidegate.windowing.errors import IllegalArgument

SOURCE = pa.schema(
    [("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("amount", pa.int64()), ("shop", pa.string())]
)
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
AGGREGATES = {"n": Count(), "sum": Sum("amount")}


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def row(user: str | None, minute: float | None, amount: int = 1, shop: str = "x") -> dict[str, Any]:
    return {"user": user, "at": None if minute is None else NOON + minutes(minute), "amount": amount, "shop": shop}


def pipeline(compute: Windows | None = None, **settings: Any) -> Pipeline:
    defaults: dict[str, Any] = {
        "name": "spending",
        "source": DeltaSource("payments", timestamp="at"),
        "key": ("user",),
        "watermark": WatermarkStrategy.for_bounded_out_of_orderness(minutes(5)),
        "compute": compute
        or Windows(EventTimeSessionWindows.with_gap(minutes(10)), allowed_lateness=minutes(5), aggregate=AGGREGATES),
    }
    return Pipeline(**{**defaults, **settings})


def added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {**one, "amount": one["amount"] + other["amount"]}


@pytest.mark.parametrize(
    ("parts", "values"),
    [
        ({"aggregate": {"sum": Sum("amount"), "first": First("amount")}}, [(3, 1), (9, 2)]),
        ({"reduce": added}, [(3,), (9,)]),
    ],
    ids=["aggregate", "reduce"],
)
def test_sliding_count_windows_have_typed_results(parts: dict[str, Any], values: list[tuple[int, ...]]) -> None:
    harness = PipelineHarness(pipeline(count_windows(3, 2, **parts)), SOURCE)
    for minute in range(1, 6):
        harness.commit([row("ann", minute, amount=minute)], at=NOON + minutes(minute))
        harness.run()
    names = ("sum", "first") if len(values[0]) == 2 else ("amount",)
    assert [tuple(pane[name] for name in names) for pane in harness.results()] == values


@pytest.mark.parametrize(
    ("given", "field", "remedy"),
    [
        ({"rows": [{"usr": "ann"}]}, "rows", r"no column 'usr'; it has \['user', 'at', 'amount', 'shop'\]"),
        ({"side": "right"}, "side", "the pipeline has one input: leave it out"),
        ({"at": "2024-05-01"}, "at", "give a datetime with a zone"),
        (
            {"at": NOON.replace(tzinfo=None)},
            "at",
            r"give a datetime with a zone, datetime\(2024, 3, 1, 12, tzinfo=UTC\)",
        ),
        ({"at": NOON.date()}, "at", "give a datetime with a zone"),
        ({"at": True}, "at", "give a datetime with a zone"),
    ],
)
def test_a_commit_that_no_table_could_have_is_refused(given: dict[str, Any], field: str, remedy: str) -> None:
    harness = PipelineHarness(pipeline(), SOURCE)
    with pytest.raises(IllegalArgument, match=rf"^{field} = .*: .*{remedy}"):
        harness.commit(**{"rows": [row("ann", 0)], "at": NOON, **given})


@pytest.mark.parametrize("field", ["start", "end", "now"])
@pytest.mark.parametrize("value", [NOON.replace(tzinfo=None), NOON.date(), "2024-05-01"])
def test_a_time_of_a_backfill_that_has_no_zone_is_refused_by_its_name(field: str, value: Any) -> None:
    harness = PipelineHarness(pipeline(), SOURCE)
    with pytest.raises(IllegalArgument, match=rf"^{field} = .*: give a datetime with a zone"):
        harness.backfill(**{"rows": [], "start": NOON, "end": NOON + minutes(20), field: value})
    assert harness.epochs == 0


def test_a_time_without_a_zone_that_passes_is_refused_by_its_name() -> None:
    with pytest.raises(IllegalArgument, match=r"^to = .*: give a datetime with a zone"):
        PipelineHarness(pipeline(), SOURCE).pass_time(NOON.replace(tzinfo=None))


@pytest.mark.parametrize(
    "values",
    [{"user": 7}, {"amount": "much"}, {"amount": 1.5}, {"shop": 7}, {"shop": b"x"}, {"at": NOON.replace(tzinfo=None)}],
)
def test_a_value_of_another_type_is_refused_with_its_column(values: dict[str, Any]) -> None:
    harness = PipelineHarness(pipeline(), SOURCE)
    harness.commit([{**row("ann", 0), **values}], NOON)
    with pytest.raises(TypeError, match=f"rows: column '{next(iter(values))}' has type "):
        harness.run()


@pytest.mark.parametrize(
    ("given", "field", "remedy"),
    [
        ({"source": SourceColumns(SOURCE)}, "source", "give a pyarrow schema"),
        ({"source": {"user": "string"}}, "source", "give a pyarrow schema"),
        ({"derived": ["user"]}, "derived", "give a pyarrow schema"),
        ({"right": SourceColumns(SOURCE)}, "right", "the pipeline has one input: leave it out"),
    ],
)
def test_columns_that_are_none_are_refused(given: dict[str, Any], field: str, remedy: str) -> None:
    with pytest.raises(IllegalArgument, match=rf"(?s)^{field} = .*: .*{remedy}"):
        PipelineHarness(**{"pipeline": pipeline(), "source": SOURCE, **given})


def test_a_column_that_a_row_leaves_out_is_null() -> None:
    harness = PipelineHarness(pipeline(), SOURCE)
    harness.commit([{"user": "ann", "at": NOON, "amount": 3}, {"user": "ann", "at": NOON}, {"at": NOON}], NOON)
    harness.run()
    (window,) = harness.state()
    assert (window["acc_n"], window["acc_sum"]) == (2, 3)
    assert harness.rejected() == [{"user": None, "at": NOON, "amount": None, "shop": None, "reason": "null_key"}]

    backfill = PipelineHarness(pipeline(), SOURCE)
    backfill.backfill([{"user": "ann", "at": NOON}], NOON, NOON + minutes(20))
    assert [(row["n"], row["sum"]) for row in backfill.final()] == [(1, None)]
    with pytest.raises(IllegalArgument, match="no column 'usr'"):
        backfill.backfill([{"usr": "ann"}], NOON + minutes(20), NOON + minutes(40))


def random_commits(seed: int, count: int = 20) -> list[list[dict[str, Any]]]:
    draw = random.Random(seed)
    return [
        [
            row(draw.choice("abcd"), number * 2 + draw.uniform(-12, 2), draw.randrange(100))
            for _ in range(draw.randrange(6))
        ]
        for number in range(count)
    ]


def played(compute: Windows | None, commits: list[list[dict[str, Any]]], cuts: set[int], parallelism: int) -> Any:
    harness = PipelineHarness(pipeline(compute), SOURCE)
    for number, rows in enumerate(commits):
        harness.commit(rows, NOON + minutes(number * 2))
        if number in cuts:
            harness.run(parallelism)
    harness.run(parallelism)
    harness.pass_time(NOON + minutes(200))
    hidden = {"epoch", "emitted_at"}
    tables = harness.results(), harness.late(), harness.state()
    counts = {name: harness.counters[name] for name in ("usable", "on_time", "late", "open_windows")}
    return [
        sorted(str({k: v for k, v in each.items() if k not in hidden}) for each in table) for table in tables
    ], counts


@pytest.mark.first(4)
@pytest.mark.parametrize(
    "compute",
    [
        None,
        Windows(TumblingEventTimeWindows.of(minutes(10)), allowed_lateness=minutes(3), aggregate=AGGREGATES),
        Windows(
            EventTimeSessionWindows.with_gap(minutes(6)),
            AfterWatermark(early=AfterCount(2), late=AfterCount(2)),
            allowed_lateness=minutes(9),
            aggregate=AGGREGATES,
        ),
        Windows(TumblingProcessingTimeWindows.of(minutes(7)), aggregate=AGGREGATES),
    ],
    ids=["sessions", "tumbling", "row operator", "processing time"],
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_neither_cuts_nor_parallelism_change_anything(compute: Windows | None, seed: int) -> None:
    commits = random_commits(seed)
    at_once = played(compute, commits, set(), 1)
    assert played(compute, commits, set(range(20)), 1) == at_once
    assert played(compute, commits, {3, 4, 11}, 3) == at_once


def test_a_late_row_is_kept_with_its_reason_and_all_its_columns() -> None:
    harness = PipelineHarness(pipeline(), SOURCE)
    harness.commit([row("ann", 0), row("bob", 60)], NOON + minutes(60))
    harness.commit([row("ann", 1, shop="corner")], NOON + minutes(61))
    harness.run()
    (late,) = harness.late()
    assert (late["user"], late["shop"], late["reason"]) == ("ann", "corner", "late")
    assert harness.counters["usable"] == harness.counters["on_time"] + harness.counters["late"] == 3


def test_rows_that_can_not_be_used_are_rejected_with_the_reason() -> None:
    harness = PipelineHarness(pipeline(), SOURCE)
    ancient = {**row("ann", 0), "at": datetime(1969, 12, 31, tzinfo=UTC)}
    harness.commit([row(None, 0), row("ann", None), ancient, row("ann", 60 * 25), row("ann", 0)], NOON)
    harness.run()
    reasons = [rejected["reason"] for rejected in harness.rejected()]
    assert reasons == [rejects.NULL_KEY, rejects.NULL_TIMESTAMP, rejects.BEFORE, rejects.AHEAD]
    assert (harness.counters["rejected"], harness.counters["usable"]) == (4, 1)


def test_the_last_window_fires_when_time_goes_on_without_data() -> None:
    generator = WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(minutes(5), minutes(10), minutes(1))
    harness = PipelineHarness(pipeline(watermark=generator), SOURCE)
    harness.commit([row("ann", 0)], NOON)
    harness.run()
    assert harness.final() == []
    harness.pass_time(NOON + minutes(40))
    assert [window["user"] for window in harness.final()] == ["ann"]


def test_a_part_of_a_commit_moves_neither_watermark_nor_late_panes() -> None:
    harness = PipelineHarness(pipeline(), SOURCE)
    harness.commit([row("bob", 60)], NOON + minutes(60), complete=False)
    harness.run()
    before = harness.watermark
    harness.commit([row("ann", 0)], NOON + minutes(60))
    harness.run()
    assert harness.late() == []
    assert before < harness.watermark


def test_an_idle_partition_holds_nobody_up() -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(minutes(5)).with_idleness(minutes(10))
    harness = PipelineHarness(pipeline(watermark=strategy, watermark_by="shop"), SOURCE)
    harness.commit([row("ann", 0, shop="x"), row("ann", 0, shop="y")], NOON)
    for minute in (20, 40, 60):
        harness.commit([row("bob", minute, shop="x")], NOON + minutes(minute))
    harness.run()
    assert [window["user"] for window in harness.final()] == ["ann", "bob", "bob"]


def test_a_backfill_in_event_order_gives_the_final_windows_of_the_stream() -> None:
    tumbling = Windows(TumblingEventTimeWindows.of(minutes(10)), aggregate=AGGREGATES)
    rows = [each for commit in random_commits(4) for each in commit]
    backfill, stream = (PipelineHarness(pipeline(tumbling), SOURCE) for _ in range(2))
    for start, end in ((-20, 17), (17, 30), (30, 80)):
        backfill.backfill(rows, NOON + minutes(start), NOON + minutes(end), parallelism=2)
    stream.commit(rows, NOON + minutes(100))
    stream.commit([row("zoe", 95)], NOON + minutes(101))
    stream.run()
    kept = ("user", "window_start", "window_end", "n", "sum")
    assert [[each[name] for name in kept] for each in backfill.final()] == [
        [each[name] for name in kept] for each in stream.final()
    ]


def test_keys_of_numbers_are_in_their_order_with_zero_and_null() -> None:
    made = pipeline(
        key=("amount",),
        null_keys="keep",
        compute=Windows(TumblingEventTimeWindows.of(minutes(10)), aggregate={"n": Count()}),
    )
    harness = PipelineHarness(made, SOURCE)
    harness.backfill([row("ann", 1, amount) for amount in (1, 0, -1, None)], NOON, NOON + minutes(10))  # type: ignore[arg-type]
    assert [each["amount"] for each in harness.final()] == [None, -1, 0, 1]


def test_a_backfill_rejects_a_row_without_a_time_once_and_takes_rows_that_came_for_the_past() -> None:
    harness = PipelineHarness(pipeline(), SOURCE)
    rows = [row("ann", 1), row("ann", None)]
    harness.backfill(rows, NOON, NOON + minutes(30))
    harness.backfill([*rows, row(None, 0), row("ann", 2)], NOON + minutes(30), NOON + minutes(60))
    assert [each["reason"] for each in harness.rejected()] == [rejects.NULL_TIMESTAMP, rejects.NULL_KEY]
    assert [each["at"] for each in harness.late()] == [NOON + minutes(2)]
    assert (harness.counters["usable"], harness.counters["rejected"]) == (2, 2)


def test_an_interval_that_leaves_a_gap_is_refused() -> None:
    harness = PipelineHarness(pipeline(), SOURCE)
    harness.backfill([row("ann", 1)], NOON, NOON + minutes(10))
    with pytest.raises(IllegalArgument, match="begin there"):
        harness.backfill([], NOON + minutes(11), NOON + minutes(20))


class Doubles(ProcessWindowFunction):
    """Emits the doubled amounts of a window and their day."""

    result_type = pa.struct([("seen", pa.string())])

    def process(self, key: Any, ctx: Any, elements: Any) -> list[dict[str, Any]]:
        return [{"seen": f"{sorted(each['double'] for each in elements)} {elements[0]['day']}"}]


def test_sql_is_evaluated_as_the_tasks_do() -> None:
    made = pipeline(
        where="amount > 0 and lower(user) <> 'eve'",
        columns={"user": "upper(user)", "double": "amount * 2", "day": "cast(at as date)"},
        uses=("double", "day", "amount"),
        compute=Windows(TumblingEventTimeWindows.of(minutes(60)), process=Doubles()),
    )
    harness = PipelineHarness(made, SOURCE)
    harness.commit([row("ann", 0, -5), row("ann", 1, 5), row("Eve", 1, 9), {"user": "bob", "at": None}], NOON)
    harness.commit([row("ann", 3, 7)], NOON + minutes(3))
    harness.commit([row("zoe", 300, 1)], NOON + minutes(300))
    harness.run()
    assert (harness.counters["filtered"], harness.counters["usable"]) == (3, 3)
    assert [(each["user"], each["seen"]) for each in harness.final()] == [("ANN", f"[10, 14] {NOON:%Y-%m-%d}")]


def test_sql_that_a_backfill_reads_and_dropped_rows_that_move_the_watermark() -> None:
    harness = PipelineHarness(pipeline(where="amount > 0", watermark_from="all"), SOURCE)
    harness.commit([row("ann", 0, 5), row("ann", 200, -1)], NOON + minutes(200))
    harness.run()
    assert [each["user"] for each in harness.final()] == ["ann"]
    backfilled = PipelineHarness(pipeline(where="amount > 0"), SOURCE)
    backfilled.backfill([row("ann", 0, 5), row("bob", 1, -5)], NOON, NOON + minutes(120))
    assert {each["user"] for each in backfilled.results()} == {"ann"}


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"where": "hash(amount) > 0"}, "where"), ({"columns": {"coin": "hash(amount)"}}, r"columns\['coin'\]")],
)
def test_sql_that_is_left_to_spark_needs_a_stand_in(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(IllegalArgument, match=rf"{field} = 'hash\(amount\).*the function hash is not proven.*derive="):
        PipelineHarness(pipeline(**settings), SOURCE)
    positive = pipeline(where="amount > 0 and hash(amount) <> 0", columns={"double": "amount * 2"})

    def derive(row: dict[str, Any]) -> dict[str, Any] | None:
        return {**row, "double": row["amount"] * 2} if row["amount"] > 0 else None

    harness = PipelineHarness(positive, SOURCE, SOURCE.append(pa.field("double", pa.int64())), derive)
    harness.commit([row("ann", 0, -5), row("ann", 1, 5)], NOON)
    harness.run()
    assert (harness.counters["filtered"], harness.counters["usable"]) == (1, 1)


def test_a_pipeline_that_does_not_fit_its_source_is_refused_as_before_a_run() -> None:
    with pytest.raises(Refused, match="customer"):
        PipelineHarness(pipeline(key=("customer",)), SOURCE)


def test_the_example_of_the_module_holds() -> None:
    assert doctest.testmod(tidegate.pipelines.project.harness).failed == 0


def test_the_harness_starts_no_jvm_and_loads_no_spark() -> None:
    code = "import sys, tidegate.pipelines.testing; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
