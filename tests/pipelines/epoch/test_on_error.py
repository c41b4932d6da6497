"""With `on_error="reject"` a row for which user code raises goes to table rejects, and the others are computed."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lake import EVENTS, LOCAL, Lake, Row, at, hourly_pipeline, windows_of
from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.definition import rejects, results
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.epoch.observer import unobserved
from tidegate.pipelines.epoch.user_code import LONGEST_TEXT, MOST_PER_KEY
from tidegate.pipelines.errors import Refused, TidegateError, UserCodeFailed
from tidegate.pipelines.run.drive import drive
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import (
    Aggregate,
    AggregateFunction,
    Count,
    CountTrigger,
    EventTimeSessionWindows,
    IntervalJoin,
    KeyedProcess,
    KeyedProcessFunction,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    VectorisedAggregate,
    Windows,
)
from tidegate.windowing.columnar import OperatorChoice
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.state import ValueStateDescriptor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR = timedelta(hours=1)
BAD = (3, 4)
"""Values for which the code of these tests raises."""


def checked(value: int) -> int:
    if value in BAD:
        raise ValueError(f"{value} is bad")
    return value


class TotalFunction(AggregateFunction):
    """The sum of the values; which total is not allowed depends on the elements before."""

    accumulator_type = pa.int64()
    result_type = pa.int64()
    sees_order = False

    def __init__(self, forbidden: int | None = None) -> None:
        self.forbidden = forbidden

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        total = accumulator + checked(value["value"])
        if total == self.forbidden:
            raise KeyError(total)
        return total

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def get_result(self, accumulator: int) -> int:
        return accumulator


class ArraysFunction(TotalFunction, VectorisedAggregate):
    """The same in arrays, which raise an error for all rows of an epoch together."""

    def accumulate(self, columns: Any, timestamps: Any, groups: Any) -> pa.Array:
        values = columns["value"].to_numpy()
        for value in values.tolist():
            checked(value)
        return pa.array(groups.sum(values))

    def combine(self, accumulators: pa.Array, groups: Any) -> pa.Array:
        return pa.array(groups.sum(accumulators.to_numpy()))

    def finish(self, accumulators: pa.Array) -> pa.Array:
        return accumulators


@dataclass(frozen=True)
class Total(Aggregate):
    """The sum of a column, in elements or in arrays."""

    forbidden: int | None = None
    in_arrays: bool = False

    def bind(self, schema: pa.Schema) -> AggregateFunction:
        return ArraysFunction(self.forbidden) if self.in_arrays else TotalFunction(self.forbidden)

    @property
    def columns(self) -> tuple[str, ...]:
        return ("value",)


class Running(KeyedProcessFunction):
    """The running sum of a key, and the sum at each full hour."""

    result_type = pa.struct([("total", pa.int64())])
    total = ValueStateDescriptor("total", pa.int64())

    def states(self) -> list[Any]:
        return [self.total]

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        state = ctx.get_state(self.total)
        total = (state.value() or 0) + value["value"]
        # What a failed call changed and yielded must not stay.
        state.update(total)
        ctx.timer_service().register_event_time_timer(ctx.timestamp + 60_000)
        yield {"total": total}
        checked(value["value"])

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield {"total": -ctx.get_state(self.total).value()}


AGGREGATES = {
    "elements": lambda forbidden=None: {"n": Count(), "total": Total(forbidden)},
    "arrays": lambda forbidden=None: {"n": Count(), "total": Total(forbidden, in_arrays=True)},
}
WINDOWS: dict[str, Callable[[Any], Windows]] = {
    "hours": lambda given: Windows(TumblingEventTimeWindows.of(HOUR), aggregate=given),
    "late": lambda given: Windows(TumblingEventTimeWindows.of(HOUR), aggregate=given, allowed_lateness=2 * HOUR),
    "sliding": lambda given: Windows(SlidingEventTimeWindows.of(HOUR, HOUR / 2), aggregate=given),
    "sessions": lambda given: Windows(EventTimeSessionWindows.with_gap(HOUR / 2), aggregate=given),
    "counted": lambda given: Windows(TumblingEventTimeWindows.of(HOUR), CountTrigger(2), aggregate=given),
}


def rejecting(compute: Any, **options: Any) -> Pipeline:
    return hourly_pipeline(compute=compute, on_error="reject", **options)


EVENT = st.tuples(st.sampled_from("abcd"), st.integers(0, 360), st.integers(0, 5))
COMMITS = st.lists(st.lists(EVENT, min_size=1, max_size=8), min_size=1, max_size=5)


def rows_of(commits: list[list[tuple[str, int, int]]]) -> list[list[Row]]:
    return [
        [(user, at("00:00") + timedelta(minutes=minute), value) for user, minute, value in each] for each in commits
    ]


def told(lake: Lake, pipeline: Pipeline) -> Any:
    """Return what a run left: results, late rows and rejects, without what the division into epochs may change."""
    found = lake.rows(pipeline, results.NAME)
    if results.has_panes(found.schema):
        shown = windows_of(lake.latest(pipeline)).to_dict("records")
    else:
        shown = sorted(map(repr, found.select(["user", "event_time", "total"]).to_pylist()))
    late = sorted(map(repr, lake.rows(pipeline, "late").select(EVENTS.names).to_pylist()))
    wrong = lake.rows(pipeline, rejects.NAME).select([*EVENTS.names, "reason", "error"])
    return shown, late, sorted(map(repr, wrong.to_pylist()))


def check_conserved(lake: Lake, pipeline: Pipeline) -> None:
    """Check the law of conservation for each epoch, and compare its counters with the tables."""
    assert lake.project(pipeline).quality.check(pipeline.name).success
    for row in lake.rows(pipeline, "epochs").to_pylist():
        fates = [row[name] for name in ("on_time", "late", "no_window", "rejected", "dropped")]
        assert sum(fates) == row["events_in"], row


def run(commits: list[list[Row]], pipeline: Pipeline, how: str = "at once") -> Any:
    """Run a pipeline over commits as one or several epochs, and return what it left."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        if how in ("each commit", "restored"):
            for rows in commits:
                lake.append(*rows)
                lake.stream(LOCAL, pipeline)
        else:
            for rows in commits:
                lake.append(*rows)
            if how == "backfill":
                lake.backfill(LOCAL, pipeline, at("00:00"), at("00:00", 1), "3h")
            elif how == "commit by commit":
                lake.stream(LOCAL, pipeline, commits=1)
            else:
                lake.stream(LOCAL, pipeline)
        if how == "restored" and len(commits) > 1:
            lake.project(pipeline).restore(pipeline.name, 1)
            lake.stream(LOCAL, pipeline)
        check_conserved(lake, pipeline)
        return told(lake, pipeline)


def compute_of(windows: str, aggregate: str, forbidden: int | None = None) -> Any:
    if windows == "process":
        return KeyedProcess(Running(), time_sorted=False)
    return WINDOWS[windows](AGGREGATES[aggregate](forbidden))


def harness_run(commits: list[list[Row]], pipeline: Pipeline, cuts: Iterable[bool], parallelism: int = 1) -> Any:
    """Run the commits through a harness as epochs that end where a cut is; no cuts at all mean a backfill."""
    harness, cuts = PipelineHarness(pipeline, EVENTS), list(cuts)
    rows = [[dict(zip(EVENTS.names, row, strict=True)) for row in each] for each in commits]
    if not cuts:
        harness.backfill(
            [row for each in rows for row in each], at("00:00"), at("00:00", 1), at("00:00", 1), parallelism
        )
    for number, (each, is_cut) in enumerate(zip(rows, cuts, strict=False)):
        harness.commit(each, at("10:00") + timedelta(minutes=number))
        if is_cut or number == len(rows) - 1:
            harness.run(parallelism)
    assert harness.counters["rejected"] == len(harness.rejected())
    fates = ("on_time", "late", "no_window", "rejected", "filtered")
    assert sum(harness.counters[name] for name in fates) == sum(map(len, rows))
    kept = ("user", "window_start", "window_end", "event_time", "n", "total")
    shown = harness.latest() if isinstance(pipeline.compute, Windows) else harness.results()
    return (
        sorted(repr([row.get(name) for name in kept]) for row in shown),
        sorted(repr([row[name] for name in EVENTS.names]) for row in harness.late()),
        sorted(repr([row[name] for name in (*EVENTS.names, "reason", "error")]) for row in harness.rejected()),
    )


def of_others(found: Any, user: str) -> Any:
    return [[text for text in texts if not text.startswith(f"['{user}'")] for texts in found[:2]]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    commits=COMMITS,
    windows=st.sampled_from([*sorted(WINDOWS), "process"]),
    aggregate=st.sampled_from(sorted(AGGREGATES)),
    cuts=st.lists(st.booleans(), min_size=5, max_size=5) | st.just([]),
    parallelism=st.integers(1, 3),
)
def test_the_other_rows_give_what_they_give_without_the_rows_that_raise(
    commits: list[list[tuple[str, int, int]]], windows: str, aggregate: str, cuts: list[bool], parallelism: int
) -> None:
    rows, compute = rows_of(commits), compute_of(windows, aggregate)
    found = harness_run(rows, rejecting(compute), cuts, parallelism)
    # In the comparison these rows belong to another key, so their times still move the watermark.
    apart: list[list[Row]] = [
        [("z", time, 0) if value in BAD else (user, time, value) for user, time, value in each] for each in rows
    ]
    expected = harness_run(apart, hourly_pipeline(compute=compute), cuts)
    # A late row is late before an aggregate sees it, so it stays late whatever its value.
    late = [text for text in found[1] if not any(text.endswith(f", {bad}]") for bad in BAD)]
    assert [found[0], late] == of_others(expected, "z")
    bad = sum(value in BAD for each in rows for _, _, value in each)
    assert len(found[2]) + len(found[1]) - len(late) == bad
    assert all(text.endswith("'user_code', 'ValueError: 3 is bad']") or "4 is bad" in text for text in found[2])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    commits=COMMITS,
    windows=st.sampled_from(sorted(WINDOWS)),
    forbidden=st.integers(1, 9),
    aggregates=st.tuples(*[st.sampled_from(sorted(AGGREGATES))] * 2),
    cuts=st.tuples(*[st.lists(st.booleans(), min_size=5, max_size=5)] * 2),
)
def test_errors_that_depend_on_earlier_rows_are_the_same_however_epochs_are_cut(
    commits: list[list[tuple[str, int, int]]],
    windows: str,
    forbidden: int,
    aggregates: tuple[str, str],
    cuts: tuple[list[bool], list[bool]],
) -> None:
    once, again = (
        harness_run(rows_of(commits), rejecting(compute_of(windows, aggregate, forbidden)), cut, number + 1)
        for number, (aggregate, cut) in enumerate(zip(aggregates, cuts, strict=True))
    )
    assert once == again


ROWS: list[list[Row]] = [
    [("ann", at("00:10"), 1), ("ann", at("00:20"), 3), ("bob", at("00:30"), 4), ("bob", at("00:40"), 4)],
    [("ann", at("00:15"), 2), ("cid", at("02:30"), 5)],
    [("bob", at("03:00"), 3), ("cid", at("04:00"), 1), ("ann", at("00:50"), 1)],
    [("ann", at("08:00"), 1)],
]


@pytest.mark.first(2)
@pytest.mark.parametrize("how", ["restored", "backfill", "at once", "commit by commit", "each commit"])
def test_a_run_counts_each_row_once_and_its_tables_agree(how: str) -> None:
    shown, late, wrong = run(ROWS, rejecting(compute_of("hours", "elements")), how)
    assert [(row["user"], row["total"]) for row in shown][:1] == [("ann", 4 if how == "backfill" else 3)]
    assert len(late) == (0 if how == "backfill" else 1)
    assert [text.split("'reason': ")[1] for text in wrong] == [
        "'user_code', 'error': 'ValueError: 3 is bad'}",
        *["'user_code', 'error': 'ValueError: 4 is bad'}"] * 2,
        "'user_code', 'error': 'ValueError: 3 is bad'}",
    ]


def test_table_rejects_names_row_file_and_version_of_a_row_that_raises(lake: Lake) -> None:
    pipeline = rejecting(compute_of("hours", "elements"))
    lake.append((None, at("00:05"), 7))
    for rows in ROWS:
        lake.append(*rows)
    lake.stream(LOCAL, pipeline)
    found = lake.rows(pipeline, rejects.NAME).to_pylist()
    assert {row["value"] for row in found if row["origin"] is None} == {7}, "which no code rejected"
    for row in found:
        if row["reason"] == rejects.USER_CODE:
            origin = re.fullmatch(
                r"row (\d+) \(the first is 0\) of file (.*) in version (\d+) of source .*", row["origin"]
            )
            assert origin is not None
            place, file, version = origin.groups()
            read = pq.read_table(Path(lake.path("events"), file)).to_pylist()[int(place)]
            assert {name: row[name] for name in EVENTS.names} == {name: read[name] for name in EVENTS.names}
            assert (row["user"], row["at"].replace(tzinfo=None), row["value"]) in [
                (user, time.replace(tzinfo=None), value) for user, time, value in ROWS[int(version) - 1]
            ]


def test_rows_that_raise_are_left_to_checks_that_can_not_know_them(lake: Lake) -> None:
    pipeline = rejecting(compute_of("hours", "elements"))
    lake.append(("ann", at("00:10"), 1), ("cid", at("03:00"), 1))
    lake.stream(LOCAL, pipeline)
    project = lake.project(pipeline)
    whole = project.verify(pipeline.name, sample=1.0)
    assert (whole.success, whole.windows > 0, whole.unverifiable) == (True, True, 0)
    lake.append(("ann", at("03:20"), 3), ("cid", at("09:00"), 1), ("bob", at("00:01"), 1))
    lake.stream(LOCAL, pipeline)
    verified = project.verify(pipeline.name, sample=1.0)
    assert verified.success
    assert verified.unverifiable
    assert "rejected rows for which its code raised an error" in str(verified.why_unverifiable)
    with pytest.raises(Refused, match="rejected rows for which its code raised an error"):
        project.trace(pipeline.name, ("ann",))
    with pytest.raises(Refused, match="late rows of pipeline 'hours' can't be reopened: it has on_error = 'reject'"):
        lake.reopen(LOCAL, pipeline)
    # Code without the setting would add the rejected row to the window that it recomputes.
    other_code = hourly_pipeline(compute=pipeline.compute)
    assert "can't be reopened" in str(lake.project(other_code).why("hours", key=("bob",)))
    with pytest.raises(Refused, match="it has rejected rows for which its code raised an error"):
        lake.reopen(LOCAL, other_code)


class OfWindow(ProcessWindowFunction):
    """A function that fails for a window."""

    result_type = pa.struct([("n", pa.int64())])

    def process(self, key: Any, ctx: Any, elements: Iterable[Any]) -> list[Any]:
        return [{"n": 1 // 0}]


class Away(TotalFunction):
    """An aggregate that reads a file."""

    def add(self, value: Any, accumulator: int) -> int:
        raise OSError("the disk was away")


@dataclass(frozen=True)
class Disk(Total):
    """Its column."""

    def bind(self, schema: pa.Schema) -> AggregateFunction:
        return Away()


def test_errors_of_no_single_row_and_of_the_machine_stop_the_run(lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1), ("ann", at("03:00"), 1))
    hours = TumblingEventTimeWindows.of(HOUR)
    for trigger in (None, CountTrigger(1)):
        with pytest.raises(UserCodeFailed, match=r"No single row is at fault, so on_error = 'reject' has none to"):
            lake.stream(LOCAL, rejecting(Windows(hours, trigger, process=OfWindow())))
    with pytest.raises(TidegateError, match="OSError: the disk was away") as failed:
        lake.stream(LOCAL, rejecting(Windows(hours, aggregate={"total": Disk()})))
    assert not isinstance(failed.value, UserCodeFailed)


def test_code_that_raises_for_every_row_of_a_key_stops_the_run() -> None:
    harness = PipelineHarness(rejecting(compute_of("hours", "elements")), EVENTS)
    row = {"user": "ann", "at": at("00:10"), "value": 3}
    harness.commit([row] * MOST_PER_KEY, at("01:00"))
    harness.run()
    assert len(harness.rejected()) == MOST_PER_KEY
    harness.commit([row] * (MOST_PER_KEY + 1), at("01:00"))
    with pytest.raises(UserCodeFailed, match=r"for more than 1,000 rows of the key, so they are not rejected"):
        harness.run()


def test_a_long_error_is_cut_and_any_text_is_kept() -> None:
    @dataclass(frozen=True)
    class Odd(Total):
        def bind(self, schema: pa.Schema) -> AggregateFunction:
            class Function(TotalFunction):
                def add(self, value: Any, accumulator: int) -> int:
                    raise ValueError("\ud800" + "x\n" * 9999)

            return Function()

    harness = PipelineHarness(rejecting(Windows(TumblingEventTimeWindows.of(HOUR), aggregate={"total": Odd()})), EVENTS)
    harness.commit([{"user": "ann", "at": at("00:10"), "value": 1}], at("01:00"))
    harness.run()
    (rejected,) = harness.rejected()
    assert rejected["error"].startswith("ValueError: ?x x x")
    assert len(rejected["error"]) == LONGEST_TEXT + 3


def test_it_is_refused_where_an_error_is_not_that_of_one_row() -> None:
    for options, said in (
        ({"on_error": "skip"}, "on_error = 'skip': give 'stop' or 'reject'"),
        ({"compute": KeyedProcess(Running())}, "time_sorted=False"),
        ({"source": DeltaSource("events", timestamp="at", changes="correct")}, "the pipeline has on_error = 'reject'"),
    ):
        with pytest.raises(IllegalArgument, match=said):
            replace(rejecting(compute_of("hours", "elements")), **options)
    right = Input(source=DeltaSource("other", timestamp="at"))
    with pytest.raises(IllegalArgument, match="IntervalJoin has two inputs"):
        rejecting(IntervalJoin.between(-HOUR, HOUR), right=right)


def test_metrics_name_the_operator_that_computes(lake: Lake) -> None:
    named: list[bool] = []

    def observe(config: Config, name: str, operator: OperatorChoice, clock: Callable[[], int]) -> Any:
        named.append(operator.columnar)
        return unobserved(config, name, operator, clock)

    for pipeline in (hourly_pipeline(), hourly_pipeline(on_error="reject")):
        with drive(lake.config, pipeline, "test", engine=LOCAL, observe=observe):
            pass
    assert named == [True, False]


def test_explain_says_how_elements_are_computed(lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1))
    pipeline = rejecting(compute_of("hours", "arrays"))
    text = str(lake.project(pipeline).explain(pipeline.name).to_dict())
    assert "an error of your code must be that of one element" in text
    assert "if your code raises an error for a row, set it aside (table rejects)" in text


@pytest.mark.first(1)
@pytest.mark.spark
@pytest.mark.parametrize("where", [None, "xxhash64(value) is not null"], ids=["read by tasks", "read by Spark"])
def test_spark_rejects_the_same_rows(spark: SparkSession, tmp_path: Path, where: str | None) -> None:
    found = []
    for engine in (LOCAL, spark):
        pipeline = rejecting(compute_of("hours", "elements"), parallelism=3, where=None if engine is LOCAL else where)
        lake = Lake(tmp_path / type(engine).__name__)
        lake.folder.mkdir()
        for rows in ROWS:
            lake.append(*rows)
        lake.stream(engine, pipeline)
        check_conserved(lake, pipeline)
        found.append(told(lake, pipeline))
    assert found[0] == found[1]
    assert len(found[0][2]) == 4
