"""The datasets that a pipeline reads and writes, and the source columns of each result column. Starts no JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.observe.lineage.datasets import datasets_of_check, datasets_of_driver
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import OBJECT, TEXT, Column, Columns, Table
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class Lineage(Facts):
    """Datasets by their OpenLineage names, with their facets.

    Args:
        inputs: the datasets that are read.
        outputs: the datasets that are written.
    """

    pipeline: str
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]

    facts: ClassVar[Columns] = (Column("pipeline", TEXT), Column("inputs", OBJECT), Column("outputs", OBJECT))
    holds: ClassVar[Mapping[str, Columns]] = {
        "datasets": tuple(Column(name, TEXT) for name in ("role", "table", "namespace", "name", "version")),
        "columns": tuple(Column(name, TEXT) for name in ("table", "column", "from", "by", "description")),
    }

    def tables(self) -> Iterator[Table]:
        datasets = [
            {"role": role, **each, "version": each["facets"].get("version", {}).get("datasetVersion", "")}
            for role, inputs_or_outputs in (("reads", self.inputs), ("writes", self.outputs))
            for each in inputs_or_outputs
        ]
        yield Table("datasets", self.holds["datasets"], datasets, self.pipeline)
        columns = [row for output in self.outputs for row in _origins(output)]
        yield Table("columns", self.holds["columns"], columns, "columns", is_shown=bool(columns))


def lineage(
    config: Config, pipeline: str, command: Literal["drive", "quality"], since: Millis | None, until: Millis | None
) -> Lineage:
    config.entry(pipeline)
    if until is not None and since is None:
        raise UsageError("--until: give --since too")
    if command == "quality":
        return Lineage(pipeline, **datasets_of_check(config, pipeline))
    return Lineage(pipeline, **datasets_of_driver(config, load_pipeline(config, pipeline), since, until))


def _origins(output: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Yield a row for each source column of each column of a dataset."""
    if (facet := output["facets"].get("columnLineage")) is None:
        return
    columns = [*((name, column["inputFields"]) for name, column in facet["fields"].items())]
    for name, inputs in [*columns, ("every row", facet["dataset"])]:
        for each in inputs:
            for by in each["transformations"]:
                yield {
                    "table": output["table"],
                    "column": name,
                    "from": each["field"],
                    "by": by["subtype"].lower().replace("_", " "),
                    "description": by.get("description", ""),
                }
