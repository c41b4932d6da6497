"""`tidegate quality`: check the windows of a run against the pipeline's suite."""

from __future__ import annotations

from dataclasses import asdict

import click

from pipelines.cli.screen import Screen, table, with_screen
from pipelines.errors import QualityFailed, UsageError


@click.command()
@click.argument("pipeline")
@click.option("--epoch", type=int, help="The run of this epoch; default: the newest.")
@with_screen
def quality(screen: Screen, pipeline: str, epoch: int | None) -> None:
    """Check the final windows of PIPELINE that an epoch put out against the suite in tidegate.toml.

    A critical expectation that does not hold ends the command with exit code 5.
    """
    config = screen.config()
    path = config.entry(pipeline).suite
    if path is None:
        raise UsageError(f"pipelines.{pipeline}.suite: {config.file} names no suite for this pipeline")
    from expectations.pinned import pin_windows
    from expectations.run import run_suite

    suite = config.load(path, f"pipelines.{pipeline}.suite")
    run = run_suite(suite, pin_windows(config, pipeline, epoch), config.work_folder / "quality" / pipeline)
    rows = [
        ("holds" if check.success else "FAILS", check.severity, check.expectation, check.column, check.observed)
        for check in run.checks
    ]
    screen.show(
        {
            "suite": run.suite,
            "epoch": run.epoch,
            "rows": run.rows,
            "success": not run.is_critical,
            "checks": [asdict(check) for check in run.checks],
            "docs": str(run.docs),
        },
        table(
            f"{run.suite}: {run.rows} final windows of epoch {run.epoch}",
            ("", "severity", "expectation", "columns", "observed"),
            rows,
        ),
        f"Data Docs: {run.docs}",
    )
    if run.is_critical:
        names = ", ".join(sorted({f"{check.expectation} ({check.column})" for check in run.failed}))
        raise QualityFailed(f"{pipeline}, epoch {run.epoch}: {names} must hold and does not; see {run.docs}")
