"""The datasets that a command of a pipeline reads and writes, with their facets, as in an OpenLineage event.

Nothing here starts Spark. If only Spark knows the types of derived columns, the schemas are those of the existing
tables.

Only one driver at a time runs epochs, and each epoch records when it started. So the epochs of a command are those that
started while it held the lease. Rows that a later epoch removed are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs, late, rejects, results, state, windows
from tidegate.pipelines.definition.columns import TIMESTAMP
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.epoch.open_input import bind_to_source, choices_of
from tidegate.pipelines.ledger.lease import read_lease
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.observe.lineage.columns import LineageInput, column_lineage
from tidegate.pipelines.observe.lineage.names import DatasetName, dataset_name
from tidegate.pipelines.sources.base import MissingSource, Source
from tidegate.pipelines.sources.open_source import open_source
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema, path_of, read_table
from tidegate.windowing.time import Millis, from_millis
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


Datasets = dict[str, list[dict[str, Any]]]
"""`inputs` and `outputs`: each a dataset with its namespace, name and facets, and `table`, its name in the project."""


def datasets_of_driver(
    config: Config, pipeline: Pipeline, since: Millis | None = None, until: Millis | None = None
) -> Datasets:
    """Return the datasets of a command that drives a pipeline, such as `backfill` or `stream`.

    For a command that has ended, the output of its epochs is counted, and its source has the version up to which it was
    read: it held the lease from `since` until a time, None if no end was recorded.

    Raises:
        Refused: a source or a table can't be read; the message names it.
    """
    warehouse = warehouse_of(config)
    tables = PipelineTables(warehouse, pipeline.name)
    written = None if since is None else written_by_driver(tables, since, until)
    head = None if since is None else read_snapshot(tables)
    positions = {} if head is None else head.manifest.positions
    inputs: list[LineageInput] = []
    read: list[dict[str, Any]] = []
    for part in pipeline.inputs:
        name = dataset_name(warehouse.path(part.source.table), warehouse.options)
        source: Source | None = None
        with suppress(MissingSource):
            source = open_source(part.source, warehouse)
        position = positions.get(part.source.table)
        facets = _facets(warehouse.path(part.source.table), name)
        if source is not None:
            version = source.head if position is None else position.version
            if written is not None and written.version is not None and not read:
                version = written.version
            facets |= {"schema": schema_facet(source.schema), **_version(version)}
        # An epoch counts the events of both inputs together.
        counts = written is not None and len(pipeline.inputs) == 1
        of_run = {"inputFacets": {"inputStatistics": {"rowCount": written.events}}} if written and counts else {}
        read.append({**name._asdict(), "table": part.source.table, "facets": facets, **of_run})
        names = () if source is None else tuple(source.schema.names)
        inputs.append(LineageInput(part, name, names))
    schemas = _schemas(config, pipeline, tables)
    outputs = [_output(tables, pipeline, inputs, table, schemas, written) for table in tables.with_windows(_WRITTEN)]
    return {"inputs": read, "outputs": outputs}


def datasets_of_check(config: Config, pipeline: str) -> Datasets:
    """Return the datasets of `tidegate quality check`: it reads the pipeline's tables and writes table `quality`.

    The pipeline's code is not needed. The check's result names the versions that it read.
    """
    tables = PipelineTables(warehouse_of(config), pipeline)
    inputs = [_table(tables, table) for table in tables.with_windows(_CHECKED)]
    return {"inputs": inputs, "outputs": [_table(tables, quality.NAME, quality.SCHEMA)]}


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


def _facets(path: str, name: DatasetName) -> dict[str, Any]:
    # A bare local path is not a URI.
    uri = f"file://{path}" if name.namespace == "file" else f"{name.namespace}/{name.name}"
    return {"dataSource": {"name": name.namespace, "uri": uri}}


def _version(version: int) -> dict[str, Any]:
    return {"version": {"datasetVersion": str(version)}} if version >= 0 else {}


def _schemas(config: Config, pipeline: Pipeline, tables: PipelineTables) -> dict[str, pa.Schema]:
    """Return the columns of each table: from the definition, or from the tables if only Spark knows the types."""
    stored = {
        table: arrow_schema(tables.newest(table))
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
) -> dict[str, Any]:
    """Return a table that a driver writes."""
    schema = schemas.get(table)
    dataset = _table(tables, table, schema)
    if schema is not None and (columns := column_lineage(pipeline, inputs, table, schema)) is not None:
        dataset["facets"]["columnLineage"] = columns
    if written is not None:
        dataset["outputFacets"] = {"outputStatistics": written.tables[table]}
    return dataset


def _table(tables: PipelineTables, table: str, schema: pa.Schema | None = None) -> dict[str, Any]:
    """Return one of the pipeline's tables, with its columns and its newest version if it exists."""
    path = tables.path(table)
    name = dataset_name(path, tables.warehouse.options)
    facets = _facets(path, name) | {
        "documentation": {"description": _MEANINGS[table].format(name=tables.pipeline)},
        "storage": {"storageLayer": "delta", "fileFormat": "parquet"},
    }
    if tables.warehouse.exists(path):
        # Other writers may have changed table quality; tidegate checks all other tables when it opens them.
        handle = tables.warehouse.open(path) if table == quality.NAME else tables.newest(table)
        schema = schema or arrow_schema(handle)
        facets |= _version(handle.version())
    if schema is not None:
        facets["schema"] = schema_facet(schema)
    return {**name._asdict(), "table": table, "facets": facets}


@dataclass(frozen=True, slots=True)
class Written:
    """What a command read and wrote.

    Args:
        events: number of rows that it read.
        version: newest version of the first source that it read; None if none of its epochs read one.
        tables: for each table, what it wrote to it, as in OpenLineage's facet `outputStatistics`.
    """

    events: int
    version: int | None
    tables: Mapping[str, dict[str, int]]


def written_by_driver(tables: PipelineTables, since: Millis, until: Millis | None = None) -> Written:
    """Return what a driver wrote while it held the lease; None if the end of that time was not recorded."""
    names = tables.with_windows(PUBLISHED)
    nothing = Written(0, None, {name: _statistics(0, 0, 0) for name in names})
    if not tables.exist:
        return nothing
    if until is None and (row := read_lease(tables)) is not None and row.acquired_at > since:
        # A killed driver records no end, and the next driver already holds the lease.
        until = row.acquired_at
    began = pc.field("started_at") >= _moment(since)
    if until is not None:
        began &= pc.field("started_at") < _moment(until)
    chosen = read_table(tables.warehouse, tables.newest(epochs.NAME), ["epoch", "events_in", "source_version"], began)
    if not len(chosen):
        return nothing
    bounds = pc.min_max(chosen["epoch"]).as_py()
    writes = {name: _written_in(tables, name, bounds["min"], bounds["max"]) for name in names}
    newest = chosen.sort_by([("epoch", "descending")])["source_version"].drop_null()
    return Written(pc.sum(chosen["events_in"]).as_py() or 0, newest[0].as_py() if len(newest) else None, writes)


def _moment(millis: Millis) -> pa.Scalar:
    return pa.scalar(from_millis(millis)).cast(TIMESTAMP)


def _statistics(rows: int, size: int, files: int) -> dict[str, int]:
    return {"rowCount": rows, "size": size, "fileCount": files}


def _written_in(tables: PipelineTables, table: str, first: int, last: int) -> dict[str, int]:
    """Return what a range of epochs wrote to a table. If a file also has other rows, `size` is their share."""
    handle = tables.newest(table)
    rows = size = files = 0
    for file in active_files(handle):
        # A log records no bounds of a column after the first 32.
        oldest, newest = file.get("min.epoch") or 0, file.get("max.epoch") or last + 1
        if newest < first or oldest > last:
            continue
        share = count = file["num_records"]
        if oldest < first or newest > last:
            chosen = (pc.field("epoch") >= first) & (pc.field("epoch") <= last)
            names = [file["path"]]
            share = len(tables.warehouse.read_files(path_of(handle), names, arrow_schema(handle), ["epoch"], chosen))
        rows += share
        size += file["size_bytes"] * share // max(1, count)
        files += share > 0
    return _statistics(rows, size, files)
