"""A command's driver: the lease, the observer and the engine of a run, which end with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import artifacts_of, warehouse_of
from tidegate.pipelines.definition.pipeline import Pipeline, operator_of
from tidegate.pipelines.engine.choose import engine_of
from tidegate.pipelines.epoch.driver import Driver, Tell
from tidegate.pipelines.epoch.observer import Observe, unobserved
from tidegate.pipelines.errors import LeaseHeld
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Holder, Lease
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.run.work_folder import clean_artifacts, clean_work, remove_leftovers
from tidegate.windowing.time import Millis

if TYPE_CHECKING:
    from tidegate.pipelines.engine.base import Engine

_ENGINE_ENDS_WITHIN = 1.0
"""Seconds to wait, after an error, to see whether the engine's process ends and so was its cause."""


@contextmanager
def drive(
    config: Config,
    pipeline: Pipeline,
    command: str,
    engine: Engine | None = None,
    clock: Callable[[], Millis] = system_clock,
    tell: Tell = lambda step: None,
    wait: Callable[[Holder], bool] = lambda holder: False,
    observe: Observe = unobserved,
) -> Iterator[Driver]:
    """Enter a driver that holds the lease. Without `engine`, it starts the project's engine, which ends with it.

    Args:
        config: the project.
        pipeline: the pipeline.
        command: name of the driver's work in the lease, shown to people who inspect it.
        engine: an engine to use, which stays open.
        clock: returns the current time, int64 epoch milliseconds.
        tell: called with the name of each completed step.
        wait: called while another driver holds the lease; returns True to try again.
        observe: returns a context manager of the run's observer, before the lease is taken.

    Raises:
        LeaseHeld: another driver runs the pipeline.
        UsageError: a folder that tidegate.toml names can't be created, or a library that its metrics need is not
            installed.
    """
    from tidegate.pipelines.definition.binding import check_windows

    entry = config.pipelines.get(pipeline.name)
    wanted = None if entry is None else entry.windows
    if wanted is not None:
        check_windows(pipeline, wanted)
    config.make_folders()
    observing = observe(config, pipeline.name, operator_of(pipeline), clock)
    clean_work(config.work_folder, config.retain_work_days, clock())
    tables = PipelineTables(warehouse_of(config), pipeline.name)
    with (
        Lease(tables, command, clock, wait) as lease,
        observing as metrics,
    ):
        if not config.shares_work:
            clean_artifacts(artifacts_of(config), config.retain_work_days, clock())
        # Only a driver of the same pipeline in an older version could be using such a folder.
        remove_leftovers(config.work_folder, pipeline.name)
        if engine is None:
            about = f"{command} {pipeline.name}"
            running = engine_of(config, about, lambda: driver.tell("starting Spark"), pipeline.name)
        else:
            running = engine
        driver = Driver(running, tables, pipeline, lease, clock, tell, metrics, windows=wanted)
        try:
            yield driver
        except Exception as error:
            if not isinstance(error, LeaseHeld):
                running.check(error, _ENGINE_ENDS_WITHIN)
            raise
        finally:
            if engine is None:
                running.close()


_WAIT_SECONDS = 1.0


@dataclass
class Patience:
    """Decides whether a command keeps waiting for the lease. It is called at each attempt to take the lease.

    Args:
        seconds: longest time to wait, starting now.
        command: the only kind of work in the lease to wait for.
        tell: called once for each holder that this waits for.
        is_ended: returns True once the command should stop waiting.
        timer: returns seconds from a monotonic clock.
        sleep: waits for a number of seconds.
    """

    seconds: float
    command: str
    tell: Callable[[str], None]
    is_ended: Callable[[], bool] = lambda: False
    timer: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _until: float = field(init=False)
    _announced: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._until = self.timer() + self.seconds

    def __call__(self, holder: Holder) -> bool:
        """Wait a second and return True, or return False immediately if there is nothing to wait for."""
        if holder.command != self.command or self.timer() >= self._until or self.is_ended():
            return False
        if holder.run not in self._announced:
            self._announced.add(holder.run)
            self.tell(f"waiting for {holder}")
        self.sleep(_WAIT_SECONDS)
        return True
