"""The processes of the local engine: what remains when one is killed, when the driver is killed, and when the disk is
full.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tests.recovery.arrivals import copy_of, differences, rows_of
from tests.waiting import wait_until
from tidegate.pipelines.engine import local
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.engine.processes import Pool, Processes
from tidegate.pipelines.epoch import exchange
from tidegate.pipelines.errors import OTHER, TidegateError
from tidegate.windowing import KeyedProcess, KeyedProcessFunction

pytestmark = pytest.mark.recovery

ROOT = Path(__file__).parents[2]


class Killing(KeyedProcessFunction):
    """Kills its process while a file exists, or once; the driver is never killed."""

    result_type = pa.struct([("value", pa.int64())])

    def __init__(self, order: str, driver: int, once: bool = False) -> None:
        self.order, self.driver, self.once = order, driver, once

    def states(self) -> list[Any]:
        return []

    def process_element(self, value: Any, ctx: Any) -> list[dict[str, Any]]:
        if os.path.exists(self.order) and os.getpid() != self.driver:
            if self.once:
                os.unlink(self.order)
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"value": value["value"]}]


def lake_of(folder: Path) -> Lake:
    lake = Lake(folder)
    lake.append(*((user, at(f"{hour:02d}:00"), hour) for hour in range(5) for user in ("ann", "bob", "cid", "dan")))
    return lake


Children = Callable[[], list[psutil.Process]]


@pytest.fixture
def children() -> Children:
    """Return the pool processes that the test started; other tests of this process may have their own."""

    def is_of_a_pool(child: psutil.Process) -> bool:
        try:
            return "loky.backend.popen" in str(child.cmdline())
        except psutil.NoSuchProcess:  # It ended since it was listed, or nobody has waited for it yet.
            return False

    def of_pools() -> list[psutil.Process]:
        return [child for child in psutil.Process().children(recursive=True) if is_of_a_pool(child)]

    before = {child.pid for child in of_pools()}
    return lambda: [child for child in of_pools() if child.pid not in before]


def test_a_process_that_is_killed_fails_the_epoch_the_next_run_goes_on_and_closed_the_engine_leaves_none(
    tmp_path: Path, children: Children
) -> None:
    lake, order = lake_of(tmp_path / "lake"), tmp_path / "die"
    # The function is part of the pipeline's code, so it stays the same.
    pipeline = hourly_pipeline(compute=KeyedProcess(Killing(str(order), os.getpid())), parallelism=2)
    order.touch()
    engine = LocalEngine(cores=2, rows_in_driver=0)
    try:
        with pytest.raises(TidegateError, match="a process of the local engine ended while it ran a task") as ended:
            lake.stream(engine, pipeline)
        assert ended.value.exit_code == OTHER
        assert not children(), "also those that were not killed are gone"
        order.unlink()
        (made,) = lake.stream(engine, pipeline)
        assert made.epoch == 1, "the epoch that failed left nothing"
        assert children()
    finally:
        engine.close()
    wait_until(lambda: not children(), "the processes end")
    assert len(lake.rows(pipeline, "results")) > 0


def test_after_one_process_was_killed_all_are_replaced_and_the_epoch_is_exact(
    tmp_path: Path, children: Children
) -> None:
    lake, order = lake_of(tmp_path / "lake"), tmp_path / "die"
    undisturbed = copy_of(lake, tmp_path / "undisturbed")
    pipeline = hourly_pipeline(compute=KeyedProcess(Killing(str(order), os.getpid(), once=True)), parallelism=2)
    order.touch()
    engine = LocalEngine(cores=2, rows_in_driver=0)
    try:
        (made,) = lake.stream(engine, pipeline)
    finally:
        engine.close()
    assert made.epoch == 1
    assert not order.exists()
    undisturbed.stream(LOCAL, pipeline)
    assert differences(rows_of(lake, pipeline), rows_of(undisturbed, pipeline)) == {}


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.close()


def pool_at_work(processes: int = 2) -> Pool:
    """Return a pool whose processes have started."""
    pool = Pool(processes)
    pool.run([list] * processes)
    return pool


def test_a_pool_is_left_to_the_next_run_of_its_pipeline_and_ends_before_another_pipeline_runs(
    children: Children, processes: Processes
) -> None:
    pool = pool_at_work()
    processes.leave("hours", pool)
    assert processes.take("hours", 2) is pool
    assert processes.take("hours", 2) is None, "a run at the same time has its own"
    processes.leave("hours", pool)
    assert processes.take("others", 2) is None
    assert not children()


@pytest.mark.parametrize("change", ["a module is loaded again", "the environment", "the import path", "the cores"])
def test_a_pool_ends_once_what_it_took_from_the_driver_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Children, processes: Processes, change: str
) -> None:
    (tmp_path / "loaded_again.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("loaded_again")
    processes.leave("hours", pool_at_work())
    if change == "a module is loaded again":
        importlib.reload(module)
    elif change == "the environment":
        monkeypatch.setenv("RATE_OF_A_PIPELINE", "2")
    elif change == "the import path":
        monkeypatch.syspath_prepend(tmp_path / "more")
    assert processes.take("hours", 3 if change == "the cores" else 2) is None
    assert not children()


def test_a_fork_of_the_driver_gets_no_pool_because_the_threads_that_feed_it_are_in_the_driver(
    children: Children, processes: Processes
) -> None:
    processes.leave("hours", pool_at_work())
    fork = os.fork()
    if fork == 0:
        os._exit(0 if processes.take("hours", 2) is None else 1)
    _, status = os.waitpid(fork, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(children()) == 2, "nor does it end the processes"


def test_a_process_that_was_killed_between_two_runs_does_not_fail_the_second(children: Children) -> None:
    pool = pool_at_work()
    killed = children()[0]
    killed.kill()
    try:
        assert pool.run([list, list]) == []
        assert killed.pid not in {child.pid for child in children()}
    finally:
        pool.close()


def test_the_processes_end_when_nothing_refers_to_them(children: Children) -> None:
    processes = Processes()
    processes.leave("hours", pool_at_work())
    assert children()
    del processes
    gc.collect()
    wait_until(lambda: not children(), "the processes end")


def test_a_project_ends_as_soon_as_nothing_refers_to_it(tmp_path: Path) -> None:
    """A project in a cycle, and its processes, would last until Python looks for cycles."""
    project = lake_of(tmp_path / "lake").project(hourly_pipeline())
    seen = weakref.ref(project)
    gc.disable()
    try:
        del project
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("is_entered", [True, False], ids=["with", "close"])
def test_the_runs_of_a_project_share_processes_which_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Children, is_entered: bool
) -> None:
    lake, pipeline = lake_of(tmp_path / "lake"), hourly_pipeline(parallelism=2)
    monkeypatch.setattr(local, "_ROWS_IN_DRIVER", 0)
    monkeypatch.setattr(local, "_ROWS_TO_START", 0)
    monkeypatch.setattr(local, "count_cores", lambda: 2)
    project = lake.project(pipeline)
    with project if is_entered else closing(project):
        project.stream("hours")
        first = {child.pid for child in children()}
        assert len(first) == 2
        lake.append(("ann", at("06:00"), 1))
        project.stream("hours")
        assert {child.pid for child in children()} == first
    assert not children()


DRIVER = """
import sys
import weakref
from pathlib import Path
from tests.lake import Lake, hourly_pipeline
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.engine.processes import Processes
lake, engine = Lake(Path(sys.argv[1])), LocalEngine(cores=2, rows_in_driver=0, processes=Processes(), pipeline="hours")
lake.stream(engine, hourly_pipeline(parallelism=2))
Path(sys.argv[2]).touch()
engine.close()
sys.stdin.read()
"""


@pytest.mark.first(1)
def test_a_process_stays_though_its_allocator_keeps_more_memory_than_loky_takes_for_a_leak() -> None:
    pool = Pool(1)
    try:
        (limit,) = pool.run([_limit_of_loky])[0].column(0).to_pylist()
    finally:
        pool.close()
    assert limit > psutil.virtual_memory().total


def _limit_of_loky() -> list[pa.RecordBatch]:
    from loky import process_executor

    return [pa.record_batch({"limit": [process_executor._MAX_MEMORY_LEAK_SIZE]})]


@pytest.mark.first(1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, None], ids=["kill -9", "Ctrl-C", "end"])
def test_the_end_of_the_driver_ends_its_processes_even_those_left_for_the_next_run(
    tmp_path: Path, number: signal.Signals | None
) -> None:
    lake_of(tmp_path / "lake")
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "lake"), str(tmp_path / "ready")]
    driver = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, start_new_session=True
    )
    try:
        wait_until((tmp_path / "ready").exists, "the epoch is published")
        processes = psutil.Process(driver.pid).children(recursive=True)
        assert len(processes) >= 2
        if number is signal.SIGINT:
            # A terminal sends the signal to the whole group.
            os.killpg(driver.pid, number)
        elif number is not None:
            driver.send_signal(number)
        else:
            assert driver.stdin is not None
            driver.stdin.close()
        driver.wait(60)
        wait_until(lambda: not any(process.is_running() for process in processes), "the processes end")
    finally:
        driver.kill()
        driver.wait()


def test_a_full_work_folder_fails_the_epoch_and_leaves_nothing_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, pipeline = lake_of(tmp_path / "lake"), hourly_pipeline(parallelism=5)
    fresh = copy_of(lake, tmp_path / "fresh")
    monkeypatch.setattr(exchange, "_ROWS_READ_AGAIN", -1)
    whole = Path.write_bytes

    def full(path: Path, content: Any) -> int:
        if path.parent.name.startswith("tidegate-exchange-"):
            raise OSError(28, "No space left on device")
        return whole(path, content)

    engine = LocalEngine(cores=2, work=tmp_path / "work", rows_in_driver=1 << 60)
    with monkeypatch.context() as planted:
        planted.setattr(Path, "write_bytes", full)
        with pytest.raises(TidegateError, match=r"work folder .*work: .*No space left on device.*set `work`"):
            lake.stream(engine, pipeline)
    assert list((tmp_path / "work").iterdir()) == []
    (made,) = lake.stream(engine, pipeline)
    assert made.epoch == 1
    assert list((tmp_path / "work").iterdir()) == []
    fresh.stream(LOCAL, pipeline)
    assert differences(rows_of(lake, pipeline), rows_of(fresh, pipeline)) == {}


EXCHANGING = """
import os, signal, sys
from pathlib import Path
from tests.lake import Lake, hourly_pipeline
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.epoch import exchange

def killed(path, content):
    os.kill(os.getpid(), signal.SIGKILL)

exchange._ROWS_READ_AGAIN, Path.write_bytes = -1, killed
lake = Lake(Path(sys.argv[1]))
engine = LocalEngine(cores=2, work=lake.config.work_folder, rows_in_driver=1 << 60)
lake.stream(engine, hourly_pipeline(parallelism=5))
"""


def test_the_next_run_or_forget_removes_the_events_that_a_killed_driver_left(tmp_path: Path) -> None:
    lake, pipeline = lake_of(tmp_path / "lake"), hourly_pipeline(parallelism=5)
    work = lake.config.work_folder
    project = lake.project(pipeline, work=work)
    for remove in (lambda: lake.stream(LOCAL, pipeline), lambda: project.forget("hours", ("ann",))):
        subprocess.run([sys.executable, "-c", EXCHANGING, str(lake.folder)], cwd=ROOT, check=False)
        assert len([*work.glob("tidegate-exchange-*")]) == 1
        remove()
        assert not [*work.glob("tidegate-exchange-*")]
        lake.append(("ann", at("06:00"), 1))


OF_THE_PROJECT = """
from datetime import timedelta
from tidegate import Count, DeltaSource, Pipeline, TumblingEventTimeWindows, WatermarkStrategy, Windows

hours = Pipeline(
    name="hours",
    source=DeltaSource("events", timestamp="at"),
    key=("user",),
    watermark=WatermarkStrategy.for_monotonous_timestamps(),
    compute=Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"events": Count()}),
)
"""


def test_a_project_runs_where_spark_is_not_installed(tmp_path: Path) -> None:
    """From an empty folder to results, in a process that can't import Spark."""
    lake_of(tmp_path)
    (tmp_path / "tidegate.toml").write_text(
        'engine = "local"\n[pipelines.hours]\nobject = "of_the_project:hours"\nstart = 2024-03-01\n'
    )
    blocked = "import sys\nfor name in ('pyspark', 'delta', 'py4j'): sys.modules[name] = None\n"
    (tmp_path / "of_the_project.py").write_text(OF_THE_PROJECT)
    run = f"{blocked}from tidegate.pipelines.project.cli import main\nmain()"

    def tidegate(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", run, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    done = tidegate("backfill", "hours", "--start", "2024-03-01", "--end", "2024-03-02")
    assert done.returncode == 0, done.stderr
    found = tidegate("results", "hours", "--limit", "0", "--json")
    assert found.returncode == 0, found.stderr
    assert found.stdout.count('"events": 1') == 20
