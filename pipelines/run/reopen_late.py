"""An epoch that reopens late rows, run by a driver. If nothing differs, there is no epoch."""

from __future__ import annotations

from time import perf_counter

from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import Manifest
from tidegate.pipelines.reopen.run import commit_reopened, corrected
from tidegate.pipelines.reopen.selection import Selection, check_reopenable
from tidegate.pipelines.reopen.source_rows import SourceRows
from tidegate.pipelines.run.driver import Driver
from tidegate.pipelines.snapshots.compatibility import migration_of, ready
from tidegate.pipelines.snapshots.head import required


def reopen(driver: Driver, selection: Selection) -> tuple[Manifest | None, int]:
    """Add late rows to the windows that they belong to; return the epoch's manifest and the number of late rows.

    If no late row is selected and every window has the right result, there is no epoch, and the manifest is None.

    Args:
        driver: the driver, which holds the lease.
        selection: the late rows to reopen.

    Raises:
        Refused: the pipeline has no snapshot, or its results depend on the order of arrival.
    """
    pipeline, tables = driver.pipeline, driver.tables
    driver.times.begin()
    check_reopenable(pipeline)
    head = required(tables, driver.recover())
    source = OpenInput.open(driver.engine, tables, pipeline)
    head = ready(tables, source.bound, head) or head
    if migration_of(source.bound, head.manifest) is not None:
        raise Refused(
            f"the code of pipeline {pipeline.name!r} has changed, and its state must be migrated first: run "
            f"`tidegate stream {pipeline.name} --available-now`, then reopen"
        )
    position = head.manifest.position_in(pipeline.source.table)
    if position.version < 0 and not position.files:
        raise Refused(
            f"late rows of pipeline {pipeline.name!r} can't be reopened yet: its source was reset, and nothing of it "
            f"was read yet. Run `tidegate stream {pipeline.name} --available-now` first"
        )
    rows = SourceRows(driver.engine, source, head, tables)
    began = perf_counter()
    plan, outcomes = corrected(tables, source.bound, head, selection, rows, driver.clock(), driver.step)
    if not any(plan.late_rows) and not any(outcome.changed or outcome.files for outcome in outcomes):
        return None, 0
    driver.lease.check()
    manifest = commit_reopened(plan, outcomes, round(perf_counter() - began, 3), driver.engine.name)
    driver.step("committed")
    driver.publish(manifest)
    return manifest, sum(plan.late_rows)
