"""`tidegate explain` shows the operator that runs a pipeline, the reason, and the steps of an epoch. Starts no JVM."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.text import Text

from tidegate.pipelines.cli.screen import Screen, table, with_screen

_CATCHUP = (
    "catchup = true lets Airflow backfill every interval since start. A stream takes over for good: from the first run "
    "of {name}__stream on, each later backfill run is refused (exit code 3). Use one of the two, or set catchup = "
    'false: docs/operations/scheduling.md, "Backfill or stream"'
)


@click.command()
@click.argument("pipeline")
@with_screen
def explain(screen: Screen, pipeline: str) -> None:
    """Check PIPELINE, and show how it is run: the operator, why it was chosen, and the steps of an epoch.

    Faults that would end a run are reported without Spark where possible: missing columns and functions, conditions
    that are not boolean, types that don't fit.
    """
    from tidegate.pipelines.definition.load import load_pipeline
    from tidegate.pipelines.inspect.explanation import explain as explain_pipeline
    from tidegate.pipelines.inspect.explanation import look_at_source
    from tidegate.pipelines.sources.open_source import missing_sources, sources_of_panes
    from tidegate.pipelines.storage import warehouse_of

    config = screen.config()
    value = load_pipeline(config, pipeline)
    explanation = explain_pipeline(value, look_at_source(config, value))
    choice = explanation.operator
    data = asdict(explanation)
    data["operator"] = {"name": choice.name, "reason": choice.reason}
    warehouse = warehouse_of(config)
    missing, panes = missing_sources(value, warehouse), sources_of_panes(value, warehouse)
    data["missing_tables"] = list(missing)
    data["tables_of_panes"] = panes
    data["notes"] = notes = [_CATCHUP.format(name=pipeline)] if config.entry(pipeline).catchup else []
    screen.show(
        data,
        *(f"no column is checked yet: {message}" for message in missing.values()),
        *(
            f"source {name} has a row for each pane of a window, and rows that take panes back: all of them count. "
            'Read a copy of the final windows: docs/guide/consuming.md, "A second pipeline"'
            for name in panes
        ),
        *notes,
        Text.assemble((pipeline, "bold"), " runs through the ", (choice.name, "bold"), f" operator: {choice.reason}"),
        f"order: {explanation.order}",
        table(
            "an epoch",
            ["", "where", "what"],
            [[number, step.where, step.does] for number, step in enumerate(explanation.steps, 1)],
        ),
    )
