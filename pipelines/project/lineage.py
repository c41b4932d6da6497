"""The datasets that a pipeline reads and writes, and the source columns of each result column. Starts no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.observe.lineage.datasets import datasets_of_check, datasets_of_driver
from tidegate.pipelines.observe.report.answer import Answer, Grid, Shown
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class Lineage(Answer):
    """Datasets by their OpenLineage names, with their facets.

    Args:
        inputs: the datasets that are read.
        outputs: the datasets that are written.
    """

    pipeline: str
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]

    def shown(self) -> Iterator[Shown]:
        columns, unknown = ("", "table", "namespace", "name", "version"), {"datasetVersion": ""}
        places = [
            (role, *(each[name] for name in columns[1:4]), each["facets"].get("version", unknown)["datasetVersion"])
            for role, datasets in (("reads", self.inputs), ("writes", self.outputs))
            for each in datasets
        ]
        yield Grid(self.pipeline, columns, places)
        for output in self.outputs:
            facet = output["facets"].get("columnLineage")
            if facet is not None:
                rows = [(name, *cells) for name, column in facet["fields"].items() for cells in _origins(column)]
                rows += [("every row", *cells) for cells in _origins({"inputFields": facet["dataset"]})]
                yield Grid(f"columns of {output['table']}", ("column", "from", "by", ""), rows)


def lineage(
    config: Config, pipeline: str, command: Literal["drive", "quality"], since: Millis | None, until: Millis | None
) -> Lineage:
    config.entry(pipeline)
    if until is not None and since is None:
        raise UsageError("--until: give --since too")
    if command == "quality":
        return Lineage(pipeline, **datasets_of_check(config, pipeline))
    return Lineage(pipeline, **datasets_of_driver(config, load_pipeline(config, pipeline), since, until))


def _origins(column: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (each["field"], by["subtype"].lower().replace("_", " "), by.get("description", ""))
        for each in column["inputFields"]
        for by in each["transformations"]
    ]
