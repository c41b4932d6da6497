"""Somebody optimizes, vacuums or alters our tables between any two steps of an epoch, or drives the pipeline as well.
Either nothing changes, or the epoch ends with a clear error and a remedy; no row is ever doubled or lost. Two drivers
of one pipeline: both at the same time, or one that hangs while the other continues. Only one of them commits.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import CommitProperties, DeltaTable, Field
from deltalake.schema import PrimitiveType

from tests.lake import LOCAL, Lake
from tests.recovery.arrivals import PIPELINE, STEPS, Runs, copy_of, differences, outcome, rows_of, run
from tidegate.pipelines import remedy as remedies
from tidegate.pipelines.definition import state
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.errors import LEASE_HELD, REFUSED, LeaseHeld, Refused, TidegateError
from tidegate.pipelines.ledger.lease import TIME_TO_LIVE, Lease
from tidegate.pipelines.ledger.snapshots import commit as snapshot_step
from tidegate.pipelines.ledger.snapshots import publish as publish_step
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables import commits
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.storage.warehouse import path_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.recovery

PLANNED, OPERATED, COMMITTED, RESULTS, LATE, *_ = STEPS

Act = Callable[[DeltaTable], object]


def optimize(table: DeltaTable) -> None:
    table.optimize.compact()


def vacuum(table: DeltaTable) -> None:
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)


def describe(table: DeltaTable) -> None:
    table.alter.set_table_description("somebody was here")


def add_column(table: DeltaTable) -> None:
    table.alter.add_columns([Field("theirs", PrimitiveType("integer"), nullable=True)])


ACTS: tuple[Act, ...] = (optimize, vacuum, describe, add_column)


def run_beside(lake: Lake, act: Act, tables: tuple[str, ...], step: str) -> None:
    """Stream to the end, while somebody acts on tables once, after a step of the first epoch."""
    planned: list[str] = []

    def tell(done: str) -> None:
        if done == "planned":
            planned.append(done)
        if done == step and len(planned) == 1:
            for table in tables:
                act(DeltaTable(lake.path(f"{PIPELINE.name}/{table}")))

    run(LOCAL, lake, tell)


MOVED = ("epoch", "timeline", "theirs")
"""Columns that a restore moves, and one that another writer adds."""

STOPS = {
    # Any commit to state since the plan, even a harmless one, refuses the epoch: OPTIMIZE is the one that doubles rows.
    ("state", optimize): {PLANNED, OPERATED},
    ("state", vacuum): {PLANNED, OPERATED},
    ("state", describe): {PLANNED, OPERATED},
    ("state", add_column): {PLANNED, OPERATED},
    # To VACUUM, what tasks wrote and nobody has committed yet is garbage.
    ("published", vacuum): {OPERATED, COMMITTED, RESULTS, LATE},
}
"""The steps after which an action on the tables stops the epoch."""


def is_quick(where: str, act: Act, step: str) -> bool:
    """Return True for the steps that every run tests: those where the action stops the epoch, and the commit of
    state.
    """
    return step == COMMITTED or step in STOPS.get((where, act), ())


@pytest.mark.first(4)
@pytest.mark.parametrize(
    ("where", "act", "step"),
    [
        pytest.param(
            where,
            act,
            step,
            id=f"{where}-{act.__name__}-{step}",
            marks=() if is_quick(where, act, step) else pytest.mark.long,
        )
        for where in ("state", "published")
        for act in ACTS
        for step in STEPS
    ],
)
def test_what_others_do_between_two_steps_changes_nothing_or_stops_the_epoch_with_a_way_out(
    runs: Runs, tmp_path: Path, where: str, act: Act, step: str
) -> None:
    lake = copy_of(runs.begun, tmp_path / "lake")
    tables = (state.NAME,) if where == "state" else PUBLISHED
    stopped = None
    try:
        run_beside(lake, act, tables, step)
    except Refused as error:
        stopped = error
    assert (stopped is not None) == (step in STOPS.get((where, act), ())), stopped
    if stopped is not None:
        follow(lake, stopped)
        run(LOCAL, lake)
    assert differences(rows_of(lake, without=MOVED), rows_of(runs.ended)) == {}


def follow(lake: Lake, error: Refused) -> None:
    """Do what an error says."""
    ways = [remedy for remedy in error.remedies if remedy.act is remedies.Act.RESTORE]
    assert ways or re.search("run (it )?again", error.message), error
    for way in ways[:1]:
        tables = lake.tables(PIPELINE)
        with Lease(tables, "restore", lake.clock):
            restore(tables, find_snapshot(tables, str(way.at)), lake.clock())


def test_a_state_commit_that_tries_again_past_another_one_is_noticed(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With retries, deltalake commits past a concurrent OPTIMIZE: old rows and new ones, and two manifests."""

    def with_retries(**properties: Any) -> CommitProperties:
        return CommitProperties(**{**properties, "max_commit_retries": 15})

    monkeypatch.setattr(commits, "CommitProperties", with_retries)
    with pytest.raises(Refused, match="has 2 manifests"):
        run_beside(copy_of(runs.begun, tmp_path / "lake"), optimize, (state.NAME,), OPERATED)


def test_committing_files_without_a_look_at_them_is_noticed(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (snapshot_step, publish_step):
        monkeypatch.setattr(module, "check_written", lambda *ignored: None)
    lake = copy_of(runs.begun, tmp_path / "lake")
    run_beside(lake, vacuum, PUBLISHED, OPERATED)
    with pytest.raises(Refused, match="can't be read"):
        rows_of(lake)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize(
    ("statement", "refused"),
    [
        ("OPTIMIZE {}", None),
        pytest.param("VACUUM {} RETAIN 0 HOURS", None, marks=pytest.mark.long),
        pytest.param("ALTER TABLE {} SET TBLPROPERTIES ('theirs' = 'yes')", None, marks=pytest.mark.long),
        ("ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')", "feature deletionVectors"),
        pytest.param(
            "ALTER TABLE {} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
            "feature columnMapping",
            marks=pytest.mark.long,
        ),
    ],
    ids=["optimize", "vacuum", "alter", "deletion vectors", "column mapping"],
)
def test_what_spark_does_to_a_published_table_changes_nothing_or_is_refused(
    spark: SparkSession, runs: Runs, tmp_path: Path, statement: str, refused: str | None
) -> None:
    lake = copy_of(runs.begun, tmp_path / "lake")
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")

    def act(table: DeltaTable) -> None:
        spark.sql(statement.format(f"delta.`{path_of(table)}`")).collect()

    if refused is not None:
        with pytest.raises(Refused, match=f"{refused}.*Only tidegate may change its tables"):
            run_beside(lake, act, ("results",), RESULTS)
        return
    run_beside(lake, act, ("results",), RESULTS)
    assert differences(rows_of(lake, without=MOVED), rows_of(runs.ended)) == {}


ROOT = Path(__file__).parents[2]

PLANNED, OPERATED, COMMITTED, RESULTS, LATE, REJECTS, EPOCHS = STEPS


def at_once(lake: Lake, how: str) -> list[tuple[int, str]]:
    """Return the exit codes and errors of two drivers, the smaller code first."""
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


NO_LEASE = "another driver committed to table state after this epoch was planned"


@pytest.mark.parametrize(
    ("step", "code", "told"),
    [
        ("leased", LEASE_HELD, "is being driven by process"),
        # Two drivers without a lease: the commit stops the second one.
        pytest.param(PLANNED, REFUSED, NO_LEASE, marks=pytest.mark.long),
        pytest.param(OPERATED, REFUSED, NO_LEASE, marks=pytest.mark.long),
    ],
)
def test_of_two_that_start_at_once_one_works_and_the_other_publishes_nothing(
    runs: Runs, tmp_path: Path, step: str, code: int, told: str
) -> None:
    lake = copy_of(runs.source, tmp_path / "lake")
    (done, _), (refused, error) = at_once(lake, step)
    assert (done, refused) == (0, code), error
    assert told in error
    assert differences(outcome(lake), outcome(runs.ended)) == {}


def hang_over_a_restore(lake: Lake, step: str, still_driven: bool = False) -> Exception | None:
    """Drive until after a step of the second epoch; while that driver hangs, another one restores and continues to the
    end. Return the first one's message when it wakes, or None if there is none.
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
def test_one_that_hung_while_another_restored_and_is_at_work_finds_its_lease_gone(runs: Runs, tmp_path: Path) -> None:
    lake = copy_of(runs.source, tmp_path / "lake")
    assert isinstance(hang_over_a_restore(lake, COMMITTED, still_driven=True), LeaseHeld)
    assert differences(rows_of(lake), rows_of(runs.ended)) == {}


@pytest.mark.first(1)
@pytest.mark.parametrize("step", [OPERATED, COMMITTED, RESULTS, LATE, REJECTS])
def test_one_that_hung_is_kept_out_by_epochs_that_only_grow_even_without_a_lease(
    runs: Runs, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = copy_of(runs.source, tmp_path / "lake")
    monkeypatch.setattr(Lease, "check", lambda self: None)
    hang_over_a_restore(lake, step)
    assert differences(rows_of(lake), rows_of(runs.ended)) == {}


def test_one_application_for_each_timeline_would_let_a_hung_driver_publish(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: each driver's commits have the timeline that the driver began on. The driver starts no further
    epoch, because before that it would publish the newest snapshot again, under its own id.
    """
    lake = copy_of(runs.source, tmp_path / "lake")
    monkeypatch.setattr(Lease, "check", lambda self: None)
    monkeypatch.setattr(Driver, "complete", lambda self, head: None)
    began: list[PipelineTables] = []

    def application(tables: PipelineTables) -> str:
        if not any(tables is known for known in began):
            began.append(tables)
        return f"tidegate/{tables.pipeline}/{[tables is known for known in began].index(True)}"

    monkeypatch.setattr(PipelineTables, "application", property(application))
    hang_over_a_restore(lake, COMMITTED)
    assert differences(rows_of(lake), rows_of(runs.ended)) != {}
