"""`tidegate stream`: run a pipeline over its source's commits, as they came."""

from __future__ import annotations

from typing import Any

import click

from pipelines.cli.backfill import fired
from pipelines.cli.screen import Screen, with_screen
from windowing.time import show_millis


@click.command()
@click.argument("pipeline")
@click.option("--available-now", is_flag=True, required=True, help="Read what is there now, then end.")
@click.option("--max-files-per-epoch", type=int, help="Read at most so many source files in one epoch.")
@with_screen
def stream(screen: Screen, pipeline: str, available_now: bool, max_files_per_epoch: int | None) -> None:
    """Run PIPELINE as a stream, going on from its newest snapshot."""
    from pipelines.driver import drive
    from pipelines.snapshots.manifest import Manifest
    from pipelines.stream import stream_available

    config = screen.config()
    value = config.pipeline(pipeline)
    epochs: list[dict[str, Any]] = []

    def on_epoch(manifest: Manifest) -> None:
        counters = manifest.counters
        epochs.append({"epoch": manifest.epoch, "watermark": manifest.watermark, "counters": counters})
        screen.tell(
            f"epoch {manifest.epoch}: {counters['events_in']} in, {counters['late']} late, {fired(counters)} fired, "
            f"{counters['open_windows']} open, watermark {show_millis(manifest.watermark)}"
        )

    options = {} if max_files_per_epoch is None else {"maxFilesPerTrigger": str(max_files_per_epoch)}
    with screen.console.status(f"starting Spark for {pipeline}") as status, drive(config, value, "stream") as driver:
        driver.tell = lambda step: status.update(f"{pipeline}: {step}")
        stream_available(driver, config.work_folder, on_epoch, options)
    screen.show({"pipeline": pipeline, "epochs": epochs}, f"{pipeline}: {len(epochs)} epochs, all data read")
