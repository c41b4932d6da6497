"""The keys that a condition on rows selects for an erasure: those whose rows all belong to the person in question.

A key may have rows of other people, such as a day or a shop. It is not erased for one of them, because one person's
rows can't be removed from a sum. Such keys are listed, and stay.

    user_id = 7    ride 1: rows of user 7 only       selected
                   ride 2: rows of users 7 and 8     shared: stays
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import late, rejects, results, state
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.event_columns import plain
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.epoch.file_slices import of_version
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.snapshots.head import Snapshot, state_rows
from tidegate.pipelines.ledger.tables.keys import key_columns, text_of_value
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.project.where import columns_in, meets
from tidegate.pipelines.storage.warehouse import arrow_schema, read_table
from tidegate.windowing.sides import SIDES

_Texts = tuple[str, ...]


@dataclass(slots=True)
class SelectedKeys:
    """The keys that a condition selects, each as texts.

    Args:
        keys: keys whose known rows all meet the condition.
        shared: keys that also have rows that don't meet it.
        searched: the tables that have the columns of the condition.
        not_searched: the reason why a source was not searched, by source.
    """

    keys: list[_Texts] = field(default_factory=list)
    shared: list[_Texts] = field(default_factory=list)
    searched: list[str] = field(default_factory=list)
    not_searched: dict[str, str] = field(default_factory=dict)


def keys_where(config: Config, tables: PipelineTables, pipeline: Pipeline, head: Snapshot, where: str) -> SelectedKeys:
    """Return the keys that a condition selects in the tables of a pipeline and in the newest version of its sources.

    A row whose columns are null neither meets the condition nor makes its key a shared one.

    Raises:
        UsageError: the text is not a condition, or no table has its columns.
    """
    selected, found = SelectedKeys(), dict[_Texts, list[bool]]()
    if not (names := columns_in(where)):
        raise UsageError(f"where = {where!r} names no column: every key would be erased")
    for table, rows, key in _tables(config, tables, pipeline, head, names, selected):
        if table not in selected.searched:
            selected.searched.append(table)
        are_met = meets(rows, where)
        for is_met, chosen in ((True, rows.filter(are_met)), (False, rows.filter(pc.invert(are_met)))):
            keys = chosen.select(list(key)).group_by(list(key), use_threads=False).aggregate([])
            for values in zip(*(keys[name].to_pylist() for name in key), strict=True):
                found.setdefault(tuple(map(text_of_value, values)), [False, False])[not is_met] = True
    if not selected.searched:
        raise UsageError(
            f"--where {where!r}: neither a table of {pipeline.name} nor its source has the columns {', '.join(names)}"
        )
    for texts, (met, unmet) in found.items():
        if met:
            (selected.shared if unmet else selected.keys).append(texts)
    return selected


def _tables(
    config: Config,
    tables: PipelineTables,
    pipeline: Pipeline,
    head: Snapshot,
    names: Sequence[str],
    selected: SelectedKeys,
) -> Iterator[tuple[str, pa.Table, Sequence[str]]]:
    """Yield the rows of each table that has the columns, with the name of the table and of its key columns."""
    for table in (results.NAME, late.NAME, rejects.NAME):
        handle = tables.newest(table)
        schema = arrow_schema(handle)
        key = key_columns(table, schema, head.key.names, pipeline.derived_key)
        if not key:
            continue
        sides = [each for each in SIDES if each in schema.names and pa.types.is_struct(schema.field(each).type)]
        if set(names) <= set(schema.names):
            yield table, read_table(tables.warehouse, handle, list(dict.fromkeys([*key, *names]))), key
        for side in sides:
            # The rows of a join hold those of both inputs.
            if set(names) <= {*key, *(each.name for each in schema.field(side).type)}:
                rows = read_table(tables.warehouse, handle, [*key, side])
                yield table, _with_fields(rows, side, [name for name in names if name not in key]), key
    if set(names) <= set(head.key.names):
        yield state.NAME, state_rows(tables.warehouse, head, columns=list(head.key.names)), head.key.names
    yield from _sources(config, tables, pipeline, names, head.key.names, selected)


def _with_fields(rows: pa.Table, side: str, names: Sequence[str]) -> pa.Table:
    struct = rows[side].combine_chunks()
    rows = rows.drop_columns([side])
    for name in names:
        rows = rows.append_column(name, pc.struct_field(struct, name))
    return rows


def _sources(
    config: Config,
    tables: PipelineTables,
    pipeline: Pipeline,
    names: Sequence[str],
    key: Sequence[str],
    selected: SelectedKeys,
) -> Iterator[tuple[str, pa.Table, Sequence[str]]]:
    try:
        opened = OpenInput.open(LocalEngine.of(config), tables, pipeline).inputs
    except Refused as error:
        selected.not_searched[pipeline.source.table] = str(error)
        return
    for source in opened:
        bound = source.input
        own = dict(zip(key, bound.input.key, strict=True))
        asked = [own.get(name, name) for name in names]
        if not set(asked) <= set(bound.derived.names):
            continue
        read = list(dict.fromkeys([bound.input.source.timestamp, *own.values(), *asked]))
        try:
            for rows in of_version(source, source.log.head, None).evaluated(None, [read] * len(opened)):
                columns = {name: plain(rows.table[own.get(name, name)]) for name in dict.fromkeys([*key, *names])}
                yield f"source {bound.input.source.table}", pa.table(columns), key
        except Refused as error:
            selected.not_searched[bound.input.source.table] = str(error)
