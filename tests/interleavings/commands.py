"""Commands of one pipeline that take turns before each operation that changes something."""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from tests.interleavings.turns import Turns
from tests.recovery.hung import COMMANDS, MODULE, Hung, is_told
from tidegate.pipelines.project.cli import run

NAMES = tuple(name for name in COMMANDS if name != "unlock")
"""The commands. `unlock` removes the lease, and so do the clocks of a schedule."""

ENDS = ("AB", "BA", "A", "B", "")
"""How two commands that hang in the middle end: both continue, one, or none."""


class _Screen(io.StringIO):
    """Passes each printed text to the program whose turn it is."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns

    def write(self, text: str) -> int:
        # It refuses bytes, which tells click that it is a text screen.
        length = super().write(text)
        self._turns.print(text)
        return length


@dataclass(frozen=True)
class Commands:
    """A project, of which each schedule has a copy.

    Args:
        made: the project.
        folder: folder for copies.
    """

    made: Hung
    folder: Path

    def gates(self, command: str) -> int:
        """Return the number of gates of a command that runs alone."""
        hung = self.made.copy(self.folder / "counted")
        turns = Turns(by_operation=True)
        with turns.planted():
            return len(turns.play({"a": _program(hung, command)}, "A")["a"].gates)

    def faults(self, commands: Mapping[str, str], schedule: str) -> list[str]:
        """Let commands take turns, run each alone after that, and return everything that is wrong afterwards.

        Args:
            commands: commands, by their letters in the schedule.
            schedule: see `turns`.
        """
        hung = self.made.copy(self.folder / "copy")
        began, named = hung.clock.ahead, "".join(f"{letter} {name}, " for letter, name in commands.items())
        turns = Turns(on_turn=lambda ahead: setattr(hung.clock, "ahead", began + ahead), by_operation=True)
        with turns.planted():
            programs = {letter: _program(hung, command) for letter, command in commands.items()}
            with _as_one_process(_Screen(turns)):
                players = turns.play(programs, schedule)
            found = []
            for name, player in players.items():
                told, hangs = "".join(player.told)[-400:], player.answer is None and player.error is None
                if not hangs and not (isinstance(player.answer, int) and is_told(player.answer, told)):
                    found.append(f"{commands[name]} ended with {player.answer}, {player.error!r}: {told}")
            for command in commands.values():
                code, told = hung.tidegate(*COMMANDS[command])
                found += [] if is_told(code, told) else [f"{command} again ended with {code}: {told[-400:]}"]
            found += hung.harm(*commands.values())
        hung.clock.ahead = began
        gates = [f"{name} hung at {player.gates}" for name, player in players.items()]
        return [f"{named}{schedule}", *found, *gates] if found else []


def drawn(seed: int, gates: Callable[[str], int], count: int) -> tuple[dict[str, str], str]:
    """Draw commands and a schedule for them.

    Args:
        seed: seed of the draw.
        gates: returns the number of gates of a command.
        count: number of commands.
    """
    draw = random.Random(seed)
    commands = {letter: draw.choice(NAMES) for letter in "abc"[:count]}
    letters = [letter for letter, command in commands.items() for _ in range(draw.randint(0, gates(command) + 1))]
    if draw.random() < 0.5:
        draw.shuffle(letters)
    letters += draw.sample("ABC"[:count], draw.choice([count, count, draw.randint(0, count)]))
    if draw.random() < 0.3:
        letters.insert(draw.randrange(len(letters) + 1), "+")
    return commands, draw.choice(["~", "~", "+"]) + "".join(letters)


def _program(hung: Hung, command: str) -> Callable[[], object]:
    def program() -> int:
        return run([*COMMANDS[command], "--config", str(hung.folder / "tidegate.toml")])

    return program


@contextmanager
def _as_one_process(screen: _Screen) -> Iterator[None]:
    """Print to a screen, and leave the project's modules and the module path as they were."""
    path = [*sys.path]
    sys.modules.pop(MODULE, None)
    try:
        with redirect_stdout(screen), redirect_stderr(screen):
            yield
    finally:
        sys.path[:] = path
        sys.modules.pop(MODULE, None)
