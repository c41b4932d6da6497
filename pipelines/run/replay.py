"""Backfill in arrival order: the source's commits, one after the other, with their commit times as the clock.

A replay gives the results of a stream that had run all along, late rows and windows in processing time included; the
commits of two sources are interleaved by their times. Unlike a stream, a replay makes no clock epochs after the newest
commit.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.plan_commits import plan_commits
from tidegate.pipelines.epoch.read_commits import ReadCommit
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import Manifest, Position
from tidegate.pipelines.run.driver import Driver
from tidegate.pipelines.snapshots.compatibility import ready
from tidegate.pipelines.snapshots.head import read_snapshot
from tidegate.pipelines.sources.interleave import interleaved


def replay(driver: Driver, commits_per_epoch: int | None = None) -> Iterator[Manifest]:
    """Run epochs over every source commit that the pipeline has not read, and yield the manifest of each.

    Args:
        driver: the driver, which holds the lease.
        commits_per_epoch: number of source commits in an epoch; None for all of them. It changes no result.

    Raises:
        Refused: the pipeline is a backfill in event order, or the log of a commit is gone.
        Stopped: `tidegate stop` asked for the end between two epochs.
    """
    driver.recover()
    source = OpenInput.open(driver.engine, driver.tables, driver.pipeline)
    ready(driver.tables, source.bound, read_snapshot(driver.tables))
    positions = [_position(driver, input_.table) for input_ in source.inputs]
    logs = [input_.commits(position.version) for input_, position in zip(source.inputs, positions, strict=True)]
    commits = interleaved(logs)
    for _, commit in commits:
        if commit.changes:
            raise Refused(
                f"pipeline {driver.pipeline.name!r} can't be replayed: version {commit.version} of its source changed "
                "rows. Run `tidegate stream` with --available-now, which corrects their windows, or backfill it in "
                "event order"
            )
    size = commits_per_epoch or max(1, len(commits))
    for first in range(0, len(commits), size):
        driver.heed_stop()
        driver.times.begin()
        taken = [
            ReadCommit(
                commit, commit.files[_read(positions[number], commit.version) :], len(commit.files), True, number
            )
            for number, commit in commits[first : first + size]
        ]
        head = read_snapshot(driver.tables)
        plan = plan_commits(source, driver.tables, taken, head, driver.clock(), driver.shards)
        driver.step("planned")
        manifest = driver.run(plan)
        driver.measure()
        yield manifest


def _read(position: Position, version: int) -> int:
    """Return the number of files of a version that were read before."""
    return position.files if version == position.version + 1 else 0


def _position(driver: Driver, table: str) -> Position:
    head = read_snapshot(driver.tables)
    if head is None:
        return Position(version=-1)
    position = head.manifest.position_in(table)
    if position.frontier is not None:
        raise Refused(
            f"pipeline {driver.pipeline.name!r} was backfilled in event order, up to epoch {head.manifest.epoch}: "
            "--order arrival can't continue that. Give the replay a pipeline of another name, or run "
            "`tidegate stream`, which continues from the backfill"
        )
    return position
