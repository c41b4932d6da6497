"""What the real code does step by step is what the model allows: with drivers that are killed, hang, or restore."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from formal.follow import Trace, follow
from tests.interleavings.drivers import drawn, program
from tests.interleavings.turns import PAST_A_LEASE, Turns
from tests.lake import LOCAL, Lake
from tests.recovery.arrivals import PIPELINE, STEPS, copy_of, run, source_of
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots import recovery
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.step_log import FILE
from tidegate.pipelines.run.driver import Driver

COMMITS = (2, 2, 1)
"""Files of the commits of the source."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return source_of(tmp_path_factory.mktemp("source") / "lake", commits=len(COMMITS) - 1)


Traced = Callable[[Callable[[Lake], None]], Trace]


@pytest.fixture
def traced(source: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traced:
    """Return the trace of what is done to a pipeline that has not begun."""

    def lines_of(act: Callable[[Lake], None]) -> Trace:
        file = tmp_path / "trace"
        file.unlink(missing_ok=True)
        lake = copy_of(source, tmp_path / "lake")
        monkeypatch.setenv(FILE, str(file))
        act(lake)
        monkeypatch.delenv(FILE)
        shutil.rmtree(lake.folder)
        return file.read_text().splitlines()

    return lines_of


def taking_turns(schedule: str) -> Callable[[Lake], None]:
    """Return what lets drivers take turns, and one that runs alone after that."""

    def act(lake: Lake) -> None:
        began = lake.clock.now
        turns = Turns(on_turn=lambda ahead: setattr(lake.clock, "now", began + ahead))
        names = {letter.lower() for letter in schedule if letter.isalpha()}
        with turns.planted():
            turns.play({name: program(lake, turns, "=" in schedule) for name in sorted(names)}, schedule)
            run(LOCAL, lake)

    return act


def hanging_over_a_restore(step: str) -> Callable[[Lake], None]:
    """Return what lets a driver hang after a step of the second epoch, while another one restores the first."""

    def act(lake: Lake) -> None:
        def meanwhile() -> None:
            tables = lake.tables(PIPELINE)
            with Lease(tables, "restore", lake.clock):
                restore(tables, find_snapshot(tables, "1"), lake.clock())
            run(LOCAL, lake)

        planned = list[str]()

        def tell(done: str) -> None:
            planned.extend([done] if done == STEPS[0] else [])
            if done == step and len(planned) == 2:
                planned.append("hung")
                lake.clock.now += PAST_A_LEASE
                meanwhile()

        try:
            run(LOCAL, lake, tell)
        except TidegateError:
            return

    return act


@pytest.mark.parametrize("count", [4, pytest.param(150, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_drivers_that_take_turns_follow_the_protocol(traced: Traced, count: int) -> None:
    schedules = [drawn(seed, "abc" if seed % 4 == 0 else "ab") for seed in range(count)]
    traces = [traced(taking_turns(schedule)) for schedule in schedules]
    found = dict(zip(schedules, follow(traces, COMMITS), strict=True))
    assert {schedule: wrong for schedule, wrong in found.items() if wrong} == {}


def test_a_driver_that_hangs_over_a_restore_follows_the_protocol(traced: Traced) -> None:
    steps = STEPS[1:4]
    traces = [traced(hanging_over_a_restore(step)) for step in steps]
    assert dict(zip(steps, follow(traces, COMMITS), strict=True)) == dict.fromkeys(steps, "")


def test_a_trace_with_a_wrong_step_is_refused(traced: Traced) -> None:
    good = list(traced(taking_turns("A")))
    steps = [json.loads(line) for line in good]
    commit = next(at for at, line in enumerate(steps) if line["step"] == "committed")
    publish = next(at for at, line in enumerate(steps) if line["step"] == "published")
    wrong = {
        "published before the commit": [*good[:commit], good[publish], *good[commit:publish], *good[publish + 1 :]],
        "a table is left out": [*good[:publish], *good[publish + 1 :]],
        "published twice": [*good[: publish + 1], good[publish], *good[publish + 1 :]],
        "another epoch": [*good[:commit], json.dumps({**steps[commit], "epoch": 2}), *good[commit + 1 :]],
    }
    accepted, *refused = follow([good, *wrong.values()], COMMITS)
    assert accepted == ""
    assert [at for at, told in zip(wrong, refused, strict=True) if "is no step of the protocol" not in told] == []


def test_an_epoch_on_top_of_one_that_nobody_published_does_not_follow_the_protocol(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    act = taking_turns("~aaaaaaabbbbbbbA")
    (right,) = follow([traced(act)], COMMITS)
    monkeypatch.setattr(Driver, "complete", lambda self, head: None)
    (wrong,) = follow([traced(act)], COMMITS)
    assert (right, "is no step of the protocol" in wrong) == ("", True)


def test_recovery_that_publishes_nothing_does_not_follow_the_protocol(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "unpublished", lambda *arguments: [])
    (told,) = follow([traced(taking_turns("=aaa"))], COMMITS)
    assert "is no step of the protocol" in told
