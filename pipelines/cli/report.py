"""`tidegate report` writes one HTML page that shows how a run went."""

from __future__ import annotations

from pathlib import Path

import click

from tidegate.extras import require
from tidegate.pipelines.cli.screen import Screen, with_screen


@click.command()
@click.argument("pipeline")
@click.option("--epoch", type=int, help="The run of this epoch; default: the newest.")
@click.option(
    "--key",
    help="Key whose windows the timeline shows, its columns joined by /, \\N for a null; default: the busiest key.",
)
@click.option("--to", "to", type=click.Path(path_type=Path, dir_okay=False), help="File; default: among the artifacts.")
@with_screen
def report(screen: Screen, pipeline: str, epoch: int | None, key: str | None, to: Path | None) -> None:
    """Write the report of a run of PIPELINE as one HTML page, with everything it needs in it."""
    config = screen.config()
    config.entry(pipeline)
    require("the run report", "jinja2", "matplotlib")
    from tidegate.pipelines.report.page import write_report

    file = write_report(config, pipeline, epoch, key, to)
    screen.show({"pipeline": pipeline, "file": file}, f"report of {pipeline}: {file}")
