"""Two drivers of one pipeline: at once, or one that hangs while the other goes on. Only one has a say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lake import LOCAL, Lake
from tests.recovery.arrivals import PIPELINE, STEPS, copy_of, differences, outcome, rows_of, run, source_of
from tidegate.pipelines.errors import LEASE_HELD, REFUSED, LeaseHeld, TidegateError
from tidegate.pipelines.ledger.lease import TIME_TO_LIVE, Lease
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.run.driver import Driver

pytestmark = pytest.mark.recovery

ROOT = Path(__file__).parents[2]

PLANNED, OPERATED, COMMITTED, RESULTS, LATE, REJECTS, EPOCHS = STEPS


def at_once(lake: Lake, how: str) -> list[tuple[int, str]]:
    """Two contenders' exit codes and errors, the lesser code first."""
    started = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.recovery.contender", str(lake.folder), name, other),
                *(how, str(lake.clock.now)),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, other in (("one", "two"), ("two", "one"))
    ]
    told = [process.communicate(timeout=120)[0] for process in started]
    return sorted((process.returncode, text) for process, text in zip(started, told, strict=True))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return source_of(tmp_path_factory.mktemp("source") / "lake", commits=2)


@pytest.fixture(scope="module")
def undisturbed(source: Lake, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = copy_of(source, tmp_path_factory.mktemp("undisturbed") / "lake")
    run(LOCAL, lake)
    return lake


@pytest.fixture
def lake(source: Lake, tmp_path: Path) -> Lake:
    return copy_of(source, tmp_path / "lake")


def test_of_two_that_start_at_once_one_works_and_the_other_ends_with_the_lease_error(
    lake: Lake, undisturbed: Lake
) -> None:
    (done, _), (refused, error) = at_once(lake, "leased")
    assert (done, refused) == (0, LEASE_HELD), error
    assert "is being driven by process" in error
    assert differences(outcome(lake), outcome(undisturbed)) == {}


@pytest.mark.long
@pytest.mark.parametrize("step", [PLANNED, OPERATED])
def test_of_two_that_know_of_no_lease_the_second_is_stopped_by_the_commit_and_publishes_nothing(
    lake: Lake, undisturbed: Lake, step: str
) -> None:
    (done, _), (refused, error) = at_once(lake, step)
    assert (done, refused) == (0, REFUSED), error
    assert "another driver committed to table state after this epoch was planned" in error
    assert differences(outcome(lake), outcome(undisturbed)) == {}


def hang_over_a_restore(lake: Lake, step: str, still_driven: bool = False) -> Exception | None:
    """Drive until after a step of the second epoch; while that driver hangs, another restores and goes on to the end.

    What the first one says when it wakes; None where it says nothing.
    """
    planned: list[str] = []

    def tell(done: str) -> None:
        if done == "planned":
            planned.append(done)
        if done == step and len(planned) == 2:
            planned.append("hung")
            lake.clock.now += TIME_TO_LIVE
            tables = lake.tables(PIPELINE)
            with Lease(tables, "restore", lake.clock):
                restore(tables, find_snapshot(tables, "1"), lake.clock())
            run(LOCAL, lake)
            if still_driven:
                Lease(tables, "stream", lake.clock).renew()

    try:
        run(LOCAL, lake, tell)
    except TidegateError as error:
        return error
    return None


@pytest.mark.long
def test_one_that_hung_while_another_restored_and_is_at_work_finds_its_lease_gone(
    lake: Lake, undisturbed: Lake
) -> None:
    assert isinstance(hang_over_a_restore(lake, COMMITTED, still_driven=True), LeaseHeld)
    assert differences(rows_of(lake), rows_of(undisturbed)) == {}


@pytest.mark.first(1)
@pytest.mark.parametrize("step", [OPERATED, COMMITTED, RESULTS, LATE, REJECTS])
def test_one_that_hung_is_kept_out_by_epochs_that_only_grow_even_without_a_lease(
    lake: Lake, undisturbed: Lake, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lease, "check", lambda self: None)
    hang_over_a_restore(lake, step)
    assert differences(rows_of(lake), rows_of(undisturbed)) == {}


@pytest.mark.long
def test_one_application_for_each_timeline_would_let_a_hung_driver_publish(
    lake: Lake, undisturbed: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: each driver's commits carry the timeline that it began on.

    The driver starts no further epoch, before which it would publish the newest snapshot again, under its own id.
    """
    monkeypatch.setattr(Lease, "check", lambda self: None)
    monkeypatch.setattr(Driver, "complete", lambda self, head: None)
    began: list[PipelineTables] = []

    def application(tables: PipelineTables) -> str:
        if not any(tables is known for known in began):
            began.append(tables)
        return f"tidegate/{tables.pipeline}/{[tables is known for known in began].index(True)}"

    monkeypatch.setattr(PipelineTables, "application", property(application))
    hang_over_a_restore(lake, COMMITTED)
    assert differences(rows_of(lake), rows_of(undisturbed)) != {}
