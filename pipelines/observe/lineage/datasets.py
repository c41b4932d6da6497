"""The datasets that a command of a pipeline reads and writes, with their facets.

Nothing here starts Spark. If only Spark knows the types of derived columns, the schemas are those of the existing
tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.pipelines.definition import epochs, late, rejects, results, state, windows
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.epoch.open_input import bind_to_source, choices_of
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.lineage.columns import LineageInput, column_uses
from tidegate.pipelines.observe.lineage.names import DatasetName, dataset_name
from tidegate.pipelines.observe.lineage.written import Held, Written, written_by_driver
from tidegate.pipelines.sources.base import MissingSource, Source
from tidegate.pipelines.sources.open_source import open_source
from tidegate.pipelines.storage.warehouse import Warehouse, arrow_schema
from tidegate.windowing.type_names import name_of

_MEANINGS = {
    results.NAME: "Results of pipeline {name}: panes of its windows, or rows of its function",
    windows.NAME: "One row for each current window of pipeline {name}",
    late.NAME: "Rows that arrived too late for pipeline {name}",
    rejects.NAME: "Rows that pipeline {name} can't use",
    epochs.NAME: "One row for each epoch of pipeline {name}",
    quality.NAME: "Outcomes of the checks of pipeline {name}",
    state.NAME: "Snapshots of pipeline {name}",
}
_WRITTEN = (results.NAME, late.NAME, rejects.NAME, epochs.NAME)
_CHECKED = (results.NAME, late.NAME, rejects.NAME, epochs.NAME, state.NAME)


@dataclass(frozen=True, slots=True)
class LineageDataset:
    """A dataset, and the contents of its facets under OpenLineage's names.

    Args:
        name: its name.
        table: name of the table in the project: `results`, or the source as named in the pipeline.
        facets: facets of the dataset.
        of_run: facets about this run: input facets for an input, output facets for an output.
    """

    name: DatasetName
    table: str
    facets: Mapping[str, Any]
    of_run: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Datasets:
    """The datasets that a command reads and writes."""

    inputs: tuple[LineageDataset, ...]
    outputs: tuple[LineageDataset, ...]

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Return the datasets as in an OpenLineage event, with the table in addition to the name."""
        return {
            "inputs": [_plain(dataset, "inputFacets") for dataset in self.inputs],
            "outputs": [_plain(dataset, "outputFacets") for dataset in self.outputs],
        }


def _plain(dataset: LineageDataset, of_run: str) -> dict[str, Any]:
    plain = {**dataset.name.to_dict(), "table": dataset.table, "facets": dict(dataset.facets)}
    return {**plain, of_run: dict(dataset.of_run)} if dataset.of_run else plain


def datasets_of_driver(config: Config, pipeline: Pipeline, held: Held | None = None) -> Datasets:
    """Return the datasets of a command that drives a pipeline, such as `backfill` or `stream`.

    Args:
        config: the project.
        pipeline: the pipeline.
        held: the time for which a command that has ended held the lease: its output is counted, and its source has the
            version up to which it was read. None for a command that is about to start.

    Raises:
        Refused: a source or a table can't be read; the message names it.
    """
    warehouse = warehouse_of(config)
    tables = PipelineTables(warehouse, pipeline.name)
    written = None if held is None else written_by_driver(tables, held)
    head = None if held is None else read_snapshot(tables)
    positions = {} if head is None else head.manifest.positions
    inputs: list[LineageInput] = []
    read: list[LineageDataset] = []
    for part in pipeline.inputs:
        name = dataset_name(warehouse.path(part.source.table), warehouse.options)
        source = _opened(part.source, warehouse)
        position = positions.get(part.source.table)
        facets = _facets(warehouse.path(part.source.table), name)
        if source is not None:
            version = source.head if position is None else position.version
            if written is not None and written.version is not None and not read:
                version = written.version
            facets |= {"schema": schema_facet(source.schema), **_version(version)}
        # An epoch counts the events of both inputs together.
        counts = written is not None and len(pipeline.inputs) == 1
        of_run = {"inputStatistics": {"rowCount": written.events}} if written is not None and counts else {}
        read.append(LineageDataset(name, part.source.table, facets, of_run))
        names = () if source is None else tuple(source.schema.names)
        inputs.append(LineageInput(part, name, names))
    schemas = _schemas(config, pipeline, tables)
    outputs = (_output(tables, pipeline, inputs, table, schemas, written) for table in tables.with_windows(_WRITTEN))
    return Datasets(tuple(read), tuple(outputs))


def datasets_of_check(config: Config, pipeline: str) -> Datasets:
    """Return the datasets of `tidegate quality`: it reads the pipeline's tables and writes table `quality`.

    The pipeline's code is not needed. The check's result names the versions that it read.
    """
    tables = PipelineTables(warehouse_of(config), pipeline)
    inputs = tuple(_table(tables, table) for table in tables.with_windows(_CHECKED))
    outcomes = _table(tables, quality.NAME, quality.SCHEMA)
    return Datasets(inputs, (outcomes,))


def schema_facet(schema: pa.Schema) -> dict[str, Any]:
    """Return the content of OpenLineage's facet `schema`, with types as Spark names them."""
    return {"fields": [_column(each) for each in schema]}


def _column(column: pa.Field) -> dict[str, Any]:
    plain: dict[str, Any] = {"name": column.name, "type": name_of(column.type)}
    if meaning := (column.metadata or {}).get(b"comment"):
        plain["description"] = meaning.decode()
    if pa.types.is_struct(column.type):
        plain |= {"type": "struct", "fields": [_column(each) for each in column.type]}
    return plain


def _opened(description: Any, warehouse: Warehouse) -> Source | None:
    with suppress(MissingSource):
        return open_source(description, warehouse)
    return None


def _facets(path: str, name: DatasetName) -> dict[str, Any]:
    # A local path alone is not a URI.
    uri = f"file://{path}" if name.namespace == "file" else f"{name.namespace}/{name.name}"
    return {"dataSource": {"name": name.namespace, "uri": uri}}


def _version(version: int) -> dict[str, Any]:
    return {"version": {"datasetVersion": str(version)}} if version >= 0 else {}


def _schemas(config: Config, pipeline: Pipeline, tables: PipelineTables) -> dict[str, pa.Schema]:
    """Return the columns of each table: from the definition, or from the tables if only Spark knows the types."""
    stored = {
        table: arrow_schema(tables.look(table))
        for table in tables.with_windows(_WRITTEN)
        if tables.warehouse.exists(tables.path(table))
    }
    with suppress(MissingSource):
        if all(choice.derived is not None for choice in choices_of(config, pipeline)):
            return stored | bind_to_source(config, pipeline).table_schemas
    return stored


def _output(
    tables: PipelineTables,
    pipeline: Pipeline,
    inputs: Sequence[LineageInput],
    table: str,
    schemas: Mapping[str, pa.Schema],
    written: Written | None,
) -> LineageDataset:
    """Return a table that a driver writes."""
    schema = schemas.get(table)
    plain = _table(tables, table, schema)
    uses = None if schema is None else column_uses(pipeline, inputs, table, schema)
    facets = plain.facets if uses is None else {**plain.facets, "columnLineage": uses.to_facet()}
    of_run = {} if written is None else {"outputStatistics": written.tables[table].to_facet()}
    return LineageDataset(plain.name, table, facets, of_run)


def _table(tables: PipelineTables, table: str, schema: pa.Schema | None = None) -> LineageDataset:
    """Return one of the pipeline's tables, with its columns and its newest version if it exists."""
    path = tables.path(table)
    name = dataset_name(path, tables.warehouse.options)
    facets = _facets(path, name) | {
        "documentation": {"description": _MEANINGS[table].format(name=tables.pipeline)},
        "storage": {"storageLayer": "delta", "fileFormat": "parquet"},
    }
    if tables.warehouse.exists(path):
        # Other writers may have changed table quality; tidegate checks all other tables when it opens them.
        handle = tables.warehouse.open(path) if table == quality.NAME else tables.look(table)
        schema = schema or arrow_schema(handle)
        facets |= _version(handle.version())
    if schema is not None:
        facets["schema"] = schema_facet(schema)
    return LineageDataset(name, table, facets)
