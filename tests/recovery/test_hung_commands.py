"""Pairs of commands: one hangs before or after a mutating operation for longer than its lease, the other works.

Nothing is lost or doubled, everything that is listed can be read, and the exit code says what happened.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.recovery.hung import COMMANDS, Hung
from tidegate.pipelines.definition import state
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots import retention
from tidegate.pipelines.ledger.tables import commits
from tidegate.pipelines.ledger.tables.commits import CommitProperties, commit

pytestmark = pytest.mark.recovery

DRAWN = 10
"""Pairs that are tried in each run; each takes one to two seconds."""

PLACES = max(1, int(os.environ.get("TIDEGATE_EXAMPLES", "2000")) // 1000)
"""Places at which a command of each pair hangs in the long form. It has up to 360, and all of all pairs take days."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hung]:
    with Hung.make(tmp_path_factory.mktemp("hung") / "made") as project:
        yield project


@pytest.mark.first(1)
@pytest.mark.parametrize("seed", range(DRAWN))
def test_a_command_that_hangs_over_another_one_loses_and_doubles_nothing(made: Hung, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    first, second = draw.choice([*COMMANDS]), draw.choice([*COMMANDS])
    operation = draw.randint(1, max(1, made.copy(tmp_path / "counted").operations(first)))
    assert made.copy(tmp_path / "copy").faults(first, second, operation, draw.random() < 0.5) == []


# In 8 a savepoint is deleted while a key is forgotten in it.
@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_two_commands_that_hang_over_a_third_one_lose_and_double_nothing(made: Hung, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    # `unlock` is told of a driver on another host, which a command that hangs here is not.
    first, second, third = (draw.choice([name for name in COMMANDS if name != "unlock"]) for _ in range(3))
    at = [draw.randint(1, max(1, made.copy(tmp_path / "counted").operations(command))) for command in (first, second)]
    inner = (third, at[1], draw.random() < 0.5)
    assert made.copy(tmp_path / "copy").faults(first, second, at[0], draw.random() < 0.5, inner) == []


@pytest.mark.long
@pytest.mark.parametrize("second", COMMANDS)
@pytest.mark.parametrize("first", COMMANDS)
def test_wherever_a_command_hangs_over_another_one_nothing_is_lost(
    made: Hung, tmp_path: Path, first: str, second: str
) -> None:
    operations = made.copy(tmp_path / "counted").operations(first)
    places = [(operation, after) for operation in range(1, operations + 1) for after in (False, True)]
    drawn = random.Random(f"{first} over {second}").sample(places, min(len(places), PLACES))
    copy = made.copy
    found = {place: faults for place in drawn if (faults := copy(tmp_path / "copy").faults(first, second, *place))}
    assert found == {}


@pytest.mark.long
@pytest.mark.parametrize(("first", "second"), [("optimize", "vacuum"), ("vacuum", "restore")])
def test_this_does_not_rest_on_a_look_at_the_lease(made: Hung, tmp_path: Path, first: str, second: str) -> None:
    """Its clock may be wrong, or a process may hang right after the look."""
    operations = made.copy(tmp_path / "counted").operations(first)
    with pytest.MonkeyPatch.context() as planted:
        no_lease_is_looked_at(planted)
        for operation in range(3, min(operations, 12)):
            assert made.copy(tmp_path / "copy").faults(first, second, operation, False) == []


def state_alone_is_fenced(planted: pytest.MonkeyPatch) -> None:
    def fence(tables: retention.PipelineTables, *decided: object) -> None:
        commit(tables.warehouse, tables.open(state.NAME), [], {})

    planted.setattr(retention, "_fence", fence)


def commits_are_tried_again(planted: pytest.MonkeyPatch) -> None:
    def with_retries(**properties: object) -> CommitProperties:
        return CommitProperties(**{**properties, "max_commit_retries": 15})  # type: ignore[arg-type]

    planted.setattr(commits, "CommitProperties", with_retries)


def no_lease_is_looked_at(planted: pytest.MonkeyPatch) -> None:
    planted.setattr(Lease, "check", lambda self: None)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("bug", "first", "second"),
    [
        (state_alone_is_fenced, "optimize", "vacuum"),
        (commits_are_tried_again, "optimize", "vacuum"),
    ],
)
def test_without_a_protection_a_command_that_hangs_does_harm(
    made: Hung, tmp_path: Path, bug: Callable[[pytest.MonkeyPatch], None], first: str, second: str
) -> None:
    operations = made.copy(tmp_path / "counted").operations(first)
    with pytest.MonkeyPatch.context() as planted:
        bug(planted)
        assert any(
            made.copy(tmp_path / "copy").faults(first, second, operation, False)
            for operation in range(1, operations + 1)
        )
