"""`tidegate report`: one HTML page that shows how a run went."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli.screen import Screen, with_screen
from pipelines.errors import UsageError


@click.command()
@click.argument("pipeline")
@click.option("--epoch", type=int, help="The run of this epoch; default: the newest.")
@click.option("--key", help="Whose windows to show on a timeline, its columns joined by /; default: the busiest.")
@click.option("--to", "to", type=click.Path(path_type=Path, dir_okay=False), help="File; default: in the work folder.")
@with_screen
def report(screen: Screen, pipeline: str, epoch: int | None, key: str | None, to: Path | None) -> None:
    """Write the report of a run of PIPELINE as one HTML page, with everything it needs in it."""
    config = screen.config()
    config.entry(pipeline)
    from pipelines.report.run import read_run
    from pipelines.storage import warehouse_of
    from pipelines.tables.pipeline_tables import PipelineTables

    try:
        from pipelines.report.page import render, report_path
    except ModuleNotFoundError as error:
        raise UsageError(f"reports need the package {error.name}: pip install 'tidegate[report]'") from error

    run = read_run(PipelineTables(warehouse_of(config), pipeline), epoch, key)
    file = to or report_path(config, pipeline, run.manifest.epoch)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(render(run))
    part.replace(file)
    told = {"pipeline": pipeline, "epoch": run.manifest.epoch, "file": str(file.absolute())}
    screen.show(told, f"report of {pipeline}, epoch {run.manifest.epoch}: {file.absolute()}")
