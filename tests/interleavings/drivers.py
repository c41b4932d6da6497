"""Drivers of one pipeline that each stream what is there, and take turns after each step of an epoch. Before its first
epoch a driver publishes what an earlier driver committed, which takes four more steps. With `=` in a schedule, these
steps and the plan after them are one turn, so that an epoch has seven turns.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from tests.interleavings.turns import Turns
from tests.lake import LOCAL, Lake
from tests.recovery.arrivals import STEPS, copy_of, crash_after, differences, outcome, run, source_of
from tidegate.pipelines.errors import LEASE_HELD, REFUSED, TidegateError

TURNS = len(STEPS)


def orders() -> Iterator[str]:
    """Every order of the steps of an epoch of two drivers; each driver then runs to its end. If two orders differ only
    in the names of the drivers, only the one that begins with `a` is included.
    """
    for at in combinations(range(1, 2 * TURNS), TURNS):
        yield "~=" + "".join("b" if number in at else "a" for number in range(2 * TURNS)) + "AB"


def drawn(seed: int, drivers: str = "ab") -> str:
    """A random order of drivers, some of which are killed or have clocks that differ or jump ahead."""
    draw = random.Random(seed)
    letters = [*drivers * TURNS, *draw.choice(["", "", "+", "++"])]
    draw.shuffle(letters)
    cut = draw.choice([len(letters), draw.randrange(len(letters))])
    ends = draw.sample(drivers.upper(), draw.choice([len(drivers), len(drivers), draw.randrange(len(drivers))]))
    return draw.choice(["~", "~", ""]) + draw.choice(["=", ""]) + "".join([*letters[:cut], *ends])


def crashes(seed: int = 0) -> Iterator[str]:
    """A crash of one driver or both, after each step of one and the other, in a random order."""
    draw = random.Random(seed)
    for first in range(TURNS + 1):
        for second in range(TURNS + 1):
            for end in ("", "A", "B"):
                letters = [*"a" * first, *"b" * second]
                draw.shuffle(letters)
                yield "~=" + "".join(letters) + end


@dataclass(frozen=True)
class Drivers:
    """A pipeline whose last epochs are missing, and the tables as a single driver leaves them.

    Args:
        begun: the pipeline.
        alone: contents of its tables at the end.
        folder: folder for copies.
    """

    begun: Lake
    alone: dict[str, list[str]]
    folder: Path

    @classmethod
    def make(cls, folder: Path, epochs: int = 2) -> Drivers:
        """Create them in a folder, with this many epochs left to run."""
        begun = source_of(folder / "begun", commits=2)
        crash_after(LOCAL, begun, STEPS[-1], epoch=5 - epochs)
        ended = copy_of(begun, folder / "ended")
        run(LOCAL, ended)
        return cls(begun, _contents(ended), folder)

    def faults(self, schedule: str) -> list[str]:
        """Let drivers take turns, run one alone after that, and return everything that is wrong afterwards."""
        lake = copy_of(self.begun, self.folder / "copy")
        began = lake.clock.now
        try:
            turns = Turns(on_turn=lambda ahead: setattr(lake.clock, "now", began + ahead))
            names = sorted({letter.lower() for letter in schedule if letter.isalpha()})
            with turns.planted():
                players = turns.play({name: program(lake, turns, "=" in schedule) for name in names}, schedule)
                found = [
                    f"{name} ended with {player.error!r} after {', '.join(player.gates)}"
                    for name, player in players.items()
                    if player.error is not None and not _is_told(player.error)
                ]
                run(LOCAL, lake)
            found += [f"{table}: {rows}" for table, rows in differences(_contents(lake), self.alone).items()]
        except TidegateError as error:
            return [f"the driver that runs alone after that: {error}"]
        finally:
            shutil.rmtree(lake.folder)
        return found


def program(lake: Lake, turns: Turns, recovery_is_no_turn: bool = True) -> Callable[[], None]:
    """Return a driver that streams what is there, with a gate after each step."""
    planned = list[str]()

    def tell(step: str) -> None:
        planned.extend([step] if step == STEPS[0] else [])
        if planned or not recovery_is_no_turn:
            turns.gate(step)

    return lambda: run(LOCAL, lake, tell)


def _contents(lake: Lake) -> dict[str, list[str]]:
    """Return all that readers see, except what the clock decides; epochs that only advance the clock come in
    between.
    """
    found = outcome(lake, without=("epoch", "parent", "timeline", "processing_time", "watermark_lag_ms"))
    return {**found, "epochs": [row for row in found["epochs"] if "'kind': 'clock'" not in row]}


def _is_told(error: Exception) -> bool:
    return isinstance(error, TidegateError) and error.exit_code in (REFUSED, LEASE_HELD)
