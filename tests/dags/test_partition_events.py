"""Events of the final windows by partition: for which partitions, since when, and what happens with many of them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset, AssetAlias

from tests.dags.project import OutletEvents, Store, task_instance
from tidegate.pipelines.airflow.assets import WindowEvents, final_windows_asset
from tidegate.pipelines.airflow.operator import event_extra
from tidegate.pipelines.errors import QUALITY


def nothing(asset: Asset) -> Any:
    """Stands for an Airflow without events."""
    return


EVENTS = WindowEvents("duty", "day", nothing)
KEYS = ["2024-03-01T00:00:00", "2024-03-02T00:00:00"]


def context(run: str, stored: Store) -> Any:
    task = SimpleNamespace(outlets=[EVENTS.asset, EVENTS.alias])
    instance = task_instance("duty__quality", run_id=run, task=task)
    return {
        "ti": instance,
        "outlet_events": OutletEvents(),
        "params": {},
        "asset_state_store": {final_windows_asset("duty"): stored},
    }


def result(mark: int, keys: list[str] | None, count: int | None = None, is_any: bool = True) -> dict[str, Any]:
    count = len(keys or ()) if count is None else count
    named: dict[str, Any] = {
        "unit": "day",
        "count": count,
        "first": "a",
        "last": "b",
        "keys": keys,
        "mark": {"epoch": mark},
    }
    named["is_any"] = is_any
    return {"pipeline": "duty", "epoch": mark, "check_id": f"check {mark}", "partitions": named}


def tell(run: str, stored: Store, mark: int, keys: list[str] | None, count: int | None = None) -> tuple[Any, Any]:
    """Announce a result; return the events, and the line for the log."""
    given, found = context(run, stored), result(mark, keys, count)
    note = EVENTS.emit(given, found)
    return given["outlet_events"], note


def since(run: str, stored: Store) -> Any:
    arguments = EVENTS.arguments(context(run, stored))
    assert arguments[0] == "--partitions=day"
    return json.loads(arguments[1].removeprefix("--since=")) if arguments[1:] else None


def test_each_partition_has_an_event_and_one_has_none() -> None:
    events, note = tell("first", Store(), 7, KEYS)
    asset = final_windows_asset("duty")
    extra = {
        "pipeline": "duty",
        "epoch": 7,
        "check_id": "check 7",
        "partitions": {"unit": "day", "count": 2, "first": "a", "last": "b"},
    }
    assert (events[asset].keys, events[asset].extra) == (KEYS, extra)
    assert isinstance(EVENTS.alias, AssetAlias)
    assert events[EVENTS.alias].added == [(asset, extra)], "for DAGs that know no partitions"
    assert note is None


@pytest.mark.parametrize("unit", ["day", "none"])
def test_the_asset_of_the_table_has_the_event_without_a_partition(unit: Any) -> None:
    table = "s3://lake/warehouse/duty/results"
    given, found = context("first", Store()), result(7, KEYS)
    WindowEvents("duty", unit, nothing, table=table).emit(given, found)
    (_, extra) = given["outlet_events"][EVENTS.alias].added[-1]
    assert [asset.uri for asset, _ in given["outlet_events"][EVENTS.alias].added][-1] == table
    assert extra["table"] == table == given["outlet_events"][final_windows_asset("duty")].extra["table"]


def test_a_reader_of_the_table_is_not_told_while_partitions_are_held() -> None:
    given, found = context("first", Store()), result(7, KEYS)
    found["partitions"]["held"] = 1
    WindowEvents("duty", "day", nothing, hold="partitions", table="s3://a/b").emit(given, found)
    assert EVENTS.alias not in given["outlet_events"]


def test_windows_without_a_partition_have_one_event() -> None:
    events, note = tell("first", Store(), 7, [])
    assert events[final_windows_asset("duty")].keys == []
    assert EVENTS.alias not in events
    assert note is None


def test_too_many_partitions_are_in_the_log_and_in_the_event() -> None:
    events, note = tell("first", Store(), 7, None, 3653)
    asset = final_windows_asset("duty")
    assert events[asset].keys == []
    assert events[asset].extra["partitions"]["count"] == 3653
    assert note is not None
    assert "3653 partitions changed, from a to b. These are too many for one event" in note


def test_a_check_goes_on_from_what_the_readers_were_told() -> None:
    stored = Store()
    assert since("first", stored) is None
    tell("first", stored, 7, KEYS)
    assert since("second", stored) == {"epoch": 7}
    tell("second", stored, 8, [])
    assert since("third", stored) == {"epoch": 8}


@pytest.mark.parametrize("tries", [1, 2])
def test_a_task_that_is_run_again_tells_the_same_again(tries: int) -> None:
    """Its worker may have died after recording what it announced, but before the end of the task, which creates the
    events.
    """
    stored = Store()
    tell("first", stored, 7, KEYS)
    for _ in range(tries):
        tell("second", stored, 8, KEYS)
        assert since("second", stored) == {"epoch": 7}
    assert since("third", stored) == {"epoch": 8}


def test_if_no_window_changed_there_is_no_event() -> None:
    stored = Store()
    tell("first", stored, 7, KEYS)
    given, found = context("second", stored), result(8, [], is_any=False)
    note = EVENTS.emit(given, found)
    assert note == "no final window changed since the last event of duty__final_windows: no new event"
    assert given["ti"].task.outlets == [EVENTS.alias], "Airflow makes an event for each asset that is left"
    assert given["outlet_events"] == {}
    assert since("third", stored) == {"epoch": 8}


@pytest.mark.parametrize("unit", ["day", "none"])
def test_a_task_that_is_cleared_after_airflow_had_its_events_goes_on_from_them(unit: Any) -> None:
    stored, events = Store(), []
    told = WindowEvents("duty", unit, lambda asset: events[-1] if events else None)
    for run, epoch in (("first", 7), ("second", 8)):
        given, found = context(run, stored), result(epoch, KEYS)
        told.emit(given, found)
        events.append(SimpleNamespace(extra=given["outlet_events"][told.asset].extra))
    again = told.arguments(context("second", stored))
    assert again == ["--partitions=day", '--since={"epoch": 8}'], "without partitions, the mark still counts"
    events.pop()
    assert told.arguments(context("second", stored))[1] == '--since={"epoch": 7}', "these events Airflow never had"


def test_without_partitions_there_is_one_event() -> None:
    told = WindowEvents("duty", "none", nothing)
    given, found = context("first", Store()), result(7, None, 3653)
    assert told.emit(given, found) is None
    events = given["outlet_events"]
    assert (events[told.asset].keys, events[told.asset].extra) == (
        [],
        {"pipeline": "duty", "epoch": 7, "check_id": "check 7"},
    )
    assert told.alias not in events


def held(result: dict[str, Any], count: int, check: str) -> dict[str, Any]:
    """The result of another check, in which windows of some partitions fail."""
    return {**result, "check_id": check, "partitions": {**result["partitions"], "held": count}}


def test_a_reader_without_partitions_waits_for_those_that_are_held_back() -> None:
    given, found = context("first", Store()), held(result(7, KEYS), 1, "first check")
    EVENTS.emit(given, found)
    events = given["outlet_events"]
    assert (events[EVENTS.asset].keys, EVENTS.alias in events) == (KEYS, False)
    assert events[EVENTS.asset].extra["partitions"]["held"] == 1


def test_partitions_that_a_cleared_task_lets_go_are_told_again_if_its_events_were_lost() -> None:
    """The cleared task checks the same epoch as before, so events are distinguished by their check."""
    stored, events = Store(), []
    told = WindowEvents("duty", "day", lambda asset: events[-1] if events else None)
    given, found = context("first", stored), held(result(7, KEYS[:1]), 1, "first check")
    told.emit(given, found)
    events.append(SimpleNamespace(extra=given["outlet_events"][told.asset].extra))
    found = held(result(7, KEYS[1:]), 0, "second check")
    found["partitions"]["mark"] = {"epoch": 7, "held": []}
    told.emit(context("first", stored), found)
    assert told.arguments(context("first", stored))[1] == '--since={"epoch": 7}', "Airflow never had these events"
    events.append(SimpleNamespace(extra=event_extra(found)))
    assert told.arguments(context("first", stored))[1] == '--since={"epoch": 7, "held": []}'


@pytest.mark.parametrize("hold", ["asset", "partitions"])
def test_a_check_that_failed_makes_events_only_if_it_held_back_partitions(hold: Any) -> None:
    events = WindowEvents("duty", "day", nothing, hold)
    assert events.may_emit(held(result(7, KEYS), 1, "a check"), QUALITY) == (hold == "partitions")
    assert not events.may_emit({"partitions": None}, QUALITY)
    assert not events.may_emit(held(result(7, KEYS), 1, "a check"), 1), "something else failed"
    assert not events.may_emit(None, QUALITY), "the command left no result"


def test_a_run_that_announces_nothing_leaves_it_to_a_later_one() -> None:
    stored = Store()
    given = context("first", stored)
    given["ti"].task = SimpleNamespace(outlets=[EVENTS.asset, EVENTS.alias])
    note = EVENTS.emit({**given, "params": {"events": False}}, result(7, KEYS))
    assert (given["ti"].task.outlets, stored, given["outlet_events"]) == ([EVENTS.alias], {}, {})
    assert note == "no event: Param `events` of this run is off"
    assert tell("second", stored, 8, KEYS)[0][EVENTS.asset].keys == KEYS
