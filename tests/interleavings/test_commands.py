"""Pairs and triples of commands that take turns before each operation that changes something. Nothing is lost or
doubled, everything that is listed can be read, and exit codes and messages say what happened. A failure prints its
schedule; `pytest tests/interleavings --schedule TEXT` repeats it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from tests.interleavings.commands import ENDS, NAMES, Commands, drawn
from tests.recovery.hung import Hung

pytestmark = pytest.mark.recovery

LONG = 400
"""Random pairs in the long form, and half as many triples."""


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with Hung.make(tmp_path_factory) as made:
        yield Commands(made, tmp_path_factory.mktemp("commands"))


def test_the_schedule_that_is_given(commands: Commands, pytestconfig: pytest.Config) -> None:
    """As `stream, vacuum: ~abba`."""
    names, _, schedule = (pytestconfig.getoption("--schedule", None) or "").partition(":")
    named = dict(zip("abc", map(str.strip, names.split(",")), strict=False))
    assert not schedule or commands.faults(named, schedule.strip()) == []


@pytest.mark.first(1)
@pytest.mark.parametrize("seed", range(LONG))
def test_two_commands_in_an_order_that_is_drawn_lose_and_double_nothing(commands: Commands, seed: int) -> None:
    assert commands.faults(*drawn(seed, commands.gates, 2)) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(LONG // 2))
def test_three_commands_in_an_order_that_is_drawn_lose_and_double_nothing(commands: Commands, seed: int) -> None:
    assert commands.faults(*drawn(10_000 + seed, commands.gates, 3)) == []


SHORT = (
    "optimize",
    "restore",
    "reopen",
    "prune",
    "quality",
    "savepoint",
    "savepoint delete",
    "savepoint with tables",
    "reset",
)
"""Commands with so few operations that TIDEGATE_EXAMPLES=1000000 tries all pairs of places, in a day."""

PLACES = max(1, int(os.environ.get("TIDEGATE_EXAMPLES", "2000")) // 1000)
"""Random pairs of places for each pair of them, in the long form."""


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("second", SHORT)
@pytest.mark.parametrize("first", SHORT)
def test_two_commands_at_an_operation_of_the_one_and_the_other(commands: Commands, first: str, second: str) -> None:
    """One hangs, then the other; then both, one or neither continues."""
    places = [
        (one, two, ENDS[(one + two) % len(ENDS)])
        for one in range(1, commands.gates(first) + 1)
        for two in range(1, commands.gates(second) + 1)
    ]
    chosen = random.Random(f"{first}, {second}").sample(places, min(len(places), PLACES))
    found = {
        f"{first}, {second}: ~{'a' * one}{'b' * two}{end}": faults
        for one, two, end in chosen
        if (faults := commands.faults({"a": first, "b": second}, f"~{'a' * one}{'b' * two}{end}"))
    }
    assert found == {}


def test_short_commands_are_commands() -> None:
    assert {*SHORT} <= {*NAMES}
