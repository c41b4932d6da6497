"""A pipeline reports at creation what it would lose or ignore, and table epochs counts what no pane included."""

from __future__ import annotations

import warnings
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.definition import epochs
from tidegate.pipelines.definition.counters import OF_TASKS
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import (
    AfterCount,
    AfterWatermark,
    Count,
    CountTrigger,
    EventTimeSessionWindows,
    GapColumn,
    IntervalJoin,
    KeyedProcessFunction,
    Max,
    Repeatedly,
    Sum,
    TumblingEventTimeWindows,
    Variance,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.errors import IllegalArgument, LostElementsWarning
from tidegate.windowing.triggers import AfterAny, Trigger

SOURCE = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("n", pa.int64())])
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()


def pipeline(trigger: Trigger | None, lateness: int = 0, **fields: Any) -> Pipeline:
    windows = Windows(TumblingEventTimeWindows.of(10), trigger, allowed_lateness=lateness, aggregate={"n": Count()})
    given: dict[str, Any] = {"watermark": MONOTONOUS, "compute": windows, **fields}
    return Pipeline(name="p", source=DeltaSource("events", timestamp="at", unit="ms"), key=("user",), **given)


@pytest.mark.parametrize(
    ("trigger", "lateness"), [(AfterCount(1), 0), (AfterWatermark(late=None), 5), (CountTrigger.of(3), 0)]
)
def test_a_trigger_that_may_lose_elements_is_told_when_the_pipeline_is_made(trigger: Trigger, lateness: int) -> None:
    with pytest.warns(LostElementsWarning, match=r"pipeline 'p': windows with .* may lose elements"):
        pipeline(trigger, lateness)


@pytest.mark.parametrize(
    "trigger", [None, AfterWatermark(early=AfterCount(5)), Repeatedly(AfterAny.of(AfterCount(5), AfterWatermark()))]
)
def test_the_triggers_that_the_warning_advises_are_silent(trigger: Trigger | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipeline(trigger, lateness=5)


def test_who_means_it_can_silence_the_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=LostElementsWarning)
        pipeline(AfterCount(1))


@pytest.mark.filterwarnings("ignore::tidegate.windowing.errors.LostElementsWarning")
@pytest.mark.parametrize("parallelism", [1, 3])
def test_what_no_pane_shows_is_counted_in_the_epoch_in_which_its_window_goes(parallelism: int) -> None:
    source = SOURCE.set(1, pa.field("at", pa.int64()))
    harness = PipelineHarness(pipeline(AfterCount(2)), source)
    harness.commit([{"user": user, "at": 1, "n": 0} for user in "aab"], at=1)
    harness.run(parallelism)
    assert harness.counters["never_emitted"] == 0
    harness.commit([{"user": user, "at": 2, "n": 0} for user in "aab"] + [{"user": "c", "at": 50, "n": 0}], at=2)
    harness.run(parallelism)
    # The pane includes two of ann's four elements; bob's two form one pane.
    assert harness.counters["never_emitted"] == 2
    assert harness.counters["on_time"] == 7
    assert "never_emitted" in epochs.SCHEMA.names
    assert "never_emitted" in OF_TASKS


def test_what_a_pipeline_would_ignore_of_a_watermark_strategy_is_refused() -> None:
    timed = MONOTONOUS.with_timestamp_assigner(lambda element, timestamp: 0)
    aligned = MONOTONOUS.with_watermark_alignment("group", timedelta(seconds=1))
    for strategy, remedy in ((timed, "the column source.timestamp"), (aligned, "commit by commit: leave it out")):
        with pytest.raises(IllegalArgument, match=rf"^watermark = .*{remedy}"):
            pipeline(None, watermark=strategy)
        with pytest.raises(IllegalArgument, match=rf"^right.watermark = .*{remedy}"):
            pipeline(
                None,
                compute=IntervalJoin.between(-1, 1),
                right=Input(source=DeltaSource("others", timestamp="at"), watermark=strategy),
            )


STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(minutes=1))


def by_hour(**aggregate: Any) -> Windows:
    return Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate=aggregate or {"n": Count()})


def made(**given: Any) -> Pipeline:
    fields = {"source": DeltaSource("events", timestamp="at"), "key": ("user",), "compute": by_hour()}
    return Pipeline(**{"name": "p", "watermark": STRATEGY, **fields, **given})


class Alert(KeyedProcessFunction):
    result_type = pa.struct([("degrees", pa.float64())])

    def process_element(self, value: Any, ctx: Any) -> list[Any]:
        return []


OF_AN_INPUT = [
    ("key", "user", r"give a tuple of columns: \('user',\)"),
    ("key", 5, "give a tuple of column names"),
    ("key", (1,), "give a tuple of column names"),
    ("key", (("user", "country"),), "give a tuple of column names"),
    ("key", ("user", "user"), "name each key column once"),
    ("uses", "user", r"give a tuple of columns: \('user',\)"),
    ("uses", (None,), "give a tuple of column names"),
    ("where", 5, "such as 'amount > 0', or leave it out"),
    ("where", " ", "such as 'amount > 0', or leave it out"),
    ("watermark_by", ("user",), "give the name of one column"),
    ("columns", ["value + 1 as more"], "give SQL expressions by the names"),
    ("columns", {"more": 5}, "give SQL expressions by the names"),
    ("watermark_from", "some", "give 'kept' or 'all'"),
]


@pytest.mark.parametrize(("field", "value", "remedy"), OF_AN_INPUT)
@pytest.mark.parametrize("side", ["left", "right"])
def test_what_an_input_can_not_have_is_refused_under_the_field_of_its_own_side(
    side: str, field: str, value: Any, remedy: str
) -> None:
    payments = DeltaSource("payments", timestamp="at")
    make, prefix = (made, "") if side == "left" else (partial(Input, source=payments), r"right\.")
    with pytest.raises(IllegalArgument, match=rf"^{prefix}{field} = .*{remedy}"):
        make(**{field: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"key": None}, "key = None: give a tuple of column names"),
        ({"name": None}, "name = None: use a letter from a to z"),
        ({"name": "a b"}, "name = 'a b': use a letter from a to z"),
        ({"parallelism": "4"}, "parallelism = '4': give a whole number from 1 to max_parallelism (128)"),
        ({"parallelism": 2.0}, "parallelism = 2.0: give a whole number"),
        ({"source": "events"}, "source = 'events': give a DeltaSource, such as DeltaSource('events', timestamp='at')"),
        ({"watermark": timedelta(0)}, "give a WatermarkStrategy, such as WatermarkStrategy.for_bounded"),
        ({"compute": Alert()}, "KeyedProcess(...) of this function"),
        ({"compute": Count()}, "compute = "),
        ({"null_keys": "drop"}, "null_keys = 'drop'"),
        ({"max_ahead": timedelta(days=-1)}, "max_ahead = "),
        ({"checkpoint_interval": 0}, "checkpoint_interval = 0"),
        ({"max_parallelism": 0}, "max_parallelism = 0"),
        ({"max_parallelism": 32769}, "max_parallelism = 32769"),
        ({"parallelism": 129}, "parallelism = 129"),
        ({"parallelism": 0}, "parallelism = 0"),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused_with_one_that_serves(given: dict[str, Any], message: str) -> None:
    with pytest.raises(IllegalArgument) as refused:
        made(**given)
    assert message in str(refused.value)


def test_a_zone_that_is_no_text_is_refused() -> None:
    with pytest.raises(IllegalArgument, match=r"source\.zone = 1: give a zone such as"):
        DeltaSource("events", timestamp="at", zone=1)  # type: ignore[arg-type]


COLUMNS = pa.schema(
    [
        ("user", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("paid at", pa.string()),
        ("day", pa.date32()),
        ("is_new", pa.bool_()),
        ("place", pa.struct([("distance", pa.int64())])),
        ("Müller's `best` price", pa.string()),
        ("net price", pa.struct([("Müller's", pa.int64())])),
    ]
)


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (Sum("paid at"), "aggregate['x'], Sum.column = 'paid at': it has type string, which is not a number: "),
        (Sum("paid at"), "columns={'number': 'try_cast(`paid at` as decimal(18, 2))'}"),
        (Variance("day"), "Variance.column = 'day': it has type date, which is not a number: derive one"),
        (Variance("day"), "columns={'days': 'unix_date(`day`)'}"),
        (Sum("Müller's `best` price"), """"try_cast(`Müller's ``best`` price` as decimal(18, 2))"}"""),
        (Sum("net price.Müller's"), """columns={"Müller's": "`net price`.`Müller's`"}"""),
        (Sum("is_new"), "use CountIf, which counts true values"),
        (Sum("place.distance"), "columns={'distance': 'place.distance'}"),
        (Sum("place"), "it has type struct<distance: bigint>, which is not a number: derive one in columns="),
        (Max("place"), "which has no order: use one of its values, derived in columns="),
        (Sum("User"), "did you mean 'user'? It has ['user', "),
    ],
)
def test_an_aggregate_that_a_column_can_not_serve_is_named_with_the_way_out(aggregate: Any, message: str) -> None:
    with pytest.raises(Exception, match="column") as refused:
        PipelineHarness(made(compute=by_hour(x=aggregate)), COLUMNS)
    assert message in str(refused.value)


@pytest.mark.parametrize("kind", [pa.string(), pa.float64(), pa.decimal128(9, 0), pa.duration("ms")], ids=str)
def test_a_column_of_gaps_that_holds_no_whole_numbers_is_refused_before_a_run(kind: pa.DataType) -> None:
    sessions = EventTimeSessionWindows.with_dynamic_gap(GapColumn("longest wait"))
    value = made(compute=Windows(sessions, aggregate={"n": Count()}))
    with pytest.raises(IllegalArgument, match=r"compute\.assigner.gap_of = 'longest wait': it has type") as refused:
        PipelineHarness(value, COLUMNS.append(pa.field("longest wait", kind)))
    assert "columns={'gap': 'try_cast(`longest wait` as bigint)'} and GapColumn('gap')" in str(refused.value)
    for whole in (pa.int32(), pa.int64()):
        PipelineHarness(value, COLUMNS.append(pa.field("longest wait", whole)))


def test_the_way_out_of_a_struct_serves() -> None:
    derived = made(columns={"distance": "place.distance"}, compute=by_hour(x=Sum("distance")))
    harness = PipelineHarness(
        derived,
        COLUMNS,
        COLUMNS.append(pa.field("distance", pa.int64())),
        lambda row: {**row, "distance": row["place"]["distance"]},
    )
    row = {"user": "ann", "at": None, "paid at": None, "day": date(2024, 5, 1), "is_new": True}
    harness.backfill([{**row, "at": _at(0), "place": {"distance": 7}}], _at(0), _at(2))
    assert [result["x"] for result in harness.final()] == [7]


def _at(hour: int) -> datetime:

    return datetime(2024, 5, 1, hour, tzinfo=UTC)
