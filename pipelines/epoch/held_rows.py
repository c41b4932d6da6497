"""Rows of the source that are in tables late and rejects, and which of the rows that went they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.event_columns import STATUS, TIME
from tidegate.pipelines.manifest import Manifest, is_on
from tidegate.pipelines.storage import read_table
from tidegate.pipelines.tables import late, rejects
from tidegate.pipelines.tables.columns import TIMESTAMP, input_rows
from tidegate.pipelines.tables.multisets import surplus
from tidegate.pipelines.tables.pipeline_tables import PipelineTables

USABLE = -1
"""Status of a usable row. The others are numbers of reasons to reject."""

InColumns: TypeAlias = Callable[[pa.Table, Sequence[int]], pa.Table]
"""Returns rows with all columns of the source in the columns by which rows are compared, with the given statuses."""


@dataclass(frozen=True)
class GoneRows:
    """Rows that went from the source.

    Args:
        usable: usable rows that windows may hold.
        late: usable rows that no window holds, because they were late and were not reopened.
        departed: the rows of tables late and rejects that went, by table, with all columns of the table.
    """

    usable: pa.Table
    late: pa.Table
    departed: Mapping[str, pa.Table]

    @classmethod
    def of_no_tables(cls, gone: pa.Table) -> GoneRows:
        """Return rows that went, none of which is in table late or rejects."""
        usable = gone.filter(pc.equal(gone[STATUS], USABLE))
        return cls(usable, usable.slice(0, 0), {})


@dataclass(frozen=True)
class HeldRows:
    """Rows of tables late and rejects that the line of a snapshot put there. Stale rows are left out.

    Args:
        tables: the pipeline's tables, published up to the snapshot.
        bound: the bound pipeline.
        manifest: manifest of the snapshot.
    """

    tables: PipelineTables
    bound: BoundPipeline
    manifest: Manifest

    def separated(self, gone: pa.Table, in_columns: InColumns, names: Sequence[str]) -> GoneRows:
        """Separate rows that went by what holds them.

        Of equal rows, those go first that no window holds: rejected ones, then late ones. Nothing that the pipeline
        reads distinguishes them.

        Args:
            gone: the rows; none of them was judged by the time of its commit, so none is ahead of it.
            in_columns: returns rows of the source in the same columns.
            names: columns to compare.
        """
        if not len(gone):
            return GoneRows.of_no_tables(gone)
        rejected = self._read(rejects.NAME)
        ahead = rejects.REASONS.index(rejects.AHEAD)
        reasons = map(rejects.REASONS.index, rejected["reason"].to_pylist())
        statuses = [USABLE if reason == ahead else reason for reason in reasons]
        is_left, stays = surplus(gone, in_columns(self._inputs(rejects.NAME, rejected), statuses), names)
        rejected = rejected.filter(pa.array(~stays))
        gone = gone.filter(pa.array(is_left))
        gone = gone.filter(pc.equal(gone[STATUS], USABLE))
        late_rows = self._late_near(gone)
        is_open = late.is_open(late_rows)
        waiting, reopened = late_rows.filter(is_open), late_rows.filter(pc.invert(is_open))
        is_of_window, still_waits = surplus(gone, self._in_columns(waiting, in_columns), names)
        usable, was_late = gone.filter(pa.array(is_of_window)), gone.filter(pa.array(~is_of_window))
        _, still_reopened = surplus(usable, self._in_columns(reopened, in_columns), names)
        left = [waiting.filter(pa.array(~still_waits)), reopened.filter(pa.array(~still_reopened))]
        departed = {late.NAME: pa.concat_tables(left), rejects.NAME: rejected}
        return GoneRows(usable, was_late, {table: rows for table, rows in departed.items() if len(rows)})

    def _late_near(self, gone: pa.Table) -> pa.Table:
        """Return the late rows whose windows may hold rows that went. Row groups of other windows are not read."""
        bounds = pc.min_max(gone[TIME])
        first, last = (pa.scalar((bounds[name].as_py() or 0) * 1000, TIMESTAMP) for name in ("min", "max"))
        start, end = pc.field("window_start"), pc.field("window_end")
        rows = self._read(late.NAME, start.is_null() | ((start <= last) & (end >= first)))
        return rows if len(gone) else rows.slice(0, 0)

    def _read(self, table: str, where: pc.Expression | None = None) -> pa.Table:
        is_current = ~pc.field("stale")
        handle = self.tables.look(table)
        rows = read_table(self.tables.warehouse, handle, where=is_current if where is None else is_current & where)
        is_ours = [is_on(self.manifest.line, epoch) for epoch in rows["epoch"].to_pylist()]
        return rows.filter(pa.array(is_ours, pa.bool_()))

    def _inputs(self, table: str, rows: pa.Table) -> pa.Table:
        trailing = {late.NAME: late.TRAILING, rejects.NAME: rejects.TRAILING}[table]
        return input_rows(rows, trailing, self.bound.source, self.bound.renamed.get(table, {}))

    def _in_columns(self, late_rows: pa.Table, in_columns: InColumns) -> pa.Table:
        return in_columns(self._inputs(late.NAME, late_rows), [USABLE] * len(late_rows))
