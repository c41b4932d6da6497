from __future__ import annotations

import pytest

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.testing import RecordingOutput
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from tidegate.windowing.watermarks import BoundedOutOfOrdernessWithIdleAdvance

CALL = None


def run(generator: BoundedOutOfOrdernessWithIdleAdvance, *steps: int | None) -> list[object]:
    """Return the output of periodic calls (None) between events (their timestamps)."""
    output = RecordingOutput()
    for step in steps:
        if step is CALL:
            generator.on_periodic_emit(output)
        else:
            generator.on_event("event", step, output)
    return output.take()


def make() -> BoundedOutOfOrdernessWithIdleAdvance:
    return BoundedOutOfOrdernessWithIdleAdvance(delay=2, wait=10, interval=5)


def test_the_step_table_of_the_module_holds() -> None:
    assert run(make(), 100, CALL, CALL, CALL, 112, CALL) == [97, 97, 112, 112]


def test_time_stays_at_the_minimum_before_any_event() -> None:
    assert run(make(), *[CALL] * 5) == [MIN_TIMESTAMP] * 5


def test_a_wait_that_is_just_reached_is_not_over() -> None:
    assert run(make(), 0, CALL, CALL) == [-3, -3]


def test_time_goes_on_with_every_call_once_the_wait_is_over() -> None:
    assert run(make(), 0, *[CALL] * 5) == [-3, -3, 12, 17, 22]


def test_each_event_starts_the_wait_again() -> None:
    assert run(make(), 0, CALL, CALL, 1, CALL, CALL) == [-3, -3, -2, -2]


def test_an_event_behind_the_time_that_went_on_does_not_take_it_back() -> None:
    assert run(make(), 0, *[CALL] * 4, 3, CALL, CALL, CALL) == [-3, -3, 12, 17, 17, 17, 32]


def test_going_on_never_reaches_the_end_of_input() -> None:
    generator = BoundedOutOfOrdernessWithIdleAdvance(0, 0, 1000)
    assert run(generator, MAX_TIMESTAMP - 10, CALL, CALL) == [MAX_TIMESTAMP - 2] * 2


@pytest.mark.parametrize(("arguments", "field"), [((-1, 0, 1), "delay"), ((0, -1, 1), "wait"), ((0, 0, 0), "interval")])
def test_an_unusable_setting_is_named(arguments: tuple[int, int, int], field: str) -> None:
    with pytest.raises(IllegalArgument, match=rf"^{field} = .*: give"):
        BoundedOutOfOrdernessWithIdleAdvance(*arguments)
