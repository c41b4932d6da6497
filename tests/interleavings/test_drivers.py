"""Two or three drivers of one pipeline in every order of their steps: the tables are as if one had run alone. A failure
prints its schedule; `pytest tests/interleavings --schedule TEXT` repeats it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.interleavings.drivers import TURNS, Drivers, crashes, drawn, orders, program
from tests.interleavings.turns import Turns
from tests.recovery.arrivals import STEPS, copy_of
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.ledger.snapshots import commit as snapshot_step
from tidegate.pipelines.ledger.snapshots import publish as publish_step
from tidegate.pipelines.storage.warehouse import Warehouse, path_of

pytestmark = pytest.mark.recovery

FAILED = (
    # A driver hangs in its recovery while another one commits an epoch and dies. The first one then started the next
    # epoch from there, and nobody published the committed epoch.
    "~aabbbbbbbA",
    "~abbcabcacccacabcaabbbBAC",
    "~bcbbcabaaacbabcbcaccaCAB",
    "~aaaaabccbbcbababccbccCBA",
    "~bbbbaaabcaaacacccbbcc++CBA",
)
"""Schedules that once failed."""

DRAWN = 16

PARTS = 8
"""The exhaustive tests are divided into this many parts, so that several processes share them."""


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Drivers:
    return Drivers.make(tmp_path_factory.mktemp("drivers"))


def faults(drivers: Drivers, schedules: list[str]) -> dict[str, list[str]]:
    return {schedule: found for schedule in schedules if (found := drivers.faults(schedule))}


# All failed for one reason.
@pytest.mark.first(1)
@pytest.mark.parametrize("schedule", FAILED)
def test_schedules_that_ever_failed(drivers: Drivers, schedule: str) -> None:
    assert drivers.faults(schedule) == []


def test_the_schedule_that_is_given(drivers: Drivers, pytestconfig: pytest.Config) -> None:
    given = pytestconfig.getoption("--schedule", None)
    assert not given or ":" in given or drivers.faults(given) == []


@pytest.mark.first(2)
@pytest.mark.parametrize("seed", range(DRAWN))
def test_drivers_in_an_order_that_is_drawn_lose_and_double_nothing(drivers: Drivers, seed: int) -> None:
    assert faults(drivers, [drawn(seed, "abc" if seed % 4 == 0 else "ab")]) == {}


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
def test_two_drivers_in_every_order_lose_and_double_nothing(drivers: Drivers, part: int) -> None:
    assert faults(drivers, [*orders()][part::PARTS]) == {}


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_crash_or_a_hang_after_each_step_of_both_changes_nothing(drivers: Drivers, part: int) -> None:
    assert faults(drivers, [*crashes()][part::PARTS]) == {}


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
def test_three_drivers_in_orders_that_are_drawn_lose_and_double_nothing(drivers: Drivers, part: int) -> None:
    assert faults(drivers, [drawn(1000 + seed, "abc") for seed in range(part, 200, PARTS)]) == {}


def test_all_orders_are_there() -> None:
    """3,432 orders of seven and seven steps, without those that only swap the names."""
    assert len({*orders()}) == 3432 // 2
    assert all(order.count("a") == order.count("b") == TURNS and order[2] == "a" for order in orders())


def test_each_turn_is_a_step_of_an_epoch(drivers: Drivers) -> None:
    """Otherwise the orders would not be those of the steps."""
    turns = Turns()
    lake = copy_of(drivers.begun, drivers.folder / "turns")
    with turns.planted():
        assert turns.play({"a": program(lake, turns)}, "a" * TURNS)["a"].gates == [*STEPS]


def _commits_to_whatever_is_newest(planted: pytest.MonkeyPatch) -> None:
    known = snapshot_step.commit_to

    def commit_to(warehouse: Warehouse, handle: DeltaTable, *rest: Any) -> None:
        known(warehouse, warehouse.open(path_of(handle)), *rest)

    planted.setattr(snapshot_step, "commit_to", commit_to)


def _publishes_without_a_look(planted: pytest.MonkeyPatch) -> None:
    planted.setattr(publish_step, "is_published", lambda *ignored: False)


def _starts_from_what_nobody_published(planted: pytest.MonkeyPatch) -> None:
    planted.setattr(Driver, "complete", lambda self, head: None)


@pytest.mark.parametrize(
    ("bug", "schedule"),
    [
        (_starts_from_what_nobody_published, "~aabbbbbbbA"),
        (_commits_to_whatever_is_newest, "~=aabbabAB"),
        (_publishes_without_a_look, "~=aaabbbbbAB"),
    ],
)
def test_without_a_protection_an_order_does_harm(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None], schedule: str
) -> None:
    bug(monkeypatch)
    assert drivers.faults(schedule)
