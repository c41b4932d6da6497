"""The long stream's figures, and a stream of two minutes that keeps up and stays as small as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.long_stream import Look, figures, measure


def looks(count: int, lag: float = 2.0, files: int = 50, driver: float = 200.0, from_second: int = 0) -> list[Look]:
    memory = {"driver": driver, "JVM": 700.0, "worker": 500.0}
    return [Look(from_second + at, lag, memory, files) for at in range(count)]


def test_what_stays_as_it_was_is_within_the_bound() -> None:
    told = figures(looks(90))
    assert [figure.what.rpartition(": ")[2] for figure in told] == [
        "lag",
        "files",
        "memory, driver",
        "memory, JVM",
        "memory, worker",
    ]
    assert all(figure.value == 1 and figure.is_reached for figure in told)


def test_what_grows_in_the_last_third_is_told() -> None:
    told = figures([*looks(600), *looks(300, lag=9.0, files=61, driver=230.0, from_second=600)])
    assert [figure.is_reached for figure in told] == [False, False, True, True, True]
    assert "middle third 2.0, last third 9.0 s" in told[0].detail


def test_a_short_run_says_nothing_of_files() -> None:
    assert figures([*looks(60), *looks(30, files=99)])[1].wanted is None


@pytest.mark.spark
@pytest.mark.long
def test_a_stream_of_two_minutes_at_20_000_events_a_second_keeps_up_and_stays_small(tmp_path: Path) -> None:
    """The half hour is `python -m benchmarks.long_stream`; in two minutes medians are rough, so bounds are wide."""
    seen = measure(seconds=120, rate=20_000, interval="1s", folder=tmp_path)
    last = seen[2 * len(seen) // 3 :]
    assert max(look.lag for look in last) < 45
    assert max(look.files for look in last) < 400
    for role in ("driver", "worker"):
        assert max(look.memory[role] for look in last) < 1.5 * max(look.memory[role] for look in seen[: len(seen) // 2])
    # A JVM takes of the heap that it may have when it likes to: 1 GiB here, and half as much for what is not heap.
    assert max(look.memory["JVM"] for look in last) < 1536
