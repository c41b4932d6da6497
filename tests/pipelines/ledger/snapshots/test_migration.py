"""New code over an old snapshot: what is migrated, what is refused, and what is dropped on request."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import EVENTS, at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.compatibility import check_restorable, compare, ready
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL
from tidegate.windowing import Accumulation, Aggregate, Count, CountEvictor, Max, Mean, Min, Sum, Windows

HOUR = timedelta(hours=1)
OLD: dict[str, Aggregate] = {"events": Count(), "total": Sum("value")}
NEW: dict[str, Aggregate] = {**OLD, "largest": Max("value")}


def with_aggregates(pipeline: Pipeline, aggregate: dict[str, Aggregate], **options: Any) -> Pipeline:
    """The pipeline with different aggregates."""
    assert isinstance(pipeline.compute, Windows)
    return replace(pipeline, compute=replace(pipeline.compute, aggregate=aggregate), **options)


def changes_to(by_hand: ByHand, pipeline: Pipeline) -> None:
    """From here on the epochs run this code, as a driver would start with it."""
    by_hand.pipeline = pipeline
    ready(by_hand.tables, bind(pipeline, EVENTS, EVENTS), by_hand.head())


def windows(by_hand: ByHand, *columns: str) -> list[tuple[Any, ...]]:
    """Return the emitted windows, with their start and some columns."""
    rows = [row for row in by_hand.rows("results").to_pylist() if row["op"] == "+"]
    return sorted((row["user"], row["window_start"], *(row[name] for name in columns)) for row in rows)


@pytest.mark.first(2)
@pytest.mark.parametrize("make", [hourly_pipeline, session_pipeline])
@pytest.mark.parametrize("parallelism", [2, 3])
def test_an_added_aggregate_is_null_for_windows_that_were_open_and_computed_for_new_ones(
    tmp_path, make, parallelism: int
) -> None:
    by_hand = ByHand(tmp_path, make())
    by_hand.epoch(("ann", at("10:00"), 1), ("bob", at("08:00"), 2), watermark=at("09:30"))
    changes_to(by_hand, with_aggregates(make(), NEW))
    by_hand.parallelism = parallelism
    by_hand.epoch(("ann", at("10:10"), 5), ("ann", at("13:00"), 7), watermark=at("15:00"))
    assert windows(by_hand, "total", "largest") == [
        ("ann", at("10:00"), 6, None),
        ("ann", at("13:00"), 7, 7),
        ("bob", at("08:00"), 2, None),
    ]
    contents = by_hand.head().manifest.schemas.contents
    assert contents.keys() == {"acc_events", "acc_total", "rest_acc_total", "acc_largest"}


@pytest.mark.parametrize(
    ("then", "now"),
    [(Accumulation.DISCARDING, Accumulation.ACCUMULATING), (Accumulation.ACCUMULATING, Accumulation.DISCARDING)],
)
def test_another_accumulation_is_refused_because_open_windows_hold_other_elements(tmp_path, then, now) -> None:
    older, newer = (
        replace(pipeline, compute=replace(pipeline.compute, accumulation=each))
        for pipeline in (hourly_pipeline(),)
        for each in (then, now)
    )
    by_hand = ByHand(tmp_path, older)
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("09:30"))
    with pytest.raises(Refused, match=f"accumulation is {then.value} in the snapshot and {now.value} in the code"):
        changes_to(by_hand, newer)
    changes_to(by_hand, older)


@pytest.mark.parametrize(("then", "now"), [(session_pipeline, hourly_pipeline), (hourly_pipeline, session_pipeline)])
def test_sessions_instead_of_other_windows_are_refused_because_sessions_may_not_overlap(tmp_path, then, now) -> None:
    by_hand = ByHand(tmp_path, then(name="hours"))
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("09:30"))
    with pytest.raises(Refused, match=r"compute.assigner: whether it forms sessions is (True|False) in the snapshot"):
        changes_to(by_hand, now(name="hours"))


def test_kept_elements_take_added_columns_and_refuse_a_changed_type_unless_it_is_cast(tmp_path) -> None:
    pipeline = hourly_pipeline()
    pipeline = replace(pipeline, compute=replace(pipeline.compute, evictor=CountEvictor.of(2)))
    by_hand = ByHand(tmp_path, pipeline)
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("09:30"))
    manifest = by_hand.head().manifest
    wider = EVENTS.insert(1, pa.field("more", pa.string()))
    (migration,) = compare(bind(pipeline, wider, wider), manifest).migrations
    assert migration == "columns that 'elements' lacks are null for elements that are already kept"
    check_restorable(bind(replace(pipeline, uses=tuple(EVENTS.names)), wider, wider), manifest)
    other = EVENTS.set(2, pa.field("value", pa.float64()))
    with pytest.raises(Refused, match=r"keeps whole elements: .*cast it to its old type under its name, columns=\{"):
        check_restorable(bind(pipeline, other, other), manifest)
    cast = replace(pipeline, columns={"value": "try_cast(value as bigint)"})
    check_restorable(bind(cast, other, EVENTS), manifest)


def test_a_shard_without_events_is_migrated_too(tmp_path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    by_hand.epoch(*((f"user{i}", at("10:00"), i) for i in range(20)), watermark=at("10:00"))
    changes_to(by_hand, with_aggregates(hourly_pipeline(), NEW))
    by_hand.epoch(("user0", at("10:30"), 9), watermark=at("10:00"))
    by_hand.epoch(watermark=at("12:00"))
    found = {row[0]: row[2:] for row in windows(by_hand, "total", "largest")}
    assert len(found) == 20
    assert (found["user0"], found["user7"]) == ((9, None), (7, None))


def test_what_a_session_put_out_is_retracted_with_the_columns_that_results_have_now(tmp_path) -> None:
    by_hand = ByHand(tmp_path, session_pipeline(allowed_lateness=2 * HOUR))
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("11:00"))
    changes_to(by_hand, with_aggregates(session_pipeline(allowed_lateness=2 * HOUR), NEW))
    by_hand.epoch(("ann", at("10:20"), 5), watermark=at("12:00"))
    rows = [row for row in by_hand.rows("results").to_pylist() if row["epoch"] == 2]
    assert [(row["op"], row["total"], row["largest"]) for row in rows] == [("-", 1, None), ("+", 6, None)]


def test_a_dropped_aggregate_is_dropped_when_asked_and_else_refused_with_the_way(tmp_path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    manifest = by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    without = with_aggregates(hourly_pipeline(), {"events": Count()})
    with pytest.raises(Refused, match=r"contents 'acc_total' is .* and absent in the code.*dropped=\('total',\)"):
        check_restorable(bind(without, EVENTS, EVENTS), manifest)
    as_in_the_snapshot = replace(without, dropped=("acc_total",))
    with pytest.raises(Refused, match=r"names 'acc_total'.*\['total'\], which .* Name 'total' instead"):
        ready(by_hand.tables, bind(as_in_the_snapshot, EVENTS, EVENTS), by_hand.head())
    other = with_aggregates(hourly_pipeline(), {"events": Count(), "total": Mean("value")})
    with pytest.raises(Refused, match=r"If the aggregate changed, give the new one another name, .*\('total',\)"):
        check_restorable(bind(other, EVENTS, EVENTS), manifest)
    asked = replace(without, dropped=("total",))
    assert compare(bind(asked, EVENTS, EVENTS), manifest).migrations == ("'total' is dropped",)
    changes_to(by_hand, asked)
    by_hand.epoch(("ann", at("10:10"), 1), watermark=at("12:00"))
    assert windows(by_hand, "events", "total") == [("ann", at("10:00"), 2, None)]
    assert compare(bind(without, EVENTS, EVENTS), by_hand.head().manifest).migrations == ()


def test_a_name_in_dropped_that_nothing_ever_had_is_refused_before_anything_is_written(tmp_path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    versions = {table: by_hand.tables.open(table).version() for table in ALL}
    without: dict[str, Aggregate] = {"events": Count()}
    misspelled = with_aggregates(hourly_pipeline(), {**without, "total": Sum("value")}, dropped=("totl",))
    with pytest.raises(Refused, match=r"dropped of pipeline 'hours' names 'totl', but neither .* nothing left to drop"):
        ready(by_hand.tables, bind(misspelled, EVENTS, EVENTS), by_hand.head())
    both = with_aggregates(hourly_pipeline(), without, dropped=("total", "totl"))
    with pytest.raises(
        Refused, match=r"names 'totl'.*the snapshot has \['total'\], which the code no longer computes. Take it out"
    ):
        ready(by_hand.tables, bind(both, EVENTS, EVENTS), by_hand.head())
    computed = with_aggregates(hourly_pipeline(), without, dropped=("total", "events"))
    with pytest.raises(Refused, match=r"names 'events', which the code still computes: take it out of dropped="):
        ready(by_hand.tables, bind(computed, EVENTS, EVENTS), by_hand.head())
    assert {table: by_hand.tables.open(table).version() for table in ALL} == versions


def test_a_name_in_dropped_may_stay_there_once_it_was_left_behind(tmp_path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    without = with_aggregates(hourly_pipeline(), {"events": Count()}, dropped=("total",))
    changes_to(by_hand, without)
    by_hand.epoch(("ann", at("10:10"), 1), watermark=at("12:00"))
    assert ready(by_hand.tables, bind(without, EVENTS, EVENTS), by_hand.head()) is not None


def test_an_added_and_a_dropped_aggregate_at_once(tmp_path) -> None:
    by_hand = ByHand(tmp_path, session_pipeline())
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    aggregate: dict[str, Aggregate] = {"events": Count(), "smallest": Min("value")}
    changes_to(by_hand, with_aggregates(session_pipeline(), aggregate, dropped=("total",)))
    by_hand.epoch(("ann", at("12:00"), 4), watermark=at("15:00"))
    assert windows(by_hand, "events", "smallest") == [("ann", at("10:00"), 1, None), ("ann", at("12:00"), 1, 4)]


@pytest.mark.first(2)
@pytest.mark.parametrize("name", ["it's", "a \\ b", 'say "so"', "'", "acc_"])
def test_an_aggregate_with_signs_in_its_name_is_added_dropped_and_named(tmp_path: Path, name: str) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    more = with_aggregates(hourly_pipeline(), {**OLD, name: Max("value")})
    changes_to(by_hand, more)
    by_hand.epoch(("ann", at("10:10"), 3), ("bob", at("12:00"), 5), watermark=at("12:00"))
    assert windows(by_hand, "total", name) == [("ann", at("10:00"), 4, None)]
    (refused,) = compare(bind(with_aggregates(more, OLD), EVENTS, EVENTS), by_hand.head().manifest).incompatibilities
    assert refused.field == f"contents {f'acc_{name}'!r}"
    changes_to(by_hand, with_aggregates(more, OLD, dropped=(name,)))
    by_hand.epoch(("bob", at("12:10"), 5), watermark=at("15:00"))
    assert windows(by_hand, "total", name)[1:] == [("bob", at("12:00"), 10, None)]


def test_another_type_of_an_aggregate_is_refused_and_named(tmp_path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    manifest = by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    other = EVENTS.set(2, pa.field("value", pa.float64()))
    with pytest.raises(Refused, match=r"contents 'acc_total' is .* in the snapshot and .* in the code"):
        check_restorable(bind(hourly_pipeline(), other, other), manifest)


def test_a_snapshot_from_before_a_migration_is_restored_and_migrated_again(tmp_path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    changes_to(by_hand, with_aggregates(hourly_pipeline(), NEW))
    before = by_hand.head()
    by_hand.epoch(("ann", at("10:10"), 5), watermark=at("12:00"))
    restore(by_hand.tables, before, 1_800_000_000_000)
    assert "acc_largest" not in by_hand.head().manifest.schemas.contents
    by_hand.epoch(("ann", at("10:20"), 8), ("ann", at("11:20"), 9), watermark=at("13:00"))
    assert windows(by_hand, "total", "largest") == [("ann", at("10:00"), 9, None), ("ann", at("11:00"), 9, 9)]


def test_tables_are_widened_once(tmp_path) -> None:
    by_hand = ByHand(tmp_path, session_pipeline())
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    schemas = bind(with_aggregates(session_pipeline(), NEW), EVENTS, EVENTS).table_schemas
    assert by_hand.tables.widen(schemas)
    assert not by_hand.tables.widen(schemas)
    place = schemas["results"].get_field_index("timing")
    wrong = {"results": schemas["results"].set(place, pa.field("timing", pa.int64()))}
    with pytest.raises(
        Refused, match=r"column 'timing' of table .*results has type .*string.*, but in the code .*long"
    ):
        by_hand.tables.widen(wrong)


@pytest.mark.parametrize(
    ("change", "field", "then", "now"),
    [
        ({"max_parallelism": 64}, "max_parallelism", 128, 64),
        ({"key": ("value",)}, "key column 'user'", "string", "absent"),
        ({"key": ("user", "value")}, "key column 'value'", "absent", "int64"),
    ],
)
def test_what_can_not_be_restored_is_refused_with_the_field_and_both_values(
    by_hand: ByHand, change: dict[str, Any], field: str, then: object, now: object
) -> None:
    manifest = by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    with pytest.raises(Refused, match=rf"{field} is {then} in the snapshot and {now} in the code.*another name"):
        check_restorable(bind(session_pipeline(**change), EVENTS, EVENTS), manifest)


def test_a_widened_key_is_another_key_because_its_hashes_differ(by_hand: ByHand) -> None:
    manifest = by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    narrow = manifest.schemas.model_copy(update={"key": {"user": "int32"}})
    widened = EVENTS.set(0, pa.field("user", pa.int64()))
    with pytest.raises(Refused, match="key column 'user' is int32 in the snapshot and int64 in the code"):
        check_restorable(bind(session_pipeline(), widened, widened), manifest.model_copy(update={"schemas": narrow}))
