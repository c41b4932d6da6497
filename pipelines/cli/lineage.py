"""`tidegate lineage` shows what a pipeline reads and writes, and where each result comes from. Starts no JVM."""

from __future__ import annotations

from typing import Any

import click
from rich.console import RenderableType

from tidegate.pipelines.cli.screen import Screen, table, with_screen
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.run.intervals import parse_moment
from tidegate.windowing.time import Millis, to_millis


@click.command()
@click.argument("pipeline")
@click.option(
    "--command",
    type=click.Choice(["drive", "quality"]),
    default="drive",
    show_default=True,
    help="drive: a command that computes windows, such as backfill or stream. quality: the check of the tables.",
)
@click.option("--since", help="Count what epochs that began at this moment or later put out: 2024-03-01T06:00:00Z.")
@click.option("--until", help="With --since: only epochs that began before this moment.")
@with_screen
def lineage(screen: Screen, pipeline: str, command: str, since: str | None, until: str | None) -> None:
    """Show the datasets of PIPELINE as OpenLineage names them, and the columns behind each column of its tables.

    --json has the datasets with all their facets. Nothing is sent anywhere.
    """
    from tidegate.pipelines.lineage.datasets import datasets_of_check, datasets_of_driver

    config = screen.config()
    config.entry(pipeline)
    if until is not None and since is None:
        raise UsageError("--until: give --since, too")
    if command == "quality":
        datasets = datasets_of_check(config, pipeline)
    else:
        from tidegate.pipelines.definition.load import load_pipeline
        from tidegate.pipelines.lineage.written import Held

        held = (
            None
            if since is None
            else Held(_millis(since, "--since"), None if until is None else _millis(until, "--until"))
        )
        datasets = datasets_of_driver(config, load_pipeline(config, pipeline), held)
    plain = datasets.to_dict()
    screen.show({"pipeline": pipeline, **plain}, *_shown(pipeline, plain))


def _millis(text: str, option: str) -> Millis:
    return to_millis(parse_moment(text, option))


def _shown(pipeline: str, plain: dict[str, Any]) -> list[RenderableType]:
    places = [
        (role, each["table"], each["namespace"], each["name"], _version(each))
        for role, key in (("reads", "inputs"), ("writes", "outputs"))
        for each in plain[key]
    ]
    tables: list[RenderableType] = [table(pipeline, ("", "table", "namespace", "name", "version"), places)]
    for output in plain["outputs"]:
        facet = output["facets"].get("columnLineage")
        if facet is not None:
            rows = [(name, *cells) for name, column in facet["fields"].items() for cells in _origins(column)]
            rows += [("every row", *cells) for cells in _origins({"inputFields": facet["dataset"]})]
            tables.append(table(f"columns of {output['table']}", ("column", "from", "by", ""), rows))
    return tables


def _origins(column: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (each["field"], by["subtype"].lower().replace("_", " "), by.get("description", ""))
        for each in column["inputFields"]
        for by in each["transformations"]
    ]


def _version(dataset: dict[str, Any]) -> str:
    version = dataset["facets"].get("version")
    return "" if version is None else str(version["datasetVersion"])
