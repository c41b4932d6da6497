"""Programs that take turns in one thread, in the order that a schedule names. A program is a driver or a command, and
it runs as it would alone. At each gate it stops until its next turn: for other programs it hangs there. A program that
gets no further turn was killed there, because nothing of it runs any more.

A schedule is a text, so that a failure can be repeated. `a` lets the first program run to its next gate, `A` to its
end; `b` and `B`, `c` and `C` do the same for the others. `+` advances time past the duration of a lease; at the front,
it does so before each further program starts, so that this program takes the lease, and the others notice. With `~` at
the front, only the clock of this program is ahead, so the others do not notice.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from greenlet import getcurrent, greenlet

from tests.recovery.hung import MUTATIONS
from tidegate.pipelines.ledger import lease
from tidegate.pipelines.ledger.lease import TIME_TO_LIVE, Lease
from tidegate.pipelines.ledger.tables.pipeline_tables import LEASE
from tidegate.pipelines.storage.shared_folder import SharedFolder
from tidegate.windowing.time import Millis

PAST_A_LEASE: Millis = TIME_TO_LIVE + 1


class Killed(BaseException):
    """Ends the greenlet of a program that must not do anything any more."""


@dataclass
class Player:
    """A program that takes turns.

    Args:
        program: the function to run; its result or its error is kept.
        ahead: milliseconds by which its clock is ahead.
        gates: names of the gates at which it stopped.
        answer: what it returned; None until it has ended.
        error: what it raised.
        is_killed: True once it must not do anything any more.
        started: True once it had a turn.
        told: what it printed, in pieces.
    """

    program: Callable[[], object]
    ahead: Millis = 0
    gates: list[str] = field(default_factory=list)
    answer: object = None
    error: Exception | None = None
    is_killed: bool = False
    started: bool = False
    told: list[str] = field(default_factory=list)
    body: greenlet = field(init=False)

    def __post_init__(self) -> None:
        self.body = greenlet(self._run)

    @property
    def is_over(self) -> bool:
        """Return True if it has ended, by itself or by a kill."""
        return self.body.dead

    def _run(self) -> None:
        try:
            self.answer = self.program()
        except Killed:
            pass
        except Exception as error:
            self.error = error


@dataclass
class Turns:
    """The programs, and whose turn it is.

    Args:
        on_turn: called with the milliseconds by which the clock is ahead for the program whose turn comes.
        by_operation: True makes each operation that changes something a gate, and not only the gates that programs
            pass themselves.
    """

    on_turn: Callable[[Millis], None] = lambda ahead: None
    by_operation: bool = False
    players: dict[str, Player] = field(default_factory=dict)
    passed: Millis = 0
    _now: Player | None = None
    _runs: set[str] = field(default_factory=set)

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Track what programs change, while in this context."""
        interrupt = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        with pytest.MonkeyPatch.context() as planted:
            for owner, name in MUTATIONS:
                planted.setattr(owner, name, self._watched(getattr(owner, name), name))
            # A program that hangs renews nothing.
            planted.setattr(Lease, "_renew_until_ended", lambda self: None)
            planted.setattr(lease, "_of_this_process", self._runs)
            yield
        signal.signal(signal.SIGINT, interrupt[0])
        signal.signal(signal.SIGTERM, interrupt[1])

    def play(self, programs: Mapping[str, Callable[[], object]], schedule: str) -> dict[str, Player]:
        """Run programs in the order of a schedule, kill those that have not ended by then, and return all."""
        mode, letters = (schedule[:1], schedule[1:]) if schedule[:1] in ("~", "+") else ("", schedule)
        self.players = {name: Player(program) for name, program in programs.items()}
        for letter in letters.removeprefix("="):
            if letter == "+":
                self.passed += PAST_A_LEASE
                continue
            player = self.players[letter.lower()]
            if not player.started and (others := sum(other.started for other in self.players.values())):
                self.passed += PAST_A_LEASE if mode == "+" else 0
                player.ahead = PAST_A_LEASE * others if mode == "~" else 0
            self._move(player, to_its_end=letter.isupper())
        for player in self.players.values():
            self._kill(player)
        # Their processes are gone.
        self._runs.clear()
        self.passed += PAST_A_LEASE * (len(self.players) + 1)
        self.on_turn(self.passed)
        return self.players

    def print(self, text: str) -> None:
        """Record what the program whose turn it is prints."""
        if self._now is not None:
            self._now.told.append(text)

    def gate(self, name: str) -> None:
        """Hang until the next turn; outside of a program this does nothing."""
        player = self._now
        if player is None or getcurrent() is not player.body:
            return
        player.gates.append(name)
        player.body.parent.switch()

    def _move(self, player: Player, to_its_end: bool) -> None:
        player.started = True
        while not player.is_over:
            self._switch(player)
            if not to_its_end:
                return

    def _kill(self, player: Player) -> None:
        player.is_killed = True
        if player.started and not player.is_over:
            self._now = player
            player.body.throw(Killed)
            self._now = None
            assert player.is_over

    def _switch(self, player: Player) -> None:
        self._now = player
        self.on_turn(self.passed + player.ahead)
        player.body.switch()
        self._now = None

    def _watched(self, known: Callable[..., object], name: str) -> Callable[..., object]:
        def watched(*arguments: object, **named: object) -> object:
            player = self._now
            if player is not None and getcurrent() is player.body:
                if player.is_killed:
                    raise Killed
                if self.by_operation and not _is_of_a_lease(arguments):
                    self.gate(f"{name} {[each for each in arguments if isinstance(each, str)]}")
            return known(*arguments, **named)

        return watched


def _is_of_a_lease(arguments: tuple[object, ...]) -> bool:
    """Return True if an operation changes the lease, on which no promise depends."""
    folder = arguments[0]
    return isinstance(folder, SharedFolder) and folder.root.name == LEASE
