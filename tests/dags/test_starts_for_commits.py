"""Starts of the stream for commits: once, after the run at work, again if nothing moves, and none is lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tidegate.pipelines.airflow.commits import AGAIN_SECONDS, Looks
from tidegate.pipelines.errors import StoreFailed, UsageError
from tidegate.pipelines.observe.inspect.unread import Look

UNREAD = Look("version 1 of events", (1, 4), is_taken_over=True)
READ = Look(None, (1, 4), is_taken_over=True)


@dataclass
class World:
    """The world that one trigger looks at: a table, Airflow's runs, the lease and a clock."""

    look: Look | Exception = UNREAD
    runs: dict[str, int] = field(default_factory=dict)
    is_held: bool = False
    now: float = 0.0
    lines: list[str] = field(default_factory=list)

    def looks(self) -> Looks:
        def look() -> Look:
            if isinstance(self.look, Exception):
                raise self.look
            return self.look

        watch: Any = type("Watch", (), {"look": lambda _: look(), "is_driven": lambda _: self.is_held})()
        return Looks(watch, lambda kind: self.runs.get(kind, 0), self.lines.append, lambda: self.now)


def test_a_commit_starts_the_stream_once() -> None:
    world = World()
    looks = world.looks()
    assert looks.next_reason() == "version 1 of events"
    for _ in range(5):
        world.now += 10
        assert looks.next_reason() is None, "Airflow has the event, also while there is no run yet"


def test_nothing_unread_starts_nothing() -> None:
    world = World(READ)
    assert [world.looks().next_reason() for _ in range(3)] == [None] * 3


def test_commits_during_a_run_lead_to_one_more_run_after_it() -> None:
    world = World()
    looks = world.looks()
    assert looks.next_reason()
    world.runs["stream"] = 1
    for epoch in range(5, 9):
        world.look = Look(f"version {epoch} of events", (1, epoch), is_taken_over=True)
        assert looks.next_reason() is None
    world.runs["stream"] = 0
    assert looks.next_reason() == "version 8 of events"
    assert looks.next_reason() is None


def test_what_came_after_a_start_that_found_nothing_starts_the_stream_at_once() -> None:
    """As where the first run is refused because there is no table yet, which comes a minute later."""
    world = World(Look("a first run"))
    looks = world.looks()
    assert [looks.next_reason(), looks.next_reason()] == [None, "a first run"]
    for look, reason in ((Look(None), None), (Look("version 0"), None), (Look("version 0"), "version 0")):
        world.look, world.now = look, world.now + 10
        assert looks.next_reason() == reason


def test_a_driver_that_nobody_started_in_airflow_is_waited_for() -> None:
    world = World(is_held=True)
    looks = world.looks()
    assert looks.next_reason() is None
    world.is_held = False
    assert looks.next_reason() == UNREAD.unread


def test_a_run_that_led_to_nothing_is_tried_again_as_seldom_as_a_schedule_does() -> None:
    world = World()
    looks, started = world.looks(), []
    for second in range(0, 3 * int(AGAIN_SECONDS), 10):
        world.now = float(second)
        # New commits while the stream fails are no reason to fail at each of them.
        world.look = Look(f"version {second} of events", (1, 4), is_taken_over=True)
        if looks.next_reason():
            started.append(second)
    assert started == [0, AGAIN_SECONDS, 2 * AGAIN_SECONDS]


def test_a_stream_does_not_come_between_the_intervals_of_a_backfill() -> None:
    left = Look("rows of events that the backfill left", (1, 4))
    world = World(left, {"backfill": 2})
    looks = world.looks()
    assert [looks.next_reason() for _ in range(3)] == [None] * 3
    assert "backfill" in world.lines[-1]
    world.runs["backfill"] = 0
    assert looks.next_reason() == left.unread
    assert world.looks().next_reason() is None, "a look between two intervals alone decides nothing"


@pytest.mark.parametrize("error", [StoreFailed("no answer"), UsageError("tidegate.toml"), KeyError("x"), OSError()])
def test_a_watcher_that_can_not_look_goes_on_and_lets_the_stream_say_why(error: Exception) -> None:
    world = World(error)
    looks, started = world.looks(), []
    for second in range(0, 3 * int(AGAIN_SECONDS), 10):
        world.now = float(second)
        if reason := looks.next_reason():
            started.append((second, reason))
    assert [second for second, _ in started] == [AGAIN_SECONDS, 2 * AGAIN_SECONDS]
    assert all(type(error).__name__ in reason for _, reason in started)
    world.look = READ
    assert looks.next_reason() is None
    world.look = UNREAD
    assert looks.next_reason() == UNREAD.unread, "it is as good as new"


def test_a_short_failure_starts_nothing_and_each_line_is_logged_once() -> None:
    world = World(READ)
    looks = world.looks()
    for outcome in (READ, StoreFailed("503"), StoreFailed("503"), READ, READ, UNREAD, UNREAD):
        world.look, world.now = outcome, world.now + AGAIN_SECONDS / 4
        looks.next_reason()
    assert [line.partition(":")[0] for line in world.lines] == [
        "nothing is unread",
        "can't look",
        "nothing is unread",
        "version 1 of events",
    ]


# --- over a real table ------------------------------------------------------------------------------------------
