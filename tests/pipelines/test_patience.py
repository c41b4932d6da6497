"""A command waits for a driver that ends by itself, and for no other."""

from __future__ import annotations

import pytest

from tests.lake import LOCAL, Lake, hourly_pipeline
from tidegate.pipelines.errors import LeaseHeld
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.run.driver import Patience, drive


def waited(lake: Lake, holder: str, seconds: float, ends_after: int) -> tuple[bool, int, list[str]]:
    """Drive beside a holder that ends after so many sleeps: whether it drove, the sleeps, and what was printed."""
    held = Lease(lake.tables(hourly_pipeline()), holder, lake.clock)
    held.__enter__()
    slept: list[float] = []
    told: list[str] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == ends_after:
            held.__exit__(None, None, None)

    wait = Patience(seconds, "backfill", told.append, timer=lambda: float(len(slept)), sleep=sleep)
    try:
        with drive(lake.config, hourly_pipeline(), "backfill", LOCAL, lake.clock, wait=wait):
            return True, len(slept), told
    except LeaseHeld:
        held.__exit__(None, None, None)
        return False, len(slept), told


def test_a_backfill_waits_for_another_one_and_says_so_once(lake: Lake) -> None:
    drove, slept, told = waited(lake, "backfill", 60, ends_after=3)
    assert (drove, slept, len(told)) == (True, 3, 1)
    assert told[0].startswith("waiting for process")


@pytest.mark.parametrize(
    ("holder", "seconds", "sleeps"), [("stream", 60, 0), ("backfill", 5, 5), ("backfill", 0, 0)], ids=str
)
def test_it_waits_for_nothing_else_and_not_for_longer(lake: Lake, holder: str, seconds: float, sleeps: int) -> None:
    assert waited(lake, holder, seconds, ends_after=99)[:2] == (False, sleeps)
