"""The driver of a pipeline: checking that it is alive, stopping it, removing a dead driver's lease. Starts no JVM."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.host import Heartbeat
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import OBJECT, SECONDS, TEXT, Column, Columns
from tidegate.pipelines.project.progress import Teller
from tidegate.pipelines.run.stopping import stop_driver


@dataclass(frozen=True, slots=True)
class Alive(Facts):
    """A stream that is alive.

    Args:
        age: seconds since its last heartbeat.
    """

    pipeline: str
    age: float

    facts: ClassVar[Columns] = (Column("pipeline", TEXT), Column("age", SECONDS))
    says: ClassVar[str] = "the stream of {pipeline} is alive: last heartbeat {age:.0f} s ago"


@dataclass(frozen=True, slots=True)
class StoppedDriver(Facts):
    """A driver that was stopped.

    Args:
        stopped: description of the driver.
    """

    pipeline: str
    stopped: str

    facts: ClassVar[Columns] = (Column("pipeline", TEXT), Column("stopped", TEXT))
    says: ClassVar[str] = "{pipeline} is stopped"


@dataclass(frozen=True, slots=True)
class Unlocked(Facts):
    """A lease that was removed from a driver.

    Args:
        taken_from: description of the driver.
    """

    pipeline: str
    taken_from: Any

    facts: ClassVar[Columns] = (Column("pipeline", TEXT), Column("taken_from", OBJECT))
    says: ClassVar[str] = "{pipeline} is free; the lease was held by {taken_from}"


def alive(config: Config, pipeline: str, within: float) -> Alive:
    config.entry(pipeline)
    return Alive(pipeline, round(Heartbeat(config.work_folder, pipeline).check(within, time.time()), 3))


def stop(config: Config, pipeline: str, patience: float, teller: Teller) -> StoppedDriver:
    stopped = stop_driver(config, pipeline, patience, teller.say)
    if stopped is None:
        raise Refused(f"pipeline {pipeline!r} has no running driver")
    return StoppedDriver(pipeline, stopped)


def unlock(config: Config, pipeline: str) -> Unlocked:
    from tidegate.pipelines.ledger.host import system_clock
    from tidegate.pipelines.ledger.lease import unlock as run
    from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables

    taken_from = run(PipelineTables.of(config, pipeline), system_clock())
    if taken_from is None:
        raise Refused(f"nobody holds the lease of pipeline {pipeline!r}: there is nothing to unlock")
    return Unlocked(pipeline, taken_from)
