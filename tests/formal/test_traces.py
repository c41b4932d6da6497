"""The steps of the real code are steps that the model allows, even if drivers are killed, hang, or restore."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from formal.follow import Trace, follow
from tests.interleavings.drivers import drawn, program
from tests.interleavings.turns import PAST_A_LEASE, Turns
from tests.lake import LOCAL, Lake
from tests.recovery.arrivals import PIPELINE, STEPS, copy_of, run, source_of
from tidegate.pipelines import DeltaSource
from tidegate.pipelines.correct.correct import reopen
from tidegate.pipelines.correct.request import Selection
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots import recovery
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.step_log import FILE
from tidegate.pipelines.run.drive import drive

COMMITS = (2, 2, 1)
"""Files of the commits of the source."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return source_of(tmp_path_factory.mktemp("source") / "lake", commits=len(COMMITS) - 1)


Traced = Callable[[Callable[[Lake], None]], Trace]


@pytest.fixture
def traced(source: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traced:
    """Return the trace of what is done to a pipeline that has not run yet."""

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
    """Return an action that lets drivers take turns, and then one driver run alone."""

    def act(lake: Lake) -> None:
        began = lake.clock.now
        turns = Turns(on_turn=lambda ahead: setattr(lake.clock, "now", began + ahead))
        names = {letter.lower() for letter in schedule if letter.isalpha()}
        with turns.planted():
            turns.play({name: program(lake, turns, "=" in schedule) for name in sorted(names)}, schedule)
            run(LOCAL, lake)

    return act


def hanging_over_a_restore(step: str) -> Callable[[Lake], None]:
    """Return an action that hangs a driver after a step of the second epoch, while another one restores the first."""

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


@pytest.mark.parametrize("count", [2, pytest.param(60, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_drivers_that_take_turns_follow_the_protocol(traced: Traced, count: int) -> None:
    schedules = [drawn(seed, "abc" if seed % 4 == 0 else "ab") for seed in range(count)]
    traces = [traced(taking_turns(schedule)) for schedule in schedules]
    found = dict(zip(schedules, follow(traces, COMMITS), strict=True))
    assert {schedule: wrong for schedule, wrong in found.items() if wrong} == {}


@pytest.mark.long
def test_a_driver_that_hangs_over_a_restore_follows_the_protocol(traced: Traced) -> None:
    steps = STEPS[1:4]
    traces = [traced(hanging_over_a_restore(step)) for step in steps]
    assert dict(zip(steps, follow(traces, COMMITS), strict=True)) == dict.fromkeys(steps, "")


def test_a_trace_with_a_wrong_step_is_refused(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    good = list(traced(taking_turns("A")))
    steps = [json.loads(line) for line in good]
    commit = next(at for at, line in enumerate(steps) if line["step"] == "committed")
    publish = next(at for at, line in enumerate(steps) if line["step"] == "published")
    with monkeypatch.context() as planted:
        planted.setattr(recovery, "unpublished", lambda *arguments: [])
        nothing_is_recovered = traced(taking_turns("=aaa"))
    wrong = {
        "published before the commit": [*good[:commit], good[publish], *good[commit:publish], *good[publish + 1 :]],
        "a table is left out": [*good[:publish], *good[publish + 1 :]],
        "published twice": [*good[: publish + 1], good[publish], *good[publish + 1 :]],
        "another epoch": [*good[:commit], json.dumps({**steps[commit], "epoch": 2}), *good[commit + 1 :]],
        "recovery publishes nothing": nothing_is_recovered,
    }
    accepted, *refused = follow([good, *wrong.values()], COMMITS)
    assert accepted == ""
    assert [at for at, told in zip(wrong, refused, strict=True) if "is not a step of the protocol" not in told] == []


def corrected_and_reopened(lake: Lake) -> None:
    """Stream, correct what a deletion changed, and reopen late rows."""
    correcting = replace(PIPELINE, source=DeltaSource("events", timestamp="at", changes="correct"))
    run(LOCAL, lake, pipeline=correcting)
    DeltaTable(lake.path("events")).delete("user = 'user1'")
    run(LOCAL, lake, pipeline=correcting)
    with drive(lake.config, correcting, "late reopen", engine=LOCAL, clock=lake.clock) as driver:
        assert reopen(driver, Selection())[1] > 0


def forgotten(lake: Lake) -> None:
    run(LOCAL, lake)
    tables = lake.tables(PIPELINE)
    with Lease(tables, "forget", lake.clock):
        assert forget(tables, PIPELINE, [("user1",)], lake.clock()).epoch is not None
    run(LOCAL, lake)


def cleaned_up(lake: Lake) -> None:
    run(LOCAL, lake)
    tables = lake.tables(PIPELINE)
    with Lease(tables, "vacuum", lake.clock):
        assert vacuum(tables, Retention(1, timedelta(0)), lake.clock()).snapshots
    run(LOCAL, lake)


@pytest.mark.long
@pytest.mark.parametrize(
    ("act", "commits", "needs"),
    [
        (corrected_and_reopened, (*COMMITS, 0), {"of": "change"}),
        (corrected_and_reopened, (*COMMITS, 0), {"of": "reopen"}),
        (forgotten, COMMITS, {"step": "committed"}),
        (cleaned_up, COMMITS, {"step": "recovered"}),
    ],
    ids=["change", "reopen", "forget", "vacuum"],
)
def test_other_commands_follow_the_protocol_and_not_without_a_step(
    traced: Traced, act: Callable[[Lake], None], commits: tuple[int, ...], needs: dict[str, str]
) -> None:
    good = list(traced(act))
    steps = [json.loads(line) for line in good]
    began = next((at for at, line in enumerate(steps) if line["step"] in ("started forget", "started vacuum")), 0)
    left_out = next(at for at, line in enumerate(steps) if at > began and needs.items() <= line.items())
    accepted, refused = follow([good, [*good[:left_out], *good[left_out + 1 :]]], commits)
    assert (accepted, "is not a step of the protocol" in refused) == ("", True)


@pytest.mark.long
def test_an_epoch_on_top_of_one_that_nobody_published_does_not_follow_the_protocol(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    act = taking_turns("~aaaaaaabbbbbbbA")
    (right,) = follow([traced(act)], COMMITS)
    monkeypatch.setattr(Driver, "complete", lambda self, head: None)
    (wrong,) = follow([traced(act)], COMMITS)
    assert (right, "is not a step of the protocol" in wrong) == ("", True)
