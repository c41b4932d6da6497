"""A stream through a real scheduler: it is started and fed, refuses bad successors, and is replaced from an older
snapshot.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.airflow.dag_runs import begin, end_of, run_of, states, task_log, trigger, unpause
from tests.airflow.visits import live, resting
from tests.lake import LOCAL, Lake, at
from tests.recovery.arrivals import run as stream_without_spark
from tests.waiting import wait_until
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.ledger.lease import Holder, read_lease
from tidegate.pipelines.ledger.snapshots.head import read_snapshot, require_snapshot
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, list_savepoints
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stopping import stop_driver

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

DAG = "live__restart"
RESTING = "resting__stream"
RESTING_AGAIN = "resting__restart"
FIRST = (("ann", at("10:00"), 1), ("ann", at("10:10"), 2), ("bob", at("10:05"), 4))
FED = (("ann", at("12:00"), 8),)
LATE = (("bob", at("10:10"), 16),)
TOTALS = {("ann", at("10:00")): 3, ("bob", at("10:05")): 4}
"""Return the windows that are final after these, without the late row."""


# tests/pipelines/project/cli/test_stream.py always tests that a stream waits for the scheduled one and then restores.
@pytest.mark.long
def test_a_restore_of_a_paused_dag_wins_over_the_run_that_unpausing_starts(
    airflow: EmbeddedAirflow, lake: Lake
) -> None:
    """As the trigger form does it: the run exists first, and unpausing creates the scheduled run as well."""
    for rows in (FIRST, FED):
        lake.append(*rows, table="resting_events")
        stream_without_spark(LOCAL, lake, pipeline=resting, limits=EpochLimits())
    assert lake.snapshot(resting).manifest.epoch == 2
    asked = trigger(airflow, RESTING_AGAIN, restore="1")
    unpause(airflow, RESTING)
    unpause(airflow, RESTING_AGAIN)
    run = end_of(airflow, RESTING_AGAIN, asked)
    assert states(airflow, run)["stream"] == ("success", 1)
    (scheduled,) = [other["dag_run_id"] for other in airflow.runs_of(RESTING)]
    assert states(airflow, end_of(airflow, RESTING, scheduled))["stream"][0] in ("success", "skipped")
    manifest = lake.snapshot(resting).manifest
    assert manifest.timeline == 2, "what was asked for happened, and only once"
    assert pc.sum(lake.rows(resting, "epochs")["events_in"]).as_py() == len(FIRST + FED)


@pytest.mark.long
def test_a_misspelled_param_is_refused_and_nothing_is_done(airflow: EmbeddedAirflow, lake: Lake) -> None:
    before = read_snapshot(lake.tables(resting))
    run = run_of(airflow, RESTING_AGAIN, restroe="1")
    found = states(airflow, run)
    assert found["before"] == ("failed", 1), "a retry would change nothing"
    assert {state for task, (state, _) in found.items() if task != "before"} == {"upstream_failed"}
    assert "'restroe' is not a Param of this DAG: did you mean restore?" in task_log(airflow, run, "before")
    assert read_snapshot(lake.tables(resting)) == before


# In every run tests/dags/test_factory.py gives the callback the context of a task whose worker died.
@pytest.mark.long
def test_a_group_whose_worker_was_killed_raises_an_alarm_for_each(airflow: EmbeddedAirflow, lake: Lake) -> None:
    hold = lake.folder / "hold"
    hold.touch()
    run = begin(airflow, "held__streams")
    try:
        wait_until((lake.folder / "held").exists, "the command of the group")
        (task,) = [task for task in airflow.tasks_of("held__streams", run) if task["task_id"] == "streams"]
        airflow.kill_worker(task["id"])
        assert end_of(airflow, "held__streams", run)["state"] == "failed"
        alarms = lake.folder / ".work" / "alarms.jsonl"
        wait_until(lambda: alarms.exists() and alarmed(alarms) >= {"left", "right"}, "the alarm of each pipeline")
    finally:
        hold.unlink()


def alarmed(file: Path) -> set[str]:
    """Return the pipelines of a journal of alarms."""
    return {json.loads(line)["pipeline"] for line in file.read_text().splitlines()}


@dataclass(frozen=True)
class Streaming:
    """A continuous stream that has committed its first epoch and keeps running.

    Args:
        lake: its project.
        run: run of the DAG.
        sensor: observed states of `first_epoch`, in order.
    """

    lake: Lake
    run: str
    sensor: tuple[str, ...]

    @property
    def tables(self) -> PipelineTables:
        return self.lake.tables(live)

    @property
    def events_in(self) -> int:
        return int(pc.sum(self.lake.rows(live, "epochs")["events_in"]).as_py())

    def driver(self) -> Holder:
        """Return the lease of the running driver."""
        row = read_lease(self.tables)
        assert row is not None
        assert row.is_alive(self.lake.clock())
        return row


@pytest.fixture(scope="module")
def streaming(airflow: EmbeddedAirflow, lake: Lake) -> Iterator[Streaming]:
    lake.append(*FIRST, table="live_events")
    run = begin(airflow, DAG, interval="2s")
    seen: list[str] = []

    def confirmed() -> bool:
        (task,) = [task for task in airflow.tasks_of(DAG, run) if task["task_id"] == "first_epoch"]
        if task["state"] is not None and task["state"] not in seen:
            seen.append(task["state"])
        return task["state"] in ("success", "failed")

    wait_until(confirmed, "the first epoch")
    try:
        yield Streaming(lake, run, tuple(seen))
    finally:
        stop_driver(lake.folder / "tidegate.toml", live.name, patience=60)


def test_the_first_epoch_is_confirmed_in_the_triggerer_while_the_stream_goes_on(
    streaming: Streaming, airflow: EmbeddedAirflow
) -> None:
    assert "deferred" in streaming.sensor, "it takes no worker while it waits"
    assert streaming.sensor[-1] == "success"
    tasks = {task["task_id"]: task["state"] for task in airflow.tasks_of(DAG, streaming.run)}
    assert tasks["stream"] == "running"
    assert streaming.events_in == len(FIRST)


@pytest.fixture(scope="module")
def fed(streaming: Streaming) -> Streaming:
    """The stream after it has read more rows, one of which came too late."""
    streaming.lake.append(*FED, table="live_events")
    streaming.lake.append(*LATE, table="live_events")
    wait_until(lambda: streaming.events_in == len(FIRST + FED + LATE), "the epoch over what was fed")
    return streaming


def test_what_is_fed_is_taken_and_a_row_that_comes_too_late_is_kept(fed: Streaming) -> None:
    assert totals(fed) == TOTALS
    assert [row["reason"] for row in fed.lake.rows(live, "late").to_pylist()] == ["late"]


@pytest.mark.long
def test_reopening_by_hand_beside_the_stream_is_refused_with_the_key_that_lets_the_stream_do_it(
    fed: Streaming, airflow: EmbeddedAirflow
) -> None:
    run = run_of(airflow, "live__late")
    assert states(airflow, run) == {"reopen": ("failed", 2), "quality": ("upstream_failed", 0)}
    told = task_log(airflow, run, "reopen")
    assert "exit code 4" in told
    assert "reopen_schedule" in told
    assert totals(fed) == TOTALS
    assert fed.driver().command == "stream"


@pytest.mark.long
def test_a_start_beside_it_is_told_who_is_at_work_and_leaves_the_timeline_as_it_is(
    streaming: Streaming, airflow: EmbeddedAirflow
) -> None:
    driver = streaming.driver()
    run = run_of(airflow, DAG, mode="available-now", restore="1")
    assert states(airflow, run)["stream"] == ("failed", 2), "another try might have found the lease free"
    told = task_log(airflow, run, "stream")
    assert f"is being driven by process {driver.process}" in told
    assert "exit code 4" in told
    assert streaming.driver().run == driver.run
    assert streaming.lake.snapshot(live).manifest.timeline == 1, "a restore that commits nothing leaves nothing"


def code_that_can_not_go_on(lake: Lake) -> None:
    module = lake.folder / "visits.py"
    module.write_text(module.read_text().replace('key=("user",)', 'key=("value",)'))


def a_savepoint_of_another_pipeline(lake: Lake) -> None:
    tables = PipelineTables(warehouse_of(load_config(lake.folder / "tidegate.toml")), "sessions")
    entry = create_savepoint(tables, require_snapshot(tables), "foreign", lake.clock())
    savepoints = Path(lake.tables(live).path("savepoints"))
    savepoints.mkdir(exist_ok=True)
    shutil.move(entry.path, savepoints / "foreign")


# Other tests always cover the rest: tests/dags/test_factory.py the order of `check` and `stop`,
# tests/dags/test_operator.py a task whose command is refused, and tests/pipelines/project/cli what `check` refuses.
@pytest.mark.long
@pytest.mark.parametrize(
    ("prepare", "restore", "code", "told"),
    [
        (lambda lake: None, "9999", 2, "'9999' is not a snapshot of live"),
        (lambda lake: None, "savepoint:gone", 2, "no savepoint 'gone' of live"),
        (a_savepoint_of_another_pipeline, "savepoint:foreign", 3, "belongs to pipeline 'sessions'"),
        (code_that_can_not_go_on, "latest", 3, "key column 'user' is string in the snapshot"),
    ],
    ids=["unknown snapshot", "unknown savepoint", "another pipeline's savepoint", "incompatible code"],
)
def test_a_successor_that_can_not_go_on_is_refused_while_the_old_stream_runs(
    prepare: Callable[[Lake], None],
    restore: str,
    code: int,
    told: str,
    streaming: Streaming,
    airflow: EmbeddedAirflow,
) -> None:
    driver = streaming.driver()
    prepare(streaming.lake)
    try:
        run = run_of(airflow, DAG, take_over=True, restore=restore)
    finally:
        shutil.copy(Path(__file__).parent / "visits.py", streaming.lake.folder)
    found = states(airflow, run)
    assert found["check"] == ("failed", 1), "a retry would change nothing"
    assert {found[task][0] for task in ("savepoint", "stop", "stream")} == {"upstream_failed"}
    log = task_log(airflow, run, "check")
    assert told in log
    assert f"exit code {code}" in log
    assert streaming.driver().run == driver.run
    assert not streaming.driver().stop_requested


@pytest.mark.long
def test_a_restart_from_an_older_snapshot_ends_the_old_stream_and_computes_the_same_again(
    fed: Streaming, airflow: EmbeddedAirflow
) -> None:
    """This test is last in the file because it ends the stream that the others inspect."""
    before = fed.lake.snapshot(live).manifest
    events = fed.events_in
    run = run_of(
        airflow, DAG, take_over=True, restore="1", savepoint="before_restart", parallelism=3, mode="available-now"
    )
    assert {task: state for task, (state, _) in states(airflow, run).items()} == {
        "before": "success",
        "check": "success",
        "savepoint": "success",
        "stop": "success",
        "stream": "success",
        "first_epoch": "skipped",
    }
    old = end_of(airflow, DAG, fed.run)
    assert states(airflow, old)["stream"] == ("success", 1), "it ended after its epoch, as it was asked to"
    manifest = fed.lake.snapshot(live).manifest
    assert (manifest.timeline, len(manifest.shards)) == (before.timeline + 1, 3)
    (savepoint,) = [entry for entry in list_savepoints(fed.tables) if entry.name == "before_restart"]
    assert savepoint.manifest.epoch >= before.epoch
    assert fed.events_in == events == len(FIRST + FED + LATE), "every event counts once"
    assert totals(fed) == TOTALS, "the row is late again"


def totals(streaming: Streaming) -> dict[tuple[str, object], int]:
    """Return the totals of final windows, by user and start."""
    return {(row["user"], row["window_start"]): row["total"] for row in streaming.lake.final(live).to_pylist()}
